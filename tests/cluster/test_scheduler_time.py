"""Free threads by reason and the loop's time by handler, on a real scheduler.

The clock of most tests stands still until a test moves it: what happens between two moments that are looked at takes no
time, so that totals are exact.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import dask
import distributed.scheduler
import pytest
from distributed import Client, Event, LocalCluster, Scheduler, secede
from distributed.core import Status

from dask_otel.guard import Guard
from dask_otel.seam.scheduler import ACTIVE, SchedulerSeam
from dask_otel.seam.scheduler_time import SchedulerTimeSeam
from tests.cluster.support import DEADLINE

REASONS = ("no-client-work", "graph-update", "not-enough-parallelism", "imbalance", "no-worker")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed:
    """A cluster in this process and its scheduler's seam."""

    def __init__(self, cluster: LocalCluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.scheduler: Scheduler = cluster.scheduler
        self.clock = Clock()
        self.seam = SchedulerTimeSeam(self.scheduler, Guard("scheduler", strict=True), self.clock)

    async def spent(self, seconds: float = 10) -> dict[str, float]:
        """The reasons of the threads that are free during these seconds, in thread-seconds."""
        before = self.seam.idle_time()
        self.clock.now += seconds
        after = self.seam.idle_time()
        assert tuple(after) == REASONS
        return {reason: after[reason] - before[reason] for reason in after if after[reason] != before[reason]}

    def submit(self, gate: str, **kwargs: Any) -> Any:
        """A task that says that it runs, then waits for its gate."""
        return self.client.submit(wait_at, gate, key=f"task-{gate}", pure=False, **kwargs)

    async def running(self, gate: str) -> None:
        await Event(f"{gate}-running").wait(DEADLINE)

    async def open(self, *gates: str) -> None:
        for gate in gates:
            await Event(gate).set()


def wait_at(gate: str, seceding: bool = False) -> None:
    if seceding:
        secede()
    Event(f"{gate}-running").set()
    assert Event(gate).wait(DEADLINE)


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come to hold"
        await asyncio.sleep(0.001)


@asynccontextmanager
async def timed(n_workers: int, threads: int, install: bool = True, **config: Any) -> AsyncIterator[Timed]:
    config = {f"distributed.{name.replace('_', '.', 1).replace('_', '-')}": v for name, v in config.items()}
    with dask.config.set(config):
        async with (
            LocalCluster(
                n_workers=n_workers,
                threads_per_worker=threads,
                processes=False,
                asynchronous=True,
                dashboard_address=":0",
                memory_limit=0,  # Its monitor would end a pause.
            ) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            timed = Timed(cluster, client)
            if install:
                timed.seam.install()
            yield timed
            timed.seam.uninstall()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * DEADLINE))


# -- each reason --------------------------------------------------------------------------------------------------


def test_without_work_threads_wait_for_clients() -> None:
    async def test() -> None:
        async with timed(2, 2) as cluster:
            assert await cluster.spent() == {"no-client-work": 40}
            await cluster.client.submit(int)
            await until(lambda: not cluster.scheduler.tasks)
            assert await cluster.spent() == {"no-client-work": 40}
            assert cluster.seam.idle_time() == {**dict.fromkeys(REASONS, 0), "no-client-work": 80}

    run(test())


def test_while_a_graph_is_updated_threads_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate, original = threading.Event(), threading.Event(), distributed.scheduler._materialize_graph

    def materialize(*args: Any, **kwargs: Any) -> Any:
        begun.set()
        assert gate.wait(DEADLINE)
        return original(*args, **kwargs)

    monkeypatch.setattr(distributed.scheduler, "_materialize_graph", materialize)

    async def test() -> None:
        async with timed(1, 4) as cluster:
            future = cluster.client.submit(int)
            await until(begun.is_set)
            assert await cluster.spent() == {"graph-update": 40}
            gate.set()
            await future
            assert await cluster.spent() == {"no-client-work": 40}
            # With something else to do, too.
            waiting = cluster.submit("a")
            await cluster.running("a")
            begun.clear(), gate.clear()
            future = cluster.client.submit(int, 1)
            await until(begun.is_set)
            assert await cluster.spent() == {"graph-update": 30}
            gate.set()
            await future
            assert await cluster.spent() == {"not-enough-parallelism": 30}
            await cluster.open("a")
            await waiting

    run(test())


