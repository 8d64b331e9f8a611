"""Exponential histograms are those of OpenTelemetry's SDK; histograms add up and subtract exactly."""

from __future__ import annotations

from functools import reduce
from math import inf
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.metrics._internal.aggregation import _ExponentialBucketHistogramAggregation
from opentelemetry.sdk.metrics._internal.exemplar import SimpleFixedSizeExemplarReservoir
from opentelemetry.sdk.metrics._internal.measurement import Measurement
from opentelemetry.sdk.metrics.export import AggregationTemporality

from dask_otel.distributions import EXPONENTIAL, Distributions, Exemplar, Histogram, Histograms
from dask_otel.histograms import MAX_BUCKETS, MAX_EXEMPLARS, added, fell, nothing, risen, since
from dask_otel.instruments import HISTOGRAM, Instrument
from dask_otel.settings import Metrics

SIZES = Instrument("size", HISTOGRAM, "By", ("worker",), ("of",), "Sizes.", (1.0, 10.0, 100.0))
FORMS = ("explicit_bucket_histogram", EXPONENTIAL)

#: Durations and sizes: all orders of magnitude, powers of two, and values that are close to each other.
VALUES = (
    st.floats(0.0, 1e300)
    | st.integers(-1074, 1000).map(lambda exponent: 2.0**exponent)
    | st.floats(0.9, 1.1)
    | st.sampled_from([0.0, 5e-324, 2.0**-1022])
)
MANY = st.lists(VALUES, min_size=1, max_size=300)


def histogram(values: list[float], form: str = EXPONENTIAL) -> Histogram:
    found = Distributions(SIZES, Metrics(histograms=form))
    for value in values:
        found.record(("a",), value)
    return found.snapshots()["a",]


def of_the_sdk(values: list[float]) -> Any:
    aggregation = _ExponentialBucketHistogramAggregation(
        {},
        SimpleFixedSizeExemplarReservoir,
        AggregationTemporality.DELTA,
        0,
    )
    for value in values:
        aggregation.aggregate(Measurement(value, 0, None, None, {}), False)  # type: ignore[arg-type]
    return aggregation.collect(AggregationTemporality.DELTA, 1)


def buckets(offset: int, counts: Any) -> dict[int, int]:
    return {at: count for at, count in enumerate(counts, offset) if count}


@settings(max_examples=200, deadline=None)
@given(MANY)
@example([2.0**exponent for exponent in range(-80, 80)])
@example([2.0**exponent for exponent in range(-80, 81)])
@example([1.0 + number * 2.0**-20 for number in range(161)])
def test_an_exponential_histogram_is_the_sdks(values: list[float]) -> None:
    ours, theirs = histogram(values), of_the_sdk(values)
    assert (ours.scale, buckets(ours.offset, ours.counts), ours.zeros) == (
        theirs.scale,
        buckets(theirs.positive.offset, theirs.positive.bucket_counts),
        theirs.zero_count,
    )
    assert (ours.total, ours.sum, ours.min, ours.max) == (theirs.count, theirs.sum, theirs.min, theirs.max)
    assert len(ours.counts) <= MAX_BUCKETS


def test_a_duration_below_0_counts_as_0_and_what_is_no_number_not_at_all() -> None:
    assert histogram([-1.0, 0.0, float("nan"), inf, -inf]) == Histogram(2, -1.0, -1.0, 0.0, (), (), 0, 0, 2)
    assert histogram([-1.0, float("nan"), inf], FORMS[0]) == Histogram(1, -1.0, -1.0, -1.0, (1, 0, 0, 0))


@settings(max_examples=100, deadline=None)
@given(st.lists(MANY, min_size=1, max_size=4), st.sampled_from(FORMS))
def test_histograms_together_are_that_of_all_values(parts: list[list[float]], form: str) -> None:
    together = reduce(added, [histogram(part, form) for part in parts])
    everything = histogram([value for part in parts for value in part], form)
    assert together.total == everything.total == sum(together.counts) + together.zeros
    assert (together.min, together.max, together.zeros) == (everything.min, everything.max, everything.zeros)
    assert together.sum == pytest.approx(everything.sum)
    assert len(together.counts) <= MAX_BUCKETS
    if form == FORMS[0]:
        assert together.counts == everything.counts


