"""A worker's tasks by prefix, on a clock of the test's."""

from __future__ import annotations

from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.running_time import RunningTime


def test_a_running_task_counts_up_to_now_and_once_after_its_end() -> None:
    tasks = RunningTime()
    tasks.start(10.0, "inc-1", "inc")
    assert [tasks.compute(now) for now in (10.0, 10.5, 12.0)] == [{"inc": 0.0}, {"inc": 0.5}, {"inc": 2.0}]
    tasks.stop(13.0, "inc-1")
    assert [tasks.compute(now) for now in (13.0, 99.0)] == [{"inc": 3.0}, {"inc": 3.0}]


def test_elapsed_time_is_that_of_running_tasks_and_0_after() -> None:
    tasks = RunningTime()
    tasks.start(10.0, "inc-1", "inc")
    tasks.start(12.0, "inc-2", "inc")
    tasks.start(13.0, "load-1", "load")
    assert tasks.executing(14.0) == {"inc": 6.0, "load": 1.0}
    tasks.stop(14.0, "inc-1")
    tasks.stop(14.0, "load-1")
    assert tasks.executing(15.0) == {"inc": 3.0, "load": 0.0}


def test_a_seceded_task_holds_no_slot_and_counts_apart_until_its_end() -> None:
    tasks = RunningTime()
    tasks.start(10.0, "inc-1", "inc")
    tasks.secede(12.0, "inc-1", "inc")
    assert (tasks.compute(13.0), tasks.executing(13.0), tasks.seceded(13.0)) == (
        {"inc": 2.0},
        {"inc": 0.0},
        {"inc": 1.0},
    )
    tasks.stop(15.0, "inc-1")
    assert (tasks.compute(99.0), tasks.seceded(99.0)) == ({"inc": 2.0}, {"inc": 3.0})


def test_a_task_that_seceded_before_anybody_looked_counts_as_seceded_only() -> None:
    tasks = RunningTime()
    tasks.secede(10.0, "inc-1", "inc")
    tasks.stop(11.0, "inc-1")
    assert (tasks.compute(12.0), tasks.seceded(12.0)) == ({}, {"inc": 1.0})


def test_a_task_that_runs_again_counts_again() -> None:
    tasks = RunningTime()
    for start in (10.0, 20.0):
        tasks.start(start, "inc-1", "inc")
        tasks.stop(start + 1, "inc-1")
    assert tasks.compute(30.0) == {"inc": 2.0}


def test_what_cannot_be_is_refused_and_counts_nothing() -> None:
    tasks = RunningTime()
    tasks.start(10.0, "inc-1", "inc")
    with pytest.raises(ValueError, match="starts and has not stopped"):
        tasks.start(11.0, "inc-1", "inc")
    with pytest.raises(KeyError):
        tasks.stop(11.0, "inc-2")
    tasks.secede(12.0, "inc-1", "inc")
    with pytest.raises(ValueError, match="has seceded already"):
        tasks.secede(13.0, "inc-1", "inc")
    assert (tasks.compute(14.0), tasks.seceded(14.0)) == ({"inc": 2.0}, {"inc": 2.0})


# -- against a plain reference ------------------------------------------------------------------------------------


class Event(NamedTuple):
    passed: float
    what: Literal["start", "secede", "stop", "ask"]
    which: int


PREFIXES = ("inc", "load", "sum")
events = st.lists(
    st.builds(
        Event,
        # Multiples of 1/8 s add up without rounding; the clock goes back, too.
        st.integers(-16, 80).map(lambda n: n / 8),
        st.sampled_from(("start", "secede", "stop", "ask")),
        st.integers(0, 50),
    ),
    max_size=60,
)


class Reference:
    """Every task with the moments that it saw; sums are made when they are asked for."""

    def __init__(self) -> None:
        self.latest = 1000.0
        self.spans: list[list[object]] = []
        #: Of a task that runs: its interval, still without an end, and whether it has seceded.
        self.open: dict[str, tuple[list[object], bool]] = {}

    def add(self, kind: str, task: str) -> None:
        span: list[object] = [kind, prefix(task), self.latest, None]
        self.spans.append(span)
        self.open[task] = span, kind == "seceded"

    def close(self, task: str) -> None:
        self.open.pop(task)[0][3] = self.latest

    def total(self, kind: str, running_only: bool = False) -> dict[str, float]:
        found: dict[str, float] = {}
        for of, name, start, end in self.spans:
            if of == kind:
                until = self.latest if end is None else end
                seconds = 0.0 if running_only and end is not None else until - start  # type: ignore[operator]
                found[str(name)] = found.get(str(name), 0.0) + seconds
        return found

    @property
    def holding(self) -> list[str]:
        return [task for task, (_, seceded) in self.open.items() if not seceded]


def prefix(task: str) -> str:
    return PREFIXES[int(task) % len(PREFIXES)]


def play(model: RunningTime, reference: Reference, now: float, event: Event, number: int) -> None:
    """Do the event to both, where it can be."""
    reference.latest = max(reference.latest, now)
    if event.what == "start":
        model.start(now, str(number), prefix(str(number)))
        reference.add("compute", str(number))
    elif event.what == "secede" and reference.holding:
        task = reference.holding[event.which % len(reference.holding)]
        model.secede(now, task, prefix(task))
        reference.close(task)
        reference.add("seceded", task)
    elif event.what == "stop" and reference.open:
        task = list(reference.open)[event.which % len(reference.open)]
        model.stop(now, task)
        reference.close(task)


@given(events)
def test_totals_are_those_of_every_tasks_moments(events: list[Event]) -> None:
    model, reference, now = RunningTime(), Reference(), 1000.0
    model.compute(now)
    for number, event in enumerate(events):
        now += event.passed
        play(model, reference, now, event, number)
        assert model.compute(now) == reference.total("compute")
        assert model.executing(now) == reference.total("compute", running_only=True)
        assert model.seceded(now) == reference.total("seceded")


@given(events)
def test_the_sum_over_prefixes_is_the_integral_of_the_number_of_running_tasks(events: list[Event]) -> None:
    model, reference, now = RunningTime(), Reference(), 1000.0
    integral = integral_seceded = 0.0
    for number, event in enumerate(events):
        now += abs(event.passed)
        holding = len(reference.holding)
        integral += holding * abs(event.passed)
        integral_seceded += (len(reference.open) - holding) * abs(event.passed)
        play(model, reference, now, event, number)
        assert sum(model.compute(now).values()) == integral
        assert sum(model.seceded(now).values()) == integral_seceded


@given(
    events,
    st.lists(st.floats(-1.0, 1e4), min_size=60, max_size=60),
    st.floats(1e-9, 1e9),
)
def test_totals_never_fall_whatever_is_rounded(events: list[Event], passed: list[float], now: float) -> None:
    model, reference = RunningTime(), Reference()
    before: dict[str, float] = {}
    for number, event in enumerate(events):
        now += passed[number]
        after = model.compute(now)
        assert all(after[name] >= seconds for name, seconds in before.items())
        play(model, reference, now, event, number)
        before = model.compute(now)
        assert all(before[name] >= seconds for name, seconds in after.items())
