"""The cheap way of an attempt to its spans, and the plain one, come to the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_otel import names
from dask_otel.attempts import Attempt, Failure, Written, origin
from dask_otel.export.encode import Encoder
from dask_otel.export.shape import as_span
from dask_otel.export.shaped import ShapedAttempt
from dask_otel.parents import ACTIVITY, TASK, Parent

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
        (1, ACTIVITY, "v=1", "mul"),
    ]
]
seconds = st.floats(0, 10)
labels = st.sampled_from(["thread-cpu", "thread-noncpu", "executor", "disk-read", ("mine", 3), "étiquette"])
posts = st.lists(
    st.tuples(labels, seconds, st.just("seconds"))
    | st.tuples(labels, st.integers(0, 2**40), st.sampled_from(["bytes", "count"])),
    max_size=6,
)
optional_seconds = st.none() | seconds


@st.composite
def attempts(draw: st.DrawFn) -> Attempt:
    posted = draw(posts)
    start = 1.7e9 + draw(seconds)
    moments = sorted(draw(st.lists(seconds, min_size=len(posted), max_size=len(posted))))
    return Attempt(
        draw(st.sampled_from(PLACES)),
        draw(st.text(max_size=300) | st.tuples(st.text(max_size=5), st.integers())),
        b"s" * 8,
        draw(st.integers(1, 3)),
        draw(st.sampled_from([b"", b"", b"p" * 8])),
        draw(st.sampled_from(["", "", names.RECOMPUTED])),
        start,
        start + draw(seconds),
        draw(st.sampled_from([names.SUCCESS, names.SUCCESS, names.SUCCESS, names.FAILED, names.CANCELLED])),
        [*posted, ("other", draw(seconds), "seconds")],
        tuple(posted),
        tuple(moments),
        start,
        draw(optional_seconds),
        draw(st.none() | st.integers(0, 2**50)),
        draw(st.none() | st.just("ndarray")),
        draw(optional_seconds),
        draw(optional_seconds),
        draw(st.none() | st.none() | seconds),
        draw(st.none() | st.integers(0, 2**48)),
        draw(st.sampled_from([0.0, 0.0, 0.5])),
        draw(st.none() | st.just(Failure("ValueError", "no", "trace"))),
        draw(st.none() | st.just(Written(attributes=(("rows", 3),)))),
        draw(st.lists(st.integers(0, 3), min_size=len(posted), max_size=len(posted))),
    )


def encoded(spans: object) -> list[bytes]:
    failed: list[object] = []
    found = Encoder().spans(spans, lambda span, error: failed.append((span, error)))  # type: ignore[arg-type]
    assert failed == []
    return found


@given(attempts())
def test_the_spans_are_the_same_and_so_are_their_bytes_but_for_the_order_of_fields(attempt: Attempt) -> None:
    plain = list(attempt.spans())
    shaped = list(ShapedAttempt(*attempt).spans())
    assert [as_span(record)._replace(common=()) for record in shaped] == [
        s._replace(common=()) for s in plain
    ]
    assert [as_span(record).common for record in shaped] == [s.common for s in plain]
    assert len(b"".join(encoded(shaped))) == len(b"".join(encoded(plain)))


def test_what_most_attempts_are_like_takes_the_cheap_way() -> None:
    amounts = [("thread-cpu", 0.1, "seconds"), ("thread-noncpu", 0.2, "seconds"), ("other", 0.1, "seconds")]
    attempt = ShapedAttempt(
        PLACES[0],
        "inc-1",
        b"s" * 8,
        1,
        b"",
        "",
        1.7e9,
        1.7e9 + 1,
        names.SUCCESS,
        amounts,
        amounts[:2],
        (1.0, 1.0),
        depths=(1, 0),
    )
    assert [type(record) for record in attempt.spans()] == [tuple, tuple]
