"""The real Prometheus agrees with Dask's own endpoints on every number that both have."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections import defaultdict
from pathlib import Path

import pytest

from dask_otel.endpoint_names import SHOWN, prometheus_name
from dask_otel.instruments import HISTOGRAM, INSTRUMENTS, LOOP_TICKS
from tests.cluster.support import wait_until
from tests.cluster.test_endpoints import Sent, Server, compare_all, find, servers_of, watch

#: Metrics by their names in Prometheus.
METRICS = {prometheus_name(one) + ("_sum" if one.kind == HISTOGRAM else ""): one for one in INSTRUMENTS}


def newest(url: str, server: Server) -> Sent:
    """The newest value of each series of a server."""
    query = urllib.parse.urlencode({"query": f'{{instance="{server.id}"}}'})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}") as answer:
        result = json.load(answer)["data"]["result"]
    found: Sent = {}
    for one in result:
        labels = one["metric"]
        instrument = METRICS.get(labels["__name__"])
        if instrument is not None:
            keys = [key for key in instrument.attributes if key.replace(".", "_") in labels]
            of = frozenset((key, labels[key.replace(".", "_")]) for key in keys)
            found[instrument.name, of] = float(one["value"][1])
    return found


def test_prometheus_agrees_with_dasks_endpoints(
    environment: pytest.MonkeyPatch, collector_http: str, prometheus: str, tmp_path: Path
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector_http)
    ticks: defaultdict[str, float] = defaultdict(float)
    tick = LOOP_TICKS.name, frozenset[tuple[str, str]]()
    with servers_of(tmp_path, environment) as (client, other):

        def read() -> dict[str, Sent]:
            """What came after the last time: an event loop ticks whenever it is looked at."""
            found: dict[str, Sent] = {}

            def arrived() -> bool:
                found.update({server.id: newest(prometheus, server) for server in find(client)})
                return all(values.get(tick, 0) > ticks[of] for of, values in found.items())

            wait_until(arrived)
            ticks.update({of: values[tick] for of, values in found.items()})
            return found

        seen = watch(client, other, tmp_path, read)
    assert len(seen) == len({shown.role for shown in SHOWN}) + 1
    compare_all(seen)
