"""What the dashboards, the alerts and the documents ask is answered by the real Prometheus."""

from __future__ import annotations

import json
import logging
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import dask
import pytest
from distributed import Client, LocalCluster

import dask_otel
from dashboards.cluster import UTILISATION
from dashboards.promql import metric
from dask_otel import names
from dask_otel.instruments import HISTOGRAM, INSTRUMENTS

from . import eventful, made
from .jaeger import get, trace
from .shown import (
    DASHBOARDS,
    Asked,
    ask,
    asked_by_alerts,
    asked_by_documents,
    asked_by_panels,
    filled,
    names_of,
    panels,
    values_of,
    variables_asked,
)

T = TypeVar("T")

#: Alerts on what does not happen in a cluster that is well; they are answered where every metric has a point.
NEVER_HERE = {"DaskTelemetryLost"}
#: Says that a cluster is this one.
HERE = (
    'max by (dask_cluster_id) (last_over_time(dask_scheduler_computation_active{dask_cluster_id="%s"}[15m]))'
)


def variables(cluster: str, prefix: str) -> dict[str, str]:
    """What Grafana would put in."""
    return {
        "cluster": cluster,
        "worker": ".*",
        "prefix": prefix,
        "service": "dask-worker",
        "__rate_interval": "4m",
        "__range": "15m",
    }


def wait_for(ask_again: Callable[[], T], expected: T) -> None:
    deadline = time.monotonic() + 60
    while (found := ask_again()) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def unanswered(prometheus: str, asked: list[Asked]) -> list[str]:
    """Where a query stands that gives nothing, or that gives a number which is none."""
    return [
        f"{one.where}: {one.expr}"
        for one in asked
        if not (found := ask(prometheus, one.expr)) or any(x["value"][1] in ("NaN", "+Inf") for x in found)
    ]


def test_prometheus_names_every_metric_as_the_generator_does(collector_http: str, prometheus: str) -> None:
    cluster = f"made-{time.time_ns()}"
    made.send(collector_http, cluster)
    expected = set()
    for one in INSTRUMENTS:
        suffixes = ("_bucket", "_count", "_sum") if one.kind == HISTOGRAM else ("",)
        expected |= {f"{metric(one)}{suffix}" for suffix in suffixes}
    wait_for(lambda: names_of(prometheus, cluster) - {"target_info"}, expected)


def test_every_query_is_answered_where_every_metric_has_a_point(collector_http: str, prometheus: str) -> None:
    cluster = f"made-{time.time_ns()}"
    made.send(collector_http, cluster)
    wait_for(
        lambda: values_of(prometheus, f'{{dask_cluster_id="{cluster}"}}', "dask_role"),
        ["scheduler", "worker"],
    )
    of = variables(cluster, "inc")
    asked = [*asked_by_panels(of), *asked_by_alerts(), *asked_by_documents(of)]
    wait_for(lambda: unanswered(prometheus, asked), [])
    empty = [
        where for where, series, label in variables_asked(of) if not values_of(prometheus, series, label)
    ]
    assert empty == []


def test_prometheus_loads_every_alert(prometheus: str) -> None:
    def health() -> set[tuple[str, str]]:
        (group,) = get(f"{prometheus}/api/v1/rules")["data"]["groups"]
        return {(rule["name"], rule["health"]) for rule in group["rules"]}

    wait_for(health, {(alert.where, "ok") for alert in asked_by_alerts()})


def test_a_cluster_is_told_from_another(collector_http: str, prometheus: str) -> None:
    clusters = sorted(f"made-{time.time_ns()}" for _ in range(2))
    for cluster in clusters:
        made.send(collector_http, cluster)
    threads = (
        f'sum by (dask_cluster_id) (dask_worker_thread_count{{dask_cluster_id=~"{"|".join(clusters)}"}})'
    )
    wait_for(
        lambda: [one["metric"][names.CLUSTER_ID.replace(".", "_")] for one in ask(prometheus, threads)],
        clusters,
    )