@settings(max_examples=100, deadline=None)
@given(MANY, MANY, st.sampled_from(FORMS))
def test_a_difference_and_what_was_before_are_the_whole(
    before: list[float], more: list[float], form: str
) -> None:
    then, now = histogram(before, form), histogram(before + more, form)
    difference = since(now, then)
    zeros = sum(value == 0 for value in more) if form == EXPONENTIAL else 0
    assert (difference.total, difference.zeros) == (len(more), zeros)
    assert sum(difference.counts) + difference.zeros == len(more)
    assert min(difference.counts, default=0) >= 0
    assert difference.scale == now.scale
    both = added(then, difference)
    assert (both.scale, buckets(both.offset, both.counts), both.zeros) == (
        now.scale,
        buckets(now.offset, now.counts),
        now.zeros,
    )
    assert since(now, now).total == 0
    assert not any(since(now, now).counts)
    assert not fell(now, then)
    assert fell(then, now)


def test_nothing_is_of_the_same_form() -> None:
    assert nothing(histogram([1.0], FORMS[0])) == Histogram(0, 0.0, inf, -inf, (0, 0, 0, 0))
    assert nothing(histogram([1.0])) == Histogram(0, 0.0, inf, -inf, (), (), 20)
    assert (nothing(3), nothing(1.5)) == (0, 0.0)


def test_rounding_is_no_fall() -> None:
    one, other = 0.1 + 0.2 + 0.3, 0.1 + (0.2 + 0.3)
    assert other < one
    assert (fell(other, one), fell(one - 1e-6, one), risen(other, one), risen(2 * one, one)) == (
        False,
        True,
        one,
        2 * one,
    )


def test_all_histograms_of_a_server_are_of_its_settings_form_and_begin_with_them() -> None:
    histograms = Histograms()
    found = histograms.of(SIZES)
    found.record(("a",), 3.0)
    assert found.snapshots()["a",].counts == (0, 1, 0, 0)
    histograms.begin(Metrics(histograms=EXPONENTIAL))
    assert found.snapshots() == {}
    for distributions in (found, histograms.of(SIZES)):
        distributions.record(("a",), 4.0)
        assert distributions.snapshots()["a",] == Histogram(1, 4.0, 4.0, 4.0, (1,), (), 20, (2 << 20) - 1, 0)


def exemplar(value: float, number: int) -> Exemplar:
    return Exemplar(value, float(number), b"t" * 16, number.to_bytes(8, "big"))


def test_of_exemplars_each_bucket_keeps_the_last_and_gives_it_out_once() -> None:
    found = Distributions(SIZES)
    for number, value in enumerate((0.5, 0.7, 5.0, 7.0)):
        found.record(("a",), value, exemplar(value, number))
    assert found.snapshots()["a",].exemplars == (exemplar(0.7, 1), exemplar(7.0, 3))
    assert found.snapshots()["a",].exemplars == ()


def test_of_exponential_histograms_few_exemplars_of_all_sizes_are_kept() -> None:
    found = Distributions(SIZES, Metrics(histograms=EXPONENTIAL))
    for number in range(1000):
        value = 1.0 + number
        found.record(("a",), value, exemplar(value, number))
    kept = [one.value for one in found.snapshots()["a",].exemplars]
    assert kept == [1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 127.0, 255.0, 511.0, 1000.0]
    for number in range(-500, 500):
        found.record(("a",), 2.0**number, exemplar(2.0**number, 0))
    assert len(found.snapshots()["a",].exemplars) == MAX_EXEMPLARS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("word", "kept"), [("always_off", 0), ("trace_based", 1), ("always_on", 1)])
def test_the_exemplar_filter_is_obeyed(form: str, word: str, kept: int) -> None:
    found = Distributions(SIZES, Metrics(histograms=form, exemplars=word))
    found.record(("a",), 5.0, exemplar(5.0, 1))
    assert len(found.snapshots()["a",].exemplars) == kept
