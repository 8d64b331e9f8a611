"""Requests of metrics: byte for byte what the protocol says, in every kind, form and temporality."""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from dask_otel.budget import MAX_SERIES
from dask_otel.distributions import EXPONENTIAL, Distributions, Exemplar, Histogram
from dask_otel.export.bodies import MAX_BODY, Source
from dask_otel.export.metric_bodies import Batch, Series
from dask_otel.histograms import Value
from dask_otel.instruments import COUNTER, GAUGE, HISTOGRAM, OVERFLOW, UP_DOWN_COUNTER, Instrument
from dask_otel.records import Scope
from dask_otel.series import Measured, measured
from dask_otel.settings import Metrics

ROLE = ("worker",)
SECONDS = Instrument("work.time", COUNTER, "s", ROLE, ("prefix",), "Seconds.")
RUNNING = Instrument("running.time", UP_DOWN_COUNTER, "s", ROLE, ("prefix",), "Running.")
LATENCY = Instrument("latency", GAUGE, "s", ROLE, (), "Latency.")
SIZES = Instrument("sizes", HISTOGRAM, "By", ROLE, ("prefix",), "Sizes.", (1.0, 10.0))
SOURCE = Source((("service.name", "dask-worker"), ("process.pid", 7)), Scope("dask_otel", "1", "https://s/1"))
CUMULATIVE, DELTA = 2, 1
S = 10**9


def batch(now: float, *values: Measured, last: bool = False) -> Batch:
    return Batch(SOURCE, 100.0, now, values, last)


def seconds(**values: Value) -> Measured:
    return measured(SECONDS, {(prefix,): value for prefix, value in values.items()})


def parsed(body: bytes) -> Any:
    """What a receiver has, and nothing that it does not know."""
    request = ExportMetricsServiceRequest.FromString(body)
    known = ExportMetricsServiceRequest.FromString(body)
    known.DiscardUnknownFields()
    assert known.SerializeToString() == request.SerializeToString()
    return request


def metrics(series: Series, one: Batch, taken: bool = True) -> Any:
    """The metrics of a request by name."""
    body, number = series.request(one)
    if taken:
        series.taken()
    if not number:
        assert body == b""
        return {}
    (resource,) = parsed(body).resource_metrics
    return {metric.name: metric for metric in resource.scope_metrics[0].metrics}


def sums(metric: Any) -> list[tuple[str, float, float, float | None]]:
    """Prefix, start, time and value of each point."""
    return [
        (
            point.attributes[0].value.string_value,
            point.start_time_unix_nano / S,
            point.time_unix_nano / S,
            point.as_double if point.WhichOneof("value") == "as_double" else point.as_int,
        )
        for point in metric.sum.data_points
    ]


def test_a_request_holds_resource_scope_and_points_exactly() -> None:
    gauge = measured(LATENCY, {(): 0.25})
    body, number = Series().request(batch(110.0, seconds(inc=1.5), measured(RUNNING, {("inc",): -3}), gauge))
    expected = ExportMetricsServiceRequest()
    resource = expected.resource_metrics.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "dask-worker"
    resource.resource.attributes.add(key="process.pid").value.int_value = 7
    scope = resource.scope_metrics.add(schema_url="https://s/1")
    scope.scope.name, scope.scope.version = "dask_otel", "1"
    metric = scope.metrics.add(name="work.time", unit="s", description="Seconds.")
    metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, CUMULATIVE
    for time, value in ((100, 0.0), (110, 1.5)):
        point = metric.sum.data_points.add(
            start_time_unix_nano=100 * S, time_unix_nano=time * S, as_double=value
        )
        point.attributes.add(key="prefix").value.string_value = "inc"
    metric = scope.metrics.add(name="running.time", unit="s", description="Running.")
    metric.sum.aggregation_temporality = CUMULATIVE
    point = metric.sum.data_points.add(start_time_unix_nano=100 * S, time_unix_nano=110 * S, as_int=-3)
    point.attributes.add(key="prefix").value.string_value = "inc"
    metric = scope.metrics.add(name="latency", unit="s", description="Latency.")
    metric.gauge.data_points.add(start_time_unix_nano=100 * S, time_unix_nano=110 * S, as_double=0.25)
    assert parsed(body) == expected
    assert number == 3


