"""Which exporters are asked for and where OTLP goes: ``OTEL_TRACES_EXPORTER`` and ``OTEL_EXPORTER_OTLP_*``.

Rules
-----
1. A variable of traces has precedence over the general one.
2. An endpoint that is set asks for ``otlp``; an endpoint that is wrong does not, so that a slip of the pen never
   makes a process wait for a collector on localhost.
3. User and password of a URL become a header; no sentence says anything of a header but its number.

Sources: OpenTelemetry's specification, ``protocol/exporter.md`` and ``configuration/sdk-environment-variables.md``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from dask_otel.settings import Otlp
from dask_otel.variables import MILLISECONDS, Reader, T, choice, timeout

EXPORTER_GROUP = "opentelemetry_traces_exporter"
#: The Python SDK's names for OTLP over one protocol.
_ALIASES = {"otlp_proto_http": "http/protobuf", "otlp_proto_grpc": "grpc"}
_EXPORTERS = ("otlp", "console", "none", *_ALIASES)
_LOCALHOST = {"http/protobuf": "http://localhost:4318/v1/traces", "grpc": "localhost:4317"}
_TRACES, _GENERAL = "OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"
#: RFC 9110's token, in lower case as HTTP/2 and gRPC want it; printable ASCII.
_HEADER_NAME, _HEADER_VALUE = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+"), re.compile(r"[\t -~]*")


class _Target(NamedTuple):
    """What an endpoint says; `insecure` is None where its form does not say."""

    endpoint: str
    insecure: bool | None = None
    authorization: str | None = None


def export(read: Reader) -> tuple[tuple[str, ...], Otlp]:
    """The exporters' names and how OTLP is sent.

    Examples
    --------
    >>> exporters, otlp = export(Reader({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}))
    >>> exporters, otlp.endpoint
    (('otlp',), 'http://collector:4318/v1/traces')
    """
    named = _named(read)
    protocol = _protocol(read, named)
    exporters = tuple(dict.fromkeys("otlp" if name in _ALIASES else name for name in named))
    target = _target(read, protocol, "otlp" in exporters)
    if target and not exporters:
        exporters = ("otlp",)
    return exporters, _otlp(read, protocol, target)


def _named(read: Reader) -> tuple[str, ...]:
    named = read.names("OTEL_TRACES_EXPORTER", _EXPORTERS, EXPORTER_GROUP)
    others = tuple(name for name in named if name != "none")
    if others and others != named:
        read.complaints.append(f"OTEL_TRACES_EXPORTER names none beside others; {', '.join(others)} is used.")
    return others or named


def _protocol(read: Reader, named: tuple[str, ...]) -> str:
    aliases = [name for name in named if name in _ALIASES]
    if len(aliases) > 1:
        read.complaints.append(f"OTEL_TRACES_EXPORTER names OTLP twice; {aliases[0]} is used.")
    if aliases:
        return _ALIASES[aliases[0]]
    return read.value(
        _signal("PROTOCOL", choice("http/protobuf", "grpc")), "http/protobuf or grpc", "http/protobuf"
    )


def _signal(option: str, parse: Callable[[str], T]) -> dict[str, Callable[[str], T]]:
    """An option's variables: that of traces, which has precedence, and the general one."""
    return {_TRACES + option: parse, _GENERAL + option: parse}


# -- endpoint ----------------------------------------------------------------------------------------------------


def _target(read: Reader, protocol: str, named: bool) -> _Target | None:
    parsers: dict[str, Callable[[str], _Target]]
    if protocol == "grpc":
        parsers, allowed = _signal("ENDPOINT", _grpc_target), "host:port or a URL like http://collector:4317"
    else:
        # The specification: the variable of traces is used as it is, the general one gets the path.
        parsers = {_TRACES + "ENDPOINT": _url, _GENERAL + "ENDPOINT": lambda text: _url(text, "/v1/traces")}
        allowed = "a URL like http://collector:4318"
    return read.value(parsers, allowed, None, _LOCALHOST[protocol] if named else "no endpoint")


def _url(text: str, suffix: str = "") -> _Target:
    parts = _split(text)
    path = parts.path.rstrip("/") + suffix if suffix else parts.path or "/"
    url = parts._replace(netloc=parts.netloc.rpartition("@")[2], path=path, fragment="")
    return _Target(url.geturl(), authorization=_authorization(parts))


