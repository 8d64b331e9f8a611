"""Hooks are timed in windows, and stand for the time in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dask_otel import overhead
from dask_otel.guard import Guard
from dask_otel.overhead import PERIOD, WINDOW, Overhead


class Loop:
    """Timers by hand; the clock stands still but for what is told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timer: tuple[float, Callable[[], None]] | None = None

    def clock(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Loop:
        self.timer = self.now + delay, call
        return self

    def cancel(self) -> None:
        self.timer = None

    def advance(self) -> None:
        """To the timer's moment."""
        assert self.timer is not None
        self.now, call = self.timer
        call()


class Seam:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def transition(self, seconds: float, *, fails: bool = False) -> float:
        self.loop.now += seconds
        if fails:
            raise KeyError(seconds)
        return seconds


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    monkeypatch.setattr(overhead.random, "uniform", lambda low, high: (low + high) / 2)
    return loop


def watched(loop: Loop) -> tuple[Overhead, Seam]:
    seam = Seam(loop)
    found = Overhead(Guard("server", strict=True), loop.clock)
    found.watch(seam, "transition")
    found.install()
    return found, seam


def test_what_is_seen_in_a_window_stands_for_the_time_since_the_one_before(loop: Loop) -> None:
    found, seam = watched(loop)
    assert seam.transition(1.0) == 1.0
    assert vars(seam) == {"loop": loop}
    loop.timer = 100.0 + PERIOD, loop.timer[1]  # type: ignore[index]
    loop.advance()
    assert seam.transition(0.01) == 0.01
    with pytest.raises(KeyError):
        seam.transition(0.03, fails=True)
    assert found.seconds == 0
    loop.advance()
    assert vars(seam) == {"loop": loop}
    assert found.seconds == pytest.approx(0.04 * (PERIOD + WINDOW) / WINDOW)
    loop.advance()
    loop.advance()
    assert found.seconds == pytest.approx(0.04 * (PERIOD + WINDOW) / WINDOW)


def test_it_leaves_nothing_behind_wherever_it_is_ended(loop: Loop) -> None:
    found, seam = watched(loop)
    loop.advance()
    assert "transition" in vars(seam)
    found.uninstall()
    assert (vars(seam), loop.timer, found.seconds) == ({"loop": loop}, None, 0)


def test_what_cannot_be_timed_is_told_and_not_tried_again(loop: Loop) -> None:
    seam: Any = Seam(loop)
    found = Overhead(Guard("server", strict=True), loop.clock)
    found.watch(seam, "transition", "unknown")
    found.install()
    with pytest.raises(AttributeError):
        loop.advance()
    assert (vars(seam), found.seconds) == ({"loop": loop}, 0)