def test_a_histogram_with_boundaries_has_a_zero_point_its_ends_and_exemplars() -> None:
    found = Distributions(SIZES)
    found.record(("inc",), 0.5)
    found.record(("inc",), 50.0, Exemplar(50.0, 105.5, b"t" * 16, b"s" * 8))
    (metric,) = metrics(Series(), batch(110.0, measured(SIZES, found.snapshots()))).values()
    expected = type(metric)(name="sizes", unit="By", description="Sizes.")
    expected.histogram.aggregation_temporality = CUMULATIVE
    for now, count, total, counts in ((100, 0, 0.0, (0, 0, 0)), (110, 2, 50.5, (1, 0, 1))):
        point = expected.histogram.data_points.add(
            start_time_unix_nano=100 * S,
            time_unix_nano=now * S,
            count=count,
            sum=total,
            bucket_counts=counts,
            explicit_bounds=(1.0, 10.0),
        )
        point.attributes.add(key="prefix").value.string_value = "inc"
    point.min, point.max = 0.5, 50.0
    point.exemplars.add(time_unix_nano=int(105.5 * S), as_double=50.0, trace_id=b"t" * 16, span_id=b"s" * 8)
    assert metric == expected


def test_an_exponential_histogram_has_scale_zeros_and_buckets() -> None:
    found = Distributions(SIZES, Metrics(histograms=EXPONENTIAL))
    for value in (0.0, 2.0, 3.0, 0.001):
        found.record(("inc",), value, Exemplar(value, 105.0, b"", b"") if value == 3.0 else None)
    snapshot = found.snapshots()["inc",]
    (metric,) = metrics(Series(), batch(110.0, measured(SIZES, {("inc",): snapshot}))).values()
    expected = type(metric)(name="sizes", unit="By", description="Sizes.")
    into = expected.exponential_histogram
    into.aggregation_temporality = CUMULATIVE
    for now in (100, 110):
        point = into.data_points.add(
            start_time_unix_nano=100 * S, time_unix_nano=now * S, scale=snapshot.scale, count=0, sum=0.0
        )
        point.attributes.add(key="prefix").value.string_value = "inc"
    point.count, point.sum, point.zero_count, point.min, point.max = 4, 5.001, 1, 0.0, 3.0
    point.positive.offset = snapshot.offset
    point.positive.bucket_counts.extend(snapshot.counts)
    point.exemplars.add(time_unix_nano=105 * S, as_double=3.0)
    assert metric == expected
    assert snapshot.offset < 0


def test_a_series_that_is_new_starts_with_zero_at_the_export_before_until_one_is_taken() -> None:
    series = Series()
    one, other, third = (
        metrics(series, batch(110.0, seconds(inc=1.0)))["work.time"],
        metrics(series, batch(120.0, seconds(inc=2.0, add=5)), taken=False)["work.time"],
        metrics(series, batch(130.0, seconds(inc=2.0, add=6)))["work.time"],
    )
    assert sums(one) == [("inc", 100, 100, 0), ("inc", 100, 110, 1)]
    assert sums(other) == [("inc", 100, 120, 2), ("add", 110, 110, 0), ("add", 110, 120, 5)]
    assert sums(third) == [("inc", 100, 130, 2), ("add", 110, 110, 0), ("add", 110, 130, 6)]


def test_a_total_that_fell_began_anew_and_rounding_is_no_fall() -> None:
    series = Series()
    more, less = 0.1 + 0.2 + 0.3, 0.1 + (0.2 + 0.3)
    assert less < more
    metrics(series, batch(110.0, seconds(inc=more)))
    assert sums(metrics(series, batch(120.0, seconds(inc=less)))["work.time"]) == [("inc", 100, 120, more)]
    assert sums(metrics(series, batch(130.0, seconds(inc=0.5)))["work.time"]) == [("inc", 120, 130, 0.5)]


