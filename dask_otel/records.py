"""The data that moves between the layers: a finished span, a link, an event.

Rules
-----
1. Standard library only: no clock, no random, no OpenTelemetry, no distributed.
2. Times are integers, nanoseconds since the Unix epoch on the clock of the process that measured them.
3. Trace ids are 16 bytes, span ids 8 bytes, most significant first, never all zero; "no parent" is ``b""``.
4. A record is never changed once it was handed on; whoever gets it may read it from another thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

#: What an attribute may hold: OpenTelemetry's value types.
Value: TypeAlias = "str | bool | int | float | bytes | Sequence[Value] | dict[str, Value] | None"

#: Attributes in their order. Keys do not repeat within a span.
Attributes: TypeAlias = "tuple[tuple[str, Value], ...]"

# OTLP's numbers for a span's kind, opentelemetry/proto/trace/v1/trace.proto.
INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = 1, 2, 3, 4, 5

# OTLP's numbers for a status.
UNSET, OK, ERROR = 0, 1, 2

# The bits of a span's and a link's flags: the low eight are W3C's trace flags, the next two say whether the
# parent (of a link: the linked span) is known to be, and is, in another process.
SAMPLED = 0x01
RANDOM = 0x02
IS_REMOTE_KNOWN = 0x100
IS_REMOTE = 0x200


class Link(NamedTuple):
    """A span that this one points at, not its parent."""

    trace_id: bytes
    span_id: bytes
    flags: int = 0
    trace_state: str = ""
    attributes: Attributes = ()
    dropped_attributes: int = 0


class Event(NamedTuple):
    """Something that happened at one moment (ns) within a span."""

    name: str
    time: int
    attributes: Attributes = ()
    dropped_attributes: int = 0


class Span(NamedTuple):
    """One finished span.

    ``common`` and ``attributes`` together are the span's attributes. What stands in ``common`` is the same for
    many spans, and so is the tuple: an encoder keeps ``(name, kind, common)`` encoded and writes it again at the
    price of a look-up. What differs from span to span stands in ``attributes``.

    Examples
    --------
    >>> span = Span("inc", CONSUMER, b"\\x01" * 16, b"\\x02" * 8, start=1_000, end=2_000)
    >>> span.parent_id, span.end - span.start
    (b'', 1000)
    """

    name: str
    kind: int
    trace_id: bytes
    span_id: bytes
    parent_id: bytes = b""
    flags: int = SAMPLED
    trace_state: str = ""
    start: int = 0
    end: int = 0
    common: Attributes = ()
    attributes: Attributes = ()
    events: tuple[Event, ...] = ()
    links: tuple[Link, ...] = ()
    status: int = UNSET
    message: str = ""
    dropped_attributes: int = 0
    dropped_events: int = 0
    dropped_links: int = 0


class Scope(NamedTuple):
    """Who made the spans: OpenTelemetry's instrumentation scope."""

    name: str
    version: str = ""
    schema_url: str = ""
    attributes: Attributes = ()
