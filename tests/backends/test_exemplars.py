"""From a bucket in the real Prometheus to the task's trace in the real Jaeger."""

from __future__ import annotations

import logging
import time

import pytest
from distributed import Client, LocalCluster

import dask_otel
from dask_otel import names

from .asking import exemplars, until
from .jaeger import trace, wait_for_trace


def inc(x: int) -> int:
    return x + 1


def double(x: int) -> int:
    return 2 * x


@pytest.mark.parametrize("way", ["through the Collector", "straight to Prometheus"])
def test_exemplars_of_task_durations_lead_to_the_spans_of_tasks_in_jaeger(
    environment: pytest.MonkeyPatch, collector_http: str, jaeger_api: str, prometheus: str, way: str
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector_http)
    if way == "straight to Prometheus":
        environment.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{prometheus}/api/v1/otlp/v1/metrics")
    start = time.time() - 1
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
        ) as cluster,
        Client(cluster) as client,
    ):
        dask_otel.enable(client)
        ones = client.map(inc, range(20), pure=False)
        twos = client.map(double, ones, pure=False)
        assert sum(client.gather(twos)) == 420
        assert dask_otel.flush(client, 30)
        series = f'dask_task_duration_seconds_bucket{{dask_cluster_id="{cluster.scheduler.id}"}}'
        found = until(lambda: exemplars(prometheus, series, start), bool)
    assert {tuple(sorted(one)) for one in found} == {("span_id", "trace_id")}
    for trace_id in {one["trace_id"] for one in found}:
        asked = {one["span_id"] for one in found if one["trace_id"] == trace_id}
        spans = wait_for_trace(jaeger_api, trace_id, lambda spans, asked=asked: asked <= ids(spans))
        of_tasks = {s.span_id for s in spans if s.tags.get(names.OPERATION) == names.OP_TASK}
        assert asked <= of_tasks
        assert trace(jaeger_api, trace_id) != []


def ids(spans: list) -> set[str]:
    return {s.span_id for s in spans}
