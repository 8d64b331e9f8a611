"""Totals and differences, histograms with boundaries and exponential ones: the real Prometheus has the same numbers of each."""

from __future__ import annotations

import logging

import pytest
from distributed import Client, LocalCluster
from distributed.metrics import context_meter

import dask_otel

from .asking import instant, until

ROUNDS, TASKS = 3, 20
TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
HISTOGRAMS = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"


def metered(x: int) -> int:
    with context_meter.meter("parse"):
        context_meter.digest_metric("parse", 3, "rows")
    return x


@pytest.mark.parametrize("way", ["through the Collector", "straight to Prometheus"])
@pytest.mark.parametrize("histograms", ["explicit_bucket_histogram", "base2_exponential_bucket_histogram"])
@pytest.mark.parametrize("temporality", ["cumulative", "delta", "lowmemory"])
def test_every_form_comes_to_the_same(
    environment: pytest.MonkeyPatch,
    collector_http: str,
    prometheus: str,
    temporality: str,
    histograms: str,
    way: str,
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector_http)
    if way == "straight to Prometheus":
        environment.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{prometheus}/api/v1/otlp/v1/metrics")
    environment.setenv(TEMPORALITY, temporality)
    environment.setenv(HISTOGRAMS, histograms)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
        ) as cluster,
        Client(cluster) as client,
    ):
        dask_otel.enable(client)
        for n in range(ROUNDS):
            client.gather(client.map(metered, range(TASKS), key=f"metered-{n}"))
            assert dask_otel.flush(client, 30)
        mine = f'{{dask_cluster_id="{cluster.scheduler.id}"}}'
        durations = f"dask_task_duration_seconds_count{mine}"
        if histograms.startswith("base2"):
            durations = f"histogram_count(dask_task_duration_seconds{mine})"
        rows = f"dask_worker_activity_amount_total{mine}"
        asked = {"tasks": f"sum({durations})", "rows": f"sum({rows})"}
        expected = {"tasks": ROUNDS * TASKS, "rows": 3 * ROUNDS * TASKS}
        until(
            lambda: {name: instant(prometheus, query).get(()) for name, query in asked.items()},
            lambda found: found == expected,
        )
