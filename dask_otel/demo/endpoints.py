"""Where the demo's telemetry goes, and the environment that takes it there.

Rules
-----
1. Without an endpoint nothing of the user's OpenTelemetry configuration counts, and what was set aside is named.
2. With one, everything counts but what the command line said.
3. The environment is changed, never read back: worker processes inherit it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple
from urllib.parse import urlsplit

__all__ = ["Refused", "Target", "choose", "direct", "isolate"]

HTTP, GRPC = "http/protobuf", "grpc"
_SIGNAL_PATHS = ("/v1/traces", "/v1/metrics", "/v1/logs")
_ENDPOINT, _PROTOCOL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
_TRACES_ENDPOINT, _TRACES_PROTOCOL = (
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
)
_EXPORTER = "OTEL_TRACES_EXPORTER"
#: The demo shows traces: many a backend that it is pointed at takes nothing else.
_METRICS = "OTEL_METRICS_EXPORTER"
_OURS = ("OTEL_", "DASK_OTEL__", "TRACEPARENT", "TRACESTATE", "BAGGAGE")


class Refused(Exception):
    """What was asked for cannot be done: one sentence that says what to type."""


class Target(NamedTuple):
    """An OTLP endpoint and its protocol."""

    endpoint: str
    protocol: str = HTTP


def choose(
    endpoint: str | None, protocol: str | None, environ: Mapping[str, str] = os.environ
) -> Target | None:
    """Where to send to; None is nowhere but this process.

    Raises
    ------
    Refused
        When the two do not make an endpoint.

    Examples
    --------
    >>> choose("http://localhost:4318/", None, {})
    Target(endpoint='http://localhost:4318', protocol='http/protobuf')
    >>> choose("localhost:4318", None, {})
    Traceback (most recent call last):
    dask_otel.demo.endpoints.Refused: --endpoint is 'localhost:4318', which is not an http:// or https:// URL; \
try --endpoint http://localhost:4318
    """
    if endpoint is None:
        if protocol:
            raise Refused(
                "--protocol says how to send, and nothing says where to; add --endpoint http://localhost:4318"
            )
        return None
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        raise Refused("OTEL_SDK_DISABLED is true in the environment, so nothing would be sent; unset it")
    given = protocol or environ.get(_TRACES_PROTOCOL) or environ.get(_PROTOCOL) or HTTP
    return Target(_checked(endpoint), GRPC if given == GRPC else HTTP)


def _checked(endpoint: str) -> str:
    given = f"--endpoint is {endpoint!r}, which"
    try:
        url = urlsplit(endpoint)
        parts = url.scheme, url.hostname, url.port
    except ValueError as error:
        raise Refused(f"{given} is not a URL ({error}); try --endpoint http://localhost:4318") from None
    if parts[0] not in ("http", "https") or not parts[1]:
        host = endpoint.rpartition("//")[2] or "localhost:4318"
        raise Refused(f"{given} is not an http:// or https:// URL; try --endpoint http://{host}")
    for path in _SIGNAL_PATHS:
        if url.path.rstrip("/").endswith(path):
            base = endpoint.rstrip("/").removesuffix(path)
            raise Refused(f"{given} is one signal's URL; try --endpoint {base}, to which {path} is added")
    return endpoint.rstrip("/")


def isolate(endpoint: str, environ: MutableMapping[str, str] = os.environ) -> list[str]:
    """Send to `endpoint` whatever the environment said; returns the variables that were removed.

    Examples
    --------
    >>> environ = {"OTEL_TRACES_SAMPLER": "always_off", "PATH": "/bin"}
    >>> isolate("http://127.0.0.1:4318", environ)
    ['OTEL_TRACES_SAMPLER']
    >>> sorted(environ)
    ['OTEL_EXPORTER_OTLP_ENDPOINT', 'OTEL_EXPORTER_OTLP_PROTOCOL', 'OTEL_METRICS_EXPORTER', 'OTEL_TRACES_EXPORTER', \
'PATH']
    """
    removed = sorted(key for key in environ if key.upper().startswith(_OURS))
    for key in removed:
        del environ[key]
    direct(Target(endpoint), environ)
    return removed


def direct(target: Target, environ: MutableMapping[str, str] = os.environ) -> None:
    """Send to `target`, by the rest of the environment.

    Examples
    --------
    >>> environ = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://elsewhere", "OTEL_EXPORTER_OTLP_HEADERS": "key=secret"}
    >>> direct(Target("http://here:4318"), environ)
    >>> sorted(environ)
    ['OTEL_EXPORTER_OTLP_ENDPOINT', 'OTEL_EXPORTER_OTLP_HEADERS', 'OTEL_EXPORTER_OTLP_PROTOCOL', \
'OTEL_METRICS_EXPORTER', 'OTEL_TRACES_EXPORTER']
    """
    for key in (_TRACES_ENDPOINT, _TRACES_PROTOCOL):
        environ.pop(key, None)
    environ.update(
        {_ENDPOINT: target.endpoint, _PROTOCOL: target.protocol, _EXPORTER: "otlp", _METRICS: "none"}
    )
