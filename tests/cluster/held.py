"""What dask-otel holds in this process: bytes by where they were allocated, objects by their type, and how deep a model is."""

from __future__ import annotations

import gc
import os
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FunctionType, MethodType, ModuleType
from typing import Any

import dask_otel

_OURS = os.path.dirname(dask_otel.__file__) + os.sep


@contextmanager
def drain() -> Iterator[str]:
    """A receiver that keeps nothing; its endpoint."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Drain)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class _Drain(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nothing is said."""


@contextmanager
def tracing() -> Iterator[None]:
    """Remember where memory is allocated."""
    tracemalloc.start(2)
    try:
        yield
    finally:
        tracemalloc.stop()


def allocated() -> Counter[str]:
    """Bytes that lines of ours have allocated while `tracing` and that are still held, by file and line."""
    gc.collect()
    by_frames: Counter[tuple[tuple[str, int], ...]] = Counter()
    # Not by way of its public objects: there are a million traces.
    for _, bytes_, frames, *_ in tracemalloc.take_snapshot().traces._traces:  # type: ignore[attr-defined]
        by_frames[frames] += bytes_
    held: Counter[str] = Counter()
    for frames, total in by_frames.items():
        # What a named tuple's own constructor makes, whose code is in no file, is its caller's.
        file, line = next((frame for frame in frames if not frame[0].startswith("<")), ("", 0))
        # A log of pauses is read once a second, and bounded; a request is held while it is sent.
        if file.startswith(_OURS) and not file.endswith(("gc_pauses.py", "http.py")):
            held[f"{file.removeprefix(_OURS)}:{line}"] += total
    return held


def objects() -> Counter[str]:
    """How many objects of our classes there are, by class."""
    gc.collect()
    found: Counter[str] = Counter()
    for one in gc.get_objects():
        cls = type(one)
        if str(getattr(cls, "__module__", "")).startswith("dask_otel"):
            found[f"{cls.__module__}.{cls.__qualname__}"] += 1
    return found


def lengths(root: object, name: str) -> Counter[str]:
    """How much is in each container that can be reached from ``root`` by way of ours, by its path."""
    found: Counter[str] = Counter()
    _walk(root, name, lambda path, one: found.update({path: len(one)}) if hasattr(one, "__len__") else None)
    return found


def size(root: object) -> int:
    """Bytes of all that can be reached from ``root`` by way of ours; keys, text and whole numbers are somebody else's."""
    sizes: list[int] = []
    _walk(root, "", lambda path, one: sizes.append(sys.getsizeof(one)))
    return sum(sizes)


_CONTAINERS = (dict, list, tuple, set, frozenset)
_NOT_OURS = (type, ModuleType, FunctionType, MethodType)


def _walk(root: object, name: str, see: Callable[[str, Any], object]) -> None:
    seen: set[int] = set()
    left: list[tuple[str, object]] = [(name, root)]
    while left:
        path, one = left.pop()
        if id(one) in seen or isinstance(one, _NOT_OURS):
            continue
        ours = type(one).__module__.startswith("dask_otel")
        if not (ours or isinstance(one, (*_CONTAINERS, float)) or type(one).__module__ == "collections"):
            continue
        seen.add(id(one))
        see(path, one)
        if isinstance(one, Mapping):
            left += [(f"{path}[]", value) for value in list(one.values())]
        elif hasattr(one, "__iter__") and not isinstance(one, Iterator):
            left += [(f"{path}[]", value) for value in list(one)]
        if ours:
            left += [(f"{path}.{name}", value) for name, value in _attributes(one)]


def _attributes(one: object) -> list[tuple[str, object]]:
    slots = [name for cls in type(one).__mro__ for name in getattr(cls, "__slots__", ())]
    found = {name: getattr(one, name) for name in slots if hasattr(one, name) and name != "__weakref__"}
    return list({**found, **getattr(one, "__dict__", {})}.items())
