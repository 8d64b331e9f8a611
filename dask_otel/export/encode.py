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

from struct import Struct
from typing import Any

from dask_otel.export.values import encode_attributes, encode_pair
from dask_otel.export.wire import block, utf8, varint
from dask_otel.records import Attributes, Event, Link, Scope, Span

_MAX_HEADS = 4_096
_MAX_KEYS = 4_096
_MAX_PAIRS = 8_192
#: Different values of one key after which no more of its values are kept: ids, keys of tasks.
_MAX_VALUES = 512
#: Bytes up to which an encoded attribute is kept.
_MAX_KEPT = 256

_double = Struct("<d").pack
# trace_id, span_id, parent_span_id, start and end (fixed64), flags (field 16, fixed32), each after its tag.
_root = Struct("<2s16s2s8sBQBQ2sI").pack
_child = Struct("<2s16s2s8s2s8sBQBQ2sI").pack
_link = Struct("<2s16s2s8sBI").pack

_SPAN_ATTRIBUTE, _EVENT_ATTRIBUTE, _LINK_ATTRIBUTE = b"\x4a", b"\x1a", b"\x22"


# -- whoever made the spans ----------------------------------------------------------------------------------


def encode_resource(resource: Attributes) -> bytes:
    """A Resource message."""
    return encode_attributes(b"\x0a", resource)


def encode_scope(scope: Scope) -> bytes:
    """An InstrumentationScope message; the scope's schema URL stands beside it in ScopeSpans."""
    name, version = block(b"\x0a", utf8(scope.name)), block(b"\x12", utf8(scope.version))
    return name + version + encode_attributes(b"\x1a", scope.attributes)


# -- spans ---------------------------------------------------------------------------------------------------


class _Numbers(dict[str, bytes]):
    """Everything of a span's float attribute but the float, by key; its length is always the same."""

    def __missing__(self, key: str) -> bytes:
        if len(self) >= _MAX_KEYS:
            self.clear()
        opening = self[key] = encode_pair(_SPAN_ATTRIBUTE, key, 0.0)[:-8]
        return opening


class _Pairs(dict[tuple[str, Any], bytes]):
    """Whole attributes by key and value, for strings and integers of exactly these types.

    A key with many different values is found out and its values are not kept, so that they do not push out
    those that repeat.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, int] = {}

    def __missing__(self, pair: tuple[str, Any]) -> bytes:
        key, value = pair
        encoded = encode_pair(_SPAN_ATTRIBUTE, key, value)
        seen = self._values.get(key, 0)
        if seen < _MAX_VALUES and len(encoded) <= _MAX_KEPT:
            if len(self) >= _MAX_PAIRS:
                self.clear()
                self._values.clear()
            self._values[key] = seen + 1
            self[pair] = encoded
        return encoded


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
        self._numbers = _Numbers()
        self._pairs = _Pairs()

    def span(self, span: Span) -> bytes:
        """A Span message; an end before the start is written as the start.

        Raises
        ------
        Exception
            The span cannot be encoded: an id of a wrong length, a number out of range, a value whose
            ``str()`` fails.
        """
        (name, kind, trace_id, span_id, parent_id, flags, trace_state, start, end, common, attributes) = span[
            :11
        ]
        # By identity, since equality would take (("a", 1),) for (("a", True),). The entry keeps its tuple
        # alive, hence no other one can have its id.
        head = self._heads.get((name, kind, id(common))) or self._head(name, kind, common)
        parts = [_fixed(trace_id, span_id, parent_id, start, end, flags), head[0]]
        append, numbers, pairs = parts.append, self._numbers, self._pairs
        for pair in attributes:
            value = pair[1]
            exact = type(value)
            if exact is float:
                append(numbers[pair[0]])
                append(_double(value))
            elif exact is str or exact is int:
                append(pairs[pair])
            else:
                append(encode_pair(_SPAN_ATTRIBUTE, pair[0], value))
        if trace_state or span[11:] != _NOTHING_MORE:
            append(_rest(span))
        return b"".join(parts)

    def _head(self, name: str, kind: int, common: Attributes) -> tuple[bytes, Attributes]:
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        encoded = (
            block(b"\x2a", utf8(name)) + b"\x30" + varint(kind) + encode_attributes(_SPAN_ATTRIBUTE, common)
        )
        head = self._heads[name, kind, id(common)] = encoded, common
        return head


_NOTHING_MORE = Span("", 0, b"", b"")[11:]


def _fixed(trace_id: bytes, span_id: bytes, parent_id: bytes, start: int, end: int, flags: int) -> bytes:
    """The fields of constant length."""
    if len(trace_id) != 16 or len(span_id) != 8:
        raise ValueError(f"trace id {trace_id!r} and span id {span_id!r} must be of 16 and 8 bytes")
    if type(start) is not int or type(end) is not int:
        start, end = int(start), int(end)
    if end < start:
        end = start
    if not parent_id:
        return _root(b"\n\x10", trace_id, b"\x12\x08", span_id, 0x39, start, 0x41, end, b"\x85\x01", flags)
    if len(parent_id) != 8:
        raise ValueError(f"parent id {parent_id!r} must be of 8 bytes, or empty")
    return _child(
        b"\n\x10",
        trace_id,
        b"\x12\x08",
        span_id,
        b'"\x08',
        parent_id,
        0x39,
        start,
        0x41,
        end,
        b"\x85\x01",
        flags,
    )


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
    time = Struct("<BQ").pack(0x09, int(event.time))
    attributes = encode_attributes(_EVENT_ATTRIBUTE, event.attributes)
    return time + block(b"\x12", utf8(event.name)) + attributes + _count(b"\x20", event.dropped_attributes)


def _encode_link(link: Link) -> bytes:
    if len(link.trace_id) != 16 or len(link.span_id) != 8:
        raise ValueError(f"a link's ids {link.trace_id!r} and {link.span_id!r} must be of 16 and 8 bytes")
    fixed = _link(b"\n\x10", link.trace_id, b"\x12\x08", link.span_id, 0x35, link.flags)
    state = block(b"\x1a", utf8(link.trace_state)) if link.trace_state else b""
    attributes = encode_attributes(_LINK_ATTRIBUTE, link.attributes)
    return fixed + state + attributes + _count(b"\x28", link.dropped_attributes)
