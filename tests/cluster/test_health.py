"""What stops servers, on real ones: lateness of their loops, garbage collections, the computations that these stopped."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Worker
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import dask_otel
from dask_otel import instruments, names
from dask_otel.seam import gc_pauses
from tests.cluster.conftest import MakeTraced
from tests.cluster.support import DEADLINE, Traced, attributes, named, wait_for, wait_until

Key = tuple[str, str, "str | int"]


def histograms(traced: Traced, name: str) -> dict[Key, Any]:
    """The last points of a histogram by role, instance and the value of its attribute (if it has one)."""
    assert dask_otel.flush(traced.client, DEADLINE)
    return dict(_histograms(traced, name))


def _histograms(traced: Traced, name: str) -> Iterator[tuple[Key, Any]]:
    for request in traced.receiver.requests():
        if request.path != "/v1/metrics":
            continue
        for resource in ExportMetricsServiceRequest.FromString(request.body).resource_metrics:
            who = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            for metric in resource.scope_metrics[0].metrics:
                if metric.name == name:
                    for point in metric.histogram.data_points:
                        of = [getattr(p.value, p.value.WhichOneof("value")) for p in point.attributes]
                        yield (who["dask.role"], who["service.instance.id"], of[0] if of else ""), point


def by_role(found: dict[Key, Any]) -> dict[str, set[str | int]]:
    roles: dict[str, set[str | int]] = {}
    for role, _, of in found:
        roles.setdefault(role, set()).add(of)
    return roles


async def block(dask_worker: Worker) -> None:
    """On the worker's event loop, once its timer is due within the next tenth of a second."""
    time.sleep(0.6)


def collect(x: int, times: int = 3) -> float:
    """Garbage collections that take a while; the seconds that they took."""
    held = [[] for _ in range(200_000)]
    log = gc_pauses.PauseLog()
    for _ in range(times):
        gc.collect()
    took = sum(end - start for start, end, _ in log.take())
    log.close()
    del held
    return took


def test_a_loop_that_is_blocked_is_late(traced: Traced) -> None:
    there, _ = sorted(traced.client.scheduler_info(n_workers=-1)["workers"])
    instance = traced.client.run(lambda dask_worker: dask_worker.id)[there]

    def looked() -> bool:
        found = histograms(traced, instruments.LOOP_LAG.name)
        return len(found) == 3 and all(point.count >= 2 for point in found.values())

    wait_until(looked)
    traced.client.run(block, workers=[there])

    def late() -> set[str]:
        """A lateness of half a second and more shows in the buckets above that boundary."""
        above = instruments.LOOP_LAG.boundaries.index(0.25) + 1
        found = histograms(traced, instruments.LOOP_LAG.name)
        return {who for (_, who, _), point in found.items() if sum(point.bucket_counts[above:])}

    wait_until(late)
    assert instance in late()
    found = histograms(traced, instruments.LOOP_LAG.name)
    assert by_role(found) == {"scheduler": {""}, "worker": {""}}
    assert {tuple(point.explicit_bounds) for point in found.values()} == {instruments.LOOP_LAG.boundaries}


def test_pauses_are_told_by_generation_and_on_the_computation_that_they_stopped(traced: Traced) -> None:
    client = traced.client
    address, _ = sorted(client.scheduler_info(n_workers=-1)["workers"])
    instance = client.run(lambda dask_worker: dask_worker.id)[address]
    took = client.submit(collect, 1, workers=[address], key="collect-1").result()
    found = histograms(traced, instruments.GC_PAUSE.name)
    assert by_role(found)["worker"] <= {0, 1, 2}
    assert found["worker", instance, 2].count >= 3
    assert found["worker", instance, 2].sum >= took
    (computation,) = named(traced.trace(), names.COMPUTATION)
    told = attributes(computation)[names.GC_TIME]
    assert took <= told <= (computation.span.end - computation.span.start) / 1e9


def held(x: int, folder: str) -> None:
    (Path(folder) / "runs").touch()
    wait_for(Path(folder) / "go")


def stood_still(client: Client) -> float:
    """Seconds that the scheduler's process and that of its only worker did until now."""
    (there,) = client.run(gc_pauses.paused).values()
    return float(there + client.run_on_scheduler(gc_pauses.paused))


def test_a_pause_is_once_of_a_computation_of_which_two_tasks_ran(
    traced_cluster_of: MakeTraced, tmp_path: Path
) -> None:
    with traced_cluster_of(n_workers=1, threads=2) as traced:
        client = traced.client
        before = stood_still(client)
        waiting = client.submit(held, 1, str(tmp_path), key="held-1")
        wait_until((tmp_path / "runs").exists)
        took = client.submit(collect, 1, 5, key="collect-1").result()
        # In the scheduler's process too, while the first task still runs.
        took += client.run_on_scheduler(collect, 1)
        (tmp_path / "go").touch()
        waiting.result()
        (computation,) = named(traced.trace(), names.COMPUTATION)
        assert took <= attributes(computation)[names.GC_TIME] <= stood_still(client) - before


def test_graphs_are_timed_by_phase_also_where_nothing_is_traced(
    traced_cluster_of: MakeTraced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with traced_cluster_of() as traced:
        for x in range(3):
            traced.client.submit(abs, x).result()
        before = histograms(traced, instruments.GRAPH_UPDATE_SECONDS.name)
        assert {(role, of): point.count for (role, _, of), point in before.items()} == {
            ("scheduler", "materialize"): 3,
            ("scheduler", "order"): 3,
            ("scheduler", "init"): 3,
        }
        assert all(point.sum > 0 for point in before.values())
        assert traced.spans() == []
