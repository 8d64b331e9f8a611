"""A worker's tasks by prefix, on a clock of the test's."""

from __future__ import annotations

from typing import Literal, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from dask_otel.running_time import RunningTime


class Task:
    """Its hash costs something: whoever puts it into a set must ask for it, the model need not."""

    asked = 0

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __hash__(self) -> int:
        Task.asked += 1
        return id(self)


def test_a_running_task_counts_up_to_now_and_once_after_its_end() -> None:
    tasks, inc = RunningTime(), Task("inc")
    tasks.change(10.0, {inc})
    assert [tasks.totals(now) for now in (10.0, 10.5, 12.0)] == [{"inc": 0.0}, {"inc": 0.5}, {"inc": 2.0}]
    tasks.change(13.0, set())
    assert [tasks.totals(now) for now in (13.0, 99.0)] == [{"inc": 3.0}, {"inc": 3.0}]


def test_elapsed_time_is_that_of_running_tasks_and_0_after() -> None:
    tasks, first, second, load = RunningTime(), Task("inc"), Task("inc"), Task("load")
    tasks.change(10.0, {first})
    tasks.change(12.0, {first, second})
    tasks.change(13.0, {first, second, load})
    assert tasks.elapsed(14.0) == {"inc": 6.0, "load": 1.0}
    tasks.change(14.0, {second})
    assert tasks.elapsed(15.0) == {"inc": 3.0, "load": 0.0}


def test_an_end_takes_nothing_away_by_rounding() -> None:
    """0.3 + (10.0 + 8.0) is more than (0.3 + 8.0) + 10.0, to the last digit."""
    tasks, early, late, last = RunningTime(), Task("inc"), Task("inc"), Task("inc")
    tasks.change(0.0, {last})
    tasks.change(0.3, set())
    tasks.change(2.2, {early})
    tasks.change(4.2, {early, late})
    before = tasks.totals(12.2)
    tasks.change(12.2, {early})
    assert (before, tasks.totals(12.2)) == ({"inc": 18.3}, {"inc": 18.3})


def test_a_task_that_runs_again_counts_again() -> None:
    tasks, inc = RunningTime(), Task("inc")
    for start in (10.0, 20.0):
        tasks.change(start, {inc})
        tasks.change(start + 1, set())
    assert tasks.totals(30.0) == {"inc": 2.0}


def test_a_task_that_takes_anothers_place_is_told_from_it() -> None:
    tasks, running = RunningTime(), {Task("inc")}
    tasks.change(10.0, running)
    running.clear()
    running.add(Task("load"))
    tasks.change(12.0, running)
    assert tasks.totals(15.0) == {"inc": 2.0, "load": 3.0}


def test_a_set_that_changes_is_the_callers() -> None:
    tasks, running = RunningTime(), {Task("inc")}
    tasks.change(10.0, running)
    running.clear()
    assert tasks.totals(12.0) == {"inc": 2.0}
    tasks.change(13.0, running)
    assert tasks.totals(20.0) == {"inc": 3.0}


def test_a_tasks_hash_is_not_asked_for() -> None:
    tasks, running, inc = RunningTime(), set[Task](), Task("inc")
    running.add(inc)
    asked = Task.asked
    tasks.change(10.0, running)
    tasks.totals(11.0)
    running.clear()
    tasks.change(12.0, running)
    assert Task.asked == asked


def test_no_task_is_remembered_that_runs_no_more() -> None:
    tasks = RunningTime()
    tasks.change(10.0, {Task("inc"), Task("load")})
    tasks.change(11.0, set())
    assert (tasks._running, tasks._since) == (set(), {})


# -- against a plain reference ------------------------------------------------------------------------------------


class Event(NamedTuple):
    passed: float
    what: Literal["start", "stop", "swap", "ask"]
    which: int


PREFIXES = ("inc", "load", "sum")
events = st.lists(
    st.builds(
        Event,
        # Multiples of 1/8 s add up without rounding; the clock goes back, too.
        st.integers(-16, 80).map(lambda n: n / 8),
        st.sampled_from(("start", "stop", "swap", "ask")),
        st.integers(0, 50),
    ),
    max_size=60,
)


class Reference:
    """Every task with its start and its end; sums are made when they are asked for."""

    def __init__(self) -> None:
        self.latest = 1000.0
        self.spans: list[tuple[Task, float, list[float]]] = []

    @property
    def running(self) -> set[Task]:
        return {task for task, _, ends in self.spans if not ends}

    def start(self, which: int) -> None:
        self.spans.append((Task(PREFIXES[which % len(PREFIXES)]), self.latest, []))

    def stop(self, which: int) -> None:
        going = [ends for _, _, ends in self.spans if not ends]
        if going:
            going[which % len(going)].append(self.latest)

    def totals(self, running_only: bool = False) -> dict[str, float]:
        found: dict[str, float] = {}
        for task, start, ends in self.spans:
            until = ends[0] if ends else self.latest
            seconds = 0.0 if running_only and ends else until - start
            found[task.prefix] = found.get(task.prefix, 0.0) + seconds
        return found


def play(model: RunningTime, reference: Reference, now: float, event: Event) -> None:
    reference.latest = max(reference.latest, now)
    if event.what in ("stop", "swap"):
        reference.stop(event.which)
    if event.what in ("start", "swap"):
        reference.start(event.which)
    if event.what != "ask":
        model.change(now, reference.running)


@given(events)
def test_totals_are_those_of_every_tasks_moments(events: list[Event]) -> None:
    model, reference, now = RunningTime(), Reference(), 1000.0
    model.totals(now)
    for event in events:
        now += event.passed
        play(model, reference, now, event)
        assert model.totals(now) == reference.totals()
        assert model.elapsed(now) == reference.totals(running_only=True)


@given(events)
def test_the_sum_over_prefixes_is_the_integral_of_the_number_of_running_tasks(events: list[Event]) -> None:
    model, reference, now = RunningTime(), Reference(), 1000.0
    integral = 0.0
    for event in events:
        now += abs(event.passed)
        integral += len(reference.running) * abs(event.passed)
        play(model, reference, now, event)
        assert sum(model.totals(now).values()) == integral


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
        after = model.totals(now)
        assert all(after[name] >= seconds for name, seconds in before.items())
        play(model, reference, now, event)
        before = model.totals(now)
        assert all(before[name] >= seconds for name, seconds in after.items())
