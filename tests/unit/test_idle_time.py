"""Free threads by reason: what is kept by differences is what looking at everything at every moment gives."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.idle_time import IdleTime

NOTHING = dict.fromkeys(
    ("no-client-work", "graph-update", "not-enough-parallelism", "imbalance", "no-worker"), 0.0
)


@dataclass
class Plain:
    """All that is known, and the totals: looked through from the start whenever time goes on."""

    workers: dict[str, tuple[int, int, bool]] = field(default_factory=dict)
    queued: int = 0
    unrunnable: int = 0
    updating: int = 0
    totals: dict[str, float] = field(default_factory=NOTHING.copy)
    free_time: float = 0.0

    def advance(self, seconds: int) -> None:
        free = sum(spare for spare, _, running in self.workers.values() if running and spare > 0)
        elsewhere = self.queued + sum(-spare for spare, _, _ in self.workers.values() if spare < 0)
        self.free_time += free * seconds
        for reason, threads in self.reasons(free, elsewhere).items():
            self.totals[reason] += threads * seconds

    def reasons(self, free: int, elsewhere: int) -> dict[str, int]:
        if (
            not self.queued
            and not self.unrunnable
            and not any(tasks for _, tasks, _ in self.workers.values())
        ):
            return {"graph-update" if self.updating else "no-client-work": free}
        blocked = min(free, elsewhere + self.unrunnable)
        return {
            "no-worker": min(blocked, self.unrunnable),
            "imbalance": blocked - min(blocked, self.unrunnable),
            "graph-update" if self.updating else "not-enough-parallelism": free - blocked,
        }


few = st.integers(0, 4)
names_of_workers = st.sampled_from(["a", "b", "c"])
happenings = st.one_of(
    st.tuples(st.just("worker"), names_of_workers, st.integers(-4, 4), few, st.booleans()),
    st.tuples(st.just("left"), names_of_workers),
    st.tuples(st.just("elsewhere"), few, few, st.integers(0, 2)),
)


def happen(idle: IdleTime, plain: Plain, what: tuple[object, ...], now: int) -> None:
    match what:
        case ("worker", str(name), int(spare), int(tasks), bool(running)):
            plain.workers[name] = (spare, tasks, running)
            idle.worker(name, spare if running else min(spare, 0), tasks, now)
        case ("left", str(name)):
            plain.workers.pop(name, None)
            idle.worker(name, 0, 0, now)
        case ("elsewhere", int(queued), int(unrunnable), int(updating)):
            plain.queued, plain.unrunnable, plain.updating = queued, unrunnable, updating
            idle.others(queued, unrunnable, updating, now)


@given(st.lists(st.tuples(st.integers(0, 5), happenings, st.booleans())))
def test_differences_give_what_looking_at_everything_gives(
    story: list[tuple[int, tuple[object, ...], bool]],
) -> None:
    now, plain = 100, Plain()
    idle = IdleTime(now)
    for seconds, what, read in story:
        plain.advance(seconds)
        now += seconds
        if read:
            assert idle.totals(now) == plain.totals
        happen(idle, plain, what, now)
    plain.advance(7)
    assert idle.totals(now + 7) == plain.totals
    assert sum(plain.totals.values()) == plain.free_time


@given(st.lists(st.tuples(st.floats(0, 5), happenings)))
def test_a_total_never_falls(story: list[tuple[float, tuple[object, ...]]]) -> None:
    now = 1e9 / 3
    idle, last = IdleTime(now), dict(NOTHING)
    for seconds, what in story:
        now += seconds
        happen(idle, Plain(), what, now)  # type: ignore[arg-type]
        totals = idle.totals(now)
        assert {reason for reason in totals if totals[reason] < last[reason]} == set()
        last = totals


@pytest.mark.parametrize(
    ("queued", "unrunnable", "updating", "reasons"),
    [
        (0, 0, 0, {"imbalance": 2, "not-enough-parallelism": 2}),
        (0, 0, 1, {"imbalance": 2, "graph-update": 2}),
        (1, 0, 0, {"imbalance": 3, "not-enough-parallelism": 1}),
        (0, 1, 0, {"no-worker": 1, "imbalance": 2, "not-enough-parallelism": 1}),
        (0, 3, 0, {"no-worker": 3, "imbalance": 1}),
        (0, 9, 1, {"no-worker": 4}),
    ],
)
def test_each_free_thread_has_one_reason(
    queued: int, unrunnable: int, updating: int, reasons: dict[str, float]
) -> None:
    """Four threads are free at one worker, at another lie two tasks beyond its threads."""
    idle = IdleTime(0)
    idle.worker("free", 4, 0, 0)
    idle.worker("paused", -2, 3, 0)
    idle.others(queued, unrunnable, updating, 0)
    assert idle.totals(1) == {**NOTHING, **reasons}


@pytest.mark.parametrize(
    ("tasks", "queued", "unrunnable", "updating", "reasons"),
    [
        (0, 0, 0, 0, {"no-client-work": 4}),
        (0, 0, 0, 1, {"graph-update": 4}),
        (1, 0, 0, 0, {"not-enough-parallelism": 4}),
        (0, 1, 0, 0, {"imbalance": 1, "not-enough-parallelism": 3}),
        (0, 0, 1, 0, {"no-worker": 1, "not-enough-parallelism": 3}),
    ],
)
def test_threads_wait_for_clients_while_no_task_is_anywhere(
    tasks: int, queued: int, unrunnable: int, updating: int, reasons: dict[str, float]
) -> None:
    """Four threads are free; what is at the worker has seceded."""
    idle = IdleTime(0)
    idle.worker("free", 4, tasks, 0)
    idle.others(queued, unrunnable, updating, 0)
    assert idle.totals(1) == {**NOTHING, **reasons}


def test_time_stands_still_while_what_is_told_is_older() -> None:
    idle = IdleTime(0)
    idle.worker("free", 4, 0, 0)
    assert idle.totals(10) == {**NOTHING, "no-client-work": 40}
    idle.worker("free", 2, 2, 8)
    assert idle.totals(9) == {**NOTHING, "no-client-work": 40}
    assert idle.totals(11) == {**NOTHING, "no-client-work": 40, "not-enough-parallelism": 2}


def test_workers_that_left_are_not_remembered() -> None:
    idle = IdleTime(0)
    for n in range(3):
        idle.worker(n, 2, 0, 0)
        idle.worker(n, -1, 3, 0)
        idle.worker(n, 0, 0, 0)
    assert idle.workers == {}
