"""A worker's threads by state, on a clock of the test's."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from dask_otel import names
from dask_otel.thread_time import ThreadTime


class Counts(NamedTuple):
    """What `ThreadTime.change` is told."""

    threads: int
    executing: int = 0
    running: bool = True
    ready: int = 0
    constrained: int = 0
    waiting: int = 0


def held(counts: Counts, seconds: float) -> float:
    """Seconds that the tasks of a worker hold slots for."""
    return counts.executing * seconds


def totals(*steps: tuple[float, Counts]) -> dict[str, float]:
    """Seconds after each of these counts held for so long; states without any are left out."""
    model, now = ThreadTime(), 100.0
    for seconds, counts in steps:
        model.change(now, **counts._asdict())
        now += seconds
    found = model.totals(now, sum(held(counts, seconds) for seconds, counts in steps))
    return {state: seconds for state, seconds in found.items() if seconds}


def test_a_thread_without_a_task_is_idle() -> None:
    assert totals((4, Counts(3))) == {"idle": 12}


def test_a_thread_executes_a_task_each_and_no_more_than_there_are() -> None:
    assert totals((4, Counts(3, executing=2)), (1, Counts(3, executing=5))) == {"executing": 11, "idle": 4}


def test_a_paused_worker_has_paused_threads_for_what_it_could_run_and_no_others() -> None:
    paused = Counts(6, executing=1, running=False, ready=1, constrained=2, waiting=1)
    assert totals((2, paused)) == {"executing": 2, "paused": 6, "gather-dep": 2, "idle": 2}
    assert totals((2, Counts(2, running=False, ready=9, constrained=9, waiting=9))) == {"paused": 4}
    assert totals((2, Counts(2, running=False))) == {"idle": 4}


def test_threads_are_constrained_before_they_wait_for_data() -> None:
    assert totals((2, Counts(4, 1, constrained=2, waiting=9))) == {
        "executing": 2,
        "constrained": 4,
        "gather-dep": 2,
    }
    assert totals((2, Counts(2, constrained=9, waiting=9))) == {"constrained": 4}


def test_tasks_that_are_ready_hold_no_thread_of_a_running_worker() -> None:
    assert totals((2, Counts(2, ready=5))) == {"idle": 4}


def test_tasks_that_come_and_go_while_other_threads_are_idle_need_not_be_told() -> None:
    model = ThreadTime()
    model.change(100.0, threads=3)
    for now, seconds in ((101.0, 0.5), (104.0, 7.0), (104.5, 8.5)):
        assert model.totals(now, seconds) == {
            "executing": seconds,
            "paused": 0.0,
            "constrained": 0.0,
            "gather-dep": 0.0,
            "idle": 3 * (now - 100.0) - seconds,
        }


def test_the_states_are_those_of_the_contract_in_their_order() -> None:
    model = ThreadTime()
    model.change(0.0, threads=1)
    assert list(model.totals(1.0, 0.0)) == list(names.THREAD_STATES)


def test_seconds_before_the_first_change_are_nobodys() -> None:
    model = ThreadTime()
    assert sum(model.totals(5.0, 0.0).values()) == 0
    model.change(7.0, threads=2)
    assert sum(model.totals(8.0, 0.0).values()) == 2


few = st.integers(0, 5)
counts = st.builds(Counts, few, few, st.booleans(), few, few, few)
#: Multiples of 1/8 s add up without rounding; the clock goes back, too.
steps = st.lists(st.tuples(st.integers(-16, 80).map(lambda n: n / 8), counts))


@given(steps)
def test_states_sum_to_threads_times_uptime_and_never_fall(steps: list[tuple[float, Counts]]) -> None:
    model = ThreadTime()
    now = latest = 1000.0
    last, expected, tasks = Counts(0), 0.0, 0.0
    before = model.totals(now, 0.0)
    for passed, change in steps:
        now += passed
        expected += last.threads * max(0.0, now - latest)
        tasks += held(last, max(0.0, now - latest))
        latest = max(latest, now)
        after = model.totals(now, tasks)
        assert sum(after.values()) == expected
        model.change(now, **change._asdict())
        assert model.totals(now, tasks) == after
        assert all(after[state] >= before[state] for state in after)
        last, before = change, after


@given(st.lists(st.tuples(st.floats(0, 1e4), counts)), st.floats(1e-9, 1e9))
def test_no_total_falls_whatever_is_rounded(steps: list[tuple[float, Counts]], now: float) -> None:
    model, last, tasks = ThreadTime(), Counts(0), 0.0
    before = model.totals(now, 0.0)
    for passed, change in steps:
        tasks += held(last, (now + passed) - now)
        now += passed
        after = model.totals(now, tasks)
        assert all(after[state] >= before[state] for state in after)
        model.change(now, **change._asdict())
        last, before = change, after


@given(steps)
def test_asking_changes_nothing(steps: list[tuple[float, Counts]]) -> None:
    asked, other = ThreadTime(), ThreadTime()
    now, last, tasks = 1000.0, Counts(0), 0.0
    for passed, change in steps:
        half = abs(passed) / 2
        asked.totals(now + half, tasks + held(last, half))
        now += abs(passed)
        tasks += held(last, abs(passed))
        for model in (asked, other):
            model.change(now, **change._asdict())
        last = change
    tasks += held(last, 1.0)
    assert asked.totals(now + 1, tasks) == other.totals(now + 1, tasks)
