"""What a scheduler and a worker have, read at an export: totals that Dask forgets, parts that are missing or broken."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from distributed import Client, Scheduler, Semaphore, Worker

from dask_otel import instruments
from dask_otel.folding import OTHER, Folding
from dask_otel.guard import Guard
from dask_otel.instruments import Instrument
from dask_otel.seam.scheduler_state import MAX_SEMAPHORES, SchedulerStateSeam
from dask_otel.seam.server_state import ServerState
from dask_otel.seam.worker_state import WorkerStateSeam
from tests.cluster.support import DEADLINE


class Here:
    """A scheduler, a worker and a client in this event loop."""

    def __init__(self, scheduler: Scheduler, worker: Worker, client: Client) -> None:
        self.scheduler, self.worker, self.client = scheduler, worker, client
        self.guard = Guard("server", strict=False)
        self.of_scheduler = SchedulerStateSeam(scheduler, Folding(limit=2), self.guard)
        self.of_worker = WorkerStateSeam(worker, self.guard)
        for seam in (self.of_scheduler, self.of_worker):
            seam.install()

    def scheduler_has(self, instrument: Instrument) -> dict[Any, float]:
        return has(self.of_scheduler, instrument)

    def worker_has(self, instrument: Instrument) -> dict[Any, float]:
        return has(self.of_worker, instrument)


def has(seam: ServerState, instrument: Instrument) -> dict[Any, float]:
    """Values by those of the attributes; of one attribute by its value."""
    found: dict[Any, float] = {}
    for one in seam.measured():
        if one.instrument is instrument:
            for point in one.points:
                of = tuple([value for _, value in point.attributes])
                assert isinstance(point.value, (int, float))
                found[of[0] if len(of) == 1 else of] = point.value
    return found


@asynccontextmanager
async def here(**worker: Any) -> AsyncIterator[Here]:
    async with (
        Scheduler(port=0, dashboard_address=":0") as scheduler,
        Worker(scheduler.address, nthreads=1, **worker) as of_scheduler,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        found = Here(scheduler, of_scheduler, client)
        yield found
        for seam in (found.of_scheduler, found.of_worker):
            seam.uninstall()


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop, for a minute at most."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 2 * DEADLINE))

    return run


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come to hold"
        await asyncio.sleep(0.01)


# -- the scheduler --------------------------------------------------------------------------------------------------


@in_a_loop
async def test_totals_of_prefixes_stay_when_a_restart_clears_them() -> None:
    async with here() as one:
        for name in ("inc", "add"):
            await one.client.submit(abs, 1, key=f"{name}-1")
        entered = instruments.TASK_TRANSITIONS
        before = one.scheduler_has(entered)
        assert {of: before[of, "memory"] for of in ("inc", "add")} == {"inc": 1, "add": 1}
        # What no export has seen is not lost.
        for key in ("inc-2", "mul-1"):
            await one.client.submit(abs, 2, key=key)
        durations = [prefix.all_durations["compute"] for prefix in one.scheduler.task_prefixes.values()]
        await one.client.restart(wait_for_workers=False)
        assert one.scheduler.task_prefixes == {}
        after = one.scheduler_has(entered)
        assert {of: after[of, "memory"] for of in ("inc", "add", OTHER)} == {"inc": 2, "add": 1, OTHER: 1}
        assert {of: after[of, "forgotten"] for of in ("inc", "add", OTHER)} == {"inc": 2, "add": 1, OTHER: 1}
        assert one.scheduler_has(instruments.TASKS_FORGOTTEN) == {(): 4}
        spent = one.scheduler_has(instruments.TASK_COMPUTE_SECONDS)
        assert sum(spent.values()) == pytest.approx(sum(durations), abs=1e-9)
        assert one.scheduler_has(instruments.SCHEDULER_MEMORY) == {"inc": 0, "add": 0, OTHER: 0}
        assert set(one.scheduler_has(instruments.SCHEDULER_TASKS).values()) == {0}


@in_a_loop
async def test_prefixes_that_were_cleared_unseen_begin_again() -> None:
    """A scheduler that dask-otel is taken off, and comes back to."""
    async with here() as one:
        await one.client.submit(abs, 1, key="inc-1")
        assert one.scheduler_has(instruments.TASK_TRANSITIONS)["inc", "memory"] == 1
        one.of_scheduler.uninstall()
        await one.client.restart(wait_for_workers=False)
        one.of_scheduler.install()
        assert one.scheduler_has(instruments.TASK_TRANSITIONS)["inc", "memory"] == 1
        async with Worker(one.scheduler.address, nthreads=1):
            await one.client.submit(abs, 1, key="add-1")
            later = one.client.submit(abs, 2, key="inc-2")
            await later
            found = one.scheduler_has(instruments.TASK_TRANSITIONS)
            assert (found["inc", "memory"], found["add", "memory"]) == (2, 1)
            tasks = one.scheduler_has(instruments.SCHEDULER_TASKS)
            assert tasks["memory"] == 1
            del later


@in_a_loop
async def test_tasks_are_counted_by_state_as_they_come_and_go() -> None:
    async with here() as one:
        futures = one.client.map(abs, range(7), key=[f"inc-{n}" for n in range(7)])
        await one.client.gather(futures)
        assert one.scheduler_has(instruments.SCHEDULER_TASKS) == {
            "erred": 0,
            "memory": 7,
            "no-worker": 0,
            "processing": 0,
            "queued": 0,
            "released": 0,
            "waiting": 0,
        }
        assert one.scheduler_has(instruments.TASK_GROUPS) == {(): 1}
        del futures
        await until(lambda: not one.scheduler.tasks)
        assert one.scheduler_has(instruments.SCHEDULER_TASKS)["memory"] == 0
        assert one.scheduler_has(instruments.TASK_GROUPS) == {(): 0}
        assert one.scheduler_has(instruments.TASKS_FORGOTTEN) == {(): 7}


@in_a_loop
async def test_many_prefixes_are_few_series_with_exact_totals() -> None:
    async with here() as one:
        await one.client.gather([one.client.submit(abs, 1, key=f"p{'x' * n}-1") for n in range(20)])
        found = one.scheduler_has(instruments.TASK_TRANSITIONS)
        memory = {of: n for (of, state), n in found.items() if state == "memory"}
        # Where so many come at once, half of what is left is given out at a time.
        assert (len(memory), sum(memory.values()), memory[OTHER]) == (2, 20, 19)


@pytest.mark.filterwarnings("ignore:Closing semaphore")
@in_a_loop
async def test_leases_of_semaphores_that_are_closed_stay_in_the_totals() -> None:
    async with here() as one:

        async def lease(times: int) -> Semaphore:
            semaphore = await Semaphore(max_leases=3, name="database")
            for _ in range(times):
                assert await semaphore.acquire(timeout=DEADLINE)
            return semaphore

        await (await lease(2)).close()
        open_again = await lease(1)
        assert await open_again.release()
        expected = {
            instruments.LEASE_LIMIT: 3,
            instruments.LEASES: 0,
            instruments.LEASES_PENDING: 0,
            instruments.LEASES_ACQUIRED: 3,
            instruments.LEASES_RELEASED: 1,
        }
        assert {of: one.scheduler_has(of) for of in expected} == {
            of: {"database": value} for of, value in expected.items()
        }
        assert list(one.scheduler_has(instruments.LEASE_WAIT)) == ["database"]
        await open_again.close()
        assert {of: one.scheduler_has(of)["database"] for of in expected} == {
            **expected,
            instruments.LEASE_LIMIT: 0,
        }
        assert one.scheduler_has(instruments.LEASE_WAIT) == {}


@in_a_loop
async def test_many_semaphores_are_few_series_and_nothing_is_kept_of_those_that_are_closed() -> None:
    async with here() as one:
        extension = one.scheduler.extensions["semaphores"]
        for n in range(MAX_SEMAPHORES + 10):
            extension.create(f"s{n}", 2, None)
            extension.metrics["acquire_total"][f"s{n}"] += 1
        limits = one.scheduler_has(instruments.LEASE_LIMIT)
        assert (len(limits), limits[OTHER]) == (MAX_SEMAPHORES + 1, 20)
        assert list(one.scheduler_has(instruments.LEASE_WAIT)) == [name for name in limits if name != OTHER]
        for n in range(MAX_SEMAPHORES + 10):
            one.scheduler.handlers["semaphore_close"](name=f"s{n}")
        acquired = one.scheduler_has(instruments.LEASES_ACQUIRED)
        assert (len(acquired), acquired[OTHER]) == (MAX_SEMAPHORES + 1, 10)
        assert one.of_scheduler._acquired._read == {}


@in_a_loop
async def test_a_scheduler_without_extensions_has_the_rest() -> None:
    async with here() as one:
        everything = {measured.instrument.name for measured in one.of_scheduler.measured()}
        extensions = dict(one.scheduler.extensions)
        one.scheduler.extensions.clear()
        gone = everything - {measured.instrument.name for measured in one.of_scheduler.measured()}
        one.scheduler.extensions.update(extensions)
        assert {name.split(".")[2] for name in gone} == {"stealing", "semaphore"}
        assert not one.guard.faults


@in_a_loop
async def test_a_part_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with here() as one:
        everything = {measured.instrument.name for measured in one.of_scheduler.measured()}

        def fail() -> int:
            raise ValueError("broken")

        monkeypatch.setattr(one.scheduler, "adaptive_target", fail)
        found = {measured.instrument.name for measured in one.of_scheduler.measured()}
        assert everything - found == {instruments.WORKERS_DESIRED.name}
        assert dict(one.guard.faults) == {"reading desired": 1}


# -- the worker -----------------------------------------------------------------------------------------------------


@in_a_loop
async def test_a_worker_without_spill_buffer_and_limit_has_the_rest() -> None:
    async with here(memory_limit=0) as one:
        await one.client.submit(abs, 1, key="inc-1")
        memory = one.worker_has(instruments.WORKER_MEMORY)
        assert list(memory) == ["managed", "unmanaged", "spilled"]
        assert memory["spilled"] == 0
        assert one.worker_has(instruments.WORKER_MEMORY_LIMIT) == {}
        assert one.worker_has(instruments.SPILL_BYTES) == {}
        assert not one.guard.faults


@in_a_loop
async def test_a_state_that_no_task_is_in_any_more_is_0() -> None:
    async with here(memory_limit="1 GB") as one:
        future = one.client.submit(abs, 1, key="inc-1")
        await future
        assert one.worker_has(instruments.WORKER_TASKS) == {"memory": 1}
        assert one.worker_has(instruments.WORKER_MEMORY_LIMIT) == {(): 1_000_000_000}
        del future
        await until(lambda: not one.worker.state.tasks)
        assert one.worker_has(instruments.WORKER_TASKS) == {"memory": 0}


# -- both -----------------------------------------------------------------------------------------------------------


@in_a_loop
async def test_the_longest_tick_since_the_last_export_is_ours_whoever_scrapes() -> None:
    async with here() as one:
        for server, get in ((one.scheduler, one.scheduler_has), (one.worker, one.worker_has)):
            get(instruments.LOOP_TICK_MAX)
            time.sleep(0.3)  # The event loop is held: that is what is measured.
            ticks = server._tick_counter
            await until(lambda server=server, ticks=ticks: server._tick_counter > ticks + 1)
            server.digests_max.clear()
            assert get(instruments.LOOP_TICK_MAX)[()] >= 0.3
            assert get(instruments.LOOP_TICK_MAX)[()] < 0.3


@in_a_loop
async def test_what_was_wrapped_is_put_back() -> None:
    async with here() as one:
        scheduler = one.scheduler
        tick = scheduler.periodic_callbacks["tick"]
        assert "_clear_task_state" in vars(scheduler)
        one.of_scheduler.uninstall()
        assert "_clear_task_state" not in vars(scheduler)
        assert tick.callback == scheduler._measure_tick
        assert scheduler.handlers["semaphore_close"] == scheduler.extensions["semaphores"].close
        one.of_scheduler.install()