def test_differences_hold_what_was_not_taken_and_leave_out_what_has_not_changed() -> None:
    series = Series("delta")
    assert sums(metrics(series, batch(110.0, seconds(inc=1.0)), taken=False)["work.time"]) == [
        ("inc", 100, 110, 1)
    ]
    assert sums(metrics(series, batch(120.0, seconds(inc=4.0)))["work.time"]) == [("inc", 100, 120, 4)]
    assert metrics(series, batch(130.0, seconds(inc=4.0))) == {}
    (metric,) = metrics(series, batch(140.0, seconds(inc=4.5, add=0.0))).values()
    assert (sums(metric), metric.sum.aggregation_temporality) == ([("inc", 130, 140, 0.5)], DELTA)
    # One that was not measured once is not counted twice; one that fell is told from 0.
    metrics(series, batch(150.0, seconds(add=1.0)))
    (metric,) = metrics(series, batch(160.0, seconds(inc=5.0, add=0.25))).values()
    assert sums(metric) == [("inc", 150, 160, 0.5), ("add", 150, 160, 0.25)]


def test_the_last_difference_of_a_server_is_told_and_its_values_are_ended() -> None:
    series = Series("delta")
    running = measured(RUNNING, {("inc",): 1})
    metrics(series, batch(110.0, seconds(inc=1.0), running))
    told = metrics(series, batch(120.0, seconds(inc=1.25), running, last=True))
    assert sums(told["work.time"]) == [("inc", 110, 120, 0.25)]
    assert [point.flags for point in told["running.time"].sum.data_points] == [1]


@pytest.mark.parametrize("form", ["explicit_bucket_histogram", EXPONENTIAL])
def test_a_difference_of_histograms_has_its_least_and_greatest_only_if_it_is_the_first(form: str) -> None:
    found, series = Distributions(SIZES, Metrics(histograms=form)), Series("delta")
    found.record(("inc",), 5.0)
    points = [_histograms(metrics(series, batch(110.0, measured(SIZES, found.snapshots()))))]
    found.record(("inc",), 0.5)
    points.append(_histograms(metrics(series, batch(120.0, measured(SIZES, found.snapshots())))))
    assert [
        (point.start_time_unix_nano / S, point.count, point.sum, point.HasField("min"), point.HasField("max"))
        for (point,) in points
    ] == [(100, 1, 5.0, True, True), (110, 1, 0.5, False, False)]


def _histograms(found: Any) -> Any:
    data = found["sizes"]
    return (data.histogram if data.HasField("histogram") else data.exponential_histogram).data_points


@pytest.mark.parametrize(
    ("word", "counters", "histograms"),
    [("cumulative", CUMULATIVE, CUMULATIVE), ("delta", DELTA, DELTA), ("lowmemory", CUMULATIVE, DELTA)],
)
def test_temporality_is_the_users_choice(word: str, counters: int, histograms: int) -> None:
    found = Distributions(SIZES)
    found.record(("inc",), 5.0)
    running = measured(RUNNING, {("inc",): 1})
    told = metrics(Series(word), batch(110.0, seconds(inc=1.0), running, measured(SIZES, found.snapshots())))
    assert {
        name: (one.sum if one.HasField("sum") else one.histogram).aggregation_temporality
        for name, one in told.items()
    } == {"work.time": counters, "running.time": CUMULATIVE, "sizes": histograms}


def test_what_may_fall_is_ended_when_it_is_no_longer_measured_or_its_server_goes() -> None:
    series = Series()
    metrics(series, batch(110.0, measured(RUNNING, {("inc",): 1, ("add",): 2}), measured(LATENCY, {(): 0.5})))
    told = metrics(series, batch(120.0, measured(RUNNING, {("inc",): 1})))
    assert [(point.flags, point.WhichOneof("value")) for point in told["running.time"].sum.data_points] == [
        (0, "as_int"),
        (1, None),
    ]
    assert [point.flags for point in told["latency"].gauge.data_points] == [1]
    told = metrics(series, batch(130.0, seconds(inc=1), measured(RUNNING, {("inc",): 1}), last=True))
    assert list(told) == ["work.time", "running.time"]
    assert sums(told["work.time"])[-1] == ("inc", 120, 130, 1)
    assert [(point.flags, point.WhichOneof("value")) for point in told["running.time"].sum.data_points] == [
        (1, None)
    ]


