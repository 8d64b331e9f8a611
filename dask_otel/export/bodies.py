"""From spans and who made them to the bodies of OTLP's requests.

Rules
-----
1. No body reaches 4 MiB, the limit of gRPC's receivers; a count of spans is the caller's.
2. A span that cannot be encoded is told to ``failed`` and spoils nothing else.
3. A span that alone would exceed a request is cut: its large attributes, events and links are dropped and
   counted in it. One that is still too large fails.

Source: opentelemetry/proto/collector/trace/v1/trace_service.proto and trace/v1/trace.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

from dask_otel.export.encode import Encoder, encode_resource, encode_scope
from dask_otel.export.values import encode_pair
from dask_otel.export.wire import Lengths, block, utf8
from dask_otel.records import Attributes, Event, Link, Scope, Span

#: Bytes that a body may have: 4 MiB less what frames may add.
MAX_BODY = 4 * 2**20 - 1_024

#: Bytes up to which an attribute, event or link stays in a span that is cut.
_SMALL = 8_192

#: Bytes by which tags and lengths around a block of spans may grow it.
_AROUND = 32

_Item = TypeVar("_Item", Event, Link)

_span_opening = Lengths(b"\x12")


class Source:
    """Who made spans: a resource and a scope, encoded once."""

    def __init__(self, resource: Attributes, scope: Scope) -> None:
        self.resource = resource
        self.scope = scope

    @cached_property
    def encoded(self) -> tuple[bytes, bytes, bytes]:
        """The fields of ResourceSpans before the spans, of ScopeSpans before and after them."""
        schema = block(b"\x1a", utf8(self.scope.schema_url)) if self.scope.schema_url else b""
        return (
            block(b"\x0a", encode_resource(self.resource)),
            block(b"\x0a", encode_scope(self.scope)),
            schema,
        )


class Body(NamedTuple):
    """A request's body, an ExportTraceServiceRequest, and how many spans it holds."""

    data: bytes
    spans: int


class Bodies:
    """Builds bodies. ``failed`` is called with each span that cannot be sent and with the reason.

    Examples
    --------
    >>> bodies = Bodies(failed=print)
    >>> span = Span("inc", 5, b"\\x01" * 16, b"\\x02" * 8, start=1, end=2)
    >>> [body] = bodies.build([(Source((("service.name", "demo"),), Scope("dask_otel")), [span])])
    >>> len(body.data), body.spans
    (106, 1)
    """

    def __init__(self, failed: Callable[[Span, Exception], object], limit: int = MAX_BODY) -> None:
        self._encoder = Encoder()
        self._failed = failed
        self._limit = limit

    def build(self, batch: Iterable[tuple[Source, Sequence[Span]]]) -> Iterator[Body]:
        """Bodies that hold the batch, as few as the limit allows."""
        blocks: list[bytes] = []
        size = count = 0
        for source, spans in batch:
            room = self._limit - sum(map(len, source.encoded)) - _AROUND
            for encoded in _portions(self._encode(spans, room), room):
                wrapped = _wrap(source, encoded)
                if blocks and size + len(wrapped) > self._limit:
                    yield Body(b"".join(blocks), count)
                    blocks, size, count = [], 0, 0
                blocks.append(wrapped)
                size += len(wrapped)
                count += len(encoded) // 2
        if blocks:
            yield Body(b"".join(blocks) if len(blocks) > 1 else blocks[0], count)

    def _encode(self, spans: Iterable[Span], room: int) -> list[bytes]:
        """The openings and bodies of spans, in turns."""
        parts: list[bytes] = []
        append, encode = parts.append, self._encoder.span
        for span in spans:
            try:
                encoded = encode(span)
                if len(encoded) > room:
                    encoded = self._encode_cut(span, room)
            except Exception as error:
                self._failed(span, error)
                continue
            append(_span_opening[len(encoded)])
            append(encoded)
        return parts

    def _encode_cut(self, span: Span, room: int) -> bytes:
        encoded = self._encoder.span(cut(span))
        if len(encoded) > room:
            raise ValueError(f"{len(encoded)} bytes, without its large attributes, exceed a request's {room}")
        return encoded


def cut(span: Span) -> Span:
    """A span without what is large in it, which is counted as dropped."""
    common, attributes = _small(span.common), _small(span.attributes)
    events = tuple([_cut_item(event) for event in span.events if len(event.name) <= _SMALL])
    lost = len(span.common) + len(span.attributes) - len(common) - len(attributes)
    return span._replace(
        common=common,
        attributes=attributes,
        events=events,
        links=tuple([_cut_item(link) for link in span.links]),
        dropped_attributes=span.dropped_attributes + lost,
        dropped_events=span.dropped_events + len(span.events) - len(events),
    )


def _cut_item(item: _Item) -> _Item:
    kept = _small(item.attributes)
    dropped = item.dropped_attributes + len(item.attributes) - len(kept)
    return item._replace(attributes=kept, dropped_attributes=dropped)


def _small(attributes: Attributes) -> Attributes:
    return tuple([pair for pair in attributes if len(encode_pair(b"", *pair)) <= _SMALL])


def _portions(parts: list[bytes], room: int) -> Iterator[list[bytes]]:
    """Parts that fit into a request each; mostly all of them."""
    if sum(map(len, parts)) <= room:
        yield from [parts] if parts else []
        return
    portion: list[bytes] = []
    size = 0
    for opening, encoded in zip(parts[::2], parts[1::2], strict=True):
        length = len(opening) + len(encoded)
        if portion and size + length > room:
            yield portion
            portion, size = [], 0
        portion += opening, encoded
        size += length
    yield portion


def _wrap(source: Source, parts: list[bytes]) -> bytes:
    """A ResourceSpans message after its tag."""
    resource, scope, schema = source.encoded
    scope_spans = b"".join([scope, *parts, schema])
    return block(b"\x0a", resource + block(b"\x12", scope_spans))
