"""Who metrics are of, in the real Prometheus: one `target_info` an instance, clusters told apart, whatever the way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from distributed import Client, LocalCluster
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

import dask_otel

from .asking import instant, until

DIRECT = "/api/v1/otlp/v1/metrics"


@contextmanager
def cluster_of(processes: bool, n_workers: int = 2) -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=processes,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        dask_otel.enable(client)
        yield client


def instances(client: Client) -> set[str]:
    scheduler = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.id)
    return {scheduler, *client.run(lambda dask_worker: dask_worker.id).values()}


def work(client: Client) -> None:
    assert client.gather(client.map(abs, range(8), pure=False)) == list(range(8))
    assert dask_otel.flush(client, 30)


@pytest.fixture(params=["through the Collector", "straight to Prometheus"])
def endpoint(
    request: pytest.FixtureRequest, environment: pytest.MonkeyPatch, collector_http: str, prometheus: str
) -> str:
    """Where metrics are sent, which the environment says."""
    direct = request.param == "straight to Prometheus"
    endpoint = f"{prometheus}{DIRECT}" if direct else f"{collector_http}/v1/metrics"
    environment.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint)
    environment.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
    return endpoint


@pytest.mark.parametrize("processes", [True, False])
def test_each_instance_has_one_target_info_and_two_clusters_are_told_apart(
    endpoint: str, prometheus: str, processes: bool
) -> None:
    """Also beside metrics of the application's own, of its own provider, in the process of a scheduler."""
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint))
    mine = Resource.create(
        {"service.name": "shop", "service.instance.id": f"shop-{processes}-{len(endpoint)}"}
    )
    provider = MeterProvider([reader], mine, shutdown_on_exit=False)
    provider.get_meter("shop").create_counter("shop.orders").add(1)
    with cluster_of(processes) as one, cluster_of(processes, n_workers=1) as other:
        work(one)
        work(other)
        assert provider.force_flush()
        ids = [instances(client) for client in (one, other)]
        clusters = [
            client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.id) for client in (one, other)
        ]
        every = "|".join((*ids[0], *ids[1], str(mine.attributes["service.instance.id"])))
        target_info = f'last_over_time(target_info{{instance=~"{every}"}}[10m])'
        expected = {(instance,): 1.0 for instance in every.split("|")}
        until(
            lambda: instant(prometheus, f"count by (instance) ({target_info})", "instance"),
            lambda found: found == expected,
        )
        jobs = instant(prometheus, f"count by (job) ({target_info})", "job")
        assert jobs == {("dask-scheduler",): 2.0, ("dask-worker",): 3.0, ("shop",): 1.0}
        by_cluster = instant(
            prometheus,
            f"count by (dask_cluster_id, dask_role) ({target_info})",
            "dask_cluster_id",
            "dask_role",
        )
        assert by_cluster == {
            (clusters[0], "scheduler"): 1.0,
            (clusters[0], "worker"): 2.0,
            (clusters[1], "scheduler"): 1.0,
            (clusters[1], "worker"): 1.0,
            ("", ""): 1.0,
        }
        # What a query joins to it has one partner.
        joined = instant(
            prometheus,
            f'count(last_over_time(dask_worker_thread_time_seconds_total{{instance=~"{every}"}}[10m])'
            f" * on (job, instance) group_left (telemetry_sdk_version) {target_info})",
        )
        assert joined == {(): 3 * 5.0}
    provider.shutdown()


def test_servers_that_share_the_application_s_provider_are_told_apart(
    endpoint: str, prometheus: str, environment: pytest.MonkeyPatch
) -> None:
    """One `target_info`, the application's, and series of each server."""
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint), export_interval_millis=60_000)
    instance = f"shared-{len(endpoint)}"
    mine = Resource.create({"service.name": "shop", "service.instance.id": instance})
    provider = MeterProvider([reader], mine, shutdown_on_exit=False)
    environment.setattr("opentelemetry.metrics._internal._METER_PROVIDER", provider)
    with cluster_of(processes=False) as one, cluster_of(processes=False, n_workers=1) as other:
        work(one)
        work(other)
        clusters = [
            client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.id) for client in (one, other)
        ]
        of = f'{{instance="{instance}"}}'
        asked = f"count by (dask_cluster_id, dask_worker_name) (dask_worker_thread_time_seconds_total{of})"
        until(
            lambda: instant(prometheus, asked, "dask_cluster_id", "dask_worker_name"),
            lambda found: (
                found == {(clusters[0], "0"): 5.0, (clusters[0], "1"): 5.0, (clusters[1], "0"): 5.0}
            ),
        )
        idle = f"count by (dask_cluster_id) (dask_scheduler_idle_time_seconds_total{of})"
        assert set(instant(prometheus, idle, "dask_cluster_id")) == {(id_,) for id_ in clusters}
        assert instant(prometheus, f"count(target_info{of})") == {(): 1.0}
    provider.shutdown()
