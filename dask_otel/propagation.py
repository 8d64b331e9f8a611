"""What of a context travels with a graph.

Rules
-----
1. Only what the API's context holds: the span's ids and flags, its trace state verbatim, the baggage. How it came
   there (``OTEL_PROPAGATORS``: W3C, B3, …) does not matter here.
2. `unpack` takes anything and never raises: what is not exactly ours is None.
3. Nothing here reads the process's environment; ``TRACEPARENT`` counts in the client only, which asks for it.

Sources: W3C Trace Context, W3C Baggage, OpenTelemetry's specification ``context/env-carriers.md``.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from opentelemetry import baggage, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dask_otel.carried import Carried

logger = logging.getLogger(__name__)

DEFAULT = ("tracecontext", "baggage")
#: The propagators that let baggage out of a process.
_WITH_BAGGAGE = {"baggage", "jaeger", "ottrace"}
#: W3C's bound for the baggage header; as much for the trace state.
MAX_TEXT = 8192
_PRINTABLE = re.compile(r"[\t -~]*")


def capture(context: Context, propagators: Iterable[str] = DEFAULT) -> Carried | None:
    """What travels of a context; None where there is nothing, or where ``OTEL_PROPAGATORS`` is ``none``.

    Examples
    --------
    >>> capture(baggage.set_baggage("user", "Zoë", Context()))
    Carried(trace_id=b'', span_id=b'', flags=0, trace_state='', baggage='user=Zo%C3%AB')
    """
    if not (allowed := set(propagators)):
        return None
    span = trace.get_current_span(context).get_span_context()
    text = _baggage(context) if allowed & _WITH_BAGGAGE else ""
    if not span.is_valid:
        return Carried(baggage=text) if text else None
    return Carried(
        span.trace_id.to_bytes(16, "big"),
        span.span_id.to_bytes(8, "big"),
        int(span.trace_flags) & 0xFF,
        _fit("trace state", span.trace_state.to_header().split(",")),
        text,
    )


def to_context(carried: Carried) -> Context:
    """The context that was captured, its span a remote one that records nothing.

    Examples
    --------
    >>> context = to_context(Carried(b"\\x01" * 16, b"\\x02" * 8, 1, "vendor=x", "user=Zo%C3%AB"))
    >>> baggage.get_baggage("user", context), trace.get_current_span(context).get_span_context().is_remote
    ('Zoë', True)
    """
    context = Context()
    for member in carried.baggage.split(",") if carried.baggage else ():
        key, equals, value = member.partition("=")
        if equals and key.strip():
            context = baggage.set_baggage(unquote(key.strip()), unquote(value.strip()), context)
    if not carried.trace_id:
        return context
    return trace.set_span_in_context(trace.NonRecordingSpan(to_span_context(carried)), context)


def to_span_context(carried: Carried) -> trace.SpanContext:
    """The span's part alone."""
    return trace.SpanContext(
        int.from_bytes(carried.trace_id, "big"),
        int.from_bytes(carried.span_id, "big"),
        is_remote=True,
        trace_flags=trace.TraceFlags(carried.flags),
        trace_state=trace.TraceState.from_header([carried.trace_state]),
    )


def pack(carried: Carried) -> list[bytes | int | str]:
    """As msgpack takes it; texts that are empty at the end are left out.

    Examples
    --------
    >>> pack(Carried(b"\\x01" * 16, b"\\x02" * 8, 1))[2:]
    [1]
    """
    used = 5 if carried.baggage else 4 if carried.trace_state else 3
    return list(carried[:used])


def unpack(packed: object) -> Carried | None:
    """What was packed, or None if it is anything else.

    Examples
    --------
    >>> unpack([b"\\x00" * 16, b"\\x02" * 8, 1]) is None
    True
    """
    if not isinstance(packed, list | tuple) or not 3 <= len(packed) <= 5:
        return None
    trace_id, span_id, flags, trace_state, text = (*packed, "", "")[:5]
    ids = _is_id(trace_id, 16) and _is_id(span_id, 8)
    baggage_only = trace_id == b"" and span_id == b"" and flags == 0 and trace_state == "" and text != ""
    if not (ids or baggage_only) or type(flags) is not int or not 0 <= flags <= 0xFF:
        return None
    return Carried(*packed) if _is_text(trace_state) and _is_text(text) else None


def from_environment(environ: Mapping[str, str], propagators: Iterable[str] = DEFAULT) -> Carried | None:
    """What a parent process left in ``TRACEPARENT``, ``TRACESTATE`` and ``BAGGAGE``: for clients only.

    Examples
    --------
    >>> traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    >>> from_environment({"TRACEPARENT": traceparent}).span_id.hex()
    'b7ad6b7169203331'
    """
    carrier = {
        key: value for key in ("traceparent", "tracestate", "baggage") if (value := environ.get(key.upper()))
    }
    allowed, context = set(propagators), Context()
    if "tracecontext" in allowed:
        context = TraceContextTextMapPropagator().extract(carrier, context)
    if "baggage" in allowed:
        context = W3CBaggagePropagator().extract(carrier, context)
    return capture(context, allowed)


# -- parts -------------------------------------------------------------------------------------------------------


def _baggage(context: Context) -> str:
    entries = baggage.get_all(context).items()
    return _fit("baggage", [f"{_encoded(key)}={_encoded(value)}" for key, value in entries])


def _encoded(value: object) -> str:
    return quote(str(value), safe="", errors="replace")


def _fit(what: str, members: list[str]) -> str:
    """As many members of a header as there is room for, the first ones."""
    text = ",".join(members)
    if len(text) <= MAX_TEXT:
        return text
    _complain(what)
    # The comma after the last member that fits; -1, and so nothing, if not even the first does.
    return text[: max(text.rfind(",", 0, MAX_TEXT + 1), 0)]


@functools.cache
def _complain(what: str) -> None:
    logger.warning(
        "The %s is longer than %d bytes; what does not fit does not travel with graphs.", what, MAX_TEXT
    )


def _is_id(value: object, length: int) -> bool:
    return isinstance(value, bytes) and len(value) == length and any(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT and _PRINTABLE.fullmatch(value) is not None
