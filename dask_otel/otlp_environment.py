"""Which exporters a signal asks for and where its OTLP goes: ``OTEL_<SIGNAL>_EXPORTER`` and ``OTEL_EXPORTER_OTLP_*``.

Rules
-----
1. A variable of the signal has precedence over the general one.
2. An endpoint that is set asks for ``otlp``; an endpoint that is wrong does not, so that a slip of the pen never
   makes a process wait for a collector on localhost.
3. User and password of a URL become a header; no sentence says anything of a header but its number.
4. A signal that is sent otherwise (``console``, ``none``, …) has no sentence about how OTLP is sent: what is set for
   another signal's protocol is not wrong for this one's.

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

#: The Python SDK's names for OTLP over one protocol.
_ALIASES = {"otlp_proto_http": "http/protobuf", "otlp_proto_grpc": "grpc"}
_GENERAL = "OTEL_EXPORTER_OTLP_"
#: RFC 9110's token, in lower case as HTTP/2 and gRPC want it; printable ASCII.
_HEADER_NAME, _HEADER_VALUE = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+"), re.compile(r"[\t -~]*")


class Signal(NamedTuple):
    """What of the telemetry the variables are about, and the names of exporters that only it has.

    Examples
    --------
    >>> signal = Signal("metrics")
    >>> signal.exporter, signal.option("TIMEOUT"), signal.path
    ('OTEL_METRICS_EXPORTER', 'OTEL_EXPORTER_OTLP_METRICS_TIMEOUT', '/v1/metrics')
    """

    name: str
    special: tuple[str, ...] = ()

    @property
    def exporter(self) -> str:
        return f"OTEL_{self.name.upper()}_EXPORTER"

    @property
    def known(self) -> tuple[str, ...]:
        """Exporters that need no entry point."""
        return ("otlp", "console", "none", *self.special, *_ALIASES)

    @property
    def group(self) -> str:
        """Of entry points."""
        return f"opentelemetry_{self.name}_exporter"

    @property
    def path(self) -> str:
        """Behind the general endpoint."""
        return f"/v1/{self.name}"

    def localhost(self, protocol: str) -> _Target:
        if protocol == "grpc":
            return _Target("localhost:4317", insecure=True)
        return _Target(f"http://localhost:4318{self.path}")

    def option(self, option: str) -> str:
        """The signal's own variable."""
        return f"{_GENERAL}{self.name.upper()}_{option}"

    def options(self, option: str) -> tuple[str, str]:
        """An option's variables: the signal's, which has precedence, and the general one."""
        return self.option(option), _GENERAL + option

    def parsers(self, option: str, parse: Callable[[str], T]) -> dict[str, Callable[[str], T]]:
        """The same, for `Reader.value`."""
        return dict.fromkeys(self.options(option), parse)


TRACES, METRICS = Signal("traces"), Signal("metrics", ("prometheus",))


class _Target(NamedTuple):
    """What an endpoint says; `insecure` is None where its form does not say."""

    endpoint: str
    insecure: bool | None = None
    authorization: str | None = None


def export(read: Reader, signal: Signal) -> tuple[tuple[str, ...], Otlp]:
    """The names of a signal's exporters and how its OTLP is sent.

    Examples
    --------
    >>> exporters, otlp = export(Reader({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}), METRICS)
    >>> exporters, otlp.endpoint
    (('otlp',), 'http://collector:4318/v1/metrics')
    """
    named = _named(read, signal)
    exporters = tuple(dict.fromkeys("otlp" if name in _ALIASES else name for name in named))
    if exporters and "otlp" not in exporters:
        read = read.quiet()
    protocol = _protocol(read, signal, named)
    target = _target(read, signal, protocol, "otlp" in exporters)
    if target and not exporters:
        exporters = ("otlp",)
    return exporters, _otlp(read, signal, protocol, target)


def _named(read: Reader, signal: Signal) -> tuple[str, ...]:
    named = read.names(signal.exporter, signal.known, signal.group)
    others = tuple(name for name in named if name != "none")
    if others and others != named:
        read.complain(f"{signal.exporter} names none beside others; {', '.join(others)} is used.")
    return others or named


