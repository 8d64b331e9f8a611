"""OpenTelemetry's limits of a span, applied to records.

Rules
-----
1. A span within its limits is handed back as it is, the same object.
2. What is left out is counted in the span's, event's or link's ``dropped_…``; what is shortened is not, as
   the specification has it.
3. The first attributes stay, and of them the common ones.

Source: https://opentelemetry.io/docs/specs/otel/common/#attribute-limits and …/trace/sdk/#span-limits.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from dask_otel.records import Attributes, Event, Link, Span, Value
from dask_otel.settings import Limits

_UNLIMITED = 2**63

_Item = TypeVar("_Item", Event, Link)


class Limiter:
    """Applies limits to spans.

    Examples
    --------
    >>> limiter = Limiter(Limits(attributes=1))
    >>> span = Span("inc", 5, b"\\x01" * 16, b"\\x02" * 8, attributes=(("a", 1), ("b", 2)))
    >>> [limited] = limiter.apply([span])
    >>> limited.attributes, limited.dropped_attributes
    ((('a', 1),), 1)
    """

    def __init__(self, limits: Limits) -> None:
        self._attributes = _UNLIMITED if limits.attributes is None else limits.attributes
        self._events = _UNLIMITED if limits.events is None else limits.events
        self._links = _UNLIMITED if limits.links is None else limits.links
        self._event_attributes = _UNLIMITED if limits.event_attributes is None else limits.event_attributes
        self._link_attributes = _UNLIMITED if limits.link_attributes is None else limits.link_attributes
        self._length = limits.attribute_length
        self._nested_length = limits.nested_attribute_length

    def apply(self, spans: Sequence[Span]) -> Sequence[Span]:
        """The spans, each within its limits."""
        if self._length is not None:
            return [self.limit(span) for span in spans]
        most, several = self._attributes, cast("Sequence[Any]", spans)
        # 11 and 12 are events and links, 9 and 10 common and attributes: an index costs half of what a name
        # does.
        return [
            span if not (span[11] or span[12]) and len(span[9]) + len(span[10]) <= most else self.limit(span)
            for span in several
        ]

    def limit(self, span: Span) -> Span:
        """One span within its limits."""
        common = _limited(span.common, self._attributes, self._length)
        attributes = _limited(span.attributes, self._attributes - len(common), self._length)
        events = self._items(span.events, self._events, self._event_attributes)
        links = self._items(span.links, self._links, self._link_attributes)
        if (
            common is span.common
            and attributes is span.attributes
            and events is span.events
            and links is span.links
        ):
            return span
        before = len(span.common) + len(span.attributes)
        return span._replace(
            common=common,
            attributes=attributes,
            events=events,
            links=links,
            dropped_attributes=span.dropped_attributes + before - len(common) - len(attributes),
            dropped_events=span.dropped_events + len(span.events) - len(events),
            dropped_links=span.dropped_links + len(span.links) - len(links),
        )

    def _items(self, items: tuple[_Item, ...], most: int, most_attributes: int) -> tuple[_Item, ...]:
        kept = tuple([self._item(item, most_attributes) for item in items[:most]])
        same = len(kept) == len(items) and all(map(operator.is_, kept, items))
        return items if same else kept

    def _item(self, item: _Item, most: int) -> _Item:
        kept = _limited(item.attributes, most, self._nested_length)
        if kept is item.attributes:
            return item
        dropped = len(item.attributes) - len(kept)
        return item._replace(attributes=kept, dropped_attributes=item.dropped_attributes + dropped)


def _limited(attributes: Attributes, most: int, length: int | None) -> Attributes:
    kept = attributes if len(attributes) <= most else attributes[:most]
    if length is None or all(_within(value, length) for _, value in kept):
        return kept
    return tuple([(key, shorten(value, length)) for key, value in kept])


def _within(value: Value, length: int) -> bool:
    if isinstance(value, (str, bytes)):
        return len(value) <= length
    return not isinstance(value, (Mapping, Sequence))


def shorten(value: Value, length: int) -> Any:
    """A value whose strings and bytes, in lists and dictionaries too, have at most this length.

    Examples
    --------
    >>> shorten(["abc", 12345], 2)
    ['ab', 12345]
    """
    if isinstance(value, (str, bytes)):
        return value if len(value) <= length else value[:length]
    if isinstance(value, Mapping):
        return {key: shorten(element, length) for key, element in value.items()}
    if isinstance(value, Sequence):
        return [shorten(element, length) for element in value]
    return value
