"""Totals of what begins again: they never fall, and what is folded stays in the sum."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from dask_otel.folding import OTHER, Folding
from dask_otel.rising import FORGOTTEN, Prefix, PrefixTotals, Rising

STATES = ("memory", "processing")


def prefix(name: str, n: int, memory: int = 0) -> Prefix:
    """A prefix of which everything is ``n``."""
    return Prefix(name, n, n * 1_000_000, n * 2_000_000, n, (memory, n), {"memory": n, FORGOTTEN: n})


@given(st.lists(st.one_of(st.integers(0, 5), st.none()), max_size=20))
def test_a_total_is_what_its_source_has_risen_by(steps: list[int | None]) -> None:
    """``None`` begins again, where it is told or only seen by a fall."""
    rising, value, expected = Rising(), 0, 0
    for step in steps:
        if step is None:
            value = 0
            rising.forget("lock")
        else:
            value += step
            expected += step
        before = rising.totals.get("lock", 0)
        rising.update({"lock": value}, {"lock": "lock"})
        assert before <= rising.totals["lock"] == expected


def test_a_fall_that_was_not_told_is_a_beginning() -> None:
    rising = Rising()
    for value in (5, 3, 4):
        rising.update({"lock": value}, {"lock": "lock"})
    assert rising.totals == {"lock": 9}


def test_everything_of_a_prefix_is_added_by_difference() -> None:
    totals = PrefixTotals(Folding(limit=9), STATES)
    for n in (1, 3, 3):
        totals.update([prefix("inc", n, memory=5 - n)])
    assert totals.compute == {"inc": 3.0}
    assert totals.transfer == {"inc": 6.0}
    assert totals.size == {"inc": 3}
    assert totals.suspicious == {"inc": 3}
    assert totals.entered == {("inc", "memory"): 3, ("inc", FORGOTTEN): 3}
    assert totals.tasks == {"memory": 2, "processing": 3}
    assert totals.forgotten == 3


def test_totals_stay_and_levels_are_0_when_all_begin_again() -> None:
    totals = PrefixTotals(Folding(limit=9), STATES)
    totals.update([prefix("inc", 2, memory=1), prefix("add", 1)])
    totals.forget()
    assert (totals.compute, totals.forgotten) == ({"inc": 2.0, "add": 1.0}, 3)
    assert (totals.size, totals.tasks) == ({"inc": 0, "add": 0}, {"memory": 0, "processing": 0})
    totals.update([prefix("inc", 1, memory=1)])
    assert (totals.compute, totals.forgotten) == ({"inc": 3.0, "add": 1.0}, 4)
    assert (totals.size, totals.tasks) == ({"inc": 1, "add": 0}, {"memory": 1, "processing": 1})


def test_the_busiest_of_new_prefixes_have_series_of_their_own_and_keep_them() -> None:
    totals = PrefixTotals(Folding(limit=2), STATES)
    totals.update([prefix("idle", 0), prefix("inc", 3), prefix("add", 2)])
    totals.update([prefix("idle", 9), prefix("inc", 3), prefix("new", 5)])
    assert totals.compute == {"inc": 3.0, "add": 2.0, OTHER: 14.0}
    assert totals.size == {"inc": 3, "add": 2, OTHER: 14}


def test_nothing_is_kept_of_prefixes_that_share_a_series_when_all_begin_again() -> None:
    totals = PrefixTotals(Folding(limit=2), STATES)
    totals.update([prefix(f"p{n}", n) for n in range(4)])
    totals.forget()
    assert (sorted(totals._labels), sorted(totals._busy), totals._read) == (["p2", "p3"], ["p2", "p3"], {})
    totals.update([prefix("p1", 1), prefix("p3", 1)])
    assert totals.compute == {"p3": 4.0, "p2": 2.0, OTHER: 2.0}


class Promoting:
    """Gives out the busiest, whatever was given out before."""

    def __init__(self) -> None:
        self.rooms = 0
        self._busiest = ""

    def choose(self, busy: Mapping[str, float]) -> None:
        self._busiest = max(busy, key=busy.__getitem__)
        self.rooms += 1

    def shown(self, prefix: str) -> str:
        return prefix if prefix == self._busiest else OTHER


def test_a_prefix_that_is_given_out_later_takes_its_bytes_along_and_leaves_totals_where_they_are() -> None:
    totals = PrefixTotals(Promoting(), STATES)
    totals.update([prefix("inc", 3), prefix("add", 2)])
    totals.update([prefix("new", 9), prefix("add", 4)])
    assert totals.compute == {"inc": 3.0, OTHER: 4.0, "new": 9.0}
    assert totals.size == {"inc": 0, OTHER: 7, "new": 9}
