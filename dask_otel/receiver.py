"""An OTLP/HTTP receiver in this process, for the demo and for tests.

Rules
-----
1. It listens on 127.0.0.1 only, and keeps in memory whatever it is sent: not for use in production.
2. A request is kept before it is answered; its spans are there when the sender has its 200.
3. When `Receiver.close` returns nothing listens any more, and connections that were open are cut.
"""

from __future__ import annotations

import socket
import threading
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from dask_otel.decode import decode
from dask_otel.tree import Received, tree

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ACCEPT", "Received", "Receiver", "Request", "Response"]

TRACES, METRICS, LOGS = "/v1/traces", "/v1/metrics", "/v1/logs"
_PROTOBUF = "application/x-protobuf"


class Request(NamedTuple):
    """What was sent: header names in lower case, the body as it was before compression."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class Response(NamedTuple):
    """What is answered; an empty body is OTLP for "all of it was accepted"."""

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = b""


ACCEPT = Response()


class Receiver:
    """Receive spans over OTLP/HTTP (protobuf, gzip or not) while the ``with`` block lasts.

    Metrics and logs are accepted and kept as `requests` only.

    Parameters
    ----------
    respond : callable, optional
        Gives the answer to a `Request`, in the connection's own thread, so it may block. Spans are kept only if
        its status is 200. If it raises, the connection is cut without an answer. A body that is not OTLP is
        answered with 400 without asking it.
    port : int, optional
        0, the default, is one that is free; another lets a receiver come back where one was before.

    Examples
    --------
    >>> import urllib.request
    >>> with Receiver() as receiver:
    ...     url = receiver.endpoint + "/v1/traces"
    ...     headers = {"content-type": "application/x-protobuf"}
    ...     answer = urllib.request.urlopen(urllib.request.Request(url, b"", headers))
    ...     answer.status, receiver.spans(), receiver.requests()[0].path
    (200, [], '/v1/traces')
    """

    def __init__(self, respond: Callable[[Request], Response] | None = None, *, port: int = 0) -> None:
        self._respond = respond or (lambda request: ACCEPT)
        self._changed = threading.Condition()
        self._spans: list[Received] = []
        self._requests: list[Request] = []
        self._server = _Server(("127.0.0.1", port), self)
        self.port: int = self._server.server_address[1]
        #: What `OTEL_EXPORTER_OTLP_ENDPOINT` would be set to.
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and cut what is connected; what was received stays. Closing twice is no error."""
        self._server.shutdown()
        self._server.server_close()
        self._server.cut_connections()
        self._thread.join()

    def spans(self) -> list[Received]:
        """The spans received so far, in the order of arrival."""
        with self._changed:
            return list(self._spans)

    def requests(self) -> list[Request]:
        """The requests so far, those that `respond` refused included."""
        with self._changed:
            return list(self._requests)

    def wait(self, predicate: Callable[[list[Received]], object], timeout: float = 10.0) -> list[Received]:
        """The spans received, as soon as `predicate` of them is true.

        Raises
        ------
        TimeoutError
            When it is not after `timeout` seconds; the message shows what was received.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: predicate(self._spans), timeout):
                raise TimeoutError(_waited_in_vain(self._spans, len(self._requests), timeout))
            return list(self._spans)

    def _receive(self, request: Request) -> Response:
        try:
            spans = decode(request.body) if request.path == TRACES else []
        except DecodeError as error:
            raise _Refused(400, f"not an ExportTraceServiceRequest: {error}") from error
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
        response = self._respond(request)
        if response.status == ACCEPT.status:
            with self._changed:
                self._spans += spans
                self._changed.notify_all()
        return response


def _waited_in_vain(spans: list[Received], requests: int, timeout: float) -> str:
    summary = f"not what was waited for within {timeout:g} s: {len(spans)} spans came in {requests} requests"
    return f"{summary}\n{tree(spans)}".rstrip()


class _Server(ThreadingHTTPServer):
    """A thread for each connection; knows the open ones, so that it can cut them."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], receiver: Receiver) -> None:
        self.receiver = receiver
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def cut_connections(self) -> None:
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # the other side was faster
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: the other side went away, or `respond` raised and the connection is cut."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_POST(self) -> None:
        try:
            response = self.server.receiver._receive(self._read())
        except _Refused as refusal:
            response = Response(refusal.status, {"content-type": "text/plain"}, str(refusal).encode())
        self._answer(response)

    def _read(self) -> Request:
        headers = {key.lower(): value for key, value in self.headers.items()}
        length = int(headers.get("content-length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError(f"{len(body)} bytes came of {length}")
        if self.path not in (TRACES, METRICS, LOGS):
            raise _Refused(404, f"{self.path} is not {TRACES}, {METRICS} or {LOGS}")
        if headers.get("content-type", "").partition(";")[0] != _PROTOBUF:
            raise _Refused(415, f"only {_PROTOBUF} is understood")
        return Request(self.path, headers, _plain(body, headers.get("content-encoding", "identity")))

    def _answer(self, response: Response) -> None:
        headers = {"content-type": _PROTOBUF, **response.headers}
        self.send_response(response.status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(response.body)))
        self.end_headers()
        self.wfile.write(response.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what came is seen in the receiver."""


class _Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def _plain(body: bytes, encoding: str) -> bytes:
    if encoding == "identity":
        return body
    if encoding not in ("gzip", "deflate"):
        raise _Refused(415, f"{encoding} is not gzip, deflate or identity")
    try:
        return zlib.decompress(body, 32 + zlib.MAX_WBITS)
    except zlib.error as error:
        raise _Refused(400, f"the body is not {encoding}: {error}") from error
