"""A loop's time by operation, each exclusive of what ran inside it."""

from __future__ import annotations

from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from dask_otel.handler_time import HandlerTime

#: Operation, seconds before, between and after what runs inside it, what runs inside it.
Call: TypeAlias = "tuple[str, int, list[Call]]"

calls: st.SearchStrategy[Call] = st.recursive(
    st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.just([])),
    lambda inside: st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.lists(inside, max_size=3)),
    max_leaves=8,
)


class Loop:
    """Runs calls by a clock of its own; looks at the totals at every moment."""

    def __init__(self) -> None:
        self.now = 1000
        self.times = HandlerTime(self.now)
        self.expected: dict[str, int] = {"other": 0}

    def run(self, call: Call) -> None:
        operation, seconds, inside = call
        before = self.times.enter(self.times.tally(operation), self.now)
        self.spend(operation, seconds)
        for below in inside:
            self.run(below)
            self.spend(operation, seconds)
        self.times.leave(before, self.now)

    def spend(self, operation: str, seconds: int) -> None:
        self.now += seconds
        if seconds:
            self.expected[operation] = self.expected.get(operation, 0) + seconds
        assert self.times.totals(self.now) == self.expected
        assert sum(self.expected.values()) == self.now - 1000


@given(st.lists(calls))
def test_each_second_is_of_what_ran_innermost(program: list[Call]) -> None:
    loop = Loop()
    for call in program:
        loop.run(call)
        loop.spend("other", 3)


def test_an_operation_has_one_tally_and_is_not_told_before_it_took_time() -> None:
    times = HandlerTime(0)
    assert times.tally("a") is times.tally("a") is not times.tally("b")
    before = times.enter(times.tally("a"), 2)
    times.leave(before, 4)
    assert times.totals(5) == {"other": 3, "a": 2}