def test_what_is_left_for_later_is_told_with_the_rest_and_what_is_excluded_is_not() -> None:
    one = Batch(SOURCE, 100.0, 110.0, [lambda: [seconds(inc=1.0)], measured(LATENCY, {(): 0.5})])
    assert list(metrics(Series(), one)) == ["work.time", "latency"]
    assert list(metrics(Series(exclude=["latency"]), one)) == ["work.time"]
    assert metrics(Series(exclude=["latency", "work.time"]), one) == {}


def test_what_exceeds_the_budget_is_under_opentelemetrys_attribute() -> None:
    series = Series(limit=400)
    (metric,) = metrics(
        series, batch(110.0, measured(SECONDS, {(f"p{n}",): n for n in range(1_000)}))
    ).values()
    overflow = [point for point in metric.sum.data_points if point.attributes[0].key == OVERFLOW]
    assert [(len(point.attributes), point.attributes[0].value.bool_value) for point in overflow] == [
        (1, True)
    ] * 2
    assert sum(point.as_int for point in metric.sum.data_points) == sum(range(1_000))
    assert len(metric.sum.data_points) < 400
    assert series.budget.exceeded == "work.time"


EXPORTS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(0.0, 1e6) | st.integers(0, 9)),
        st.lists(st.floats(0.0, 1e6), max_size=4),
        st.sampled_from(["taken", "refused"]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(EXPORTS, st.sampled_from(["explicit_bucket_histogram", EXPONENTIAL]))
def test_differences_that_were_taken_add_up_to_the_totals(exports: Any, form: str) -> None:
    """Both ways see the same, whatever a receiver has refused."""
    delta, cumulative = Series("delta"), Series()
    totals: defaultdict[str, float] = defaultdict(float)
    found = Distributions(SIZES, Metrics(histograms=form))
    added: defaultdict[str, float] = defaultdict(float)
    last: dict[str, float] = {}
    starts: list[tuple[float, float]] = []
    for number, (counted, sizes, fate) in enumerate([*exports, ({}, [], "taken")]):
        for prefix, value in counted.items():
            totals[prefix] += value
        for value in sizes:
            found.record(("x",), value)
        one = batch(110.0 + number, seconds(**totals), measured(SIZES, found.snapshots()))
        told = metrics(delta, one, taken=fate == "taken")
        if fate == "taken":
            for metric in told.values():
                for key, value, point in _told(metric):
                    added[key] += value
                    starts.append((point.start_time_unix_nano, point.time_unix_nano))
        for metric in metrics(cumulative, one).values():
            for key, value, _ in _told(metric):
                assert value >= last.get(key, 0.0) or value == 0
                last[key] = value
    assert {key: value for key, value in last.items() if value} == {
        key: pytest.approx(value) for key, value in added.items() if value
    }
    assert all(start < now for start, now in starts)


def _told(metric: Any) -> Any:
    for point in metric.sum.data_points:
        value = point.as_double if point.WhichOneof("value") == "as_double" else point.as_int
        yield f"sum {point.attributes[0].value.string_value}", value, point
    for point in metric.histogram.data_points:
        yield "count", point.count, point
        yield "total", point.sum, point
        for at, count in enumerate(point.bucket_counts):
            yield f"bucket {at}", count, point
    for point in metric.exponential_histogram.data_points:
        assert point.count == sum(point.positive.bucket_counts) + point.zero_count
        yield "count", point.count, point
        yield "total", point.sum, point
        yield "zeros", point.zero_count, point


def test_a_histogram_of_nothing_has_no_ends() -> None:
    empty = Histogram(0, 0.0, inf, -inf, (0, 0, 0))
    (metric,) = metrics(Series(), batch(100.0, measured(SIZES, {("a",): empty}))).values()
    (point,) = metric.histogram.data_points
    assert (point.HasField("min"), point.HasField("max"), point.count) == (False, False, 0)


def test_as_many_series_of_the_longest_names_as_there_may_be_fit_into_a_request() -> None:
    names = Instrument("amount", COUNTER, "1", ROLE, ("context", "prefix", "activity", "unit"), "Amount.")
    found = measured(names, {("execute", f"{n:0200}", f"{n:0200}", f"{n:0200}"): 1.5 for n in [1]})
    body, _ = Series().request(batch(110.0, found))
    assert len(body) * MAX_SERIES < MAX_BODY