def _grpc_target(text: str) -> _Target:
    """gRPC's own forms (``dns:///host``, ``unix:path``, ``host:port``) stay as they are."""
    if text.lower().startswith(("http://", "https://")):
        parts = _split(text)
        return _Target(parts.netloc.rpartition("@")[2], parts.scheme == "http", _authorization(parts))
    if not re.fullmatch(r"[!-~]+", text):
        raise ValueError(text)
    return _Target(text)


def _split(text: str) -> SplitResult:
    parts = urlsplit(text)
    # `port` raises ValueError where it is not a number up to 65535.
    if not re.fullmatch(r"https?://[!-~]+", text, re.IGNORECASE) or not parts.hostname or parts.port == 0:
        raise ValueError(text)
    return parts


def _authorization(parts: SplitResult) -> str | None:
    userinfo, at, _ = parts.netloc.rpartition("@")
    return "Basic " + base64.b64encode(unquote(userinfo).encode()).decode() if at else None


# -- the rest ----------------------------------------------------------------------------------------------------


def _otlp(read: Reader, protocol: str, target: _Target | None) -> Otlp:
    if target and protocol == "http/protobuf":
        _hint_port(read, target)
    endpoint, insecure, authorization = target or _Target(_LOCALHOST[protocol], protocol == "grpc")
    flag = read.flag(_TRACES + "INSECURE", _GENERAL + "INSECURE")
    key, certificate = _client_certificate(read)
    return Otlp(
        protocol=protocol,
        endpoint=endpoint,
        headers=_headers(read, authorization),
        timeout=_timeout(read),
        compression=read.value(_signal("COMPRESSION", choice("gzip", "none")), "gzip or none", "gzip"),
        insecure=protocol == "grpc" and (flag if insecure is None else insecure),
        certificate=read.text(_TRACES + "CERTIFICATE", _GENERAL + "CERTIFICATE"),
        client_key=key,
        client_certificate=certificate,
    )


def _hint_port(read: Reader, target: _Target) -> None:
    """Users of the Python SDK, whose default is gRPC, have 4317 set and no protocol."""
    unsaid = not read.key("OTEL_TRACES_EXPORTER", _TRACES + "PROTOCOL", _GENERAL + "PROTOCOL")
    if unsaid and urlsplit(target.endpoint).port == 4317:
        read.complaints.append(
            f"{read.key(_TRACES + 'ENDPOINT', _GENERAL + 'ENDPOINT')} has port 4317, by convention gRPC's, and "
            f"http/protobuf is used: set {_GENERAL}PROTOCOL=grpc, or port 4318."
        )


def _timeout(read: Reader) -> float:
    seconds = read.value(_signal("TIMEOUT", timeout), MILLISECONDS, 10.0, "10000 ms")
    if seconds < 0.1:
        read.complaints.append(
            f"{read.key(_TRACES + 'TIMEOUT', _GENERAL + 'TIMEOUT')} is {seconds * 1000:g} ms, by the specification "
            f"(the Python SDK reads seconds), and so it is used: for {seconds * 1000:g} s set {seconds * 1e6:.0f}."
        )
    return seconds


def _client_certificate(read: Reader) -> tuple[str | None, str | None]:
    key = read.text(_TRACES + "CLIENT_KEY", _GENERAL + "CLIENT_KEY")
    certificate = read.text(_TRACES + "CLIENT_CERTIFICATE", _GENERAL + "CLIENT_CERTIFICATE")
    if key and not certificate:
        read.complaints.append(
            f"{_GENERAL}CLIENT_KEY is set without {_GENERAL}CLIENT_CERTIFICATE; no client certificate is used."
        )
    return key, certificate


def _headers(read: Reader, authorization: str | None) -> tuple[tuple[str, str], ...]:
    key = read.key(_TRACES + "HEADERS", _GENERAL + "HEADERS")
    headers = {"authorization": authorization} if authorization else {}
    for number, entry in enumerate((read.text(key) or "").split(",") if key else (), 1):
        name, equals, value = entry.partition("=")
        name, value = unquote(name).strip().lower(), unquote(value.strip()).strip(" \t")
        if equals and _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value):
            headers[name] = value
        elif entry.strip():
            read.complaints.append(
                f"Entry {number} of {key}, not shown since it may be secret, is not name=value with the value "
                "percent-encoded; it is left out."
            )
    return tuple(headers.items())