def test_one_task_does_not_fill_four_threads() -> None:
    async def test() -> None:
        async with timed(1, 4) as cluster:
            task = cluster.submit("a")
            await cluster.running("a")
            assert await cluster.spent() == {"not-enough-parallelism": 30}
            await cluster.open("a")
            await task
            assert await cluster.spent() == {"no-client-work": 40}

    run(test())


def test_a_task_that_has_seceded_leaves_its_thread_free() -> None:
    async def test() -> None:
        async with timed(1, 4) as cluster:
            task = cluster.submit("a", seceding=True)
            await cluster.running("a")
            await until(lambda: any(ws.long_running for ws in cluster.scheduler.workers.values()))
            assert await cluster.spent() == {"not-enough-parallelism": 40}
            await cluster.open("a")
            await task

    run(test())


def test_tasks_that_are_bound_to_a_full_worker_are_an_imbalance() -> None:
    async def test() -> None:
        async with timed(2, 1, scheduler_work_stealing=False) as cluster:
            address = next(iter(cluster.scheduler.workers))
            tasks = [cluster.submit(gate, workers=[address]) for gate in "abc"]
            await until(lambda: len(cluster.scheduler.workers[address].processing) == 3)
            assert await cluster.spent() == {"imbalance": 10}
            await cluster.open("a", "b", "c")
            await asyncio.gather(*tasks)
            assert await cluster.spent() == {"no-client-work": 20}

    run(test())


def test_a_task_that_no_worker_may_run_wants_another() -> None:
    async def test() -> None:
        async with timed(1, 2) as cluster:
            task = cluster.client.submit(int, resources={"GPU": 1})
            await until(lambda: cluster.scheduler.unrunnable)
            assert await cluster.spent() == {"no-worker": 10, "not-enough-parallelism": 10}
            task.release()
            await until(lambda: not cluster.scheduler.tasks)
            assert await cluster.spent() == {"no-client-work": 20}

    run(test())


# -- workers come, pause and go -----------------------------------------------------------------------------------


def test_a_paused_worker_has_no_free_threads_and_what_lies_there_could_run_elsewhere() -> None:
    async def test() -> None:
        async with timed(2, 1, scheduler_work_stealing=False) as cluster:
            address = next(iter(cluster.scheduler.workers))
            worker = next(w for w in cluster.cluster.workers.values() if w.address == address)
            worker.status = Status.paused
            await until(lambda: cluster.scheduler.workers[address].status is Status.paused)
            assert await cluster.spent() == {"no-client-work": 10}
            worker.status = Status.running
            await until(lambda: cluster.scheduler.workers[address].status is Status.running)
            assert await cluster.spent() == {"no-client-work": 20}
            tasks = [cluster.submit(gate, workers=[address]) for gate in "ab"]
            await until(lambda: len(cluster.scheduler.workers[address].processing) == 2)
            worker.status = Status.paused
            await until(lambda: cluster.scheduler.workers[address].status is Status.paused)
            assert await cluster.spent() == {"imbalance": 10}
            worker.status = Status.running
            await cluster.open("a", "b")
            await asyncio.gather(*tasks)

    run(test())


def test_workers_that_come_and_go_bring_and_take_their_threads() -> None:
    async def test() -> None:
        async with timed(1, 2) as cluster:
            cluster.cluster.scale(3)
            await until(lambda: len(cluster.scheduler.running) == 3)
            assert await cluster.spent() == {"no-client-work": 60}
            # Retired: first its status changes, without a message of its own.
            leaving, lost, _ = cluster.scheduler.workers
            await cluster.scheduler.retire_workers([leaving], remove=False, stimulus_id="test")
            assert await cluster.spent() == {"no-client-work": 40}
            await cluster.scheduler.remove_worker(leaving, stimulus_id="test")
            assert await cluster.spent() == {"no-client-work": 40}
            gone = cluster.scheduler.workers[lost]
            await cluster.client.scheduler.unregister(address=lost, stimulus_id="test")
            assert await cluster.spent() == {"no-client-work": 20}
            cluster.scheduler.check_idle_saturated(gone)  # As stealing does whose answer comes late.
            assert await cluster.spent() == {"no-client-work": 20}
            assert len(cluster.seam._idle.workers) == 1

    run(test())


# -- all of it ----------------------------------------------------------------------------------------------------


