"""From a `Span` to the bytes of OTLP's Span message.

Rules
-----
1. What repeats is encoded once: a name with its kind and common attributes, the key of a number, a whole
   short attribute. Every cache is bounded and starts anew when it is full.
2. A cache never tells apart what Python calls equal by equality alone: ``1``, ``True`` and ``1.0`` are three
   different attributes.
3. An `Encoder` belongs to one thread.
4. Nothing that is encoded makes a request unreadable: nesting has a bound (a parser's is 100), ids have their
   lengths. What cannot be encoded raises, and `bodies` counts it.

Source: opentelemetry/proto/trace/v1/trace.proto and common/v1/common.proto, v1.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any

from dask_otel.export.cut import cut
from dask_otel.export.remembered import SPAN_ATTRIBUTE, ByKey, Integers, Strings, float_opening, head
from dask_otel.export.values import encode_attributes, encode_pair
from dask_otel.export.wire import Lengths, block, utf8, varint
from dask_otel.records import Attributes, Event, Link, Scope, Span

#: Names with their common attributes that are remembered.
_MAX_HEADS = 4_096
#: The length from which a string is not looked up: what is long (ids, keys of tasks) seldom comes again.
_SHORT = 32

_double = Struct("<d").pack
# trace_id, span_id, parent_span_id, start and end (fixed64), flags (field 16, fixed32), each after its tag.
_root = Struct("<2s16s2s8sBQBQ2sI").pack
_child = Struct("<2s16s2s8s2s8sBQBQ2sI").pack
_link = Struct("<2s16s2s8sBI").pack
_time = Struct("<BQ").pack

_TRACE, _SPAN, _PARENT, _FLAGS = b"\n\x10", b"\x12\x08", b'"\x08', b"\x85\x01"
_START, _END = 0x39, 0x41
_EVENT_ATTRIBUTE, _LINK_ATTRIBUTE = b"\x1a", b"\x22"


# -- whoever made the spans ----------------------------------------------------------------------------------


def encode_resource(resource: Attributes) -> bytes:
    """A Resource message."""
    return encode_attributes(b"\x0a", resource)


def encode_scope(scope: Scope) -> bytes:
    """An InstrumentationScope message; the scope's schema URL stands beside it in ScopeSpans."""
    name, version = block(b"\x0a", utf8(scope.name)), block(b"\x12", utf8(scope.version))
    return name + version + encode_attributes(b"\x1a", scope.attributes)


# -- spans ---------------------------------------------------------------------------------------------------


