"""One run, four places: Dask's digests, the spans in the real Jaeger, what was exported, the real Prometheus.

`.ci/with-backends pytest -s tests/backends/test_agreement.py` prints them side by side.
"""

from __future__ import annotations

import json
import logging
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, Worker
from distributed.metrics import context_meter
from opentelemetry.sdk.trace import TracerProvider

import dask_otel
from dask_otel import names
from dask_otel.export.metric_bodies import made
from dask_otel.instruments import ACTIVITY_AMOUNT_OF, ACTIVITY_BYTES, ACTIVITY_OPERATIONS, ACTIVITY_SECONDS
from dask_otel.intervals import text
from dask_otel.turning_on import workers

from .jaeger import wait_for_trace

#: Prefix, activity, unit: all of the context ``execute``.
Amount = tuple[str, str, str]
Amounts = dict[Amount, float]

#: How Prometheus shows what was metered in Dask's units.
PROMETHEUS = {
    "seconds": "dask_worker_activity_time_seconds_total",
    "bytes": "dask_worker_activity_size_bytes_total",
    "count": "dask_worker_activity_operations_total",
    "rows": "dask_worker_activity_amount_total",
}
INSTRUMENTS = {
    ACTIVITY_SECONDS: "seconds",
    ACTIVITY_BYTES: "bytes",
    ACTIVITY_OPERATIONS: "count",
    ACTIVITY_AMOUNT_OF: "rows",
}


def load(x: int) -> bytes:
    with context_meter.meter("parse"):
        context_meter.digest_metric("parse", 3, "rows")
        time.sleep(0.01)
    return bytes(100_000 + x)


def size(*blobs: bytes) -> int:
    return sum(map(len, blobs))


def flaky(x: int) -> int:
    raise ValueError(x)


def of_digests(dask_worker: Worker) -> Amounts:
    found: defaultdict[Amount, float] = defaultdict(float)
    for key, value in dask_worker.digests_total.items():
        if isinstance(key, tuple) and len(key) == 5 and key[0] == "execute":
            found[str(key[2]), text(key[3]), key[4]] += value
    return dict(found)


def of_metrics(dask_worker: Worker) -> Amounts:
    telemetry = workers.telemetry(dask_worker)
    assert telemetry is not None
    found: Amounts = {}
    for one in made(telemetry.metrics._measured()):
        for attributes, value in one.points if one.instrument in INSTRUMENTS else ():
            of = dict(attributes)
            if of["dask.metering.context"] == "execute":
                found[of[names.TASK_PREFIX], of[names.ACTIVITY_NAME], INSTRUMENTS[one.instrument]] = value
    return found


def over_workers(found: dict[str, Amounts]) -> Amounts:
    sums: defaultdict[Amount, float] = defaultdict(float)
    for amounts in found.values():
        for of, value in amounts.items():
            sums[of] += value
    return dict(sums)


def of_spans(spans: list[Any]) -> Amounts:
    sums: defaultdict[Amount, float] = defaultdict(float)
    for span in spans:
        if span.tags.get(names.OPERATION) == names.OP_TASK:
            for key, value in span.tags.items():
                if key.startswith(names.ACTIVITY_AMOUNT):
                    label, _, unit = key.removeprefix(names.ACTIVITY_AMOUNT).rpartition(".")
                    sums[span.tags[names.TASK_PREFIX], label, unit] += float(value)
    return dict(sums)


def of_prometheus(url: str, cluster: str) -> Amounts:
    found: Amounts = {}
    for unit, name in PROMETHEUS.items():
        of = f'{name}{{dask_cluster_id="{cluster}", dask_metering_context="execute"}}'
        query = f"sum by (dask_task_prefix, dask_activity_name) ({of})"
        with urllib.request.urlopen(
            f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        ) as answer:
            for one in json.load(answer)["data"]["result"]:
                labels = one["metric"]
                found[labels["dask_task_prefix"], labels["dask_activity_name"], unit] = float(one["value"][1])
    return found


def table(columns: dict[str, Amounts]) -> str:
    keys = sorted(set().union(*columns.values()))
    lines = [f"{'prefix':<8}{'activity':<18}{'unit':<9}" + "".join(f"{name:>14}" for name in columns)]
    for of in keys:
        values = "".join(f"{column[of]:>14.6g}" if of in column else " " * 14 for column in columns.values())
        lines.append(f"{of[0]:<8}{of[1]:<18}{of[2]:<9}{values}")
    return "\n".join(lines)


def test_digests_spans_metrics_and_prometheus_say_the_same(
    environment: pytest.MonkeyPatch,
    collector_http: str,
    jaeger_api: str,
    prometheus: str,
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector_http)
    environment.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
    tracer = TracerProvider().get_tracer("test")
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
        ) as cluster,
        Client(cluster) as client,
    ):
        dask_otel.enable(client)
        with tracer.start_as_current_span("click") as root:
            loads = [dask.delayed(load, pure=False)(x) for x in range(30)]
            sizes = [dask.delayed(size, pure=False)(*loads[i : i + 3]) for i in range(0, 30, 3)]
            total = client.compute(dask.delayed(size, pure=False)(*loads))
            assert total.result() == sum(range(100_000, 100_030))
            assert client.submit(flaky, 1).exception()
            assert len(client.gather(client.compute(sizes))) == 10
        trace_id = root.get_span_context().trace_id
        assert dask_otel.flush(client, 30)
        digests = over_workers(client.run(of_digests))
        metrics = over_workers(client.run(of_metrics))
        spans = of_spans(wait_for_trace(jaeger_api, trace_id, lambda found: complete(found, digests)))
        deadline = time.monotonic() + 30
        while rounded(asked := of_prometheus(prometheus, cluster.scheduler.id)) != rounded(digests):
            assert time.monotonic() < deadline, table({"Dask": digests, "Prometheus": asked})
            time.sleep(0.2)
    columns = {"Dask": digests, "spans": spans, "metrics": metrics, "Prometheus": asked}
    print("\n" + table(columns))
    assert [rounded(column) for column in columns.values()] == 4 * [rounded(digests)]
    assert digests["load", "parse", "rows"] % 3 == 0


def complete(found: list[Any], digests: Amounts) -> bool:
    return rounded(of_spans(found)).keys() >= rounded(digests).keys()


def rounded(amounts: Amounts) -> dict[Amount, str]:
    """To nine digits: sums of floats in another order differ in the last ones."""
    return {of: f"{value:.9g}" for of, value in amounts.items()}
