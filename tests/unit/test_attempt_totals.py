"""Attempts and wasted seconds are counted once each, whoever tells of them and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel import names, parents
from dask_otel.attempt_totals import AttemptTotals
from dask_otel.endings import PATIENCE
from dask_otel.sums import Sums
from tests.unit.test_computations import CLIENT_SPAN, W1, W2, Scheduler, assert_empty

OFF = {
    "not sampled": {"detail": parents.ACTIVITY, "sampled": False},
    "nothing sent": {"detail": parents.OFF},
}


def sums(*outcomes: str, recomputed: float = 0.0, going: int = 0) -> list[object]:
    """A worker's word of attempts of one second."""
    found = Sums()
    for outcome in outcomes:
        found.count(outcome, 1.0)
    found.recomputed, found.going = recomputed, going
    return found.to_wire()


@pytest.fixture
def totals() -> AttemptTotals:
    totals = AttemptTotals()
    totals.install()
    return totals


def test_the_reasons_sum_to_what_the_computations_say(totals: AttemptTotals) -> None:
    whole = Sums()
    for wire in (sums(*names.TASK_OUTCOMES), sums(names.SUCCESS, recomputed=1.0)):
        totals.add("inc", wire)
        whole.merge(wire)
    assert totals.wasted == {
        ("inc", "failed"): 1.0,
        ("inc", "cancelled"): 3.0,
        ("inc", "lost"): 1.0,
        ("inc", "recomputed"): 1.0,
    }
    assert sum(totals.wasted.values()) == whole.wasted
    assert totals.attempts == {("inc", outcome, ""): n for outcome, n in whole.counts.items()}


def test_a_cancelled_run_that_goes_on_is_counted_once(totals: AttemptTotals) -> None:
    totals.go_on("inc", 2)
    assert (totals.attempts, totals.wasted) == ({("inc", "cancelled", ""): 2}, {})
    totals.add("inc", sums(names.CANCELLED, going=-1), late=True)
    totals.add("inc", sums(names.DISCARDED, going=-1), late=True)
    assert totals.attempts == {("inc", "cancelled", ""): 2}
    assert totals.wasted == {("inc", "cancelled"): 2.0}
    totals.add("inc", sums(names.CANCELLED), late=True)
    assert totals.attempts["inc", "cancelled", ""] == 3


def test_one_that_is_cancelled_when_its_group_was_told_is_counted_once_too(totals: AttemptTotals) -> None:
    totals.add("inc", sums(going=1), late=True)
    totals.add("inc", sums(names.CANCELLED, going=-1), late=True)
    assert totals.attempts == {("inc", "cancelled", ""): 1}
    totals.add("inc", sums(names.CANCELLED), late=True)  # It began and ended in one message.
    assert totals.attempts == {("inc", "cancelled", ""): 2}


@given(st.lists(st.tuples(st.sampled_from(names.TASK_OUTCOMES), st.integers(-2, 2), st.booleans())))
def test_totals_never_fall(told: list[tuple[str, int, bool]]) -> None:
    totals = AttemptTotals()
    totals.install()
    before = (totals.attempts, totals.wasted)
    for outcome, going, late in told:
        totals.add("inc", sums(outcome, going=going), late=late)
        after = (totals.attempts, totals.wasted)
        for earlier, later in zip(before, after):
            assert all(later[of] >= value for of, value in earlier.items())
        before = after


def test_nothing_is_counted_while_it_is_off() -> None:
    totals = AttemptTotals()

    def all_of_it() -> None:
        totals.add("inc", sums(names.FAILED, recomputed=1.0))
        totals.go_on("inc", 1)
        totals.lost("inc", 1.0)
        totals.untold("inc", names.SUCCESS)

    all_of_it()
    assert (totals.attempts, totals.wasted) == ({}, {})
    totals.install()
    all_of_it()
    assert len(totals.attempts) == 4
    totals.uninstall()
    all_of_it()
    assert sum(totals.attempts.values()) == 4
    totals.install()
    assert (totals.attempts, totals.wasted) == ({}, {})


