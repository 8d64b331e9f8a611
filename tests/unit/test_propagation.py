"""What of a context travels with a graph."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dask_otel import propagation
from dask_otel.carried import Carried
from dask_otel.propagation import MAX_TEXT, capture, from_environment, pack, to_context, unpack

TRACE, SPAN = bytes(range(16)), bytes(range(8))
FULL = Carried(TRACE, SPAN, 3, "vendor=x,other=y", "user=Zo%C3%AB,a=b%20c")
TRACEPARENT = f"00-{TRACE.hex()}-{SPAN.hex()}-03"


def context(trace_state: TraceState | None = None, flags: int = 3, **entries: object) -> Context:
    ids = int.from_bytes(TRACE, "big"), int.from_bytes(SPAN, "big")
    span = NonRecordingSpan(SpanContext(*ids, False, TraceFlags(flags), trace_state))
    made = trace.set_span_in_context(span, Context())
    for key, value in entries.items():
        made = baggage.set_baggage(key, value, made)
    return made


@pytest.fixture(autouse=True)
def fresh():
    propagation._complain.cache_clear()


# -- capture and back ----------------------------------------------------------------------------------------------


def test_ids_flags_trace_state_and_baggage_are_captured():
    state = TraceState([("vendor", "x"), ("other", "y")])
    assert capture(context(state, user="Zoë", a="b c")) == FULL


def test_an_empty_context_has_nothing_to_carry():
    assert capture(Context()) is None


def test_baggage_travels_without_a_span():
    carried = capture(baggage.set_baggage("a", 1, Context()))
    assert carried == Carried(baggage="a=1")
    back = to_context(carried)
    assert dict(baggage.get_all(back)) == {"a": "1"}
    assert trace.get_current_span(back) is trace.INVALID_SPAN


@pytest.mark.parametrize("flags", [0, 1, 2, 3, 0xFF])
def test_every_flag_is_kept(flags):
    carried = capture(context(flags=flags))
    assert carried == Carried(TRACE, SPAN, flags)
    assert trace.get_current_span(to_context(carried)).get_span_context().trace_flags == flags


def test_the_context_comes_back_with_a_remote_span_that_records_nothing():
    back = to_context(FULL)
    span = trace.get_current_span(back)
    state = TraceState([("vendor", "x"), ("other", "y")])
    ids = int.from_bytes(TRACE, "big"), int.from_bytes(SPAN, "big")
    assert span.get_span_context() == SpanContext(*ids, True, TraceFlags(3), state)
    assert not span.is_recording()
    assert dict(baggage.get_all(back)) == {"user": "Zoë", "a": "b c"}
    assert capture(back) == FULL


@given(st.dictionaries(st.text(min_size=1).filter(str.strip), st.text(), max_size=5))
def test_any_baggage_comes_back_as_it_was(entries):
    made = Context()
    for key, value in entries.items():
        made = baggage.set_baggage(key, value, made)
    carried = capture(made)
    back = to_context(carried) if carried else Context()
    assert dict(baggage.get_all(back)) == entries


def test_what_we_send_is_what_the_w3c_propagators_read():
    carrier = {"traceparent": TRACEPARENT, "tracestate": FULL.trace_state, "baggage": FULL.baggage}
    read = W3CBaggagePropagator().extract(
        carrier, TraceContextTextMapPropagator().extract(carrier, Context())
    )
    assert capture(read) == FULL
    assert dict(baggage.get_all(read)) == {"user": "Zoë", "a": "b c"}


# -- propagators ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("propagators", "expected"),
    [
        (("tracecontext", "baggage"), FULL),
        (("b3", "baggage"), FULL),
        (("jaeger",), FULL),
        (("tracecontext",), FULL._replace(baggage="")),
        (("b3multi", "xray"), FULL._replace(baggage="")),
        ((), None),
    ],
)
def test_baggage_travels_where_the_propagators_let_it_out_and_nothing_under_none(propagators, expected):
    assert capture(to_context(FULL), propagators) == expected


# -- bounds --------------------------------------------------------------------------------------------------------


def test_baggage_beyond_8_kb_is_cut_between_members_and_told_of_once(caplog):
    entries = {f"k{number:03}": "v" * 95 for number in range(100)}
    carried = capture(context(**entries))
    assert carried.baggage == ",".join(f"k{number:03}={'v' * 95}" for number in range(81))
    assert len(carried.baggage) <= MAX_TEXT
    capture(context(**entries))
    assert caplog.messages == [
        "The baggage is longer than 8192 bytes; what does not fit does not travel with graphs."
    ]
    assert unpack(pack(carried)) == carried


@pytest.mark.parametrize("size", [MAX_TEXT - 2, MAX_TEXT - 1])
def test_a_member_that_does_not_fit_is_left_out_whole(size):
    fits = size + len("a=") <= MAX_TEXT
    assert capture(context(a="v" * size)).baggage == ("a=" + "v" * size if fits else "")


def test_members_that_fill_8_kb_exactly_all_travel():
    first = "v" * (MAX_TEXT - len("a=,b=1"))
    assert capture(context(a=first, b=1, c=2)).baggage == f"a={first},b=1"


def test_a_trace_state_beyond_8_kb_is_cut_between_members():
    state = TraceState([(f"k{number}", "v" * 256) for number in range(32)])
    carried = capture(context(state))
    assert carried.trace_state == ",".join(f"k{number}={'v' * 256}" for number in range(31))
    assert unpack(pack(carried)) == carried


# -- pack and unpack -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("carried", "size"),
    [
        (Carried(TRACE, SPAN, 1), 30),
        (Carried(TRACE, SPAN, 1, "vendor=x"), 39),
        (Carried(TRACE, SPAN, 1, "", "a=b"), 35),
        (FULL, 70),
        (Carried(baggage="a=b"), 11),
    ],
)
def test_a_packed_context_is_small_and_survives_msgpack(carried, size):
    sent = msgpack.packb(pack(carried), use_bin_type=True)
    assert len(sent) <= size
    for use_list in (True, False):
        assert unpack(msgpack.unpackb(sent, use_list=use_list)) == carried


def test_packing_gives_plain_values():
    assert pack(FULL) == [TRACE, SPAN, 3, "vendor=x,other=y", "user=Zo%C3%AB,a=b%20c"]
    assert pack(Carried(TRACE, SPAN, 0)) == [TRACE, SPAN, 0]


@pytest.mark.parametrize(
    "packed",
    [
        None,
        b"",
        "",
        {},
        {0: TRACE, 1: SPAN, 2: 1},
        [],
        [TRACE, SPAN],
        [TRACE, SPAN, 1, "", "", ""],
        [TRACE[:15], SPAN, 1],
        [TRACE, SPAN + b"x", 1],
        [bytes(16), SPAN, 1],
        [TRACE, bytes(8), 1],
        [TRACE, b"", 1],
        [TRACE.hex(), SPAN.hex(), 1],
        [bytearray(TRACE), SPAN, 1],
        [TRACE, SPAN, -1],
        [TRACE, SPAN, 256],
        [TRACE, SPAN, True],
        [TRACE, SPAN, 1.0],
        [TRACE, SPAN, "1"],
        [TRACE, SPAN, 1, None],
        [TRACE, SPAN, 1, b"a=b"],
        [TRACE, SPAN, 1, "a=b\r\nx: y"],
        [TRACE, SPAN, 1, "", "é"],
        [TRACE, SPAN, 1, "", "a" * (MAX_TEXT + 1)],
        [b"", b"", 0],
        [b"", b"", 0, "", ""],
        [b"", b"", 1, "", "a=b"],
        [b"", b"", False, "", "a=b"],
        [b"", b"", 0, "a=b", "a=b"],
    ],
    ids=repr,
)
def test_what_is_not_exactly_ours_is_refused(packed):
    assert unpack(packed) is None


SCRAPS = st.sampled_from([TRACE, SPAN, b"", "", 0, 1, "a=b", "=,;%", None, float("nan")])


@given(st.one_of(st.lists(SCRAPS, max_size=6), st.recursive(SCRAPS | st.binary() | st.text(), st.lists)))
def test_unpack_never_raises_and_what_it_takes_makes_a_context(packed):
    carried = unpack(packed)
    if carried is not None:
        assert unpack(pack(carried)) == carried
        to_context(carried)


# -- the client's environment --------------------------------------------------------------------------------------


def test_a_parent_process_is_found_in_the_environment():
    environ = {
        "TRACEPARENT": TRACEPARENT,
        "TRACESTATE": "vendor=x,other=y",
        "BAGGAGE": "user=Zo%C3%AB,a=b%20c",
    }
    assert from_environment(environ) == FULL


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TRACEPARENT": ""},
        {"traceparent": TRACEPARENT},
        {"TRACEPARENT": "00-" + "0" * 32 + "-" + SPAN.hex() + "-01"},
        {"TRACEPARENT": TRACEPARENT.upper().replace("00-", "ff-")},
        {"TRACEPARENT": "garbage", "TRACESTATE": "a=b"},
        {"TRACESTATE": "a=b"},
        {"BAGGAGE": "garbage"},
    ],
    ids=repr,
)
def test_an_environment_without_a_parent_gives_none(environ):
    assert from_environment(environ) is None


def test_only_the_configured_propagators_read_the_environment():
    environ = {"TRACEPARENT": TRACEPARENT, "BAGGAGE": "a=b"}
    assert from_environment(environ, ("baggage",)) == Carried(baggage="a=b")
    assert from_environment(environ, ("tracecontext",)) == Carried(TRACE, SPAN, 3)
    assert from_environment(environ, ("b3",)) is None
    assert from_environment(environ, ()) is None


@given(st.text(), st.text(), st.text())
def test_no_environment_makes_it_raise(traceparent, tracestate, text):
    from_environment({"TRACEPARENT": traceparent, "TRACESTATE": tracestate, "BAGGAGE": text})
