"""Metrics of real servers: the whole set of names, totals that are Dask's own, last values that arrive."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Scheduler, Semaphore, Worker, secede
from distributed.metrics import context_meter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import dask_otel
from dask_otel import instruments, names, worker_metrics
from dask_otel.instruments import INSTRUMENTS
from dask_otel.intervals import text
from dask_otel.receiver import Receiver
from dask_otel.scheduler import schedulers
from dask_otel.turning_on import workers
from tests.cluster.metering import last, samples, totals
from tests.cluster.support import DEADLINE, Traced, attributes, wait_for, wait_until

ACTIVITY = {
    "seconds": instruments.ACTIVITY_SECONDS.name,
    "bytes": instruments.ACTIVITY_BYTES.name,
    "count": instruments.ACTIVITY_OPERATIONS.name,
}
KEYS = (instruments.METERING_CONTEXT, names.TASK_PREFIX, names.ACTIVITY_NAME)


def metered(x: int) -> int:
    with context_meter.meter("mine"):
        context_meter.digest_metric("mine", 3, "rows")
    return x


def bad(x: int) -> int:
    raise ValueError(x)


def away(x: int) -> int:
    secede()
    return x


def apart(x: int, folder: str) -> int:
    secede()
    wait_for(Path(folder) / "go")
    return x


def held(x: int, folder: str) -> int:
    (Path(folder) / f"holds-{x}").touch()
    wait_for(Path(folder) / "go")
    return x


def work(traced: Traced) -> None:
    client = traced.client
    here, there = sorted(client.scheduler_info(n_workers=-1)["workers"])
    moved = client.submit(metered, 1, key="metered-1", workers=[here])
    assert client.submit(sum, [moved, moved], key="sum-1", workers=[there]).result() == 2
    failing = client.submit(bad, 1, key="bad-1")
    assert failing.exception()
    assert client.submit(away, 1, key="away-1").result() == 1


def digests(dask_worker: Worker) -> dict[tuple[str, str, str, str], float]:
    """Dask's own totals, summed over its spans."""
    found: defaultdict[tuple[str, str, str, str], float] = defaultdict(float)
    for key, value in dask_worker.digests_total.items():
        if isinstance(key, tuple) and len(key) == 5 and key[0] in ("execute", "p2p"):
            found[key[0], str(key[2]), text(key[3]), key[4]] += value
        elif isinstance(key, tuple) and len(key) == 3:
            found[key[0], "", text(key[1]), key[2]] += value
    return dict(found)


#: What comes only where something is installed or has gone wrong: see the tests of each.
NOT_HERE = {
    ("scheduler", instruments.GIL_SECONDS.name),  # Needs gilknocker.
    ("worker", instruments.GIL_SECONDS.name),
    ("worker", instruments.SPANS_BY_FATE.name),  # Of a worker's only the fate `unknown`.
}
#: Attributes that are there only after a failure of ours.
WHERE_LOST = {
    (one.name, names.ERROR_TYPE)
    for one in (instruments.SPANS_PROCESSED, instruments.SPANS_EXPORTED, instruments.POINTS_EXPORTED)
}


def big(n: int) -> bytes:
    return bytes([n]) * 2_000_000


def leased(n: int) -> int:
    with Semaphore(max_leases=1, name="seat"):
        return n


def killed_once(x: int, killed: str) -> int:
    if not Path(killed).exists():
        Path(killed).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def fail_on_worker(dask_worker: Worker) -> None:
    telemetry = workers.telemetry(dask_worker)
    assert telemetry is not None
    telemetry.guard.faults["execute"] += 1


def fail_on_scheduler(dask_scheduler: Scheduler) -> None:
    telemetry = schedulers.telemetry(dask_scheduler)
    assert telemetry is not None
    telemetry.guard.faults["transition"] += 1


def everything(traced: Traced, killed: Path) -> object:
    """A bit of all that is measured; what is returned is to be kept."""
    client = traced.client
    assert client.submit(killed_once, 1, str(killed), key="killed_once-1").result() == 1
    client.wait_for_workers(2)
    work(traced)
    kept = client.map(big, range(1, 30), key="big")
    assert client.gather(client.map(len, kept, key="size")) == [2_000_000] * 29
    assert client.submit(leased, 1, key="leased-1").result() == 1
    client.run(gc.collect)
    client.run_on_scheduler(gc.collect)
    client.run(fail_on_worker)
    client.run_on_scheduler(fail_on_scheduler)
    # By a caller that is not sampled.
    caller = NonRecordingSpan(SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(0)))
    with use_span(caller):
        assert client.submit(metered, 2, key="metered-2").result() == 2
    return kept


