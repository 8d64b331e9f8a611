"""The encoder against protobuf's own reading of trace.proto, and against the SDK's encoder."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message

from dask_otel.export import encode, remembered
from dask_otel.export.encode import Encoder, encode_resource, encode_scope
from dask_otel.export.readable import to_readable, to_resource, to_scope
from dask_otel.export.values import MAX_DEPTH
from dask_otel.records import IS_REMOTE, IS_REMOTE_KNOWN, RANDOM, SAMPLED, Event, Link, Scope, Span

from . import spans as samples
from .spans import HUGE, LOOK_ALIKES, message, span


def parsed(made: Span, encoder: Encoder | None = None) -> Message:
    return Message.FromString((encoder or Encoder()).span(made))


def same(left: Any, right: Any) -> bool:
    """Whether messages are equal, not-a-numbers too."""
    return left.SerializeToString(deterministic=True) == right.SerializeToString(deterministic=True)


# -- against the specification -------------------------------------------------------------------------------


@samples.steady
@given(samples.spans())
def test_any_span_decodes_to_the_message_of_the_specification(made: Span) -> None:
    assert same(parsed(made), message(made))


@settings(samples.steady, max_examples=30)
@given(st.lists(st.one_of(samples.spans(), st.sampled_from(LOOK_ALIKES)), max_size=8))
def test_what_an_encoder_remembers_changes_no_span(many: list[Span]) -> None:
    encoder = Encoder()
    assert [encoder.span(made) for made in many] == [Encoder().span(made) for made in many]


def test_values_that_python_calls_equal_stay_what_they_are() -> None:
    encoder = Encoder()
    for made in [*LOOK_ALIKES, *reversed(LOOK_ALIKES)]:
        assert same(parsed(made, encoder), message(made))


def test_a_common_tuple_that_was_freed_is_not_taken_for_the_next_one_at_its_place() -> None:
    encoder = Encoder()
    for number in range(10_000):
        made = span(1, common=(("number", number),))
        assert parsed(made, encoder).attributes[0].value.int_value == number


@pytest.mark.parametrize("made", [Span("", 0, samples.TRACE, b"\x02" * 8), HUGE], ids=["empty", "huge"])
def test_the_smallest_and_a_huge_span_decode_to_the_message_of_the_specification(made: Span) -> None:
    assert same(parsed(made), message(made))


def test_an_end_before_the_start_is_written_as_the_start() -> None:
    decoded = parsed(span(start=2_000, end=1_000))
    assert (decoded.start_time_unix_nano, decoded.end_time_unix_nano) == (2_000, 2_000)


def test_times_that_are_floats_are_written_as_whole_nanoseconds() -> None:
    decoded = parsed(span(start=1.9, end=2.9, events=(Event("e", 3.9),)))  # type: ignore[arg-type]
    assert (decoded.start_time_unix_nano, decoded.end_time_unix_nano) == (1, 2)
    assert decoded.events[0].time_unix_nano == 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (numpy.int64(-3), -3),
        (numpy.float64(1.5), 1.5),
        (numpy.float32(0.5), 0.5),
        (numpy.str_("a"), "a"),
        (Fraction(1, 2), 0.5),
        (bytearray(b"a"), b"a"),
        (range(3), [0, 1, 2]),
        (frozenset({1}), [1]),
        (int, "<class 'int'>"),
    ],
    ids=repr,
)
def test_a_value_of_another_type_is_written_as_the_nearest_that_opentelemetry_has(
    value: Any, expected: Any
) -> None:
    for made in (span(common=(("a", value),)), span(attributes=(("a", value),))):
        assert same(parsed(made).attributes[0].value, samples.any_value(expected))


@pytest.mark.parametrize(
    "fields",
    [
        {"trace_state": "a=1"},
        {"events": (Event("e", 1),)},
        {"links": (Link(samples.TRACE, b"\x02" * 8),)},
        {"status": 1},
        {"message": "bad"},
        {"dropped_attributes": 1},
        {"dropped_events": 1},
        {"dropped_links": 1},
    ],
    ids=str,
)
def test_each_field_that_few_spans_have_is_written_when_it_is_the_only_one(fields: dict[str, Any]) -> None:
    assert same(parsed(span(**fields)), message(span(**fields)))


@pytest.mark.parametrize("length", [1, 31, 32, 33, 127, 128, 300, 20_000])
@pytest.mark.parametrize("letter", ["a", "µ", "\ud800", "𝄞"])
def test_text_of_any_length_is_written_whole_and_what_utf8_lacks_is_replaced(
    letter: str, length: int
) -> None:
    encoder, made = Encoder(), span(attributes=(("text", letter * length),))
    assert same(parsed(made, encoder), message(made))
    assert same(parsed(made, encoder), message(made))


def test_an_integer_with_more_digits_than_python_writes_is_written_in_hexadecimal() -> None:
    value = parsed(span(attributes=(("a", 10**5_000),))).attributes[0].value
    assert int(value.string_value, 16) == 10**5_000


def test_what_is_nested_too_deep_is_written_as_text_so_that_a_parser_takes_the_rest() -> None:
    deep: Any = "bottom"
    for _ in range(200):
        deep = {"down": [deep]}
    value = parsed(span(attributes=(("deep", deep),))).attributes[0].value
    for _ in range(MAX_DEPTH // 2):
        value = value.kvlist_value.values[0].value.array_value.values[0]
    assert value.string_value.startswith("{'down': [{'down'")


def test_a_value_that_holds_itself_is_written_up_to_the_bound() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert parsed(span(attributes=(("loop", loop),))).attributes[0].value.HasField("array_value")


@pytest.mark.parametrize(
    "made",
    [
        span(trace_id=b"\x01" * 15),
        span(span_id=b"\x01" * 9),
        span(parent_id=b"\x01" * 7),
        span(start=-1),
        span(end=2**64),
        span(flags=2**32),
        span(links=(Link(b"\x01", b"\x02" * 8),)),
    ],
    ids=["trace id", "span id", "parent id", "start", "end", "flags", "link"],
)
def test_a_span_that_cannot_be_encoded_is_told_and_left_out_of_its_batch(made: Span) -> None:
    told: list[tuple[Span, str]] = []
    good = span(7)
    parts = Encoder().spans([made, good], lambda failed, error: told.append((failed, type(error).__name__)))
    assert [failed for failed, _ in told] == [made]
    assert same(Message.FromString(parts[1]), message(good))
    assert len(parts) == 2


def test_a_value_whose_text_fails_costs_its_span_only() -> None:
    class Sour:
        def __str__(self) -> str:
            raise RuntimeError("sour")

    told: list[Exception] = []
    sour = span(attributes=(("a", Sour()),))  # type: ignore[arg-type]
    parts = Encoder().spans([span(1), sour, span(2)], lambda _, error: told.append(error))
    assert (len(parts), [str(error) for error in told]) == (4, ["sour"])


def test_what_an_encoder_remembers_is_bounded() -> None:
    encoder = Encoder()
    for number in range(20_000):
        own = (("text", str(number)), ("number", number), (f"key-{number}", 1.0), (f"text-{number}", "a"))
        encoder.span(span(number + 1, common=(("c", number),), attributes=own))
    assert len(encoder._heads) <= encode._MAX_HEADS
    assert max(map(len, (encoder._floats, encoder._strings, encoder._integers))) <= remembered.MAX_KEYS
    for known in [*encoder._strings.values(), *encoder._integers.values()]:
        assert len(known) <= remembered.MAX_VALUES


@samples.steady
@given(samples.attributes, samples.attributes, samples.texts, samples.texts)
def test_resource_and_scope_decode_to_what_they_hold(
    resource: Any, scope: Any, name: str, version: str
) -> None:
    decoded = ResourceSpans()
    decoded.resource.ParseFromString(encode_resource(resource))
    made = decoded.scope_spans.add()
    made.scope.ParseFromString(encode_scope(Scope(name, version, "", scope)))
    expected = ResourceSpans()
    expected.resource.attributes.extend(samples.pairs(resource))
    expected_scope = expected.scope_spans.add().scope
    expected_scope.name, expected_scope.version = samples.utf8(name), samples.utf8(version)
    expected_scope.attributes.extend(samples.pairs(scope))
    assert same(decoded, expected)


# -- against the SDK's encoder -------------------------------------------------------------------------------

#: What the SDK's encoder makes of our values too: no surrogates, 64 bits, keys that are not empty.
_texts = st.text(max_size=40)
_scalars = st.one_of(
    _texts, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.binary(), st.none()
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.dictionaries(st.text(min_size=1), inner, max_size=3)
    ),
    max_leaves=5,
)
_attributes = st.dictionaries(st.text(min_size=1, max_size=9), _values, max_size=5).map(
    lambda d: tuple(d.items())
)
_ids = st.integers(1, 2**64 - 1).map(lambda number: number.to_bytes(8, "big"))
_trace_ids = st.integers(1, 2**128 - 1).map(lambda number: number.to_bytes(16, "big"))
_flags = st.sampled_from([0, SAMPLED, SAMPLED | RANDOM]).flatmap(
    lambda flags: st.sampled_from([flags | IS_REMOTE_KNOWN, flags | IS_REMOTE_KNOWN | IS_REMOTE])
)
_states = st.sampled_from(["", "a=1", "a=1,b=2"])
_times = st.integers(0, 2**63)
_counts = st.integers(0, 99)


@st.composite
def sdk_spans(draw: st.DrawFn) -> Span:
    """Spans that a ReadableSpan holds without loss."""
    start, end = sorted((draw(_times), draw(_times)))
    status = draw(st.integers(0, 2))
    parent = draw(st.one_of(st.just(b""), _ids))
    return Span(
        draw(_texts),
        draw(st.integers(1, 5)),
        draw(_trace_ids),
        draw(_ids),
        parent,
        draw(_flags) if parent else SAMPLED | IS_REMOTE_KNOWN,
        draw(_states),
        start,
        end,
        (),
        draw(_attributes),
        tuple(draw(st.lists(st.builds(Event, _texts, _times, _attributes, _counts), max_size=2))),
        tuple(
            draw(
                st.lists(st.builds(Link, _trace_ids, _ids, _flags, _states, _attributes, _counts), max_size=2)
            )
        ),
        status,
        draw(_texts) if status == 2 else "",
        draw(_counts),
        draw(_counts),
        draw(_counts),
    )


def without_deviations(decoded: Message) -> Message:
    """A message without what the SDK's encoder is known to write otherwise, each item shown by a test below."""
    decoded.flags &= ~0xFF
    if not decoded.status.code and not decoded.status.message:
        decoded.ClearField("status")
    for link in decoded.links:
        link.flags &= ~0xFF
        link.ClearField("trace_state")
    return decoded


