"""The client's seam: submissions and waiting calls of `distributed.Client`, as calls to a listener.

Rules
-----
1. The class is wrapped once a process, while anybody listens; a client that nobody listens to is not touched.
2. A submission's context is annotated when the graph is built already, so that fusion is not disturbed.
3. Calls within calls (``compute`` gathers, ``map`` with batches maps) are one call: the outermost.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import dask
from distributed import Client
from opentelemetry.context import attach, create_key, detach, get_value, set_value

from dask_otel import guard, names
from dask_otel.guard import Guard
from dask_otel.records import CLIENT, PRODUCER
from dask_otel.seam import ANNOTATION, HERE, Wraps, actors, last_said

#: Which call we are in. In OpenTelemetry's context, since each task starts with a context of its own: a task that
#: waits in a call secedes there, and what its worker starts next would find itself in that call.
_INSIDE = create_key("dask-otel-operation")


class Listener(Protocol):
    """What a client's shell must offer."""

    guard: Guard

    def call(self, name: str, operation: str, kind: int) -> AbstractContextManager[object]:
        """A span around a call, current in it; kind is OTLP's number."""

    def submission(self, operation: str) -> object | None:
        """What goes with a graph that is submitted now; ``None`` if nothing does."""


_listeners: WeakKeyDictionary[Client, Listener] = WeakKeyDictionary()
_everywhere: list[Listener] = []
_wraps = Wraps()


def listen(client: Client, listener: Listener) -> None:
    """Listen to one client."""
    _install()
    _listeners[client] = listener


def forget(client: Client) -> None:
    """Listen to it no more."""
    _listeners.pop(client, None)
    _uninstall()


def listen_everywhere(listener: Listener) -> None:
    """Listen to the clients of this process that nobody listens to in particular: those of tasks on a worker."""
    _install()
    _everywhere.append(listener)


def forget_everywhere(listener: Listener) -> None:
    """No more."""
    if listener in _everywhere:
        _everywhere.remove(listener)
    _uninstall()


def of_worker(client: Client) -> bool:
    """Whether it is the client that a worker makes for its tasks, in a process where we listen to those."""
    return bool(_everywhere) and client.id.startswith("Client-worker-")


def running() -> list[Client]:
    """The clients of this process that are connected."""
    return [client for client in Client._instances if client.status == "running"]


def cluster_id(client: Client) -> str | None:
    """The scheduler's id."""
    return (client._scheduler_identity or {}).get("id")


async def scheduler_version(client: Client) -> object:
    """The version of dask-otel that the client's scheduler runs; ``None`` if it does not."""
    scheduler: Any = client.scheduler
    return last_said(await scheduler.events(topic=HERE)).get("version")


def scheduler_address(client: Client) -> str:
    """Where the client's scheduler is."""
    scheduler: Any = client.scheduler
    return str(scheduler.address)


def in_its_loop(client: Client, function: Callable[[Client], Awaitable[None]]) -> None:
    """Call it soon, from any thread."""
    loop: Any = client.loop
    loop.add_callback(function, client)


def listening(client: Client) -> Listener | None:
    """Who listens to a client in particular."""
    return _listeners.get(client)


def _listener(client: Client) -> Listener | None:
    return _listeners.get(client) or (_everywhere[0] if _everywhere else None)


_CALLS = (
    ("get", names.COMPUTE, names.OP_COMPUTE, CLIENT),
    ("compute", names.COMPUTE, names.OP_COMPUTE, PRODUCER),
    ("persist", names.PERSIST, names.OP_PERSIST, PRODUCER),
    ("map", names.MAP, names.OP_MAP, PRODUCER),
    ("gather", names.GATHER, names.OP_GATHER, CLIENT),
)
_CALLS_OF_CLIENTS = "calls of clients"
_installed = False


def _install() -> None:
    global _installed
    if _installed:
        return
    missing = "clients of this process have no spans, and what they submit is below none"
    guard.PROCESS.part(missing, _take_off, _CALLS_OF_CLIENTS, "_graph_to_futures")
    try:
        for method, name, operation, kind in _CALLS:
            _wraps.attribute(Client, method, _wrap_call(getattr(Client, method), name, operation, kind))
        _wraps.attribute(Client, "_graph_to_futures", _wrap_submission(Client._graph_to_futures))
        actors.install_callers(_wraps)
    except BaseException:
        _wraps.undo()
        raise
    _installed = True


def _uninstall() -> None:
    if not _listeners and not _everywhere:
        _take_off()


def _take_off() -> None:
    global _installed
    _installed = False
    _wraps.undo()


def _inside() -> str:
    return str(get_value(_INSIDE) or "")


def _wrap_call(original: Callable[..., Any], name: str, operation: str, kind: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Client, *args: Any, **kwargs: Any) -> Any:
        span = None
        try:
            listener = None if _inside() else _listener(self)
            if listener is not None:
                waits = kind == CLIENT if name != names.COMPUTE else kwargs.get("sync", kind == CLIENT)
                span = _Guarded(listener, name, operation, CLIENT if waits else PRODUCER)
        except Exception:
            guard.PROCESS.fault(_CALLS_OF_CLIENTS)
        if span is None:
            return original(self, *args, **kwargs)
        if self.asynchronous and name == names.GATHER:
            return _awaited(span, operation, original(self, *args, **kwargs))
        return _within(span, operation, lambda: original(self, *args, **kwargs))

    return call


class _Guarded(AbstractContextManager["_Guarded"]):
    """A listener's span around a call: its faults stay out of the call."""

    def __init__(self, listener: Listener, name: str, operation: str, kind: int) -> None:
        self._listener = listener
        self._call = (name, operation, kind)
        self._span: AbstractContextManager[object] = nullcontext()

    def __enter__(self) -> _Guarded:
        try:
            span = self._listener.call(*self._call)
            span.__enter__()
            self._span = span
        except Exception:
            self._listener.guard.fault(self._call[0])
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._span.__exit__(*error)
        except Exception as fault:
            if fault is not error[1]:
                self._listener.guard.fault(self._call[0])


def _within(span: AbstractContextManager[object], operation: str, call: Callable[[], Any]) -> Any:
    token = attach(set_value(_INSIDE, operation))
    try:
        with span:
            return call()
    finally:
        detach(token)


async def _awaited(span: AbstractContextManager[object], operation: str, result: Awaitable[Any]) -> Any:
    token = attach(set_value(_INSIDE, operation))
    try:
        with span:
            return await result
    finally:
        detach(token)


def _wrap_submission(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _graph_to_futures(self: Client, *args: Any, **kwargs: Any) -> Any:
        listener, annotation = None, None
        try:
            listener = _listener(self)
            if listener is not None:
                annotation = listener.submission(_inside())
        except Exception:
            (guard.PROCESS if listener is None else listener.guard).fault("_graph_to_futures")
        if annotation is None:
            return original(self, *args, **kwargs)
        with dask.annotate(**{ANNOTATION: annotation}):
            return original(self, *args, **kwargs)

    return _graph_to_futures
