"""Prefixes that are folded: few series, exact totals, none that falls, and the busiest among those that are shown."""

from __future__ import annotations

from collections import defaultdict
from math import isclose
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_otel.distributions import EXPONENTIAL, Distributions
from dask_otel.folding import OTHER, Folding
from dask_otel.histograms import fell
from dask_otel.instruments import COUNTER, HISTOGRAM, UP_DOWN_COUNTER, Instrument
from dask_otel.series import by, keyed
from dask_otel.settings import Metrics

ROLE = ("worker",)
SECONDS = Instrument("seconds", COUNTER, "s", ROLE, ("prefix", "activity"), "Seconds.")
OTHER_SECONDS = Instrument("other.seconds", COUNTER, "s", ROLE, ("prefix", "activity"), "Seconds.")
SIZES = Instrument("sizes", HISTOGRAM, "By", ROLE, ("prefix",), "Sizes.", (1.0, 10.0))
NOW = Instrument("now", UP_DOWN_COUNTER, "s", ROLE, ("prefix",), "Now.")


def test_prefixes_that_were_given_out_are_kept_and_totals_stay_exact() -> None:
    folding = Folding(limit=2)
    folding.choose({"a": 1.0, "b": 3.0, "c": 2.0})
    values = {("a", "x"): 1.0, ("b", "x"): 3.0, ("c", "x"): 2.0, ("", "y"): 7.0}
    assert folding.fold(values, 0) == {(OTHER, "x"): 1.0, ("b", "x"): 3.0, ("c", "x"): 2.0, ("", "y"): 7.0}
    folding.choose({"a": 100.0, "b": 3.0, "c": 2.0, "d": 50.0})
    values = {("a", "x"): 100.0, ("b", "x"): 3.0, ("c", "x"): 2.0, ("d", "x"): 50.0}
    assert folding.fold(values, 0) == {(OTHER, "x"): 150.0, ("b", "x"): 3.0, ("c", "x"): 2.0}
    assert (folding.folded, folding.shown("a"), folding.shown("b"), folding.rooms) == (2, OTHER, "b", 2)


def test_of_5000_prefixes_the_busiest_are_shown_and_stay() -> None:
    folding = Folding(limit=100)
    work = {f"p{number}": float(number) for number in range(5_000)}
    shown: set[tuple[str, ...]] = set()
    for rooms in (38, 57, 66, 71, 73, 74, 75, 75, 75):
        folding.choose(work)
        found = folding.fold(keyed(work), 0, NOW)
        assert shown <= set(found)
        shown = set(found)
        assert shown == {(OTHER,), *((f"p{number}",) for number in range(5_000 - rooms, 5_000))}
        assert sum(found.values()) == sum(work.values())
    assert folding.folded == 4_962


def test_of_many_prefixes_those_that_have_not_worked_have_no_room() -> None:
    folding = Folding(limit=100)
    work = dict.fromkeys([f"p{number}" for number in range(5_000)], 0.0)
    folding.choose(work)
    assert folding.rooms == 0
    folding.choose(work | {"p4000": 1.0})
    assert folding.fold({("p1",): 1.0, ("p4000",): 1.0}, 0, NOW) == {(OTHER,): 1.0, ("p4000",): 1.0}


def test_few_prefixes_are_all_shown_however_little_they_work() -> None:
    folding = Folding(limit=100)
    work = {f"p{number}": 1e-6 for number in range(74)} | {"big": 1e6}
    folding.choose(work)
    assert folding.fold(keyed(work), 0) == keyed(work)
    assert folding.folded == 0


def test_early_prefixes_that_do_little_leave_room_for_late_ones_that_do_much() -> None:
    folding = Folding(limit=30)
    idle = {f"idle{number}": 0.001 for number in range(200)}
    for _ in range(20):
        folding.choose(idle)
    assert folding.rooms == 23
    late = {f"late{number}": 10.0 * 2**number for number in range(7)}
    folding.choose(idle | late)
    shown = set(folding.fold(keyed(idle | late), 0, NOW))
    assert {(prefix,) for prefix in late} < shown
    assert len(shown) == 31


def test_a_room_that_is_left_costs_twice_the_work_of_the_one_before() -> None:
    folding = Folding(limit=8)
    work = dict.fromkeys("abcdef", 1.0)
    folding.choose(work)
    shown = []
    for more in (
        {"g": 1.0},
        {"g": 1.4, "h": 1.5},
        {"g": 1.9, "h": 1.5, "i": 1.9},
        {"g": 1.9, "h": 1.5, "i": 2.5},
        {"g": 900.0, "h": 1.5, "i": 2.5},
    ):
        folding.choose(work | more)
        shown.append({prefix for (prefix,) in folding.fold(keyed(work | more), 0, NOW)} - set(work))
    assert shown == [{OTHER}, {OTHER, "h"}, {OTHER, "h"}, {OTHER, "h", "i"}, {OTHER, "h", "i"}]


