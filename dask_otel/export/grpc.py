"""Sends requests to an OTLP receiver over gRPC. grpc itself is imported when a sender is made.

Rules
-----
1. One thread sends, any thread may close; a send that hangs then returns.
2. What the receiver answered is judged by OTLP's list. What gRPC made up itself is `RETRY` where no
   connection was made, `UNKNOWN` where the request may have arrived.
3. `RESOURCE_EXHAUSTED` is `RETRY` only where the receiver says after which time.
4. Headers never show in a reason.

Source: https://opentelemetry.io/docs/specs/otlp/#otlpgrpc.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dask_otel.export import outcome
from dask_otel.export.endpoint import user_agent
from dask_otel.export.outcome import REJECTED, RETRY, UNKNOWN, Outcome
from dask_otel.settings import Otlp

METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
METRICS_METHOD = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"

#: OTLP's retryable codes but RESOURCE_EXHAUSTED, which needs RetryInfo, and DEADLINE_EXCEEDED and CANCELLED,
#: which are made up on this side and say that no answer came.
_RETRYABLE = frozenset({"ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"})

#: gRPC says UNAVAILABLE itself where it found no connection, which is safe to try again, and where one broke
#: with a request on its way, which is not. Only the text tells them, and a receiver's own answer, apart.
_NOT_CONNECTED = re.compile("failed to connect|errors resolving|DNS resolution failed", re.IGNORECASE)
_BROKEN = re.compile(
    "socket closed|stream removed|connection (reset|aborted|closed)|broken pipe|recvmsg|sendmsg|goaway|keepalive",
    re.IGNORECASE,
)

_KEY = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")


class GrpcSender:
    """Sends bodies to ``otlp.endpoint``, a gRPC target or a URL.

    Raises
    ------
    ImportError
        grpcio is not installed.
    ValueError
        A header is none that gRPC allows.
    OSError
        A file of certificates cannot be read.
    """

    def __init__(self, otlp: Otlp, method: str = METHOD) -> None:
        grpc = import_module("grpc")
        self._grpc = grpc
        self._timeout = otlp.timeout
        self._metadata = _metadata(otlp)
        self._channel = _channel(grpc, otlp)
        self._export = self._channel.unary_unary(
            method, request_serializer=bytes, response_deserializer=bytes
        )

    def send(self, body: bytes, spans: int) -> Outcome:
        """Send one request and wait for its answer."""
        try:
            call = self._export.future(body, timeout=self._timeout, metadata=self._metadata)
        except ValueError:  # The channel is closed.
            return Outcome(RETRY, "closed before it was sent")
        try:
            return outcome.delivered(call.result())
        except self._grpc.FutureCancelledError:
            return Outcome(UNKNOWN, "sent, but given up before an answer came")
        except self._grpc.RpcError as error:
            return judge(error)

    def close(self) -> None:
        """Give up: a send that waits returns soon, later ones fail. Callable from any thread."""
        self._channel.close()


def judge(error: Any) -> Outcome:
    """What became of a request whose call ended in this ``grpc.RpcError``."""
    code, said = error.code().name, outcome.text((error.details() or "").encode(errors="replace"))
    reason = f"gRPC {code}" + (f": {said}" if said else "")
    if code in ("DEADLINE_EXCEEDED", "CANCELLED"):
        return Outcome(UNKNOWN, f"sent, but no answer came: {reason}")
    if code == "UNAVAILABLE" and _BROKEN.search(said) and not _NOT_CONNECTED.search(said):
        return Outcome(UNKNOWN, f"sent, but no answer came: {reason}")
    delay = _retry_delay(error)
    if code in _RETRYABLE or (code == "RESOURCE_EXHAUSTED" and delay is not None):
        return Outcome(RETRY, reason, after=delay or 0.0)
    return Outcome(REJECTED, reason)


def _retry_delay(error: Any) -> float | None:
    """Seconds of the RetryInfo in an answer, which stands in the details of its status."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for kind, content in outcome.details(value):
                if kind == "google.rpc.RetryInfo":
                    return outcome.retry_delay(content)
        if key == "google.rpc.retryinfo-bin":
            return outcome.retry_delay(value)
    return None


def _channel(grpc: Any, otlp: Otlp) -> Any:
    gzip = otlp.compression == "gzip"
    compression = grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression
    options = (("grpc.primary_user_agent", user_agent()),)
    target, insecure = _target(otlp)
    if insecure:
        return grpc.insecure_channel(target, options=options, compression=compression)
    credentials = grpc.ssl_channel_credentials(
        _content(otlp.certificate), _content(otlp.client_key), _content(otlp.client_certificate)
    )
    return grpc.secure_channel(target, credentials, options=options, compression=compression)


def _target(otlp: Otlp) -> tuple[str, bool]:
    """The target and whether it goes without TLS; a URL's scheme decides over the setting."""
    url = urlsplit(otlp.endpoint)
    if url.scheme in ("http", "https") and url.netloc:
        return url.netloc.rpartition("@")[2], url.scheme == "http"
    return otlp.endpoint, otlp.insecure


def _content(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def _metadata(otlp: Otlp) -> tuple[tuple[str, str], ...]:
    for name, value in otlp.headers:
        if not _KEY.fullmatch(name.lower()) or not _VALUE.fullmatch(value):
            raise ValueError(f"the OTLP header {name!r} has a name or a value that gRPC does not allow")
    return tuple([(name.lower(), value) for name, value in otlp.headers])
