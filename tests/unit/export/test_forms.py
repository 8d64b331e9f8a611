"""Attempts that are encoded whole decode to the very spans that they stand for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from dask_otel import names
from dask_otel.attempts import ACTIVITY_STEP, MAX_KEY_LENGTH, Attempt, Failure, Written, origin
from dask_otel.export import forms as module
from dask_otel.export.encode import Encoder
from dask_otel.export.forms import Encoded, Form, Forms
from dask_otel.intervals import Amounts
from dask_otel.parents import ACTIVITY, TASK, Parent

from . import spans as samples

PLACES = [
    origin(
        Parent(b"t" * 16, b"g" * 8, b"c" * 8, flags, detail, False, state),
        prefix,
        f"{prefix}-group",
        "tcp://w:1",
        "w",
    )
    for flags, detail, state, prefix in [
        (1, ACTIVITY, "", "inc"),
        (3, TASK, "", "add"),
        (1, ACTIVITY, "", "étiquette"),
        (1, ACTIVITY, "v=1", "mul"),
    ]
]
AMOUNTS = [
    ("deserialize", 0.1, "seconds"),
    ("mine", 0.2, "seconds"),
    ("thread-cpu", 0.125, "seconds"),
    ("thread-noncpu", 0.25, "seconds"),
    ("executor", 0.3, "seconds"),
    ("disk-write", 0.1, "seconds"),
    ("disk-write", 300, "bytes"),
    ("disk-write", 1, "count"),
    ("other", 0.1, "seconds"),
]
MOMENTS = [100.1, 100.5, 100.7, 100.7, 101.0, 101.1, 101.1, 101.1]
DEPTHS = bytes([1, 3, 2, 2, 1, 1, 1, 1])
seconds = st.floats(0, 10)
#: Few, so that labels repeat and nest in each other.
labels = st.sampled_from(["thread-cpu", "thread-noncpu", "executor", "disk-read", "étiquette"])
posts = st.lists(
    st.tuples(labels, st.floats(0, 1), st.just("seconds"))
    | st.tuples(labels, st.integers(0, 2**40), st.sampled_from(["bytes", "count"]))
    | st.tuples(labels, seconds, st.just("rows")),
    max_size=6,
)


def attempt(**fields: Any) -> Attempt:
    known = Attempt(
        PLACES[0],
        "inc-1",
        b"s" * 8,
        1,
        b"",
        "",
        start=1.7e9 + 100,
        end=1.7e9 + 101.5,
        outcome=names.SUCCESS,
        amounts=Amounts.of(AMOUNTS),
        moments=MOMENTS,
        shift=1.7e9,
        compute=0.6,
        size=28,
        type="int",
        wait_dependencies=0.5,
        wait_slot=0.25,
        thread=4711,
        depths=DEPTHS,
    )
    return known._replace(**fields)


@st.composite
def attempts(draw: st.DrawFn) -> Attempt:
    posted = draw(posts)
    moments = sorted(draw(st.lists(seconds, min_size=len(posted), max_size=len(posted))))
    depths = draw(st.lists(st.integers(0, 3), min_size=len(posted), max_size=len(posted)))
    optional = st.none() | seconds
    return attempt(
        origin=draw(st.sampled_from(PLACES[:3])),
        key=draw(st.text(max_size=300) | st.tuples(st.text(max_size=5), st.integers())),
        span_id=draw(st.binary(min_size=8, max_size=8)),
        start=1.7e9 + draw(st.floats(0, 2)),
        end=1.7e9 + 10 + draw(seconds),
        amounts=Amounts.of([*posted, ("other", draw(seconds), "seconds")]),
        moments=moments,
        depths=bytes(depths),
        compute=draw(optional),
        size=draw(st.none() | st.integers(0, 2**50)),
        type=draw(st.none() | st.text(max_size=10)),
        wait_dependencies=draw(optional),
        wait_slot=draw(optional),
        thread=draw(st.none() | st.integers(0, 2**48)),
        offset=draw(st.sampled_from([0.0, 0.0005, -0.5])),
    )


def encoded(one: Attempt, forms: Forms | None = None) -> Encoded | None:
    """What comes of it once its form is known."""
    forms = forms or Forms(128)
    return [forms.encode(one) for _ in range(module._OFTEN)][-1]


def decoded(data: bytes) -> list[Any]:
    """Spans with their attributes sorted: their order has no meaning."""
    spans = list(ScopeSpans.FromString(data).spans)
    for span in spans:
        pairs = sorted(span.attributes, key=lambda pair: str(pair.key))
        del span.attributes[:]
        span.attributes.extend(pairs)
    return sorted(spans, key=lambda span: bytes(span.span_id))


def plain(one: Attempt) -> list[Any]:
    def fail(span: object, error: Exception) -> None:
        raise error

    return decoded(b"".join(Encoder().spans(one.spans(), fail)))


@samples.steady
@given(attempts())
def test_what_is_encoded_whole_decodes_to_the_spans_of_the_attempt(one: Attempt) -> None:
    whole = encoded(one)
    if len(str(one.key)) > MAX_KEY_LENGTH:
        assert whole is None
    else:
        assert whole is not None
        assert decoded(whole.data) == plain(one)
        assert whole.spans == len(list(one.spans()))


def test_one_form_serves_attempts_of_several_groups() -> None:
    forms = Forms(128)
    for place in (PLACES[0], PLACES[2], PLACES[0]):
        one = attempt(origin=place)
        whole = encoded(one, forms)
        assert whole is not None
        assert decoded(whole.data) == plain(one)
    assert len(forms._forms) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("offset", 0.5),
        ("size", None),
        ("type", None),
        ("wait_dependencies", None),
        ("wait_slot", None),
        ("thread", None),
        ("compute", None),
        ("depths", bytes([1, 1, 2, 2, 1, 1, 1, 1])),
        ("amounts", Amounts.of([*AMOUNTS[:-3], ("disk-write", 300.0, "bytes"), *AMOUNTS[-2:]])),
        # The executor's end is noted late: it begins before what is inside it.
        ("moments", (100.1, 100.5, 100.7, 100.7, 101.1, 101.2, 101.2, 101.2)),
        # All that was metered since is cut, each within what is around it.
        ("end", 1.7e9 + 100.3),
        # The first activity's id would be zero.
        ("span_id", (-ACTIVITY_STEP % 2**64).to_bytes(8, "little")),
    ],
)
def test_attempts_that_differ_do_not_share_what_differs(field: str, value: Any) -> None:
    forms = Forms(128)
    assert encoded(attempt(), forms) is not None
    one = attempt(**{field: value})
    whole = encoded(one, forms)
    assert whole is None if field == "amounts" else whole is not None
    assert whole is None or decoded(whole.data) == plain(one)
    usual = forms.encode(attempt())
    assert usual is not None
    assert decoded(usual.data) == plain(attempt())


def test_code_is_made_for_what_comes_again_only() -> None:
    forms = Forms(128)
    assert [forms.encode(attempt()) is None for _ in range(4)] == [True, True, False, False]


def test_what_is_rare_takes_the_other_way() -> None:
    rare = {
        "ordinal": 2,
        "previous": b"p" * 8,
        "cause": names.RECOMPUTED,
        "outcome": names.CANCELLED,
        "seceded": 1.0,
        "failure": Failure("ValueError"),
        "written": Written(attributes=(("rows", 3),)),
        "origin": PLACES[3],
        "key": "x" * 257,
        "posts": Amounts.of(AMOUNTS[:-1]),
        "end": 1.7e9,
        "size": 1.5,
        "span_id": b"short",
    }
    forms = Forms(128)
    assert encoded(attempt(), forms) is not None
    assert {name for name, value in rare.items() if encoded(attempt(**{name: value}), forms)} == set()


def test_labels_that_are_no_text_and_endless_posts_take_the_other_way() -> None:
    amounts = [(("mine", 3), 0.1, "seconds"), ("other", 0.1, "seconds")]
    many = [("mine", 0.1, "seconds")] * 100
    assert encoded(attempt(amounts=Amounts.of(amounts), moments=[1.0], depths=b"\0")) is None
    assert encoded(attempt(amounts=Amounts.of(many), moments=[1.0] * 99, depths=bytes(99))) is None


def test_what_exceeds_the_limit_of_attributes_takes_the_other_way() -> None:
    task = max(len(span.common) + len(span.attributes) for span in attempt().spans())
    assert encoded(attempt(), Forms(task)) is not None
    assert encoded(attempt(), Forms(task - 1)) is None


def test_names_beyond_the_vocabulary_are_folded_in_both_ways(monkeypatch: Any) -> None:
    monkeypatch.setattr(module.ACTIVITY_NAMES, "_limit", 0)
    monkeypatch.setattr(module.ACTIVITY_NAMES, "_known", set())
    whole = encoded(attempt())
    assert whole is not None
    assert {span.name for span in decoded(whole.data)} == {"inc", names.OVERFLOW_ACTIVITY}
    assert decoded(whole.data) == plain(attempt())


def test_what_is_kept_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_MAX_FORMS", 4)
    monkeypatch.setattr(module, "_MAX_ORIGINS", 4)
    forms = Forms(128)
    for i, label in enumerate([*range(10), *[9] * 10]):
        place = PLACES[0]._replace(group=f"group-{i}")
        amounts = [(f"label-{label}", 0.1, "seconds"), ("other", 0.1, "seconds")]
        one = attempt(origin=place, amounts=Amounts.of(amounts), moments=[1.0], depths=b"\0")
        whole = encoded(one, forms)
        assert whole is None or decoded(whole.data) == plain(one)
        assert len(forms._forms) <= 4
        assert all(len(form.constants) <= 4 for form in forms._forms.values() if isinstance(form, Form))
