"""Receivers for tests: small servers that answer as they are told."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from dask_otel.export.grpc import METHOD

#: How late (s) a busy machine may be; what hangs in these tests does so for ten times as long.
LATE = 3.0


def wait_until(condition: Callable[[], object], timeout: float = 10.0) -> None:
    """Return when the condition holds; fail when it does not in time."""
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, f"not within {timeout} s: {condition}"
        time.sleep(0.002)


def names(body: bytes) -> list[str]:
    """The names of the spans in a request."""
    request = ExportTraceServiceRequest.FromString(body)
    return [
        span.name for block in request.resource_spans for scope in block.scope_spans for span in scope.spans
    ]


def partial(rejected: int, message: str) -> bytes:
    """An answer that takes a part of a request."""
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = rejected
    answer.partial_success.error_message = message
    return answer.SerializeToString()


# -- HTTP ----------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What an HTTP receiver answers; ``hang`` never does, ``drop`` closes the connection instead."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    drop: bool = False


@dataclass
class Request:
    """What an HTTP receiver was sent."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def unzipped(self) -> bytes:
        return gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body


class HttpReceiver:
    """Answers by the list, then by its last item."""

    def __init__(self, answers: list[Answer]) -> None:
        self.answers = answers
        self.requests: list[Request] = []
        self.released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver.handle(self)

            do_CONNECT = do_POST

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1/traces"

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(Request(handler.path, headers, body, id(handler.connection)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer.hang:
            self.released.wait(30)
        if answer.hang or answer.drop:
            handler.close_connection = True
            return
        handler.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(answer.body)

    def spans(self) -> list[str]:
        return [name for request in list(self.requests) for name in names(request.unzipped)]


@contextmanager
def http_receiver(*answers: Answer, context: Any = None) -> Iterator[HttpReceiver]:
    receiver = HttpReceiver(list(answers) or [Answer()])
    if context is not None:
        receiver.server.socket = context.wrap_socket(receiver.server.socket, server_side=True)
        receiver.url = receiver.url.replace("http://127.0.0.1", "https://localhost")
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join(10)


@contextmanager
def silent_socket(accept: bool = False) -> Iterator[int]:
    """The port of a socket that listens and never reads; its connections are made by the system."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


# -- gRPC ----------------------------------------------------------------------------------------------------


class GrpcReceiver:
    """Calls ``behave(context)`` for each request and answers what it returns."""

    def __init__(self, behave: Callable[[grpc.ServicerContext], bytes], credentials: Any) -> None:
        self.requests: list[bytes] = []
        self.metadata: list[dict[str, Any]] = []
        self.behave = behave
        self.released = threading.Event()
        self.server = grpc.server(ThreadPoolExecutor(4))
        method = grpc.unary_unary_rpc_method_handler(self.handle)
        service, name = METHOD.strip("/").split("/")
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: method}),))
        if credentials is None:
            self.port = self.server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self.server.add_secure_port("127.0.0.1:0", credentials)

    def handle(self, body: bytes, context: grpc.ServicerContext) -> bytes:
        self.requests.append(body)
        self.metadata.append(dict(context.invocation_metadata()))
        return self.behave(context)


@contextmanager
def grpc_receiver(
    behave: Callable[[grpc.ServicerContext], bytes] = lambda context: b"", credentials: Any = None
) -> Iterator[GrpcReceiver]:
    receiver = GrpcReceiver(behave, credentials)
    receiver.server.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        receiver.server.stop(0).wait(10)