def from_scratch(scheduler: Scheduler) -> dict[str, int]:
    """The reasons of the threads that are free now, by looking at every worker and every task."""
    spares = [
        (ws.nthreads - len(ws.processing - ws.long_running), ws.status is Status.running)
        for ws in scheduler.workers.values()
    ]
    free = sum(max(0, spare) for spare, running in spares if running)
    excess = sum(max(0, -spare) for spare, _ in spares)
    states = [ts.state for ts in scheduler.tasks.values()]
    updating = scheduler._active_graph_updates > 0
    if not any(state in ACTIVE for state in states):
        return {"graph-update" if updating else "no-client-work": free}
    unrunnable = min(free, states.count("no-worker"))
    elsewhere = min(free - unrunnable, excess + states.count("queued"))
    rest = free - unrunnable - elsewhere
    return {
        "no-worker": unrunnable,
        "imbalance": elsewhere,
        "graph-update" if updating else "not-enough-parallelism": rest,
    }


def test_whenever_the_loop_waits_the_reasons_are_those_that_looking_at_everything_gives() -> None:
    """A second passes then, and at no other time; what the seam gives is what was there from scratch."""

    async def test() -> None:
        async with timed(2, 2, install=False) as cluster:
            expected = dict.fromkeys(REASONS, 0)
            selector = cluster.scheduler.loop.asyncio_loop._selector
            original = selector.select

            def select(timeout: float | None = None) -> Any:
                if timeout != 0:
                    cluster.clock.now += 1
                    for reason, threads in from_scratch(cluster.scheduler).items():
                        expected[reason] += threads
                return original(timeout)

            selector.select = select
            cluster.seam.install()
            await workload(cluster)
            await until(lambda: expected["no-client-work"])
            found = cluster.seam.idle_time()
            assert found == expected
            assert min(found.values()) > 0
            cluster.seam.uninstall()
            del selector.select

    run(test())


async def workload(cluster: Timed) -> None:
    """Chains, a reduction, a failure, more than fits at once, what seceded, what none may run, a worker that is lost."""
    client = cluster.client
    unrunnable = client.submit(int, resources={"GPU": 1})
    held = cluster.submit("held", seceding=True)
    first = client.map(lambda x: x + 1, range(60), key="first")
    second = client.map(lambda x: x * 2, first, key="second")
    total = client.submit(sum, second)
    failed = client.submit(lambda x: x / 0, total)
    assert await total == 3660
    assert isinstance(await failed.exception(), ZeroDivisionError)
    bound = next(iter(cluster.scheduler.workers))
    await client.gather(client.map(lambda x: -x, range(20), workers=[bound], key="bound"))
    # On a busy machine these end before the loop waits: more than fits there, until it has.
    gates = ("b", "c", "d")
    kept = [cluster.submit(gate, workers=[bound]) for gate in gates]
    await until(lambda: cluster.seam.idle_time()["imbalance"])
    await cluster.open(*gates)
    await asyncio.gather(*kept)
    lost = next(address for address in cluster.scheduler.workers if address != bound)
    await cluster.scheduler.remove_worker(lost, stimulus_id="lost")
    await cluster.open("held")
    await held
    unrunnable.release()
    del first, second, total, failed, held, kept
    await until(lambda: not cluster.scheduler.tasks)
    await client.submit(int)


