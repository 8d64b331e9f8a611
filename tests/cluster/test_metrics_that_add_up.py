"""Totals of real servers that never fall, whatever happens; seconds that add up; a workload for each reason."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import distributed.scheduler
import pytest
from distributed import Client, Worker, secede, wait
from distributed.core import Status
from distributed.metrics import context_meter

import dask_otel
from dask_otel import names
from dask_otel.instruments import (
    COMPUTE_SECONDS,
    COUNTER,
    EXECUTING_SECONDS,
    IDLE_REASON,
    IDLE_SECONDS,
    INSTRUMENTS,
    SECEDED_SECONDS,
    THREAD_SECONDS,
    THREAD_STATE,
)
from tests.cluster.metering import Sample, samples, totals
from tests.cluster.support import DEADLINE, Traced, tasks, wait_for, wait_until

#: Seconds for which something is watched.
WHILE = 0.6


def held(x: int, folder: str, away: bool = False, error: bool = False) -> int:
    """Says that it runs, and goes on until it is let go."""
    (Path(folder) / f"holds-{x}").touch()
    if away:
        secede()
        (Path(folder) / f"away-{x}").touch()
    wait_for(Path(folder) / f"go-{x}")
    if error:
        raise ValueError(x)
    return x


def metered(x: int) -> int:
    with context_meter.meter("mine"):
        context_meter.digest_metric("mine", 3, "rows")
    return x


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Held:
    """Tasks that are held until a test lets them go."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.folder = folder

    def submit(self, x: int, **kwargs: Any) -> Any:
        options = {name: kwargs.pop(name) for name in ("away", "error") if name in kwargs}
        prefix = kwargs.pop("prefix", "held")
        return self.client.submit(held, x, str(self.folder), key=f"{prefix}-{x}", **options, **kwargs)

    def running(self, *which: int) -> None:
        wait_until(lambda: all((self.folder / f"holds-{x}").exists() for x in which))

    def let_go(self, *which: int) -> None:
        for x in which:
            (self.folder / f"go-{x}").touch()


@pytest.fixture
def held_tasks(traced: Traced, tmp_path: Path) -> Held:
    return Held(traced.client, tmp_path)


def told(traced: Traced, name: str, *keys: str) -> dict[tuple[str, ...], float]:
    assert dask_otel.flush(traced.client, DEADLINE)
    return totals(samples(traced.receiver), name, *keys)


def rises(
    traced: Traced, name: str, key: str, enough: Callable[[dict[str, float]], float]
) -> dict[str, float]:
    """What a metric rises by, by an attribute, until ``enough`` of what has risen exceeds `WHILE`."""
    before = told(traced, name, key)
    rise: dict[str, float] = {}

    def risen() -> bool:
        rise.update({of[0]: value - before.get(of, 0.0) for of, value in told(traced, name, key).items()})
        return enough(rise) > WHILE

    wait_until(risen)
    return rise


# -- never fall -----------------------------------------------------------------------------------------------------


def falls(found: list[Sample]) -> list[tuple[Sample, Sample]]:
    """Points of counters that are less than the one before."""
    seen: dict[object, Sample] = {}
    fallen = []
    for one in found:
        series = one.instance, one.name, one.attributes
        before = seen.get(series)
        if one.monotonic and before is not None and (one.value < before.value or one.start != before.start):
            fallen.append((before, one))
        seen[series] = one
    return fallen


def forget(dask_worker: Worker) -> None:
    dask_worker.digests_total.clear()


def test_no_total_falls_whatever_happens(traced: Traced, held_tasks: Held) -> None:
    client = traced.client
    here, there = sorted(client.scheduler_info(n_workers=-1)["workers"])

    def flushed() -> None:
        assert dask_otel.flush(client, DEADLINE)

    client.gather(client.map(metered, range(5), key="metered"))
    flushed()
    assert client.submit(lambda: 1 / 0, key="bad-1").exception()
    flushed()
    failing, cancelled, away = (
        held_tasks.submit(1, error=True, workers=[here]),
        held_tasks.submit(2, workers=[there]),
        held_tasks.submit(3, away=True, workers=[here], prefix="away"),
    )
    held_tasks.running(2)
    flushed()
    cancelled.cancel()
    held_tasks.let_go(2)
    held_tasks.let_go(1)
    assert failing.exception()
    held_tasks.running(3)
    flushed()
    client.run(forget)
    flushed()
    held_tasks.let_go(3)
    assert away.result() == 3
    flushed()
    lost = held_tasks.submit(4, workers=[there], allow_other_workers=True)
    held_tasks.running(4)
    flushed()
    client.run(kill, workers=[there], on_error="ignore", nanny=False)
    held_tasks.let_go(4)
    assert lost.result() == 4
    flushed()
    client.retire_workers([here])
    client.wait_for_workers(1)
    flushed()
    client.restart()
    assert client.submit(metered, 1, key="metered-again").result() == 1
    flushed()
    found = samples(traced.receiver)
    assert falls(found) == []
    counters = {one.name for one in INSTRUMENTS if one.kind == COUNTER}
    assert (
        {COMPUTE_SECONDS.name, THREAD_SECONDS.name}
        <= {one.name for one in found if one.monotonic}
        <= counters
    )


