"""Bytes on the wire and CPU per span, by compression: why requests are compressed as they are.

Spans as a worker sends them, for each task one with fifteen attributes and below it three activity spans, go over HTTP to a
server in another process, which counts what comes: bodies and headers. A request holds the spans of `--attempts` tasks. Each
way makes the same spans and takes its turn in each round. CPU is of all threads of this process: *all* of it from a span's
making until the answer, of that *compressing* alone, timed over the same bodies once more. Medians over the rounds, with quartiles.

zlib is what Python has; isal (ISA-L) is what dask-otel uses where it is installed. The SDK's rows are its own exporter behind a
``BatchSpanProcessor`` as it comes, 512 spans a request; its gzip is zlib at level 9.

    python benchmarks/wire.py --rounds 7
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import quantiles
from typing import Any, NamedTuple

import pipeline
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pipeline import SPANS, Attempts, Task, make_tasks

from dask_otel.export import http
from dask_otel.export.http import HttpSender
from dask_otel.settings import Otlp

try:
    from isal import isal_zlib
except ImportError:
    isal_zlib = None

#: A server that answers a GET with the bytes of all requests so far.
COUNTER = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    total = 0
    def do_POST(self):
        length = int(self.headers["content-length"])
        self.rfile.read(length)
        head = sum(len(key) + len(value) + 4 for key, value in self.headers.items())
        Handler.total += len(self.raw_requestline) + head + 2 + length
        self.answer(b"")
    def do_GET(self):
        self.answer(str(Handler.total).encode())
    def answer(self, body):
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class Taken(NamedTuple):
    """Of one round of one way, per span: bytes on the wire, CPU seconds, of them those of compressing."""

    size: float
    cpu: float
    compressing: float


@contextmanager
def counter() -> Iterator[str]:
    """The URL of a server that counts."""
    started = subprocess.Popen([sys.executable, "-c", COUNTER], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    try:
        yield f"http://127.0.0.1:{started.stdout.readline().strip()}"
    finally:
        started.terminate()
        started.wait(10)


def received(url: str) -> int:
    """Bytes so far."""
    with urllib.request.urlopen(url) as answer:
        return int(answer.read())


def deflater(module: Any, level: int) -> Callable[[bytes], bytes]:
    """Gzip of one of the modules at this level."""

    def compress(body: bytes) -> bytes:
        compressor = module.compressobj(level, module.DEFLATED, 31)
        return bytes(compressor.compress(body) + compressor.flush())

    return compress


def as_it_is(body: bytes) -> bytes:
    return body


class Keeping(HttpSender):
    """Keeps the bodies that it sends, for one more compression that is timed."""

    def __init__(self, otlp: Otlp) -> None:
        super().__init__(otlp)
        self.bodies: list[bytes] = []

    def send(self, body: bytes, spans: int) -> Any:
        self.bodies.append(body)
        return super().send(body, spans)


class Ours(Attempts):
    """Our pipeline, with requests sent, compressed so."""

    def __init__(self, url: str, compress: Callable[[bytes], bytes]) -> None:
        super().__init__(False)
        self._compress = compress
        kind = "none" if compress is as_it_is else "gzip"
        self._sender = Keeping(Otlp(endpoint=f"{url}/v1/traces", compression=kind))
        self._pipeline._sinks[0]._sender = self._sender  # type: ignore[attr-defined]

    def run(self, tasks: Sequence[Task]) -> None:
        self._sender.bodies.clear()
        kept = http.compress
        http.compress = lambda body, compression: self._compress(body)
        try:
            super().run(tasks)
        finally:
            http.compress = kept

    def compressing(self) -> float:
        """CPU seconds of compressing what was sent last."""
        before = time.thread_time()
        for body in self._sender.bodies:
            self._compress(body)
        return time.thread_time() - before


class Sdk(pipeline.Sdk):
    """The SDK's way, with its own exporter."""

    def __init__(self, url: str, compression: Compression) -> None:
        super().__init__(False)
        self._provider.shutdown()
        self._provider = TracerProvider(resource=Resource(dict(pipeline.RESOURCE)), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=f"{url}/v1/traces", compression=compression)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(*pipeline.SCOPE)

    def compressing(self) -> float:
        return float("nan")


def make_ways(url: str) -> dict[str, Ours | Sdk]:
    ways: dict[str, Ours | Sdk] = {"none": Ours(url, as_it_is)}
    for level in (1, 6, 9):
        ways[f"gzip {level}, zlib"] = Ours(url, deflater(zlib, level))
    for level in range(4) if isal_zlib is not None else ():
        ways[f"gzip {level}, isal"] = Ours(url, deflater(isal_zlib, level))
    ways["SDK, none"] = Sdk(url, Compression.NoCompression)
    ways["SDK, gzip"] = Sdk(url, Compression.Gzip)
    return ways


def take(way: Ours | Sdk, tasks: Sequence[Task], url: str) -> Taken:
    gc.collect()
    size, cpu, spans = received(url), time.process_time(), SPANS * len(tasks)
    way.run(tasks)
    cpu = time.process_time() - cpu
    return Taken((received(url) - size) / spans, cpu / spans, way.compressing() / spans)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tasks", type=int, default=2_550, help="of a round")
    parser.add_argument("--attempts", type=int, default=pipeline.BURST, help="tasks of a request of ours")
    arguments = parser.parse_args()
    pipeline.BURST = arguments.attempts
    tasks = make_tasks(arguments.tasks)
    gc.freeze()
    with counter() as url:
        ways = make_ways(url)
        rounds = []
        for number in range(arguments.rounds + 1):
            order = list(ways.items())
            if number % 2:
                order.reverse()
            taken = {name: take(way, tasks, url) for name, way in order}
            if number:  # The first warms up.
                rounds.append(taken)
                print(".", end="", flush=True)
        for way in ways.values():
            way.close()
    print()
    report(rounds, list(ways), arguments)


def report(rounds: list[dict[str, Taken]], ways: list[str], arguments: argparse.Namespace) -> None:
    print(
        f"{SPANS * arguments.tasks} spans a round, {SPANS * arguments.attempts} a request of ours, ", end=""
    )
    print(f"{len(rounds)} rounds of each, alternating; per span\n")
    print(
        f"{'':<16}{'bytes':>9}{'CPU, all, µs':>14}{'quartiles':>18}{'compressing, µs':>18}{'quartiles':>18}"
    )
    for name in ways:
        (_, size, _), cpu, compressing = (
            quantiles([taken[name][index] for taken in rounds], n=4) for index in range(3)
        )
        print(f"{name:<16}{size:>9.1f}{told(cpu, 14)}", end="")
        print(told(compressing, 18) if compressing[1] == compressing[1] else "")


def told(found: Sequence[float], width: int) -> str:
    low, middle, high = (seconds * 1e6 for seconds in found)
    return f"{middle:>{width}.2f}{low:>9.2f} – {high:<6.2f}"


if __name__ == "__main__":
    main()
