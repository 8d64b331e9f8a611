"""Metrics of real servers in the forms that OpenTelemetry's variables ask for, and without those that are excluded."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import dask
import pytest
from distributed.metrics import context_meter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import dask_otel
from dask_otel import instruments, names
from dask_otel.budget import MAX_SERIES
from dask_otel.folding import OTHER
from dask_otel.receiver import Receiver
from tests.cluster.support import DEADLINE

TASKS = 20
#: More than there may be series.
LABELS, PREFIXES = 4_000, 150


def metrics(receiver: Receiver) -> list[Any]:
    """All that came, in the order of their requests."""
    return [
        metric
        for request in receiver.requests()
        if request.path == "/v1/metrics"
        for resource in ExportMetricsServiceRequest.FromString(request.body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]


def inc(x: int) -> int:
    return x + 1


def test_differences_and_exponential_histograms_add_up(
    traced_cluster_of: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    monkeypatch.setenv(
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "base2_exponential_bucket_histogram"
    )
    with traced_cluster_of() as traced:
        for round in range(3):
            traced.client.gather(
                traced.client.map(inc, range(TASKS), key=[f"inc-{round}-{n}" for n in range(TASKS)])
            )
            assert dask_otel.flush(traced.client, DEADLINE)
    found = metrics(receiver)
    assert not [metric.name for metric in found if metric.HasField("histogram")]
    durations = [
        point
        for metric in found
        if metric.name == instruments.TASK_DURATION.name
        for point in metric.exponential_histogram.data_points
    ]
    assert sum(point.count for point in durations) == 3 * TASKS
    assert all(point.count == point.zero_count + sum(point.positive.bucket_counts) for point in durations)
    assert all(exemplar.span_id for point in durations for exemplar in point.exemplars)
    assert any(point.exemplars for point in durations)
    temporality = defaultdict(set)
    for metric in found:
        if metric.HasField("sum"):
            temporality[metric.sum.is_monotonic].add(metric.sum.aggregation_temporality)
    assert temporality == {True: {1}, False: {2}}


def test_exemplars_can_be_turned_off_and_metrics_excluded(
    traced_cluster_of: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXEMPLAR_FILTER", "always_off")
    monkeypatch.setenv("DASK_OTEL__METRICS__EXCLUDE", "dask.scheduler.*,dask.worker.activity.time")
    with (
        dask.config.set({"otel.metrics.exclude": ["dask.scheduler.*", "dask.worker.activity.time"]}),
        traced_cluster_of() as traced,
    ):
        traced.client.gather(traced.client.map(inc, range(TASKS)))
        assert dask_otel.flush(traced.client, DEADLINE)
    found = metrics(receiver)
    told = {metric.name for metric in found}
    assert instruments.TASK_DURATION.name in told
    assert instruments.COMPUTE_SECONDS.name in told
    assert instruments.TASK_ATTEMPTS.name in told
    assert not [name for name in told if name.startswith("dask.scheduler.")]
    assert instruments.ACTIVITY_SECONDS.name not in told
    points = [point for metric in found for point in metric.histogram.data_points]
    assert points
    assert not any(point.exemplars for point in points)


def many(x: int) -> int:
    for number in range(LABELS):
        context_meter.digest_metric(f"label-{number}", 1, "rows")
    return x


def test_names_that_users_make_up_have_a_bound_and_totals_stay_exact(
    traced_cluster_of: Any, receiver: Receiver
) -> None:
    with traced_cluster_of(n_workers=1) as traced:
        for number in range(2):
            assert traced.client.submit(many, number, key=f"many-{number}").result() == number
            assert dask_otel.flush(traced.client, DEADLINE)
        series: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        for metric in metrics(receiver):
            if metric.name == instruments.ACTIVITY_AMOUNT_OF.name:
                for point in metric.sum.data_points:
                    of = tuple(sorted(f"{pair.key}={pair.value.string_value}" for pair in point.attributes))
                    assert series[metric.name].get(of, 0) <= point.as_double + point.as_int
                    series[metric.name][of] = point.as_double + point.as_int
    (amounts,) = series.values()
    overflow = (f"{instruments.OVERFLOW}=",)
    assert len(amounts) <= MAX_SERIES / 2
    assert amounts[overflow] > 0
    assert sum(amounts.values()) == 2 * LABELS
    assert {value for of, value in amounts.items() if of != overflow} == {2}


def test_many_prefixes_are_folded_and_totals_stay_exact(traced_cluster_of: Any, receiver: Receiver) -> None:
    with traced_cluster_of(n_workers=1) as traced:
        for round in range(2):
            futures = [traced.client.submit(inc, n, key=(f"prefix{n:03}", round)) for n in range(PREFIXES)]
            assert sum(traced.client.gather(futures)) == sum(range(1, PREFIXES + 1))
            assert dask_otel.flush(traced.client, DEADLINE)
    shown: dict[str, set[str]] = defaultdict(set)
    attempts: dict[str, float] = {}
    folded: dict[int, int] = {}
    for metric in metrics(receiver):
        for point in [*metric.sum.data_points, *metric.histogram.data_points]:
            of = {pair.key: pair.value.string_value for pair in point.attributes}
            if prefix := of.get(names.TASK_PREFIX):
                shown[metric.name].add(prefix)
            if metric.name == instruments.TASK_ATTEMPTS.name:
                attempts[of[names.TASK_PREFIX]] = point.as_int
            if metric.name == instruments.PREFIXES_FOLDED.name:
                folded[point.start_time_unix_nano] = point.as_int
    assert sum(attempts.values()) == 2 * PREFIXES
    for instrument in instruments.INSTRUMENTS:
        limit = 30 if "worker" in instrument.on else 100
        assert len(shown.pop(instrument.name, set()) - {OTHER}) <= limit
    assert shown == {}
    assert sorted(folded.values())[-1] >= PREFIXES - 30