def sdk_encoded(many: Sequence[Span]) -> list[Message]:
    resource, scope = to_resource(()), to_scope(Scope("dask_otel"))
    request = encode_spans([to_readable(made, resource, scope) for made in many])
    return list(request.resource_spans[0].scope_spans[0].spans)


@samples.steady
@given(sdk_spans())
def test_the_sdks_encoder_writes_the_same_but_for_the_listed_deviations(made: Span) -> None:
    [theirs] = sdk_encoded([made])
    assert same(without_deviations(parsed(made)), without_deviations(theirs))


def test_deviation_the_sdks_encoder_leaves_out_the_trace_flags() -> None:
    made = span(flags=SAMPLED | RANDOM | IS_REMOTE_KNOWN, links=(Link(samples.TRACE, b"\x03" * 8, 0x101),))
    [theirs], ours = sdk_encoded([made]), parsed(made)
    assert (theirs.flags, theirs.links[0].flags) == (0x100, 0x100)
    assert (ours.flags, ours.links[0].flags) == (0x103, 0x101)


def test_deviation_the_sdks_encoder_leaves_out_a_links_tracestate() -> None:
    made = span(links=(Link(samples.TRACE, b"\x03" * 8, 1, "a=1"),))
    [theirs], ours = sdk_encoded([made]), parsed(made)
    assert (theirs.links[0].trace_state, ours.links[0].trace_state) == ("", "a=1")


def test_deviation_the_sdks_encoder_writes_an_empty_status_where_there_is_none() -> None:
    [theirs], ours = sdk_encoded([span()]), parsed(span())
    assert (theirs.HasField("status"), ours.HasField("status")) == (True, False)
