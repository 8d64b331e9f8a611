"""Sends requests to an OTLP receiver over HTTP, on one connection that is kept.

Rules
-----
1. One thread sends, any thread may close; a send that hangs then returns.
2. Whether the receiver can have had the whole request is decided by where it failed: until the last byte was
   handed to the system, `RETRY`; after it, `UNKNOWN`.
3. An answer of 429, 502, 503 or 504 is `RETRY`, any other but 2xx `REJECTED`; redirects are not followed.
4. Headers never show in a reason.

Source: https://opentelemetry.io/docs/specs/otlp/#otlphttp.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from dask_otel.export import outcome
from dask_otel.export.endpoint import proxy_for, proxy_headers, request_headers, tls_context
from dask_otel.export.outcome import REJECTED, RETRY, UNKNOWN, Outcome
from dask_otel.settings import Otlp

try:
    from isal import isal_zlib as deflate
except ImportError:  # Not every platform has it.
    import zlib as deflate  # type: ignore[no-redef]

_RETRYABLE = frozenset({429, 502, 503, 504})
#: Statuses of a server that has nothing to take telemetry at that path.
_ELSEWHERE = frozenset({404, 405})

#: zlib's number for 32 kB of window after a header of each kind.
_WINDOWS = {"gzip": 31, "deflate": 15}


class HttpSender:
    """Sends bodies to ``otlp.endpoint``.

    Raises
    ------
    ValueError
        The endpoint is no HTTP URL, or a proxy is of a kind that is not supported.
    OSError
        A file of certificates cannot be read.
    """

    def __init__(self, otlp: Otlp) -> None:
        self._url = urlsplit(otlp.endpoint)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise ValueError("the OTLP endpoint must be a URL such as http://localhost:4318/v1/traces")
        self._timeout = otlp.timeout
        self._compression = otlp.compression
        self._tls = tls_context(otlp) if self._url.scheme == "https" else None
        self._proxy = proxy_for(otlp.endpoint)
        self._headers = request_headers(otlp, self._url)
        self._connection: HTTPConnection | None = None
        # A second descriptor of the connection's socket, there from before it connects until it is dropped:
        # to shut it down wakes whoever waits on the first, within a TLS handshake too.
        self._handle: socket.socket | None = None
        self._sending = Lock()
        self._closed = False
        self._answered = False

    def send(self, body: bytes, spans: int) -> Outcome:
        """Send one request and wait for its answer."""
        with self._sending:
            try:
                return self._send(compress(body, self._compression))
            finally:
                if self._closed:
                    self._drop()

    def close(self) -> None:
        """Give up: a send that waits returns soon, later ones fail. Callable from any thread."""
        self._closed = True
        if self._sending.acquire(blocking=False):
            self._drop()
            self._sending.release()
        elif (handle := self._handle) is not None:
            _abort(handle)

    def _send(self, data: bytes) -> Outcome:
        try:
            connection = self._connected()
        except (OSError, HTTPException, ValueError) as error:  # ValueError: a host that is none.
            self._drop()
            return Outcome(RETRY, f"no connection: {_told(error)}")
        try:
            connection.request("POST", self._target(), body=data, headers=self._headers)
        except (OSError, HTTPException) as error:
            return self._cut_short(connection, error)
        try:
            return self._answer(connection)
        except (OSError, HTTPException) as error:
            self._drop()
            return Outcome(UNKNOWN, f"sent, but no answer came: {_told(error)}{self._spoken(error)}")

    def _connected(self) -> HTTPConnection:
        """The kept connection, or a new one if the receiver has closed it meanwhile."""
        if self._closed:
            raise ConnectionAbortedError("closed")
        if self._handle is not None and _readable(self._handle):
            self._drop()
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> HTTPConnection:
        at = self._proxy or self._url
        kind: Callable[..., HTTPConnection] = HTTPConnection
        arguments: dict[str, Any] = {"timeout": self._timeout}
        if self._tls is not None:
            kind, arguments["context"] = HTTPSConnection, self._tls
        connection = kind(at.hostname, at.port or (443 if at.scheme == "https" else 80), **arguments)
        if self._proxy is not None and self._tls is not None:
            connection.set_tunnel(self._url.hostname or "", self._url.port or 443, proxy_headers(self._proxy))
        # http.client's own hook: with it the socket can be aborted while it connects.
        connection._create_connection = self._dial  # type: ignore[attr-defined]
        connection.connect()
        return connection

    def _dial(self, address: tuple[str, int], timeout: float, source: object = None) -> socket.socket:
        """`socket.create_connection` with a socket that `close` knows before it connects."""
        failure = OSError(f"{address[0]} has no address")
        for family, kind, protocol, _, where in socket.getaddrinfo(*address, 0, socket.SOCK_STREAM):
            opened = socket.socket(family, kind, protocol)
            try:
                self._keep_handle(opened.dup())
                opened.settimeout(timeout)
                opened.connect(where)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return opened
            except OSError as error:
                opened.close()
                failure = error
        raise failure

    def _keep_handle(self, handle: socket.socket) -> None:
        if self._handle is not None:
            self._handle.close()
        self._handle = handle
        if self._closed:
            raise ConnectionAbortedError("closed")

    def _target(self) -> str:
        path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        if self._proxy is None or self._tls is not None:
            return path
        return f"http://{self._url.netloc.rpartition('@')[2]}{path}"

    def _answer(self, connection: HTTPConnection) -> Outcome:
        response = connection.getresponse()
        self._answered = True
        answer = response.read(outcome.MAX_ANSWER)
        if response.will_close or not response.isclosed():
            self._drop()
        return _judge(response, answer)

    def _spoken(self, error: Exception) -> str:
        """What one that hangs up, or answers what is no HTTP, and never did otherwise, may be."""
        if self._answered or self._closed or isinstance(error, TimeoutError):
            return ""
        return " (a gRPC port does so too: if it is one, set OTEL_EXPORTER_OTLP_PROTOCOL=grpc)"

    def _cut_short(self, connection: HTTPConnection, error: Exception) -> Outcome:
        """The request could not be sent whole; a receiver that closed early may have said why."""
        try:
            if not isinstance(error, TimeoutError):
                return self._answer(connection)
        except (OSError, HTTPException):
            pass
        finally:
            self._drop()
        return Outcome(RETRY, f"the connection broke while the request was sent: {_told(error)}")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        handle, self._handle = self._handle, None
        for opened in (connection, handle):
            if opened is not None:
                opened.close()


def _judge(response: HTTPResponse, answer: bytes) -> Outcome:
    if 200 <= response.status < 300:
        return outcome.delivered(answer)
    said = outcome.status_message(answer) or outcome.text(answer)
    reason = f"HTTP {response.status} {outcome.text(response.reason.encode())}" + (
        f": {said}" if said else ""
    )
    if response.status in _ELSEWHERE:
        reason += " (OTLP's usual path is /v1/traces, which is added to OTEL_EXPORTER_OTLP_ENDPOINT)"
    if response.status in _RETRYABLE:
        return Outcome(RETRY, reason, after=retry_after(response.getheader("Retry-After"), time.time()))
    return Outcome(REJECTED, reason)


def retry_after(header: str | None, now: float) -> float:
    """Seconds to wait by a Retry-After header, which holds seconds or a date; 0 where it says nothing.

    Examples
    --------
    >>> retry_after("7", now=0.0), retry_after("Thu, 01 Jan 1970 00:01:00 GMT", now=50.0)
    (7.0, 10.0)
    """
    if header is None:
        return 0.0
    try:
        return (
            float(int(header))
            if header.strip().isdecimal()
            else parsedate_to_datetime(header).timestamp() - now
        )
    except (ValueError, TypeError, OverflowError):
        return 0.0


def compress(body: bytes, compression: str) -> bytes:
    """A body as it is sent, at level 1: zlib's default takes a third more CPU for a tenth fewer bytes.

    ISA-L takes about a seventh of the CPU that zlib takes, for as many bytes.
    """
    if compression not in _WINDOWS:
        return body
    compressor = deflate.compressobj(1, deflate.DEFLATED, _WINDOWS[compression])
    return bytes(compressor.compress(body) + compressor.flush())


def _readable(idle: socket.socket) -> bool:
    """Whether an idle connection has something to read, which can only be that the receiver closed it."""
    try:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(idle, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([idle], [], [], 0)[0])
    except (OSError, ValueError):
        return True


def _abort(handle: socket.socket) -> None:
    with suppress(OSError):
        handle.shutdown(socket.SHUT_RDWR)


def _told(error: BaseException) -> str:
    return outcome.text(f"{type(error).__name__}: {error}".encode(errors="replace"))