def test_every_query_is_answered_for_a_cluster_at_work(
    environment: pytest.MonkeyPatch, collector_http: str, prometheus: str, jaeger_api: str, tmp_path: Path
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector_http)
    environment.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
    with (
        dask.config.set(eventful.CONFIG),
        LocalCluster(
            n_workers=2,
            threads_per_worker=2,
            memory_limit=eventful.MEMORY_LIMIT,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        dask_otel.enable(client)
        kept = eventful.run(client, tmp_path)
        assert dask_otel.flush(client, 30)
        of = variables(cluster.scheduler.id, eventful.PREFIX)
        asked = [*asked_by_panels(of), *alerts_of(cluster.scheduler.id), *asked_by_documents(of)]
        now = [one for one in asked if one.where not in NEVER_HERE]
        wait_for(lambda: unanswered(prometheus, now), [])
        (busy,) = ask(prometheus, filled(UTILISATION, of))
        assert 0 < float(busy["value"][1]) <= 1.001
        assert_exemplars_lead_to_traces(prometheus, jaeger_api, of)
        assert_traces_are_found(jaeger_api, of)
        del kept


def alerts_of(cluster: str) -> list[Asked]:
    """What alerts ask, of this cluster only."""
    return [
        Asked(one.where, f"({one.expr}) and on (dask_cluster_id) ({HERE % cluster})")
        for one in asked_by_alerts()
    ]


def exported(prometheus: str, cluster: str) -> set[str]:
    found = names_of(prometheus, cluster)
    return {one.name for one in INSTRUMENTS if found & {metric(one), f"{metric(one)}_count"}}


def assert_exemplars_lead_to_traces(prometheus: str, jaeger_api: str, of: dict[str, str]) -> None:
    """Of every query that shows them, as Grafana asks for them."""
    for file in DASHBOARDS:
        for where, panel in panels(file):
            for target in panel["targets"]:
                if target.get("exemplar"):
                    found = exemplars(prometheus, filled(target["expr"], of))
                    assert found, where
                    assert trace(jaeger_api, found[0]), where


def exemplars(prometheus: str, expr: str) -> list[str]:
    """Trace ids; the newest first, which are whole by now."""
    query = urllib.parse.urlencode({"query": expr, "start": time.time() - 600, "end": time.time()})
    found = [
        one
        for series in get(f"{prometheus}/api/v1/query_exemplars?{query}")["data"]
        for one in series["exemplars"]
    ]
    return [one["labels"]["trace_id"] for one in sorted(found, key=lambda one: -one["timestamp"])]


def assert_traces_are_found(jaeger_api: str, of: dict[str, str]) -> None:
    """By the search of the panel *Traces*, as Grafana sends it to Jaeger."""
    (search,) = (
        target
        for file in DASHBOARDS
        for _, panel in panels(file)
        for target in panel["targets"]
        if target["datasource"]["type"] == "jaeger"
    )
    tags = dict(pair.split("=") for pair in filled(search["tags"], of).split())
    query = {"service": filled(search["service"], of), "tags": json.dumps(tags), "limit": search["limit"]}
    found = get(f"{jaeger_api}/api/traces?{urllib.parse.urlencode(query)}")["data"]
    spans = {span["operationName"] for one in found for span in one["spans"]}
    assert eventful.PREFIX in spans


def test_a_scheduler_that_closes_is_not_taken_for_silent(
    environment: pytest.MonkeyPatch, collector_http: str, prometheus: str
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector_http)
    (silence,) = (one.expr for one in asked_by_alerts() if one.where == "DaskSchedulerSilent")
    with (
        LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=logging.CRITICAL) as cluster,
        Client(cluster) as client,
    ):
        dask_otel.enable(client)
        assert dask_otel.flush(client, 30)
        expr = f"{silence} and on (dask_cluster_id) ({HERE % cluster.scheduler.id})"
        wait_for(lambda: len(ask(prometheus, expr)), 1)
    wait_for(lambda: ask(prometheus, expr), [])
