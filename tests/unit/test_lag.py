"""How late an event loop is: by a clock of its own, and by a loop that is blocked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from dask_otel.distributions import Histograms
from dask_otel.guard import LIMIT, Guard
from dask_otel.health import Health
from dask_otel.instruments import GC_PAUSE, LOOP_LAG
from dask_otel.seam.lag import LagTimer


class Timer:
    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self._when = when
        self.callback = callback
        self.cancelled = False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Calls what is due whenever a test lets it run."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        self.timers.append(Timer(self.now + delay, callback))
        return self.timers[-1]

    def run(self, until: float) -> None:
        """Nothing blocks it."""
        while due := [t for t in self.timers if not t.cancelled and t.when() <= until]:
            self.now = max(self.now, due[0].when())
            self._call(due[0])
        self.now = until

    def block(self, until: float) -> None:
        """Something does, then it calls what is due."""
        self.now = until
        for timer in [t for t in self.timers if not t.cancelled and t.when() <= until]:
            self._call(timer)

    def _call(self, timer: Timer) -> None:
        self.timers.remove(timer)
        timer.callback()


def looked_at() -> tuple[Any, LagTimer, list[float]]:
    loop, late = Loop(), []
    return loop, LagTimer(loop, late.append, Guard("server", strict=True)), late  # type: ignore[arg-type]


def test_it_looks_ten_times_a_second_and_a_block_is_seen_once_with_what_was_left_of_it() -> None:
    loop, timer, late = looked_at()
    timer.start()
    loop.run(101.05)
    assert late == [pytest.approx(0, abs=1e-9)] * 10
    late.clear()
    loop.block(102.05)
    loop.run(102.3)
    assert late == [pytest.approx(0.95), *[pytest.approx(0, abs=1e-9)] * 2]


def test_it_stops_and_starts_again() -> None:
    loop, timer, late = looked_at()
    timer.start()
    loop.run(100.15)
    timer.stop()
    timer.stop()
    loop.run(103)
    assert len(late) == 1
    timer.start()
    loop.run(103.15)
    assert late == [pytest.approx(0, abs=1e-9)] * 2
    assert len([one for one in loop.timers if not one.cancelled]) == 1


def test_faults_of_ours_end_it() -> None:
    loop = Loop()
    guard = Guard("server", strict=False)
    timer = LagTimer(loop, lambda seconds: 1 / 0, guard)  # type: ignore[arg-type]
    timer.start()
    loop.run(105)
    assert (guard.faults["event_loop.lag"], loop.timers) == (LIMIT, [])
    timer.stop()


def test_a_real_loop_that_is_blocked_for_half_a_second_is_that_late() -> None:
    async def run() -> dict[str, Any]:
        health = Health(Histograms(), Guard("server", strict=True))
        health.install()
        await asyncio.sleep(0.15)
        time.sleep(0.5)
        deadline = time.monotonic() + 30
        while not (lag := lags(health)) or lag.max < 0.35:
            assert time.monotonic() < deadline, lag
            await asyncio.sleep(0.01)
        health.uninstall()
        found = {one.instrument.name: one.points for one in health.measured()}
        assert found.keys() == {LOOP_LAG.name, GC_PAUSE.name}
        return {"points": found[LOOP_LAG.name]}

    def lags(health: Health) -> Any:
        (lag, _) = health.measured()
        return lag.points[0].value if lag.points else None

    ((_, lag),) = asyncio.run(run())["points"]
    assert 0.39 <= lag.max <= 5
    assert lag.sum >= lag.max
    assert lag.total == sum(lag.counts) >= 2