class Encoder:
    """Encodes spans, and remembers what they have in common.

    Examples
    --------
    >>> encoder = Encoder()
    >>> span = Span("inc", 5, b"\\x01" * 16, b"\\x02" * 8, start=1, end=2, attributes=(("dask.attempt", 1),))
    >>> len(encoder.span(span)), encoder.span(span) == Encoder().span(span)
    (79, True)
    """

    def __init__(self) -> None:
        self._heads: dict[tuple[str, int, int], tuple[bytes, Attributes]] = {}
        self._floats = ByKey(float_opening)
        self._strings = ByKey(Strings)
        self._integers = ByKey(Integers)

    def span(self, span: Span) -> bytes:
        """A Span message; an end before the start is written as the start.

        Raises
        ------
        Exception
            The span cannot be encoded: an id of a wrong length, a number out of range, a value whose
            ``str()`` fails.
        """
        return self.spans([span], _raise)[1]

    def spans(
        self, spans: Iterable[Span], failed: Callable[[Span, Exception], object], room: int = 2**63
    ) -> list[bytes]:
        """The spans as fields of ScopeSpans, each in two parts: its tag and length, and its message.

        Parameters
        ----------
        spans : iterable of Span
        failed : callable
            Called with a span that cannot be encoded and the reason; it is left out.
        room : int
            Bytes that a message may have. One that has more is cut.
        """
        parts: list[bytes] = []
        put, join, double = parts.append, b"".join, _double
        heads, floats, strings, integers = self._heads, self._floats, self._strings, self._integers
        value: Any
        # One long loop and indices for names: a call costs as much as an attribute does.
        for span in spans:
            try:
                name, kind, trace_id, span_id, parent_id, flags, _, start, end, common, attributes = span[:11]
                if len(trace_id) != 16 or len(span_id) != 8 or (parent_id and len(parent_id) != 8):
                    raise ValueError(f"ids {trace_id!r}, {span_id!r}, {parent_id!r} not of 16, 8 and 8 bytes")
                if type(start) is not int or type(end) is not int:
                    start, end = int(start), int(end)
                if end < start:
                    end = start
                # By identity, since equality would take (("a", 1),) for (("a", True),). The entry keeps its
                # tuple alive, hence no other one can have its id.
                known = heads.get((name, kind, id(common))) or self._head(name, kind, common)
                # fmt: off
                if parent_id:
                    pieces = [_child(_TRACE, trace_id, _SPAN, span_id, _PARENT, parent_id,
                                     _START, start, _END, end, _FLAGS, flags), known[0]]
                else:
                    pieces = [_root(_TRACE, trace_id, _SPAN, span_id,
                                    _START, start, _END, end, _FLAGS, flags), known[0]]
                # fmt: on
                append = pieces.append
                for key, value in attributes:
                    exact = type(value)
                    if exact is float:
                        append(floats[key])
                        append(double(value))
                    elif exact is str:
                        if len(value) < _SHORT:
                            append(strings[key][value])
                        else:
                            raw = value.encode("utf-8", "replace")
                            append(strings[key].openings[len(raw)])
                            append(raw)
                    elif exact is int:
                        append(integers[key][value])
                    else:
                        append(encode_pair(SPAN_ATTRIBUTE, key, value))
                if span[6] or span[11:] != _NOTHING_MORE:
                    append(_rest(span))
                message = join(pieces)
                if len(message) > room:
                    message = self._cut(span, room)
                put(_opening[len(message)])
                put(message)
            except Exception as error:
                failed(span, error)
        return parts

    def _head(self, name: str, kind: int, common: Attributes) -> tuple[bytes, Attributes]:
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        made = self._heads[name, kind, id(common)] = head(name, kind, common), common
        return made

    def _cut(self, span: Span, room: int) -> bytes:
        message = self.span(cut(span))
        if len(message) > room:
            raise ValueError(f"{len(message)} bytes, without what is large in it, exceed a request's {room}")
        return message


_NOTHING_MORE = Span("", 0, b"", b"")[11:]
_opening = Lengths(b"\x12")


def _raise(span: Span, error: Exception) -> None:
    raise error


def _rest(span: Span) -> bytes:
    """The fields that few spans have."""
    parts = [block(b"\x1a", utf8(span.trace_state))] if span.trace_state else []
    parts += [_count(b"\x50", span.dropped_attributes)]
    parts += [block(b"\x5a", _event(event)) for event in span.events]
    parts += [_count(b"\x60", span.dropped_events)]
    parts += [block(b"\x6a", _encode_link(link)) for link in span.links]
    parts += [_count(b"\x70", span.dropped_links)]
    if span.status or span.message:
        parts += [block(b"\x7a", _status(span.status, span.message))]
    return b"".join(parts)


def _count(tag: bytes, number: int) -> bytes:
    """A uint32; what exceeds it is written as its maximum."""
    return tag + varint(min(number, 0xFFFF_FFFF)) if number > 0 else b""


def _status(code: int, message: str) -> bytes:
    return (block(b"\x12", utf8(message)) if message else b"") + (b"\x18" + varint(code) if code else b"")


def _event(event: Event) -> bytes:
    time = _time(0x09, int(event.time))
    attributes = encode_attributes(_EVENT_ATTRIBUTE, event.attributes)
    return time + block(b"\x12", utf8(event.name)) + attributes + _count(b"\x20", event.dropped_attributes)


def _encode_link(link: Link) -> bytes:
    if len(link.trace_id) != 16 or len(link.span_id) != 8:
        raise ValueError(f"a link's ids {link.trace_id!r} and {link.span_id!r} must be of 16 and 8 bytes")
    fixed = _link(b"\n\x10", link.trace_id, b"\x12\x08", link.span_id, 0x35, link.flags)
    state = block(b"\x1a", utf8(link.trace_state)) if link.trace_state else b""
    attributes = encode_attributes(_LINK_ATTRIBUTE, link.attributes)
    return fixed + state + attributes + _count(b"\x28", link.dropped_attributes)
