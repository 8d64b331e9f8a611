"""Metering contexts as intervals: what was inside what, however late it was noted."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.intervals import Amounts, Interval, nest

#: Label, seconds of its own before, between and after what is inside it, how late its end was noted, what is inside.
Context: TypeAlias = "tuple[str, float, float, list[Context]]"

seconds = st.floats(1e-6, 10)
contexts: st.SearchStrategy[Context] = st.recursive(
    st.tuples(st.sampled_from("abc"), seconds, st.sampled_from([0.0, 1e-6, 0.005, 1.0]), st.just([])),
    lambda inside: st.tuples(
        st.sampled_from("abc"), seconds, st.just(0.0), st.lists(inside, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


class Meter:
    """What Dask's metering contexts post when they are run one after the other."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.posts: list[tuple[str, float, str]] = []
        self.moments: list[float] = []
        self.depths: list[int] = []

    def run(self, context: Context, depth: int = 0) -> None:
        label, own, late, inside = context
        part = own / (len(inside) + 1)
        self.now += part
        for below in inside:
            self.run(below, depth + 1)
            self.now += part
        self.post(label, own, late, depth)

    def post(self, label: str, amount: float, late: float, depth: int) -> None:
        self.posts.append((label, amount, "seconds"))
        self.moments.append(self.now + late)
        self.depths.append(depth)
        self.now += late

    def intervals(self) -> list[Interval]:
        return nest(Amounts.of(self.posts), self.moments, self.depths)


def shape(context: Context) -> object:
    return context[0], [shape(below) for below in context[3]]


def shape_of(interval: Interval) -> object:
    return interval.label, [shape_of(child) for child in interval.children]


def assert_within(interval: Interval) -> None:
    assert interval.start <= interval.end
    for child in interval.children:
        assert interval.start <= child.start <= child.end <= interval.end
        assert_within(child)


@given(st.lists(contexts, max_size=4))
def test_the_tree_is_that_of_the_contexts_however_late_their_ends_were_noted(ran: list[Context]) -> None:
    meter = Meter()
    for context in ran:
        meter.run(context)
    intervals = meter.intervals()
    assert [shape_of(interval) for interval in intervals] == [shape(context) for context in ran]
    for interval in intervals:
        assert_within(interval)


def test_a_leaf_lasts_for_its_amount_and_an_outer_one_for_its_own_and_what_is_inside() -> None:
    meter = Meter()
    meter.run(("outer", 0.001, 0.0, [("inner", 2.0, 0.0, []), ("inner", 3.0, 0.0, [])]))
    (outer,) = meter.intervals()
    assert [child.end - child.start for child in outer.children] == pytest.approx([2.0, 3.0])
    assert outer.end - outer.start == pytest.approx(5.001)


def test_an_end_that_was_noted_late_neither_cuts_nor_loses_what_is_inside() -> None:
    """Between the end of ``executor`` and its post the event loop waited for a thread of a task."""
    posts = [
        ("thread-cpu", 0.5, "seconds"),
        ("thread-noncpu", 0.5, "seconds"),
        ("executor", 0.0001, "seconds"),
    ]
    (executor,) = nest(Amounts.of(posts), [101.0, 101.0, 101.0051], [2, 1, 0], compute=1.0)
    (compute,) = executor.children
    assert (compute.start, compute.end) == (100.0, 101.0)
    assert executor.start == 100.0
    assert executor.end == pytest.approx(101.0001)


def test_what_is_posted_side_by_side_is_not_nested_however_close() -> None:
    posts = [("disk-read", 1.0, "seconds"), ("executor", 1.0, "seconds")]
    assert [interval.label for interval in nest(Amounts.of(posts), [101.0, 101.5], [0, 0])] == [
        "disk-read",
        "executor",
    ]
