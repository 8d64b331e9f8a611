"""Metrics of a real cluster through the real Collector, asked for in the real Prometheus."""

from __future__ import annotations

import json
import logging
import time
import urllib.parse
import urllib.request

import pytest
from distributed import Client, LocalCluster, Worker
from distributed.metrics import context_meter

import dask_otel


def metered(x: int) -> int:
    with context_meter.meter("parse"):
        context_meter.digest_metric("parse", 3, "rows")
    return x


def rows(dask_worker: Worker) -> float:
    return sum(v for k, v in dask_worker.digests_total.items() if isinstance(k, tuple) and k[-1] == "rows")


def ask(query: str, url: str) -> dict[tuple[str, ...], float]:
    """The answer to a query: values by the values of the labels."""
    with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}") as answer:
        result = json.load(answer)["data"]["result"]
    return {tuple(one["metric"].values()): float(one["value"][1]) for one in result}


def ask_until(query: str, url: str, expected: object) -> None:
    deadline = time.monotonic() + 30
    while (found := ask(query, url)) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_a_computation_shorter_than_an_interval_is_seen_whole(
    environment: pytest.MonkeyPatch, collector_http: str, prometheus: str
) -> None:
    """The zero point of a series that is new: its increase is all that there was."""
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector_http)
    environment.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
        ) as cluster,
        Client(cluster) as client,
    ):
        dask_otel.enable(client)
        mine = f'{{dask_cluster_id="{cluster.scheduler.id}"}}[10m]'
        client.gather(client.map(metered, range(20), pure=False))
        assert sum(client.run(rows).values()) == 60
        assert dask_otel.flush(client, 30)
        amount = f"dask_worker_activity_amount_total{mine}"
        ask_until(f"sum(max_over_time({amount}) - min_over_time({amount}))", prometheus, {(): 60.0})
        threads = f"last_over_time(dask_worker_thread_time_seconds_total{mine})"
        states = ask(f"count by (dask_thread_state) ({threads})", prometheus)
        assert states == {
            (state,): 2.0 for state in ("executing", "paused", "constrained", "gather-dep", "idle")
        }
