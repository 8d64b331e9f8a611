"""The guard: what it says of faults, counts, and when it switches a hook off."""

from __future__ import annotations

from typing import Any

import pytest

from dask_otel.guard import LIMIT, WITHIN, Guard


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def fail(guard: Guard, hook: str, times: int = 1) -> None:
    for _ in range(times):
        try:
            raise ZeroDivisionError(hook)
        except ZeroDivisionError:
            guard.fault(hook)


def test_a_hook_is_switched_off_once_with_its_like_and_one_sentence_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard, calls = Guard("worker w1", strict=False, clock=Clock()), []
    guard.part(
        "tasks have no spans",
        lambda: calls.append("off"),
        "begin",
        "end",
        after=lambda: calls.append("after"),
    )
    fail(guard, "begin", LIMIT - 1)
    assert (calls, guard.off) == (["after"] * (LIMIT - 1), set())
    fail(guard, "begin", 3)
    fail(guard, "end", LIMIT)
    assert calls == ["after"] * (LIMIT - 1) + ["off"]
    assert guard.off == {"begin", "end"}
    assert guard.faults == {"begin": LIMIT + 2, "end": LIMIT}
    assert [record.getMessage() for record in caplog.records] == [
        "dask-otel failed in its hook 'begin' on worker w1. The computation goes on, its telemetry may be incomplete. Please "
        "report this; to run without, remove the preload or call dask_otel.disable(client).",
        "dask-otel has switched off its hook 'begin' on worker w1, which has failed 10 times: tasks have no spans. Computations "
        "go on. It stays off until dask-otel is enabled there anew: by dask_otel.disable(client) and "
        "dask_otel.enable(client), or, where it is preloaded, when that process starts again.",
        "dask-otel failed in its hook 'end' on worker w1. The computation goes on, its telemetry may be incomplete. Please "
        "report this; to run without, remove the preload or call dask_otel.disable(client).",
    ]
    assert "ZeroDivisionError: begin" in caplog.text


def test_faults_that_are_far_apart_switch_nothing_off() -> None:
    clock = Clock()
    guard = Guard("worker w1", strict=False, clock=clock)
    for _ in range(5 * LIMIT):
        fail(guard, "begin")
        clock.now += WITHIN / (LIMIT - 1) + 1
    assert (guard.off, guard.faults) == (set(), {"begin": 5 * LIMIT})


def test_a_part_that_begins_anew_is_on_again() -> None:
    guard = Guard("worker w1", strict=False, clock=Clock())
    for _ in range(2):
        guard.part("", lambda: None, "begin")
        assert guard.off == set()
        fail(guard, "begin", LIMIT)
        assert guard.off == {"begin"}


def test_what_switches_off_may_fail_too(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard("worker w1", strict=False, clock=Clock())
    guard.part("", lambda: 1 / 0, "begin", after=lambda: 1 / 0)
    fail(guard, "begin", LIMIT + 1)
    assert guard.off == {"begin"}
    assert caplog.text.count("could not cope with the faults of its hook 'begin'") == LIMIT


@pytest.mark.parametrize("strict", [True, None])
def test_faults_are_raised_under_pytest(strict: bool | None) -> None:
    with pytest.raises(ZeroDivisionError):
        fail(Guard("worker w1", strict=strict), "begin")


def test_all_steps_are_taken_whichever_fails() -> None:
    taken: list[Any] = []

    def failing() -> None:
        taken.append("failing")
        raise ZeroDivisionError

    guard = Guard("worker w1", strict=False)
    guard.each("close", failing, lambda: taken.append("last"))
    assert (taken, guard.faults) == (["failing", "last"], {"close": 1})
    with pytest.raises(ZeroDivisionError):
        Guard("worker w1", strict=True).each("close", failing, lambda: taken.append("last"))
    assert taken == ["failing", "last"] * 2