# -- on the scheduler --------------------------------------------------------------------------------------------------


def tell(scheduler: Scheduler, handed: parents.Handed | None, *outcomes: str, prefix: str = "") -> bool:
    assert handed is not None
    return scheduler.model.add(handed.parent.address, sums(*outcomes), prefix)


@pytest.mark.parametrize("how", OFF)
def test_a_computation_that_is_not_traced_is_counted_group_by_group(how: str) -> None:
    scheduler = Scheduler(**OFF[how])  # type: ignore[arg-type]
    scheduler.model.tellers = {W1}
    scheduler.model.totals.install()
    scheduler.submit("inc-1", "add-1", carried=None)
    handed = {key: scheduler.dispatch(key) for key in ("inc-1", "add-1")}
    places = set()
    for told in handed.values():
        assert told is not None
        assert (told.parent.detail, told.parent.counted, told.parent.tells) == (parents.OFF, True, True)
        places.add(told.parent.address)
    assert len(places) == 2
    scheduler.end("inc-1")
    scheduler.end("add-1", "erred")
    assert scheduler.tick() == PATIENCE
    assert tell(scheduler, handed["inc-1"], names.SUCCESS)
    assert tell(scheduler, handed["add-1"], names.FAILED)
    assert not scheduler.tick()
    assert scheduler.model.totals.attempts == {("inc", "success", ""): 1, ("add", "failed", ""): 1}
    assert scheduler.model.totals.wasted == {("add", "failed"): 1.0}
    assert not tell(scheduler, handed["inc-1"], names.CANCELLED, prefix="inc")
    assert scheduler.model.totals.attempts["inc", "cancelled", ""] == 1
    assert scheduler.emitted == []
    assert_empty(scheduler.model)


@pytest.mark.parametrize("how", OFF)
def test_where_nobody_counts_an_untraced_computation_is_told_at_once(how: str) -> None:
    scheduler = Scheduler(**OFF[how])  # type: ignore[arg-type]
    scheduler.model.tellers = {W1}
    scheduler.submit("inc-1", carried=None)
    handed = scheduler.dispatch("inc-1")
    assert handed is None or not handed.parent.tells
    assert (handed is None) == (how == "nothing sent")
    scheduler.end("inc-1")
    assert not scheduler.tick()
    assert_empty(scheduler.model)


def test_what_is_not_traced_is_lost_and_computed_again_all_the_same() -> None:
    scheduler = Scheduler(parents.OFF)
    scheduler.model.tellers = {W1, W2}
    scheduler.model.totals.install()
    scheduler.submit("base-1", "held-1", carried=CLIENT_SPAN._replace(flags=0))
    first = scheduler.dispatch("base-1")
    scheduler.end("base-1")
    assert tell(scheduler, first, names.SUCCESS)
    scheduler.dispatch("held-1")
    scheduler.lose("held-1")
    scheduler.activate("held-1")
    scheduler.activate("base-1", dependents=("held-1",))
    again = scheduler.dispatch("base-1", W2)
    second = scheduler.dispatch("held-1", W2)
    assert again is not None
    assert (again.parent[:2], again.previous, again.cause) == ((b"t" * 16, b"c" * 8), b"", names.RECOMPUTED)
    assert second is not None
    assert (second.attempt, second.previous, second.cause) == (2, b"", "")
    assert scheduler.model.totals.attempts == {("base", "success", ""): 1, ("held", "lost", ""): 1}
    assert scheduler.model.totals.wasted == {("held", "lost"): 1.0}


def test_attempts_of_workers_without_dask_otel_are_counted_by_the_scheduler() -> None:
    scheduler = Scheduler(parents.OFF)
    scheduler.model.totals.install()
    scheduler.submit("inc-1", "inc-2", carried=None)
    scheduler.run("inc-1")
    scheduler.dispatch("inc-2")
    scheduler.end("inc-2", "erred")
    assert not scheduler.tick()
    assert scheduler.model.totals.attempts == {("inc", "success", ""): 1, ("inc", "failed", ""): 1}
    assert scheduler.model.totals.wasted == {}
