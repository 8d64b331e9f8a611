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
from operator import add
from typing import NamedTuple, TypeAlias

from dask_otel.export.encode import Encoder, encode_resource, encode_scope
from dask_otel.export.forms import Encoded
from dask_otel.export.wire import block, utf8, varint
from dask_otel.records import Attributes, Scope, Span

#: Bytes that a body may have: 4 MiB less what frames may add.
MAX_BODY = 4 * 2**20 - 1_024

#: Bytes by which tags and lengths around a block of spans may grow it.
_AROUND = 32


#: A span, or the spans of an attempt that are encoded already.
Taken: TypeAlias = "Span | Encoded"


def number(spans: Iterable[Taken]) -> int:
    """How many spans there are."""
    return sum([span.spans if type(span) is Encoded else 1 for span in spans])


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
    >>> from dask_otel.records import Span
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

    def build(self, batch: Iterable[tuple[Source, Sequence[Taken]]]) -> Iterator[Body]:
        """Bodies that hold the batch, as few as the limit allows."""
        blocks: list[bytes] = []
        size = count = 0
        for source, spans in batch:
            try:
                room = self._limit - sum(map(len, source.encoded)) - _AROUND
            except Exception as error:
                for span in plain(spans):
                    self._failed(span, error)
                continue
            for parts, counted, length in _portions(*self._parts(spans, room), room):
                opening, closing, more = around(source, length)
                if blocks and size + more + length > self._limit:
                    yield Body(b"".join(blocks), count)
                    blocks, size, count = [], 0, 0
                blocks += opening, *parts, closing
                size += more + length
                count += counted
        if blocks:
            yield Body(b"".join(blocks), count)

    def _parts(self, spans: Sequence[Taken], room: int) -> tuple[list[bytes], list[int]]:
        """Fields of ScopeSpans, and how many spans each holds."""
        parts = [span.data for span in spans if type(span) is Encoded and len(span.data) <= room]
        counts = [span.spans for span in spans if type(span) is Encoded and len(span.data) <= room]
        encoded = self._encoder.spans(plain(spans, room), self._failed, room)
        parts += map(add, encoded[::2], encoded[1::2])
        return parts, counts + [1] * (len(encoded) // 2)


def plain(spans: Iterable[Taken], room: int = 0) -> Iterator[Span]:
    """The spans one by one, without what is encoded and fits into ``room`` (bytes)."""
    for span in spans:
        if type(span) is Encoded:
            if len(span.data) > room:
                yield from span.attempt.spans()
        else:
            yield span  # type: ignore[misc]


def _portions(parts: list[bytes], counts: list[int], room: int) -> Iterator[tuple[Sequence[bytes], int, int]]:
    """Parts that fit into a request each, their spans and their bytes; mostly all of them."""
    start = size = 0
    for i, part in enumerate(parts):
        if size + len(part) > room and i > start:
            yield parts[start:i], sum(counts[start:i]), size
            start, size = i, 0
        size += len(part)
    if parts:
        yield parts[start:], sum(counts[start:]), size


def around(source: Source, length: int) -> tuple[bytes, bytes, int]:
    """What stands before and after spans of this length to make a ResourceSpans of them, and its bytes."""
    resource, scope, schema = source.encoded
    opening = resource + b"\x12" + varint(len(scope) + length + len(schema)) + scope
    around = b"\x0a" + varint(len(opening) + length + len(schema)) + opening
    return around, schema, len(around) + len(schema)
