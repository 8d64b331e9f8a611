"""A loop's time by operation, each exclusive of what ran inside it."""

from __future__ import annotations

from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from dask_otel.handler_time import HandlerTime

#: Operation, seconds before, between and after what runs inside it, what runs inside it.
Call: TypeAlias = "tuple[str, int, list[Call]]"

calls: st.SearchStrategy[Call] = st.recursive(
    st.tuples(st.sampled_from(["a", "b", "alone"]), st.integers(0, 9), st.just([])),
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
        if operation == "alone":
            return self.run_alone(operation, seconds)
        self.times.enter(operation, self.now)
        self.expected.setdefault(operation, 0)
        self.spend(operation, seconds)
        for below in inside:
            self.run(below)
            self.spend(operation, seconds)
        self.times.leave(self.now)

    def run_alone(self, operation: str, seconds: int) -> None:
        start = self.now
        self.now += seconds
        self.times.spent(operation, start, self.now)
        self.expected.setdefault(operation, 0)
        self.now -= seconds
        self.spend(operation, seconds)

    def spend(self, operation: str, seconds: int) -> None:
        self.now += seconds
        self.expected[operation] += seconds
        assert self.times.totals(self.now) == self.expected
        assert sum(self.expected.values()) == self.now - 1000


@given(st.lists(calls))
def test_each_second_is_of_what_ran_innermost(program: list[Call]) -> None:
    loop = Loop()
    for call in program:
        loop.run(call)
        loop.spend("other", 3)


def test_leaving_what_was_never_entered_takes_nothing_away() -> None:
    times = HandlerTime(0)
    times.leave(1)
    times.enter("a", 2)
    times.leave(4)
    assert times.totals(5) == {"other": 3, "a": 2}