def test_a_cleared_digest_loses_nothing(traced: Traced) -> None:
    client = traced.client
    client.gather(client.map(metered, range(4), key="metered"))
    client.run(forget)
    client.gather(client.map(metered, range(4, 8), key="metered-again"))
    amounts = told(traced, "dask.worker.activity.amount", "dask.unit")
    assert amounts == {("rows",): 24.0}


# -- running tasks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [False, True])
def test_a_task_loses_no_time_however_it_ends(traced: Traced, held_tasks: Held, error: bool) -> None:
    future = held_tasks.submit(1, error=error)
    held_tasks.running(1)
    rise = rises(traced, COMPUTE_SECONDS.name, names.TASK_PREFIX, lambda rise: rise.get("held", 0))
    assert set(rise) == {"held"}
    held_tasks.let_go(1)
    wait(future)
    (span,) = [received.span for received in tasks(traced.spans(), "held")]
    compute = told(traced, COMPUTE_SECONDS.name, names.TASK_PREFIX)
    assert compute == {("held",): pytest.approx((span.end - span.start) / 1e9, abs=0.2)}
    assert told(traced, EXECUTING_SECONDS.name, names.TASK_PREFIX) == {("held",): 0.0}


def test_a_cancelled_task_is_counted_to_its_end(traced: Traced, held_tasks: Held) -> None:
    future = held_tasks.submit(1)
    held_tasks.running(1)
    future.cancel()
    rise = rises(traced, COMPUTE_SECONDS.name, names.TASK_PREFIX, lambda rise: rise.get("held", 0))
    assert set(rise) == {"held"}
    held_tasks.let_go(1)
    wait_until(lambda: told(traced, EXECUTING_SECONDS.name, names.TASK_PREFIX) == {("held",): 0.0})
    (span,) = [received.span for received in tasks(traced.spans(), "held")]
    compute = told(traced, COMPUTE_SECONDS.name, names.TASK_PREFIX)
    assert compute == {("held",): pytest.approx((span.end - span.start) / 1e9, abs=0.2)}


def test_a_task_that_secedes_is_counted_until_then_and_apart_after(traced: Traced, held_tasks: Held) -> None:
    future = held_tasks.submit(1, away=True)
    wait_until(lambda: (held_tasks.folder / "away-1").exists())
    rise = rises(traced, SECEDED_SECONDS.name, names.TASK_PREFIX, lambda rise: rise.get("held", 0))
    assert set(rise) == {"held"}
    held_tasks.let_go(1)
    assert future.result() == 1
    (span,) = [received.span for received in tasks(traced.spans(), "held")]
    wait_until(lambda: told(traced, EXECUTING_SECONDS.name, names.TASK_PREFIX) == {("held",): 0.0})
    ((_, compute),) = told(traced, COMPUTE_SECONDS.name, names.TASK_PREFIX).items()
    ((_, seceded),) = told(traced, SECEDED_SECONDS.name, names.TASK_PREFIX).items()
    assert compute + seceded == pytest.approx((span.end - span.start) / 1e9, abs=0.2)
    assert compute < 0.5 * WHILE < seceded


# -- thread-seconds -------------------------------------------------------------------------------------------------


def pause(dask_worker: Worker) -> None:
    dask_worker.status = Status.paused


def resume(dask_worker: Worker) -> None:
    dask_worker.status = Status.running


@pytest.fixture
def of_one(traced_cluster_of: Any, tmp_path: Path) -> Any:
    """One worker with two threads and a resource, and held tasks; no memory limit: its monitor would end a pause."""
    with traced_cluster_of(n_workers=1, threads=2, resources={"seat": 1}, memory_limit=0) as traced:
        yield traced, Held(traced.client, tmp_path)


