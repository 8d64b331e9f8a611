"""What the dashboards, the alerts and the documents ask is answered by the real Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from dashboards.promql import metric
from dask_otel import names
from dask_otel.instruments import HISTOGRAM, INSTRUMENTS

from . import made
from .jaeger import get
from .shown import (
    ask,
    asked_by_alerts,
    asked_by_documents,
    asked_by_panels,
    names_of,
    values_of,
    variables_asked,
)

T = TypeVar("T")


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


def wait_for(ask_again: Callable[[], T], expected: T, timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while (found := ask_again()) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def unanswered(prometheus: str, of: dict[str, str]) -> list[str]:
    """Where a query stands that gives nothing, or that is a number which is none."""
    asked = [*asked_by_panels(of), *asked_by_alerts(), *asked_by_documents(of)]
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
    wait_for(lambda: unanswered(prometheus, of), [])
    empty = [
        where for where, series, label in variables_asked(of) if not values_of(prometheus, series, label)
    ]
    assert empty == []


def test_prometheus_loads_every_alert(prometheus: str) -> None:
    def health() -> set[tuple[str, str]]:
        (group,) = get(f"{prometheus}/api/v1/rules")["data"]["groups"]
        return {(rule["name"], rule["health"]) for rule in group["rules"]}

    wait_for(health, {(alert.where, "ok") for alert in asked_by_alerts()}, timeout=60)


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