def test_a_prefix_that_is_given_out_late_leaves_its_past_in_other() -> None:
    folding = Folding(limit=4)
    work = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.5}
    folding.choose(work)
    values = {("a", "x"): 1.0, ("b", "x"): 1.0, ("c", "x"): 1.0, ("d", "x"): 0.5}
    assert folding.fold(values, 0, SECONDS) == {
        ("a", "x"): 1.0,
        ("b", "x"): 1.0,
        ("c", "x"): 1.0,
        (OTHER, "x"): 0.5,
    }
    folding.choose(work | {"d": 8.5})
    values |= {("d", "x"): 8.5, ("d", "y"): 2.0}
    expected = {("d", "x"): 8.0, ("d", "y"): 2.0, (OTHER, "x"): 0.5}
    found = folding.fold(values, 0, SECONDS)
    assert {key: value for key, value in found.items() if key[0] in ("d", OTHER)} == expected
    # What was not folded before has all of its own; who does not say what it is of, goes on as before.
    assert folding.fold({("d", "x"): 3.0}, 0, OTHER_SECONDS) == {("d", "x"): 3.0}
    assert folding.fold({("d", "x"): 3.0}, 0) == {(OTHER, "x"): 3.0}
    # What may fall has no past.
    assert folding.fold({("d",): 3.0}, 0, NOW) == {("d",): 3.0}


def test_histograms_are_folded_too() -> None:
    folding = Folding(limit=1)
    folding.choose({"a": 5.0, "b": 1.0, "c": 1.0})
    found = Distributions(SIZES)
    for prefix, value in (("a", 0.5), ("b", 5.0), ("c", 50.0)):
        found.record((prefix,), value)
    folded = folding.fold(found.snapshots(), 0, SIZES)
    assert {key: (one.total, one.sum, one.min, one.max, one.counts) for key, one in folded.items()} == {
        ("a",): (1, 0.5, 0.5, 0.5, (1, 0, 0)),
        (OTHER,): (2, 55.0, 5.0, 50.0, (0, 1, 1)),
    }


def test_a_prefix_that_is_called_other_is_counted_with_them() -> None:
    folding = Folding(limit=1)
    folding.choose({OTHER: 5.0, "a": 1.0, "b": 0.5})
    assert folding.fold({(OTHER,): 5.0, ("a",): 1.0, ("b",): 0.5}, 0) == {(OTHER,): 5.5, ("a",): 1.0}


def test_a_folding_that_begins_anew_has_all_its_rooms() -> None:
    folding = Folding(limit=1)
    folding.choose({"a": 1.0, "b": 1.0})
    folding.begin()
    folding.choose({"c": 1.0})
    assert (folding.fold({("c",): 1.0}, 0), folding.folded) == ({("c",): 1.0}, 0)


#: What is counted between two exports: prefix, activity, amount.
WORK = st.lists(
    st.tuples(
        st.integers(0, 11).map("p{}".format) | st.just(OTHER),
        st.sampled_from(["x", "y"]),
        st.integers(0, 3) | st.floats(0.0, 1e6),
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(WORK, min_size=1, max_size=12), st.integers(1, 9))
def test_totals_are_exact_bounded_and_never_fall(exports: list[Any], limit: int) -> None:
    folding = Folding(limit)
    totals: defaultdict[tuple[str, str], float] = defaultdict(int)
    before: dict[str, dict[tuple[str, str], float]] = {"of": {}, "": {}}
    folded = 0
    for work in exports:
        for prefix, activity, amount in work:
            totals[prefix, activity] += amount
        folding.choose(by(totals, 0))
        for name, found in (
            ("of", folding.fold(dict(totals), 0, SECONDS)),
            ("", folding.fold(dict(totals), 0)),
        ):
            for at in ("x", "y"):
                assert isclose(by(found, 1).get(at, 0), by(totals, 1).get(at, 0), rel_tol=1e-9, abs_tol=1e-9)
            assert not any(fell(found.get(key, -1.0), value) for key, value in before[name].items())
            assert len({prefix for prefix, _ in found} - {OTHER}) <= limit
            assert {prefix for prefix, _ in before[name]} <= {prefix for prefix, _ in found}
            before[name] = found
        assert folding.folded >= folded
        folded = folding.folded


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 7).map("p{}".format), st.floats(0.0, 1e3)), max_size=6), max_size=8
    ),
    st.sampled_from(["explicit_bucket_histogram", EXPONENTIAL]),
)
def test_histograms_are_exact_and_never_fall(exports: list[Any], form: str) -> None:
    folding, found = Folding(4), Distributions(SIZES, Metrics(histograms=form))
    work: defaultdict[str, float] = defaultdict(float)
    before: dict[tuple[str, ...], Any] = {}
    for export in exports:
        for prefix, value in export:
            found.record((prefix,), value)
            work[prefix] += value
        folding.choose(work)
        snapshots = found.snapshots()
        folded = folding.fold(snapshots, 0, SIZES)
        assert sum(one.total for one in folded.values()) == sum(one.total for one in snapshots.values())
        for one in folded.values():
            assert one.total == sum(one.counts) + one.zeros
            assert min(one.counts, default=0) >= 0
        for key, value in before.items():
            assert not fell(folded[key], value)
        before = folded


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 30, 100])
def test_there_are_never_more_than_the_limit(limit: int) -> None:
    folding = Folding(limit)
    work: dict[str, float] = {}
    for number in range(300):
        work[f"p{number}"] = 1.5**number
        folding.choose(work)
    assert len(folding.fold(keyed(work), 0, NOW)) <= limit + 1