def received(receiver: Receiver) -> dict[tuple[str, str, str, str], set[str]]:
    """The keys of attributes by role, name, kind and unit."""
    found: defaultdict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    for request in receiver.requests():
        if request.path != "/v1/metrics":
            continue
        for resource in ExportMetricsServiceRequest.FromString(request.body).resource_metrics:
            (role,) = [p.value.string_value for p in resource.resource.attributes if p.key == names.ROLE]
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                kind = str(metric.WhichOneof("data"))
                data = getattr(metric, kind)
                if kind == "sum":
                    kind = instruments.COUNTER if data.is_monotonic else instruments.UP_DOWN_COUNTER
                keys = found[role, metric.name, kind, metric.unit]
                keys |= {pair.key for point in data.data_points for pair in point.attributes}
    return dict(found)


def test_every_metric_comes_with_its_kind_unit_and_attributes_and_no_other(
    traced_cluster_of: Any, receiver: Receiver, tmp_path: Path
) -> None:
    thresholds = {"target": 0.01, "spill": False, "pause": False, "terminate": False}
    with (
        dask.config.set({f"distributed.worker.memory.{name}": value for name, value in thresholds.items()}),
        traced_cluster_of(memory_limit="500 MB", local_directory=str(tmp_path)) as traced,
    ):
        kept = everything(traced, tmp_path / "killed")
        assert dask_otel.flush(traced.client, DEADLINE)
        found = received(receiver)
        del kept
    assert found == {
        (role, one.name, one.kind, one.unit): {
            key for key in one.attributes if (one.name, key) not in WHERE_LOST
        }
        for one in INSTRUMENTS
        for role in one.on
        if (role, one.name) not in NOT_HERE
    }


def test_what_workers_metered_is_what_is_exported(traced: Traced) -> None:
    work(traced)
    expected: defaultdict[tuple[str, str, str, str], float] = defaultdict(float)
    assert dask_otel.flush(traced.client, DEADLINE)
    for of_worker in traced.client.run(digests).values():
        for key, value in of_worker.items():
            expected[key] += value
    found = samples(traced.receiver)
    exported = {
        (*of, unit): value
        for unit, name in ACTIVITY.items()
        for of, value in totals(found, name, *KEYS).items()
    }
    exported |= totals(found, instruments.ACTIVITY_AMOUNT_OF.name, *KEYS, instruments.UNIT)
    # Flushing itself is metered by nobody; a heartbeat's reading may be.
    assert {key: pytest.approx(value, rel=1e-9) for key, value in expected.items()} == exported
    assert {"metered", "sum", "bad"} <= {prefix for _, prefix, _, _ in exported}
    assert exported["execute", "metered", "mine", "rows"] == 3


def test_spans_add_up_to_metrics(traced: Traced) -> None:
    work(traced)
    spans = traced.spans()
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for received in spans:
        told = attributes(received)
        if told.get(names.OPERATION) == names.OP_TASK:
            for key, value in told.items():
                if key.startswith(names.ACTIVITY_AMOUNT) and key.endswith(".seconds"):
                    label = key.removeprefix(names.ACTIVITY_AMOUNT).removesuffix(".seconds")
                    sums[told[names.TASK_PREFIX], label] += value
    found = totals(samples(traced.receiver), instruments.ACTIVITY_SECONDS.name, *KEYS)
    executed = {
        (prefix, label): value for (context, prefix, label), value in found.items() if context == "execute"
    }
    assert executed == {key: pytest.approx(value, rel=1e-9) for key, value in sums.items()}


def test_thread_seconds_add_up_to_threads_times_uptime(traced: Traced) -> None:
    work(traced)
    assert dask_otel.flush(traced.client, DEADLINE)
    found = [one for one in samples(traced.receiver) if one.name == instruments.THREAD_SECONDS.name]
    for instance in {one.instance for one in found}:
        of_worker = [one for key, one in last(found).items() if key[0] == instance]
        assert {dict(one.attributes)[instruments.THREAD_STATE] for one in of_worker} == {
            "executing",
            "paused",
            "constrained",
            "gather-dep",
            "idle",
        }
        uptime = max(one.time for one in of_worker) - min(one.start for one in of_worker)
        assert sum(one.value for one in of_worker) == pytest.approx(uptime, rel=1e-2, abs=5e-3)


