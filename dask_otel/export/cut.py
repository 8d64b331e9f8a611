"""What is left of a span that alone would exceed a request.

Rules
-----
1. Its large attributes, events and links are dropped and counted in it; the rest stays as it is.
"""

from __future__ import annotations

from typing import TypeVar

from dask_otel.export.values import encode_pair
from dask_otel.records import Attributes, Event, Link, Span

#: Bytes up to which an attribute or a name stays.
SMALL = 8_192

_Item = TypeVar("_Item", Event, Link)


def cut(span: Span) -> Span:
    """A span without what is large in it.

    Examples
    --------
    >>> span = Span("inc", 5, b"\\x01" * 16, b"\\x02" * 8, attributes=(("a", "x" * 10_000), ("b", 2)))
    >>> cut(span).attributes, cut(span).dropped_attributes
    ((('b', 2),), 1)
    """
    common, attributes = _small(span.common), _small(span.attributes)
    events = tuple([_cut_item(event) for event in span.events if len(event.name) <= SMALL])
    lost = len(span.common) + len(span.attributes) - len(common) - len(attributes)
    return span._replace(
        name=span.name[:SMALL],
        message=span.message[:SMALL],
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
    return tuple([pair for pair in attributes if len(encode_pair(b"", *pair)) <= SMALL])
