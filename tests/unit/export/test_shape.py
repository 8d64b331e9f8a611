"""Spans of a shape: the same bytes, limits and fates as the spans that they stand for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message

from dask_otel.export.bodies import Bodies, Source
from dask_otel.export.encode import Encoder
from dask_otel.export.limits import Limiter
from dask_otel.export.shape import Shape, as_span
from dask_otel.records import CONSUMER, SAMPLED, Scope, Span
from dask_otel.settings import Limits

from . import spans as samples
from .spans import TRACE, message, span

COMMON = (("dask.operation", "task"), ("n", 1))
SHAPE = Shape("inc", CONSUMER, COMMON, (("key", str), ("attempt", int), ("wait", float), ("time", float)))


def record(*values: Any, shape: Shape = SHAPE, **fields: Any) -> tuple[Any, ...]:
    """A span of a shape."""
    default = {
        "trace_id": TRACE,
        "span_id": b"\x02" * 8,
        "parent_id": b"",
        "flags": SAMPLED,
        "start": 1,
        "end": 2,
    }
    return (shape, *(default | fields).values(), *values)


def encoded(made: Any, encoder: Encoder | None = None) -> bytes:
    return (encoder or Encoder()).span(made)


def ordered(raw: bytes) -> bytes:
    """A message with its attributes sorted: of a shape's spans those of constant length come first."""
    decoded = Message.FromString(raw)
    pairs = sorted(decoded.attributes, key=lambda pair: pair.key)
    del decoded.attributes[:]
    decoded.attributes.extend(pairs)
    return decoded.SerializeToString(deterministic=True)


_by_type = {
    float: st.floats(),
    int: st.integers(-(2**63) - 9, 2**63 + 9),
    str: samples.texts,
}


@st.composite
def records(draw: st.DrawFn) -> tuple[Any, ...]:
    """A span of any shape, with values of the announced types, some of them missing."""
    own = draw(
        st.lists(
            st.tuples(samples.texts, st.sampled_from([float, int, str])),
            max_size=6,
            unique_by=lambda pair: pair[0],
        )
    )
    shape = Shape(draw(samples.texts), draw(st.integers(0, 5)), draw(samples.attributes), own)
    start, end = sorted((draw(samples.times), draw(samples.times)))
    values = [
        draw(st.one_of(_by_type[kind], st.none()) if draw(st.booleans()) else _by_type[kind])
        for _, kind in own
    ]
    return record(
        *values,
        shape=shape,
        trace_id=draw(samples.trace_ids),
        span_id=draw(samples.span_ids),
        parent_id=draw(st.one_of(st.just(b""), samples.span_ids)),
        flags=draw(samples.flags),
        start=start,
        end=end,
    )


@samples.steady
@given(records())
def test_a_span_of_any_shape_decodes_to_the_message_of_the_span_that_it_stands_for(made: Any) -> None:
    assert ordered(encoded(made)) == ordered(message(as_span(made)).SerializeToString())


@pytest.mark.parametrize("parent_id", [b"", b"\x03" * 8])
def test_the_generated_code_encodes_what_was_announced(parent_id: bytes) -> None:
    made = record("a", 1, 0.5, 1, parent_id=parent_id)
    raw = SHAPE.encode(made)
    assert raw is not None
    expected = as_span(record("a", 1, 0.5, 1.0, parent_id=parent_id))
    assert ordered(raw) == ordered(message(expected).SerializeToString())


def test_a_value_that_is_none_is_left_out() -> None:
    decoded = Message.FromString(encoded(record(None, 1, None, 0.5)))
    assert {pair.key for pair in decoded.attributes} == {"dask.operation", "n", "attempt", "time"}


@pytest.mark.parametrize(
    "made",
    [
        record(7, 1, 0.5, 0.5),
        record("a", "one", 0.5, 0.5),
        record("a", 1, "long", 0.5),
        record("a", 1, [0.5], 0.5),
        record("a", 1, 0.5, 0.5, start=3, end=2),
        record("a", 1, 0.5, 0.5, start=1.5, end=2.5),
    ],
    ids=["int for str", "str for int", "str for float", "list for float", "end before start", "float times"],
)
def test_what_was_not_announced_is_encoded_as_any_span(made: Any) -> None:
    assert SHAPE.encode(made) is None
    assert encoded(made) == encoded(as_span(made))


@pytest.mark.parametrize(
    "ids", [{"trace_id": b"\x01"}, {"span_id": b"\x01" * 9}, {"parent_id": b"\x01"}], ids=str
)
def test_ids_of_a_wrong_length_fail_as_any_spans_do(ids: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match="not of 16, 8 and 8 bytes"):
        encoded(record("a", 1, 0.5, 0.5, **ids))


@pytest.mark.parametrize(
    "broken", [(), (SHAPE,), (None, 1), record("a"), record("a", 1, 0.5, 0.5, 9)], ids=repr
)
def test_a_tuple_that_is_no_span_costs_itself_only(broken: Any) -> None:
    told: list[Any] = []
    parts = Encoder().spans([span(1), broken, span(2)], lambda made, error: told.append(made))
    assert (len(parts), told) == (4, [broken])


def test_a_type_that_has_no_code_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        ValueError, match="'key' is announced as <class 'list'>, which is not float, int or str"
    ):
        Shape("inc", CONSUMER, (), (("key", list),))


def test_keys_and_names_are_never_code() -> None:
    nasty = "'], __import__('os').abort(), r['"
    shape = Shape(nasty, CONSUMER, ((nasty, nasty),), ((nasty, float), (nasty + "2", str)))
    assert Message.FromString(encoded(record(0.5, nasty, shape=shape))).name == nasty


def test_limits_are_kept_by_spans_of_a_shape() -> None:
    made = record("a long key", 1, 0.5, 0.5)
    assert Limiter(Limits(attributes=6)).apply([made])[0] is made
    assert Limiter(Limits(attributes=5)).apply([made]) == [
        as_span(made)._replace(attributes=as_span(made).attributes[:3], dropped_attributes=1)
    ]
    [shortened] = Limiter(Limits(attribute_length=1)).apply([made])
    assert as_span(shortened).attributes[0] == ("key", "a")


def test_a_span_of_a_shape_that_exceeds_a_request_is_cut() -> None:
    made = record("x" * 5_000_000, 1, 0.5, 0.5)
    [body] = Bodies(failed=lambda made, error: pytest.fail(str(error))).build(
        [(Source((), Scope("")), [made])]
    )
    assert len(body.data) < 1_000


def test_a_span_is_itself() -> None:
    made = Span("inc", CONSUMER, TRACE, b"\x02" * 8)
    assert as_span(made) is made
