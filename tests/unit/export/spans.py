"""Spans for tests: any that a record can hold, and the message that the specification makes of one."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from dask_otel.records import SAMPLED, Event, Link, Span

#: For tests of whole spans, which are slow to make where others use the machine.
steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

TRACE, OTHER_TRACE = b"\x01" * 16, b"\x0f" * 16


def span(number: int = 1, **fields: Any) -> Span:
    """A span by number, as short as it can be."""
    made = Span(f"span-{number}", 1, TRACE, number.to_bytes(8, "big"), start=1_000, end=2_000)
    return made._replace(**fields)


def numbered(first: int, last: int, **fields: Any) -> list[Span]:
    return [span(number, **fields) for number in range(first, last + 1)]


# -- any span ------------------------------------------------------------------------------------------------

texts = st.one_of(st.text(max_size=20), st.sampled_from(["\ud800", "a\udfffb", "µ" * 200, "x" * 5_000, "\0"]))
integers = st.one_of(
    st.integers(),
    st.sampled_from([0, -1, 127, 128, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1]),
)
scalars = st.one_of(texts, st.booleans(), integers, st.floats(), st.binary(max_size=200), st.none())
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(texts, inner, max_size=4),
    ),
    max_leaves=5,
)
keys = st.one_of(st.sampled_from(["a", "b", "dask.task.key", ""]), texts)
attributes = st.lists(st.tuples(keys, values), max_size=4, unique_by=lambda pair: pair[0]).map(tuple)
trace_ids, span_ids = st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8)
times, flags = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
counts = st.integers(0, 2**32 - 1)
events = st.builds(Event, texts, times, attributes, counts)
links = st.builds(Link, trace_ids, span_ids, flags, texts, attributes, counts)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    start, end = sorted((draw(times), draw(times)))
    return Span(
        name=draw(texts),
        kind=draw(st.integers(0, 5)),
        trace_id=draw(trace_ids),
        span_id=draw(span_ids),
        parent_id=draw(st.one_of(st.just(b""), span_ids)),
        flags=draw(flags),
        trace_state=draw(texts),
        start=start,
        end=end,
        common=draw(attributes),
        attributes=draw(attributes),
        events=tuple(draw(st.lists(events, max_size=2))),
        links=tuple(draw(st.lists(links, max_size=2))),
        status=draw(st.integers(0, 2)),
        message=draw(texts),
        dropped_attributes=draw(counts),
        dropped_events=draw(counts),
        dropped_links=draw(counts),
    )


#: Spans whose encoding differs in one thing from another's, which a cache could take for the same.
LOOK_ALIKES = [
    span(1, common=(("a", value),), attributes=(("b", value),))
    for value in (1, True, 1.0, "1", 0, False, 0.0, -0.0, b"1", None, "")
]

HUGE = span(
    1,
    flags=SAMPLED | 0x300,
    attributes=tuple([(f"key-{i}", "v" * i) for i in range(400)]),
    events=tuple([Event("e" * 300, i, (("k", i),)) for i in range(200)]),
    links=tuple([Link(OTHER_TRACE, i.to_bytes(8, "big"), 1, "a=b", (("k", 1.5),)) for i in range(1, 200)]),
)


# -- what the specification makes of it ----------------------------------------------------------------------


def message(made: Span) -> Message:
    """The Span message that trace.proto asks for, built by hand."""
    return Message(
        trace_id=made.trace_id,
        span_id=made.span_id,
        trace_state=utf8(made.trace_state),
        parent_span_id=made.parent_id,
        flags=made.flags,
        name=utf8(made.name),
        kind=made.kind,
        start_time_unix_nano=made.start,
        end_time_unix_nano=made.end,
        attributes=pairs(made.common + made.attributes),
        dropped_attributes_count=made.dropped_attributes,
        events=[
            Message.Event(
                time_unix_nano=event.time,
                name=utf8(event.name),
                attributes=pairs(event.attributes),
                dropped_attributes_count=event.dropped_attributes,
            )
            for event in made.events
        ],
        dropped_events_count=made.dropped_events,
        links=[
            Message.Link(
                trace_id=link.trace_id,
                span_id=link.span_id,
                trace_state=utf8(link.trace_state),
                attributes=pairs(link.attributes),
                dropped_attributes_count=link.dropped_attributes,
                flags=link.flags,
            )
            for link in made.links
        ],
        dropped_links_count=made.dropped_links,
        status=Status(message=utf8(made.message), code=made.status) if made.status or made.message else None,
    )


def pairs(of: Any) -> list[KeyValue]:
    return [KeyValue(key=utf8(key), value=any_value(value)) for key, value in of]


def any_value(value: Any) -> AnyValue:
    if value is None:
        return AnyValue()
    if isinstance(value, str):
        return AnyValue(string_value=utf8(value))
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    if isinstance(value, dict):
        return AnyValue(kvlist_value=KeyValueList(values=pairs(value.items())))
    return AnyValue(array_value=ArrayValue(values=[any_value(element) for element in value]))


def _integer(value: int) -> AnyValue:
    if -(2**63) <= value < 2**63:
        return AnyValue(int_value=value)
    return AnyValue(string_value=str(value))


def utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