def test_thread_seconds_are_threads_times_uptime_at_each_export(of_one: Any) -> None:
    """A state for each thread, whatever the tasks do; each state has its workload."""
    traced, tasks_of = of_one
    client = traced.client

    def state_rises(state: str) -> None:
        rise = rises(traced, THREAD_SECONDS.name, THREAD_STATE, lambda rise: rise.get(state, 0))
        # Of two threads one is in that state; the other's is said beside it.
        found[state] = {other: seconds / rise[state] for other, seconds in rise.items() if seconds > 0.1}

    found: dict[str, dict[str, float]] = {}
    state_rises("idle")
    first = tasks_of.submit(1, resources={"seat": 1})
    tasks_of.running(1)
    state_rises("executing")
    second = tasks_of.submit(2, resources={"seat": 1})
    wait_until(lambda: client.run(lambda dask_worker: len(dask_worker.state.constrained)).popitem()[1] == 1)
    state_rises("constrained")
    client.run(pause)
    state_rises("paused")
    client.run(resume)
    tasks_of.let_go(1, 2)
    client.gather([first, second])
    half = pytest.approx(1, abs=0.1)
    assert found == {
        "idle": {"idle": half},
        "executing": {"executing": half, "idle": half},
        "constrained": {"constrained": half, "executing": half},
        "paused": {"paused": half, "executing": half},
    }
    by_export: defaultdict[float, list[Sample]] = defaultdict(list)
    for one in samples(traced.receiver):
        if one.name == THREAD_SECONDS.name and one.time > one.start:
            by_export[one.time].append(one)
    assert len(by_export) > 4
    for moment, states in by_export.items():
        assert len(states) == 5
        uptime = moment - states[0].start
        # To the tick by one clock (`test_worker_time`); here a busy machine may come between the readings of two.
        assert sum(one.value for one in states) == pytest.approx(2 * uptime, abs=0.05)


# -- why threads are idle ---------------------------------------------------------------------------------------------


def slow_graphs(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Graphs take long to be materialized, as those of millions of tasks do; the scheduler is in this process."""
    original = distributed.scheduler._materialize_graph

    def materialize(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return original(*args, **kwargs)

    monkeypatch.setattr(distributed.scheduler, "_materialize_graph", materialize)


def nothing(traced: Traced, tasks_of: Held) -> list[Any]:
    return []


def one_task(traced: Traced, tasks_of: Held) -> list[Any]:
    futures = [tasks_of.submit(1)]
    tasks_of.running(1)
    return futures


def bound_to_one(traced: Traced, tasks_of: Held) -> list[Any]:
    here = min(traced.client.scheduler_info(n_workers=-1)["workers"])
    futures = [tasks_of.submit(x, workers=[here]) for x in range(4)]
    wait_until(lambda: any((tasks_of.folder / f"holds-{x}").exists() for x in range(4)))
    return futures


def of_no_worker(traced: Traced, tasks_of: Held) -> list[Any]:
    futures = [tasks_of.submit(x, resources={"GPU": 1}) for x in range(2)]
    wait_until(
        lambda: traced.client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.unrunnable)) == 2
    )
    return futures


def large_graph(traced: Traced, tasks_of: Held) -> list[Any]:
    return [traced.client.submit(metered, 1)]


@pytest.mark.parametrize(
    ("reason", "workload"),
    [
        ("no-client-work", nothing),
        ("not-enough-parallelism", one_task),
        ("imbalance", bound_to_one),
        ("no-worker", of_no_worker),
        ("graph-update", large_graph),
    ],
)
def test_each_reason_has_its_workload(
    traced_cluster_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    reason: str,
    workload: Callable[[Traced, Held], list[Any]],
) -> None:
    with (
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        traced_cluster_of() as traced,
    ):
        tasks_of = Held(traced.client, tmp_path)
        if reason == "graph-update":
            slow_graphs(monkeypatch, seconds=4)
        futures = workload(traced, tasks_of)
        rise = rises(traced, IDLE_SECONDS.name, IDLE_REASON, lambda rise: rise[reason])
        assert sum(rise.values()) - rise[reason] < 0.1 * rise[reason], rise
        for future in futures:
            future.release()
        tasks_of.let_go(*range(4))