def _protocol(read: Reader, signal: Signal, named: tuple[str, ...]) -> str:
    aliases = [name for name in named if name in _ALIASES]
    if len(aliases) > 1:
        read.complain(f"{signal.exporter} names OTLP twice; {aliases[0]} is used.")
    if aliases:
        return _ALIASES[aliases[0]]
    return read.value(
        signal.parsers("PROTOCOL", choice("http/protobuf", "grpc")), "http/protobuf or grpc", "http/protobuf"
    )


# -- endpoint ----------------------------------------------------------------------------------------------------


def _target(read: Reader, signal: Signal, protocol: str, named: bool) -> _Target | None:
    """Where an endpoint that is right says; else localhost, but only if ``otlp`` was asked for by name."""
    parsers: dict[str, Callable[[str], _Target]]
    if protocol == "grpc":
        parsers, allowed = (
            signal.parsers("ENDPOINT", _grpc_target),
            "host:port or a URL like http://collector:4317",
        )
    else:
        # The specification: the signal's variable is used as it is, the general one gets the path.
        own, general = signal.options("ENDPOINT")
        parsers = {own: _url, general: lambda text: _url(text, signal.path)}
        allowed = "a URL like http://collector:4318"
    default = signal.localhost(protocol) if named else None
    return read.value(parsers, allowed, default, default.endpoint if default else "no endpoint")


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


def _otlp(read: Reader, signal: Signal, protocol: str, target: _Target | None) -> Otlp:
    if target and protocol == "http/protobuf":
        _hint_port(read, signal, target)
    endpoint, insecure, authorization = target or signal.localhost(protocol)
    flag = read.flag(*signal.options("INSECURE"))
    key, certificate = _client_certificate(read, signal)
    return Otlp(
        protocol=protocol,
        endpoint=endpoint,
        headers=_headers(read, signal, authorization),
        timeout=_timeout(read, signal),
        compression=read.value(signal.parsers("COMPRESSION", choice("gzip", "none")), "gzip or none", "gzip"),
        insecure=protocol == "grpc" and (flag if insecure is None else insecure),
        certificate=read.text(*signal.options("CERTIFICATE")),
        client_key=key,
        client_certificate=certificate,
    )


def _hint_port(read: Reader, signal: Signal, target: _Target) -> None:
    """Users of the Python SDK, whose default is gRPC, have 4317 set and no protocol."""
    unsaid = not read.key(signal.exporter, *signal.options("PROTOCOL"))
    if unsaid and urlsplit(target.endpoint).port == 4317:
        read.complain(
            f"{read.key(*signal.options('ENDPOINT'))} has port 4317, by convention gRPC's, and "
            f"http/protobuf is used: set {_GENERAL}PROTOCOL=grpc, or port 4318."
        )


def _timeout(read: Reader, signal: Signal) -> float:
    seconds = read.value(signal.parsers("TIMEOUT", timeout), MILLISECONDS, 10.0, "10000 ms")
    if seconds < 0.1:
        read.complain(
            f"{read.key(*signal.options('TIMEOUT'))} is {seconds * 1000:g} ms, by the specification "
            f"(the Python SDK reads seconds), and so it is used: for {seconds * 1000:g} s set {seconds * 1e6:.0f}."
        )
    return seconds


def _client_certificate(read: Reader, signal: Signal) -> tuple[str | None, str | None]:
    key = read.text(*signal.options("CLIENT_KEY"))
    certificate = read.text(*signal.options("CLIENT_CERTIFICATE"))
    if key and not certificate:
        read.complain(
            f"{read.key(*signal.options('CLIENT_KEY'))} is set without {_GENERAL}CLIENT_CERTIFICATE; no client certificate is used."
        )
    return key, certificate


def _headers(read: Reader, signal: Signal, authorization: str | None) -> tuple[tuple[str, str], ...]:
    key = read.key(*signal.options("HEADERS"))
    headers = {"authorization": authorization} if authorization else {}
    for number, entry in enumerate((read.text(key) or "").split(",") if key else (), 1):
        name, equals, value = entry.partition("=")
        name, value = unquote(name).strip().lower(), unquote(value.strip()).strip(" \t")
        if equals and _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value):
            headers[name] = value
        elif entry.strip():
            read.complain(
                f"Entry {number} of {key}, not shown since it may be secret, is not name=value with the value "
                "percent-encoded; it is left out."
            )
    return tuple(headers.items())
