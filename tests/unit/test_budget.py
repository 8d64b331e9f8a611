"""No server has more series than its budget, whatever names users make up."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dask_otel.budget import MAX_LENGTH, MAX_SERIES, OVERFLOWING, Budget
from dask_otel.distributions import EXPONENTIAL, Distributions
from dask_otel.histograms import Histogram, Value, fell
from dask_otel.instruments import COUNTER, GAUGE, HISTOGRAM, UP_DOWN_COUNTER, Instrument
from dask_otel.series import Measured, measured
from dask_otel.settings import Metrics

ROLE = ("worker",)
COUNTS = Instrument("counts", COUNTER, "1", ROLE, ("of",), "Counts.")
LEASES = Instrument("leases", UP_DOWN_COUNTER, "1", ROLE, ("of",), "Leases.")
WAIT = Instrument("wait", GAUGE, "s", ROLE, ("of",), "Wait.")
SIZES = Instrument("sizes", HISTOGRAM, "By", ROLE, ("of",), "Sizes.", (1.0, 10.0))
ALONE = Instrument("alone", GAUGE, "s", ROLE, (), "Alone.")
ALL = (COUNTS, LEASES, WAIT, SIZES, ALONE)


def series(found: list[Measured]) -> int:
    """How many there are in Prometheus."""
    return sum(
        len(one.counts) + 2 if isinstance(one, Histogram) and one.scale is None else 1
        for _, values in found
        for one in values.values()
    )


def numbered(instrument: Instrument, number: int) -> Measured:
    return measured(instrument, {(f"n{n}",): n for n in range(number)})


def sizes(number: int, form: str = "explicit_bucket_histogram") -> Measured:
    found = Distributions(SIZES, Metrics(histograms=form))
    for n in range(number):
        found.record((f"n{n}",), float(n))
    return measured(SIZES, found.snapshots())


def test_what_fits_is_given_as_it_is() -> None:
    budget = Budget()
    found = [numbered(COUNTS, 1_000), sizes(50), measured(ALONE, {(): 1.5})]
    assert budget.bound(found) == found
    assert budget.exceeded is None


def test_what_exceeds_the_budget_is_added_up_and_gauges_are_left_out() -> None:
    budget = Budget(20, ALL)
    found = {
        one.instrument.name: one.values
        for one in budget.bound(
            [numbered(COUNTS, 100), numbered(WAIT, 100), measured(ALONE, {(): 1.5}), sizes(3)]
        )
    }
    assert found["counts"] == {
        ("n0",): 0,
        ("n1",): 1,
        ("n2",): 2,
        ("n3",): 3,
        ("n4",): 4,
        OVERFLOWING: sum(range(5, 100)),
    }
    assert found["wait"] == {("n0",): 0, ("n1",): 1, ("n2",): 2}
    assert found["alone"] == {(): 1.5}
    assert {of: one.total for of, one in found["sizes"].items()} == {OVERFLOWING: 3}  # type: ignore[union-attr]
    assert budget.exceeded == "counts"


def test_those_that_come_late_have_series_too() -> None:
    budget = Budget()
    budget.bound([numbered(COUNTS, 100_000)])
    (found,) = budget.bound([sizes(30)])
    assert OVERFLOWING not in found.values
    both = budget.bound([numbered(COUNTS, 100_000), sizes(3_000), numbered(LEASES, 3_000)])
    assert series(both) <= MAX_SERIES


def test_an_exponential_histogram_is_one_series() -> None:
    budget = Budget(100, ALL)
    (found,) = budget.bound([sizes(44, EXPONENTIAL)])
    assert (len(found.values), budget.exceeded) == (44, None)


def test_an_instrument_that_is_measured_twice_is_told_once() -> None:
    twice = [measured(COUNTS, {("a",): 1}), measured(COUNTS, {("a",): 2, ("b",): 5})]
    assert Budget().bound(twice) == [measured(COUNTS, {("a",): 3, ("b",): 5})]


def test_long_names_are_cut_and_what_begins_alike_is_added_up() -> None:
    long = "x" * 10_000
    (found,) = Budget().bound([measured(COUNTS, {(f"{long}1",): 1, (f"{long}2",): 2, ("y",): 5})])
    assert found.values == {("x" * (MAX_LENGTH - 1) + "…",): 3, ("y",): 5}


NAMES = st.integers(0, 60).map("n{}".format)
COUNTED = st.lists(
    st.tuples(st.sampled_from([COUNTS, LEASES, WAIT, SIZES]), NAMES, st.integers(0, 5)), max_size=40
)


@settings(max_examples=100, deadline=None)
@given(st.lists(COUNTED, min_size=1, max_size=6), st.integers(12, 80))
def test_totals_are_exact_bounded_kept_and_never_fall(exports: list[Any], limit: int) -> None:
    budget = Budget(limit, ALL)
    totals: dict[str, defaultdict[str, float]] = {one.name: defaultdict(int) for one in ALL}
    found_sizes = Distributions(SIZES)
    before: dict[tuple[str, tuple[str, ...]], Value] = {}
    for export in exports:
        for instrument, name, amount in export:
            totals[instrument.name][name] += amount
            if instrument is SIZES:
                found_sizes.record((name,), amount)
        given_in = [
            measured(one, {(name,): value for name, value in totals[one.name].items()})
            for one in (COUNTS, LEASES, WAIT)
        ]
        found = budget.bound([*given_in, measured(SIZES, found_sizes.snapshots())])
        assert series(found) <= limit
        for one in found[:2]:
            assert sum(one.values.values()) == sum(totals[one.instrument.name].values())  # type: ignore[arg-type]
        assert sum(one.total for one in found[3].values.values()) == sum(  # type: ignore[union-attr]
            one.total for one in found_sizes.snapshots().values()
        )
        now = {(one.instrument.name, of): value for one in found for of, value in one.values.items()}
        assert set(before) <= set(now)
        assert not any(fell(now[key], value) for key, value in before.items())
        before = now