def test_a_loop_that_does_not_tell_its_turns_is_looked_at_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As uvloop, which has no selector."""
    for module in ("scheduler_time", "handlers"):
        monkeypatch.setattr(f"dask_otel.seam.{module}.selector_of", lambda server: None)

    async def test() -> None:
        async with timed(1, 4) as cluster:
            cluster.clock.now += 10
            task = cluster.submit("a")
            await cluster.running("a")
            await until(lambda: not cluster.seam._changed)
            cluster.clock.now += 10
            found = cluster.seam.idle_time()
            assert {reason: spent for reason, spent in found.items() if spent} == {
                "no-client-work": 40,
                "not-enough-parallelism": 30,
            }
            await cluster.open("a")
            await task
            cluster.seam.uninstall()
            assert cluster.seam._next_look is None

    run(test())


def test_what_was_there_before_it_was_installed_counts() -> None:
    async def test() -> None:
        async with timed(1, 4, install=False) as cluster:
            task = cluster.submit("a")
            await cluster.running("a")
            cluster.seam.install()
            assert await cluster.spent() == {"not-enough-parallelism": 30}
            await cluster.open("a")
            await task
            assert await cluster.spent() == {"no-client-work": 40}
            cluster.seam.uninstall()
            assert await cluster.spent() == {}
            await cluster.client.submit(int)
            assert await cluster.spent() == {}
            # Once more: it begins anew.
            cluster.seam.install()
            assert cluster.seam.idle_time() == dict.fromkeys(REASONS, 0)
            assert cluster.seam.handler_time() == {"other": 0}
            assert await cluster.spent() == {"no-client-work": 40}

    run(test())


# -- handlers -----------------------------------------------------------------------------------------------------


def test_the_loops_time_is_that_of_its_handlers_and_what_is_idle_or_other() -> None:
    async def test() -> None:
        async with timed(2, 2) as cluster:
            clock = time.perf_counter
            scheduler = cluster.scheduler
            seam = SchedulerTimeSeam(scheduler, Guard("scheduler", strict=True), clock)
            before = clock()
            seam.install()
            after = clock()
            cluster.cluster.scale(3)
            await until(lambda: len(scheduler.running) == 3)
            async with Client(scheduler.address, asynchronous=True) as client:
                await client.gather(client.map(lambda x: x + 1, range(300)))
                for ws in scheduler.workers.values():
                    seen = ws.last_seen
                    await until(lambda ws=ws, seen=seen: ws.last_seen > seen)
            start = clock()
            found = seam.handler_time()
            end = clock()
            assert start - after <= sum(found.values()) <= end - before
            assert min(found.values()) >= 0
            assert found.keys() <= {*scheduler.handlers, *scheduler.stream_handlers, "idle", "other"}
            assert found.keys() >= {
                *("update-graph", "task-finished", "heartbeat_worker"),
                *("register-client", "register-worker"),
                *("client-releases-keys", "gather", "idle", "other"),
            }
            again = seam.handler_time()
            assert {op for op in found if again[op] < found[op]} == set()
            seam.uninstall()
            assert seam.handler_time() == seam.handler_time()
            assert seam.other() == seam.handler_time()["other"]

    run(test())


def test_the_sum_is_the_clocks_time_exactly() -> None:
    """By a clock that takes a second for each look at it."""

    class Ticks(Clock):
        def __call__(self) -> float:
            self.now += 1
            return self.now

    async def test() -> None:
        async with timed(1, 1, install=False) as cluster:
            ticks = Ticks()
            seam = SchedulerTimeSeam(cluster.scheduler, Guard("scheduler", strict=True), ticks)
            seam.install()
            begun = ticks.now
            await cluster.client.gather(cluster.client.map(lambda x: x + 1, range(50)))
            found = seam.handler_time()
            assert sum(found.values()) == ticks.now - begun
            assert found.keys() > {"update-graph", "task-finished", "idle", "other"}
            seam.uninstall()

    run(test())


class Silent:
    """A listener of `SchedulerSeam` that wants nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


@pytest.mark.parametrize("later", ["time", "traces"])
@pytest.mark.parametrize("first_to_go", ["time", "traces"])
def test_it_shares_handlers_with_the_seam_of_traces(later: str, first_to_go: str) -> None:
    async def test() -> None:
        async with timed(1, 2, install=False) as cluster:
            scheduler = cluster.scheduler
            selector = scheduler.loop.asyncio_loop._selector
            guard = Guard("scheduler", strict=True)
            cluster.seam = SchedulerTimeSeam(scheduler, guard, time.perf_counter)
            seams: dict[str, Any] = {
                "time": cluster.seam,
                "traces": SchedulerSeam(scheduler, Silent(), guard),
            }
            before = (
                dict(scheduler.handlers),
                dict(scheduler.stream_handlers),
                dict(vars(selector)),
                set(vars(scheduler)),
            )
            for name in sorted(seams, key=lambda name: name == later):
                seams[name].install()
            assert await cluster.client.submit(int) == 0
            assert await cluster.client.submit(lambda: 1 / 0).exception() is not None
            assert cluster.seam.handler_time().keys() >= {"update-graph", "task-erred"}
            for name in sorted(seams, key=lambda name: name != first_to_go):
                seams[name].uninstall()
            assert await cluster.client.submit(int, 1) == 1
            assert before == (
                scheduler.handlers,
                scheduler.stream_handlers,
                vars(selector),
                set(vars(scheduler)),
            )

    run(test())