def test_thread_seconds_are_counted_from_the_start_that_is_told(
    traced_cluster_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(activity: Any) -> dict[str, float]:
        time.sleep(0.2)  # There are thousands of activities.
        return {}

    monkeypatch.setattr(worker_metrics, "_busy", busy)
    with traced_cluster_of(processes=False, n_workers=1, threads=2) as traced:
        assert dask_otel.flush(traced.client, DEADLINE)
        found = [one for one in samples(traced.receiver) if one.name == instruments.THREAD_SECONDS.name]
    (start,) = {one.start for one in found}
    sums: defaultdict[float, float] = defaultdict(float)
    for one in found:
        sums[one.time] += one.value
    assert len(sums) > 1
    for now, seconds in sums.items():
        assert seconds == pytest.approx(2 * (now - start), abs=0.05)


def test_a_running_task_is_counted_up_to_now_and_once(traced: Traced, tmp_path: Path) -> None:
    """16."""
    client = traced.client
    future = client.submit(held, 1, str(tmp_path), key="held-1")
    wait_until(lambda: (tmp_path / "holds-1").exists())
    seen = []
    for _ in range(3):
        assert dask_otel.flush(client, DEADLINE)
        found = samples(traced.receiver)
        seen.append(
            tuple(
                totals(found, name, names.TASK_PREFIX)[("held",)]
                for name in (instruments.COMPUTE_SECONDS.name, instruments.EXECUTING_SECONDS.name)
            )
        )
    assert all(compute == pytest.approx(executing, abs=0.05) for compute, executing in seen)
    assert seen[0][0] < seen[1][0] < seen[2][0]
    (tmp_path / "go").touch()
    assert future.result() == 1
    assert dask_otel.flush(client, DEADLINE)
    after = totals(samples(traced.receiver), instruments.COMPUTE_SECONDS.name, names.TASK_PREFIX)[("held",)]
    assert (
        totals(samples(traced.receiver), instruments.EXECUTING_SECONDS.name, names.TASK_PREFIX)[("held",)]
        == 0
    )
    (span,) = [r.span for r in traced.receiver.spans() if r.span.name == "held"]
    assert seen[2][0] < after == pytest.approx((span.end - span.start) / 1e9, abs=0.05)


def test_a_task_that_seceded_holds_no_slot(traced: Traced, tmp_path: Path) -> None:
    client = traced.client
    future = client.submit(apart, 1, str(tmp_path), key="apart-1")
    seceded = instruments.SECEDED_SECONDS.name

    def of(name: str) -> float:
        assert dask_otel.flush(client, DEADLINE)
        return totals(samples(traced.receiver), name, names.TASK_PREFIX).get(("apart",), 0.0)

    wait_until(lambda: of(seceded) > 0)
    held_slot = of(instruments.COMPUTE_SECONDS.name)
    wait_until(lambda: of(seceded) > held_slot + 0.1)
    assert of(instruments.COMPUTE_SECONDS.name) == held_slot
    (tmp_path / "go").touch()
    assert future.result() == 1
    assert of(instruments.COMPUTE_SECONDS.name) == held_slot


def test_the_last_values_of_a_worker_that_closes_arrive(traced: Traced, receiver: Receiver) -> None:
    client = traced.client
    gone, _ = sorted(client.scheduler_info(n_workers=-1)["workers"])
    instance = client.run(lambda dask_worker: dask_worker.id)[gone]
    assert client.submit(metered, 1, key="metered-1", workers=[gone]).result() == 1
    client.retire_workers([gone])

    def told() -> bool:
        found = [one for one in samples(receiver) if one.instance == instance]
        return totals(found, instruments.ACTIVITY_AMOUNT_OF.name, *KEYS, instruments.UNIT) == {
            ("execute", "metered", "mine", "rows"): 3
        }

    wait_until(told)


@pytest.mark.parametrize(
    "said",
    [
        {"OTEL_METRICS_EXPORTER": "none"},
        {"OTEL_METRICS_EXPORTER": "prometheus"},
        {"DASK_OTEL__METRICS__ENABLED": "false"},
    ],
)
def test_metrics_can_be_turned_off(
    traced_cluster_of: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, said: dict[str, str]
) -> None:
    for variable, value in said.items():
        monkeypatch.setenv(variable, value)
    with (
        dask.config.set({"otel": dask.config.collect(env=said).get("otel", {})}),
        traced_cluster_of() as traced,
    ):
        work(traced)
        assert traced.spans()
    assert samples(receiver) == []
