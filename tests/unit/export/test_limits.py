"""OpenTelemetry's limits on records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_otel.export.limits import Limiter
from dask_otel.records import Event, Link, Span
from dask_otel.settings import Limits

from . import spans as samples
from .spans import TRACE, span

_ABC = (("a", "aaaa"), ("b", "bbbb"), ("c", "cccc"))


def limited(made: Span, **limits: int | None) -> Span:
    [result] = Limiter(Limits(**limits)).apply([made])
    return result


def test_a_span_within_its_limits_is_handed_back_as_it_is() -> None:
    made = span(
        common=_ABC,
        attributes=(("d", [1]),),
        events=(Event("e", 1, _ABC),),
        links=(Link(TRACE, b"\x02" * 8),),
    )
    assert limited(made) is made
    assert limited(made, attributes=4, events=1, links=1, event_attributes=3, link_attributes=0) is made
    assert limited(made, attribute_length=4)._replace(attributes=made.attributes) == made


def test_the_common_attributes_stay_first_and_the_rest_is_counted() -> None:
    made = span(common=_ABC[:2], attributes=(("c", 1), ("d", 2)), dropped_attributes=1)
    assert limited(made, attributes=3) == made._replace(attributes=(("c", 1),), dropped_attributes=2)
    assert limited(made, attributes=1) == made._replace(common=_ABC[:1], attributes=(), dropped_attributes=4)
    assert limited(made, attributes=0) == made._replace(common=(), attributes=(), dropped_attributes=5)


def test_events_and_links_beyond_the_limit_are_counted() -> None:
    events = tuple([Event(f"e{i}", i) for i in range(5)])
    links = tuple([Link(TRACE, i.to_bytes(8, "big")) for i in range(1, 6)])
    made = span(events=events, links=links, dropped_events=1, dropped_links=2)
    expected = made._replace(events=events[:3], links=links[:2], dropped_events=3, dropped_links=5)
    assert limited(made, events=3, links=2) == expected


def test_attributes_of_events_and_links_have_limits_of_their_own() -> None:
    made = span(events=(Event("e", 1, _ABC, 1),), links=(Link(TRACE, b"\x02" * 8, attributes=_ABC),))
    expected = made._replace(
        events=(Event("e", 1, _ABC[:2], 2),),
        links=(Link(TRACE, b"\x02" * 8, attributes=_ABC[:1], dropped_attributes=2),),
    )
    assert limited(made, event_attributes=2, link_attributes=1) == expected


def test_strings_and_bytes_are_shortened_wherever_they_stand() -> None:
    value = {"k": ["long text", b"long bytes", 12_345, None], "n": {"m": "long text"}}
    made = span(common=_ABC[:1], attributes=(("a", "long text"), ("b", value)))
    expected = {"k": ["lo", b"lo", 12_345, None], "n": {"m": "lo"}}
    assert limited(made, attribute_length=2) == made._replace(
        common=(("a", "aa"),), attributes=(("a", "lo"), ("b", expected))
    )


def test_the_length_in_events_and_links_is_a_limit_of_its_own() -> None:
    made = span(attributes=_ABC, events=(Event("e", 1, _ABC[:1]),))
    assert limited(made, nested_attribute_length=2) == made._replace(events=(Event("e", 1, (("a", "aa"),)),))
    assert limited(made, attribute_length=9) == made


def test_no_limit_means_no_limit() -> None:
    made = span(attributes=tuple([(f"k{i}", i) for i in range(500)]), events=tuple([Event("e", 1)] * 500))
    nothing = dict.fromkeys(("attributes", "events", "links", "event_attributes", "link_attributes"))
    assert limited(made, **nothing) is made


_most = st.one_of(st.none(), st.integers(0, 4))


@samples.steady
@given(samples.spans(), st.tuples(_most, _most, _most, _most, _most))
def test_what_was_dropped_and_what_stays_add_up(made: Span, most: tuple[int | None, ...]) -> None:
    names = ("attributes", "events", "links", "event_attributes", "link_attributes")
    result = limited(made, **dict(zip(names, most, strict=True)))

    def total(of: Span) -> tuple[int, int, int]:
        pairs = len(of.common) + len(of.attributes)
        return (
            pairs + of.dropped_attributes,
            len(of.events) + of.dropped_events,
            len(of.links) + of.dropped_links,
        )

    assert total(result) == total(made)
    assert within(result.common + result.attributes, most[0])
    assert within(result.events, most[1])
    assert within(result.links, most[2])
    assert all(within(event.attributes, most[3]) for event in result.events)
    assert all(within(link.attributes, most[4]) for link in result.links)


def within(things: Sequence[Any], most: int | None) -> bool:
    return most is None or len(things) <= most
