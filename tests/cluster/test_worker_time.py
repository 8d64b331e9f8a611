"""A worker's threads, tasks and activities as the seam counts them, on real workers of this process.

Time is the test's: the seam's clock moves when a test says so, once the worker is where the test wants it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, NamedTuple, cast

import dask.array as da
import distributed
import pytest
from distributed import (
    Client,
    LocalCluster,
    Reschedule,
    Worker,
    rejoin,
    secede,
    span,
    worker_client,
)
from distributed.core import Status
from distributed.metrics import context_meter
from distributed.worker_state_machine import TaskState, WorkerState

import dask_otel
from dask_otel.guard import Guard
from dask_otel.intervals import text
from dask_otel.receiver import Receiver
from dask_otel.seam.worker_time import WorkerTimeSeam
from tests.cluster.support import DEADLINE


class Clock:
    """Stands still until it is moved, or moves a step (s) whenever it is read."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Measured(NamedTuple):
    client: Client
    workers: list[Worker]
    seams: list[WorkerTimeSeam]
    clock: Clock

    @property
    def seam(self) -> WorkerTimeSeam:
        return self.seams[0]

    @property
    def worker(self) -> Worker:
        return self.workers[0]

    def submit(self, function: Callable[..., Any], *args: Any, key: str, **kwargs: Any) -> Any:
        """Run it on the first worker."""
        return self.client.submit(function, *args, key=key, workers=[self.worker.address], **kwargs)

    async def running(self, *keys: str) -> None:
        """Wait until these tasks, and no others, hold a slot of the first worker."""
        await until(lambda: sorted(ts.key for ts in self.worker.state.executing) == sorted(keys))

    async def quiet(self) -> None:
        """Wait until the workers run nothing and have told what they metered."""
        states = [worker.state for worker in self.workers]
        await until(
            lambda: (
                not any(state.all_running_tasks for state in states)
                and not any(worker._async_instructions for worker in self.workers)
            )
        )


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come to hold"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def measured(n_workers: int = 1, threads: int = 1, **kwargs: Any) -> AsyncIterator[Measured]:
    clock = Clock()
    kwargs = {"processes": False, "dashboard_address": ":0", "asynchronous": True, **kwargs}
    async with (
        LocalCluster(n_workers=n_workers, threads_per_worker=threads, **kwargs) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        workers = list(cluster.workers.values())
        seams = [WorkerTimeSeam(worker, Guard(worker.address), clock) for worker in workers]
        for seam in seams:
            seam.install()
        yield Measured(client, workers, seams, clock)
        for seam, worker in zip(seams, workers):
            seam.uninstall()
            assert not {"handle_stimulus", "get_metrics"} & vars(worker).keys()


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


#: The worker runs in the test's loop: an async task finds this one here.
_gate = asyncio.Event()

# -- tasks --------------------------------------------------------------------------------------------------------


def gated(gate: str, then: Callable[[], object] | None = None) -> object:
    """Run until the test opens the gate."""
    assert distributed.Event(gate).wait(timeout=DEADLINE)
    return then() if then is not None else None


def sum_gated(gate: str) -> object:
    return gated(gate)


async def gated_async() -> None:
    await _gate.wait()


def fail() -> None:
    raise ValueError("meant")


_runs: list[None] = []


def reschedule_first() -> None:
    _runs.append(None)
    gated(f"run-{len(_runs)}")
    if len(_runs) == 1:
        raise Reschedule


def then_secede(gate: str, seceded: str, back: str) -> None:
    gated(gate)
    secede()
    gated(seceded)
    rejoin()
    gated(back)


def then_be_a_client(gate: str, client: str) -> None:
    gated(gate)
    with worker_client():
        gated(client)


async def open_gate(client: Client, gate: str) -> None:
    await distributed.Event(gate, client=client).set()


# -- threads by state ---------------------------------------------------------------------------------------------


def nonzero(seconds: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in seconds.items() if value}


class Meter:
    """What threads did since the last look, and how much that has to be."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.before = measured.seam.thread_time()

    def after(self, seconds: float) -> dict[str, float]:
        self.measured.clock.now += seconds
        now = self.measured.seam.thread_time()
        passed = {state: now[state] - self.before[state] for state in now}
        self.before = now
        return nonzero(passed)


@in_a_loop
async def test_a_worker_without_tasks_is_idle() -> None:
    async with measured(threads=3) as m:
        assert Meter(m).after(2) == {"idle": 6}


@in_a_loop
async def test_threads_execute_and_then_are_idle() -> None:
    async with measured(threads=2) as m:
        meter = Meter(m)
        task = m.submit(gated, "gate", key="gated-1")
        await m.running("gated-1")
        assert meter.after(3) == {"executing": 3, "idle": 3}
        await open_gate(m.client, "gate")
        await task
        assert meter.after(1) == {"idle": 2}


@in_a_loop
async def test_a_thread_is_constrained_while_a_resource_is_taken() -> None:
    async with measured(threads=3, resources={"GPU": 1}) as m:
        meter = Meter(m)
        tasks = [m.submit(gated, "gate", key=f"gated-{i}", resources={"GPU": 1}) for i in (1, 2)]
        await until(lambda: len(m.worker.state.constrained) == 1)
        assert meter.after(2) == {"executing": 2, "constrained": 2, "idle": 2}
        await open_gate(m.client, "gate")
        await m.client.gather(tasks)
        assert meter.after(1) == {"idle": 3}


@in_a_loop
async def test_a_thread_is_paused_while_its_worker_is_and_has_a_task_for_it() -> None:
    async with measured(threads=2, memory_limit=0) as m:  # Its monitor would end a pause.
        meter = Meter(m)
        tasks = [m.submit(gated, f"gate-{i}", key=f"gated-{i}", priority=-i) for i in (1, 2, 3)]
        await until(lambda: len(m.worker.state.ready) == 1)
        m.worker.status = Status.paused
        assert meter.after(2) == {"executing": 4}
        await open_gate(m.client, "gate-1")
        await m.running("gated-2")
        assert meter.after(2) == {"executing": 2, "paused": 2}
        m.worker.status = Status.running
        await m.running("gated-2", "gated-3")
        assert meter.after(2) == {"executing": 4}
        await open_gate(m.client, "gate-2")
        await open_gate(m.client, "gate-3")
        await m.client.gather(tasks)


@in_a_loop
async def test_a_thread_waits_for_a_transfer() -> None:
    async with measured(n_workers=2, threads=2) as m:
        here, there = m.workers
        data = m.client.submit(bytes, 10, key="data-1", workers=[there.address])
        await distributed.wait(data)
        gate = hold(there, "get_data")
        meter = Meter(m)
        task = m.submit(len, data, key="len-1")
        await until(lambda: here.state.in_flight_tasks)
        assert meter.after(2) == {"gather-dep": 2, "idle": 2}
        gate.set()
        assert await task == 10
        assert meter.after(1) == {"idle": 2}


@in_a_loop
async def test_states_sum_to_threads_times_uptime_also_when_the_number_of_threads_changes() -> None:
    async with measured(threads=2) as m:
        tasks = [m.submit(gated, "gate", key=f"gated-{i}") for i in (1, 2)]
        await m.running("gated-1", "gated-2")
        m.clock.now += 1  # 2 threads
        for threads, seconds in ((1, 10), (4, 100)):
            m.worker.state.nthreads = threads
            m.worker.find_missing()  # Any stimulus.
            m.clock.now += seconds
        assert m.seam.thread_time() == {
            "executing": 2 * 1 + 1 * 10 + 2 * 100,
            "paused": 0,
            "constrained": 0,
            "gather-dep": 0,
            "idle": 2 * 100,
        }
        await open_gate(m.client, "gate")
        await m.client.gather(tasks)


# -- tasks by prefix ----------------------------------------------------------------------------------------------


def times(measured: Measured) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Seconds that tasks held a slot, that those which run have held it, and that seceded ones went on."""
    seam = measured.seam
    return seam.compute_time(), seam.executing_time(), seam.seceded_time()


@in_a_loop
async def test_compute_time_rises_while_a_task_runs_and_is_counted_once_after() -> None:
    async with measured() as m:
        task = m.submit(gated, "gate", key="gated-1")
        await m.running("gated-1")
        seen = []
        for _ in range(3):
            m.clock.now += 0.5
            seen.append(times(m))
        await open_gate(m.client, "gate")
        await task
        m.clock.now += 10
        seen.append(times(m))
        assert seen == [
            ({"gated": 0.5}, {"gated": 0.5}, {}),
            ({"gated": 1.0}, {"gated": 1.0}, {}),
            ({"gated": 1.5}, {"gated": 1.5}, {}),
            ({"gated": 1.5}, {"gated": 0.0}, {}),
        ]


@in_a_loop
async def test_a_task_that_takes_the_slot_of_another_is_counted_from_then_on() -> None:
    async with measured() as m:
        first = m.submit(then_secede, "gate", "seceded", "back", key="then_secede-1")
        second = m.submit(gated, "second", key="gated-1", priority=-1)
        third = m.submit(sum_gated, "third", key="sum_gated-1", priority=-2)
        await until(lambda: len(m.worker.state.ready) == 2)
        m.clock.now += 1
        await open_gate(m.client, "gate")
        await m.running("gated-1")
        m.clock.now += 2
        await open_gate(m.client, "second")
        await m.running("sum_gated-1")
        m.clock.now += 4
        assert times(m) == (
            {"then_secede": 1, "gated": 2, "sum_gated": 4},
            {"then_secede": 0, "gated": 0, "sum_gated": 4},
            {"then_secede": 6},
        )
        for gate in ("third", "seceded", "back"):
            await open_gate(m.client, gate)
        await m.client.gather([first, second, third])


@in_a_loop
async def test_a_failed_task_loses_no_time() -> None:
    async with measured() as m:
        task = m.submit(gated, "gate", fail, key="gated-1")
        await m.running("gated-1")
        m.clock.now += 2
        await open_gate(m.client, "gate")
        assert str(await task.exception()) == "meant"
        m.clock.now += 10
        assert times(m) == ({"gated": 2}, {"gated": 0}, {})


@in_a_loop
async def test_a_cancelled_task_holds_its_slot_to_its_end() -> None:
    async with measured() as m:
        task = m.submit(gated, "gate", key="gated-1")
        await m.running("gated-1")
        m.clock.now += 2
        await task.cancel()
        await until(lambda: m.worker.state.tasks["gated-1"].state == "cancelled")
        m.clock.now += 3
        assert times(m) == ({"gated": 5}, {"gated": 5}, {})
        await open_gate(m.client, "gate")
        await m.running()
        m.clock.now += 10
        assert times(m) == ({"gated": 5}, {"gated": 0}, {})
        assert nonzero(m.seam.thread_time()) == {"executing": 5, "idle": 10}


@in_a_loop
async def test_a_task_that_is_cancelled_and_wanted_again_is_counted_once() -> None:
    async with measured() as m:
        task = m.submit(gated, "gate", key="gated-1")
        await m.running("gated-1")
        await task.cancel()
        await until(lambda: m.worker.state.tasks["gated-1"].state == "cancelled")
        m.clock.now += 1
        again = m.submit(gated, "gate", key="gated-1")
        await until(lambda: m.worker.state.tasks["gated-1"].state == "executing")
        m.clock.now += 1
        assert times(m) == ({"gated": 2}, {"gated": 2}, {})
        await open_gate(m.client, "gate")
        await m.quiet()
        m.clock.now += 1
        assert m.seam.compute_time()["gated"] == 2
        del again


@in_a_loop
async def test_a_seceded_task_counts_apart_also_after_it_rejoined() -> None:
    async with measured() as m:
        task = m.submit(then_secede, "gate", "seceded", "back", key="then_secede-1")
        await m.running("then_secede-1")
        m.clock.now += 1
        await open_gate(m.client, "gate")
        await until(lambda: m.worker.state.long_running)
        other = m.submit(gated, "other", key="gated-1")
        await m.running("gated-1")
        m.clock.now += 2
        assert times(m) == (
            {"then_secede": 1, "gated": 2},
            {"then_secede": 0, "gated": 2},
            {"then_secede": 2},
        )
        await open_gate(m.client, "other")
        await other
        await open_gate(m.client, "seceded")
        m.clock.now += 4
        await open_gate(m.client, "back")
        await task
        m.clock.now += 10
        assert times(m) == (
            {"then_secede": 1, "gated": 2},
            {"then_secede": 0, "gated": 0},
            {"then_secede": 6},
        )
        assert nonzero(m.seam.thread_time()) == {"executing": 3, "idle": 14}


@in_a_loop
async def test_a_worker_client_secedes() -> None:
    async with measured() as m:
        task = m.submit(then_be_a_client, "gate", "client", key="then_be_a_client-1")
        await m.running("then_be_a_client-1")
        m.clock.now += 1
        await open_gate(m.client, "gate")
        await until(lambda: m.worker.state.long_running)
        m.clock.now += 2
        await open_gate(m.client, "client")
        await task
        assert times(m) == ({"then_be_a_client": 1}, {"then_be_a_client": 0}, {"then_be_a_client": 2})


@in_a_loop
async def test_a_cancelled_task_that_secedes_counts_to_its_end() -> None:
    async with measured() as m:
        task = m.submit(then_secede, "gate", "seceded", "back", key="then_secede-1")
        await m.running("then_secede-1")
        await task.cancel()
        await until(lambda: m.worker.state.tasks["then_secede-1"].state == "cancelled")
        m.clock.now += 1
        await open_gate(m.client, "gate")
        await until(lambda: m.worker.state.long_running)
        m.clock.now += 2
        await open_gate(m.client, "seceded")
        await open_gate(m.client, "back")
        await m.quiet()
        m.clock.now += 10
        assert times(m) == ({"then_secede": 1}, {"then_secede": 0}, {"then_secede": 2})


@in_a_loop
async def test_async_tasks_hold_a_slot() -> None:
    global _gate
    _gate = asyncio.Event()
    async with measured() as m:
        task = m.submit(gated_async, key="gated_async-1")
        await m.running("gated_async-1")
        m.clock.now += 2
        assert times(m) == ({"gated_async": 2}, {"gated_async": 2}, {})
        _gate.set()
        await task
        m.clock.now += 2
        assert times(m) == ({"gated_async": 2}, {"gated_async": 0}, {})


@in_a_loop
async def test_a_task_that_reschedules_itself_counts_each_time() -> None:
    _runs.clear()
    async with measured() as m:
        task = m.submit(reschedule_first, key="reschedule_first-1")
        await until(lambda: len(_runs) == 1)
        m.clock.now += 1
        await open_gate(m.client, "run-1")
        await until(lambda: len(_runs) == 2)
        m.clock.now += 2
        await open_gate(m.client, "run-2")
        await task
        assert times(m) == ({"reschedule_first": 3}, {"reschedule_first": 0}, {})


@in_a_loop
async def test_threads_execute_for_as_long_as_their_tasks_hold_them() -> None:
    async with measured(threads=3) as m:
        m.clock.step = 0.125
        started = m.clock.now
        good = [m.submit(abs, -i, key=f"abs-{i}") for i in range(40)]
        bad = [m.submit(fail, key=f"fail-{i}") for i in range(10)]
        await m.client.gather(good)
        await m.client.gather(bad, errors="skip")
        await m.quiet()
        m.clock.step = 0
        threads, compute = m.seam.thread_time(), m.seam.compute_time()
        assert compute.keys() == {"abs", "fail"}
        assert threads["executing"] == sum(compute.values()) > 0
        assert sum(threads.values()) == 3 * (m.clock.now - started)


@in_a_loop
async def test_tasks_that_ran_before_are_counted_from_installation_on() -> None:
    async with measured(threads=2) as m:
        m.seam.uninstall()
        tasks = [
            m.submit(gated, "gate", key="gated-1"),
            m.submit(then_secede, "open", "seceded", "back", key="then_secede-1"),
        ]
        await open_gate(m.client, "open")
        await until(lambda: m.worker.state.long_running and len(m.worker.state.executing) == 1)
        m.clock.now += 5
        m.seam.install()
        m.clock.now += 1
        assert times(m) == ({"gated": 1}, {"gated": 1}, {"then_secede": 1})
        assert nonzero(m.seam.thread_time()) == {"executing": 1, "idle": 1}
        for gate in ("gate", "seceded", "back"):
            await open_gate(m.client, gate)
        await m.client.gather(tasks)


# -- activities ---------------------------------------------------------------------------------------------------


def digested(worker: Worker) -> dict[tuple[str, str | None, str, str], float]:
    """What ``digests_total`` has of fine metrics, by the shapes of their keys."""
    found: defaultdict[tuple[str, str | None, str, str], float] = defaultdict(float)
    for name, value in dict(worker.digests_total).items():
        match name:
            case ("execute", str() | None, str(prefix), label, str(unit)):
                found["execute", prefix, text(label), unit] += value
            case ("p2p", str() | None, *label, str(unit)):
                found["p2p", None, text(tuple(label)), unit] += value
            case ("gather-dep" | "get-data" | "memory-monitor" as context, *label, str(unit)):
                found[context, None, ".".join(map(text, label)), unit] += value
    return dict(found)


def assert_exact(measured: Measured) -> dict[str, set[str | None]]:
    """Every worker's activities are its digests; gives what was seen: the prefixes of each context."""
    seen: defaultdict[str, set[str | None]] = defaultdict(set)
    for worker, seam in zip(measured.workers, measured.seams):
        activity, digests = seam.activity(), digested(worker)
        assert {tuple(key): value for key, value in activity.items()} == pytest.approx(digests, rel=1e-9)
        for key in activity:
            seen[key.context].add(key.prefix)
    return dict(seen)


def metered(x: int) -> int:
    with context_meter.meter("mine"):
        context_meter.digest_metric(("of", "mine", x % 2), 3, "rows")
        context_meter.digest_metric("mine", 1.5, "count")
    return x


@in_a_loop
async def test_activities_are_the_digests_without_their_spans_at_any_moment() -> None:
    async with measured(n_workers=2) as m:
        here, there = (worker.address for worker in m.workers)
        futures = []
        for i in range(12):
            with span(f"span-{i}"):
                futures.append(m.client.submit(metered, i, key=f"metered-{i}", workers=[here, there][i % 2]))
        bad = m.submit(fail, key="fail-1")
        moved = m.submit(sum, futures, key="sum-1")
        while not moved.done():
            assert_exact(m)
            await asyncio.sleep(0)
        assert await moved == sum(range(12))
        assert str(await bad.exception()) == "meant"
        await m.quiet()
        assert assert_exact(m) == {
            "execute": {"metered", "fail", "sum"},
            "gather-dep": {None},
            "get-data": {None},
        }
        amounts = {key: value for key, value in m.seam.activity().items() if "mine" in key.activity}
        assert {(*key[1:],): value for key, value in amounts.items() if key.unit != "seconds"} == {
            ("metered", "of.mine.0", "rows"): 18,
            ("metered", "mine", "count"): 9,
        }
        assert ("execute", "fail", "failed", "seconds") in m.seam.activity()


@in_a_loop
async def test_keys_that_are_no_fine_metrics_are_none_of_ours() -> None:
    async with measured() as m:
        m.seam.uninstall()
        odd = ["latency", "", (), 7, None, ("execute",), ("execute", "s"), ("gather-dep",), ("p2p", "s")]
        odd += [
            ("mine", "compute", "seconds"),
            ("get-data", "network", 3),
            ("execute", "s", "inc", "seconds"),
        ]
        for name in odd:
            m.worker.digest_metric(name, 1)
        m.seam.install()
        before = m.seam.activity()
        for name in odd:
            m.worker.digest_metric(name, 1)
        assert m.seam.activity() == before == {}
        m.worker.digest_metric(("memory-monitor", "disk-write", "bytes"), 3)
        m.worker.digest_metric(name=("execute", None, "inc", ("a", 1), "mine"), value=2)
        assert m.seam.activity() == {
            ("memory-monitor", None, "disk-write", "bytes"): 3,
            ("execute", "inc", "a.1", "mine"): 2,
        }


@in_a_loop
async def test_amounts_of_before_are_there_once() -> None:
    async with measured() as m:
        m.seam.uninstall()
        for i in range(3):
            with span(f"span-{i}"):
                await m.submit(metered, 1, key=f"metered-{i}")
        await m.quiet()
        m.seam.install()
        assert assert_exact(m) == {"execute": {"metered"}, "get-data": {None}}
        await m.submit(metered, 1, key="metered-9")
        await m.quiet()
        assert assert_exact(m) == {"execute": {"metered"}, "get-data": {None}}
        assert m.seam.activity()["execute", "metered", "mine", "count"] == 4 * 1.5


@in_a_loop
async def test_amounts_that_threads_post_are_not_lost_at_a_heartbeat() -> None:
    async with measured() as m:
        name, n, at_once = ("p2p", "span", "background-disk", "shards", "count"), 2000, 4
        del m.worker.extensions["spans"]  # It wants a heartbeat after each `get_metrics`.

        def post() -> None:
            for _ in range(n):
                m.worker.digest_metric(name, 1)

        threads = [threading.Thread(target=post) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        seen = []
        while any(thread.is_alive() for thread in threads):
            await m.worker.get_metrics()
            m.worker.digest_metric(name, 1)
            seen.append(m.seam.activity()["p2p", None, "background-disk.shards", "count"])
        assert seen == sorted(seen)
        whole = n * at_once + len(seen)
        assert m.seam.activity() == {("p2p", None, "background-disk.shards", "count"): whole}


@in_a_loop
async def test_what_is_cleared_and_what_heartbeats_took_is_not_lost() -> None:
    async with measured() as m:
        name = ("get-data", "network", "seconds")
        for _ in range(3):
            m.worker.digest_metric(name, 1.5)
            m.worker.digests_total.clear()
            await m.worker.heartbeat()
            m.worker.digest_metric(name, 0.5)
        assert m.seam.activity() == {("get-data", None, "network", "seconds"): 6}
        await m.worker.heartbeat()
        await m.worker.heartbeat()
        assert m.seam.activity() == {("get-data", None, "network", "seconds"): 6}


def rechunked() -> Any:
    """The sum of an array that is rechunked by P2P."""
    return da.ones((60, 60), chunks=(60, 6)).rechunk((6, 60), method="p2p").sum()


def hold(worker: Worker, handler: str) -> asyncio.Event:
    """Requests of this kind wait for what this gives."""
    gate, original = asyncio.Event(), worker.handlers[handler]

    async def held(comm: Any, **kwargs: Any) -> Any:
        await gate.wait()
        return await (original(comm, **kwargs) if handler == "get_data" else original(**kwargs))

    worker.handlers[handler] = held
    return gate


@in_a_loop
async def test_a_shuffle_is_counted() -> None:
    async with measured(n_workers=2) as m:
        assert await m.client.compute(rechunked()) == 3600
        await m.quiet()
        assert assert_exact(m)["p2p"] == {None}
        activities = {key.activity for key in m.seam.activity() if key.context == "p2p"}
        assert {activity.partition(".")[0] for activity in activities} == {
            "foreground",
            "background-comms",
            "background-disk",
        }


@in_a_loop
async def test_a_shuffle_that_began_before_is_counted() -> None:
    async with measured(n_workers=2) as m:
        for seam in m.seams:
            seam.uninstall()
        gates = [hold(worker, "shuffle_inputs_done") for worker in m.workers]
        shuffled = m.client.compute(rechunked())
        await until(lambda: all(worker.plugins["shuffle"].shuffle_runs._runs for worker in m.workers))
        for seam in m.seams:
            seam.install()
        before = [seam.activity().keys() for seam in m.seams]
        for gate in gates:
            gate.set()
        assert await shuffled == 3600
        await m.quiet()
        assert_exact(m)
        after = [seam.activity().keys() - keys for seam, keys in zip(m.seams, before)]
        assert all("p2p" in {key.context for key in keys} for keys in after)


# -- beside others ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first in, first out", "last in, first out"])
def test_seams_of_one_worker_count_the_same_and_go_in_any_order(order: tuple[int, int]) -> None:
    async def run() -> None:
        async with measured() as m:
            m.seam.uninstall()
            seams = [WorkerTimeSeam(m.worker, Guard("mine"), m.clock) for _ in range(2)]
            for seam in seams:
                seam.install()
            m.clock.step = 0.125
            await m.submit(metered, 1, key="metered-1")
            await m.quiet()
            m.clock.step = 0.0
            first, second = (seams[i] for i in order)
            assert first.activity() == second.activity() == digested(m.worker)
            first.uninstall()
            await m.submit(metered, 1, key="metered-2")
            await m.quiet()
            m.clock.now += 1
            assert second.activity() == pytest.approx(digested(m.worker))
            assert second.thread_time()["executing"] == sum(second.compute_time().values())
            second.uninstall()
            assert await m.submit(metered, 3, key="metered-3") == 3
            for name in ("handle_stimulus", "get_metrics"):
                vars(m.worker).pop(name, None)

    asyncio.run(run())


@pytest.mark.parametrize("first", ["enabled", "seam"])
def test_it_goes_with_tracing_in_any_order(receiver: Receiver, first: str) -> None:
    async def run() -> None:
        async with measured() as m:
            await dask_otel.enable(m.client)
            m.seam.uninstall()
            m.seam.install()
            await m.submit(metered, 1, key="metered-1")
            await m.quiet()
            if first == "enabled":
                await dask_otel.disable(m.client)
            assert_exact(m)
            m.seam.uninstall()
            await m.submit(metered, 1, key="metered-2")
            if first == "seam":
                await dask_otel.disable(m.client)
            assert await m.submit(metered, 3, key="metered-3") == 3
            assert not {"execute", "_finalize_metrics"} & vars(m.worker).keys()

    asyncio.run(run())


@in_a_loop
async def test_a_fault_of_ours_does_not_reach_dask() -> None:
    async with measured() as m:
        m.seam.uninstall()
        guard = Guard("mine", strict=False)
        seam = WorkerTimeSeam(m.worker, guard, m.clock)
        seam.install()
        del seam._holding, seam._since, seam._wraps._undo[:]  # What a wrapper then cannot find.
        assert await m.submit(metered, 3, key="metered-3") == 3
        assert (await m.worker.get_metrics())["task_counts"]
        assert guard.faults["handle_stimulus"] > 0
        assert guard.faults["get_metrics"] == 1
        for name in ("handle_stimulus", "get_metrics"):
            delattr(m.worker, name)


class Scripted:
    """A worker to which any change of its state can be told: a real one closes itself when that fails."""

    def __init__(self) -> None:
        self.state = WorkerState(nthreads=1)
        self.digests_total: dict[Hashable, float] = {}
        self.digests_total_since_heartbeat: dict[Hashable, float] = {}

    def handle_stimulus(self, *stims: Callable[[WorkerState], object]) -> None:
        for stim in stims:
            stim(self.state)

    async def get_metrics(self) -> dict[str, Any]:
        raise RuntimeError("meant")


def scripted() -> tuple[Scripted, WorkerTimeSeam, Clock]:
    worker, clock = Scripted(), Clock()
    seam = WorkerTimeSeam(cast(Worker, worker), Guard("mine"), clock)
    seam.install()
    return worker, seam, clock


def test_a_fault_of_dasks_is_raised_and_what_it_changed_is_counted() -> None:
    worker, seam, clock = scripted()

    def failing(state: WorkerState) -> None:
        state.nthreads = 2
        raise RuntimeError("meant")

    clock.now += 1
    with pytest.raises(RuntimeError, match="meant"):
        worker.handle_stimulus(failing)
    with pytest.raises(RuntimeError, match="meant"):
        asyncio.run(worker.get_metrics())
    clock.now += 1
    assert (nonzero(seam.thread_time()), seam.activity()) == ({"idle": 3}, {})


def test_a_secession_and_the_end_of_another_in_one_go_are_told_apart() -> None:
    worker, seam, clock = scripted()
    first, second = TaskState("first-1"), TaskState("second-1")
    worker.handle_stimulus(lambda state: state.executing.add(first))
    worker.handle_stimulus(lambda state: (state.executing.discard(first), state.long_running.add(first)))
    worker.handle_stimulus(lambda state: state.executing.add(second))
    clock.now += 1

    def end_the_first(state: WorkerState) -> None:
        state.long_running.discard(first)
        state.executed_count += 1

    def secede_the_second(state: WorkerState) -> None:
        state.executing.discard(second)
        state.long_running.add(second)

    worker.handle_stimulus(end_the_first, secede_the_second)
    clock.now += 2
    assert (seam.compute_time(), seam.executing_time(), seam.seceded_time()) == (
        {"first": 0, "second": 1},
        {"first": 0, "second": 0},
        {"first": 1, "second": 2},
    )
