"""What dask-otel holds: few bytes a task while a graph runs, nothing after; nobody's key, future or result."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import dask
import pytest
from distributed import Client, Scheduler, Worker, get_worker
from distributed.core import Status, _expects_comm
from distributed.scheduler import WorkerState
from distributed.utils import has_keyword
from opentelemetry import trace

import dask_otel
from dask_otel import current
from dask_otel.scheduler import schedulers
from dask_otel.seam import client as client_seam
from dask_otel.turning_on import workers
from tests.cluster.held import allocated, drain, lengths, objects, size, tracing
from tests.cluster.support import DEADLINE, clean

#: The latter just more than a dictionary of 2**15 places takes: then an entry takes the most room.
FEW, TASKS = 3_500, 22_000
SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)
#: Of computations, of tens of submits and of workers; `benchmarks/memory.py` has more.
STEPS, WORKERS = 120, 60
#: What the scheduler may hold for a task that has not ended (bytes).
MOST = 150


@pytest.fixture
def sending(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[pytest.MonkeyPatch]:
    """This process sends everything to a receiver that keeps nothing; Dask does not log each task that is cancelled."""
    with drain() as endpoint, clean(monkeypatch), caplog.at_level(logging.CRITICAL, "distributed"):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
        yield monkeypatch


def one(x: int) -> int:
    return x


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not come to hold; left: {left()}"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def scheduling(protocol: str = "tcp") -> AsyncIterator[tuple[Scheduler, Client]]:
    """A scheduler in this process and a client, dask-otel turned on."""
    async with (
        Scheduler(
            host=None if protocol == "inproc" else "127.0.0.1", port=0, protocol=protocol, dashboard=False
        ) as scheduler,
        Client(scheduler.address, asynchronous=True, set_as_default=False) as client,
    ):
        await dask_otel.enable(client)
        yield scheduler, client
        await dask_otel.disable(client)


@asynccontextmanager
async def idle_worker(scheduler: Scheduler) -> AsyncIterator[set[Any]]:
    """A worker that begins no task that it is sent; the keys of those that have come and were not taken back."""
    had: set[Any] = set()
    async with Worker(scheduler.address, nthreads=1, dashboard=False) as worker:
        worker.stream_handlers["compute-task"] = lambda key, **message: had.add(key)
        worker.stream_handlers["free-keys"] = lambda keys, **message: had.difference_update(keys)
        yield had


# -- one graph -----------------------------------------------------------------------------------------------------


def test_a_task_at_a_worker_costs_the_scheduler_150_bytes_and_nothing_once_it_has_ended(
    sending: pytest.MonkeyPatch,
) -> None:
    """Whatever line of ours has allocated them: `tracemalloc` makes everything slow, so there are few tasks."""
    before, during, after = asyncio.run(_graph_of(FEW, allocated))
    assert 100 < (during - before).total() / FEW <= MOST, (during - before).most_common(10)
    # What an export or an encoder keeps for the next one is not of tasks, and less than the least for each would be.
    assert (after - before).total() / FEW < 10, (after - before).most_common(10)


def test_models_hold_150_bytes_for_each_of_many_tasks_and_nothing_after(sending: pytest.MonkeyPatch) -> None:
    before, during, after = asyncio.run(_graph_of(TASKS, None))
    assert 100 < (during - before) / TASKS <= MOST
    assert after - before < 2_000


async def _graph_of(tasks: int, look: Callable[[], Any] | None) -> list[Any]:
    """What is held before a graph, while all of its tasks lie at a worker, and when they are cancelled."""
    with dask.config.set({"distributed.scheduler.worker-saturation": float("inf")}):
        async with scheduling() as (scheduler, client), idle_worker(scheduler) as waiting:
            telemetry: Any = schedulers.telemetry(scheduler)
            if look is None:
                return await _seen(client, waiting, tasks, lambda: size(telemetry))
            with tracing():
                return await _seen(client, waiting, tasks, look)


async def _seen(client: Client, waiting: set[Any], tasks: int, look: Callable[[], Any]) -> list[Any]:
    found = []
    for n in (3, tasks):
        # That a client goes is one message; of one for each task CPython's free lists hand to Dask what has passed through us.
        async with Client(client.scheduler.address, asynchronous=True, set_as_default=False) as other:
            futures = other.map(one, range(n), key=[("one", n, i) for i in range(n)])
            await until(lambda: len(waiting) == n)  # noqa: B023
            if n == tasks:
                found.append(look())
        del futures
        await until(lambda: not waiting)
        assert await dask_otel.flush(client, DEADLINE)
        assert await dask_otel.flush(client, DEADLINE)
        found.append(look())
    return found


# -- what is the users' --------------------------------------------------------------------------------------------


class Key(str):
    """A key that there may be weak references to."""


class Result:
    """What a task gives."""


class Boom(Exception):
    """What a task raises."""


#: Weak references to what is the users' or Dask's, by what it is.
seen: dict[str, weakref.ref[Any]] = {}
#: Lets the task go that is lost.
go = threading.Event()


def see(name: str, found: object) -> None:
    seen[name] = weakref.ref(found)


def make(*arguments: object) -> Result:
    result = Result()
    see(f"result of {get_worker().get_current_task()}", result)
    return result


def fail() -> None:
    error = Boom("boom")
    see("error", error)
    raise error


def hold() -> Result:
    go.wait(DEADLINE)
    return make()


def forget(scheduler: Scheduler, worker: Worker | None = None) -> None:
    """What Dask's logs have, which hold one entry here, and its caches: of the methods of servers, without a bound."""
    scheduler.erred_tasks.clear()
    for topic in scheduler.get_events():
        scheduler._broker.truncate(topic)
    if worker is not None:
        worker.transfer_outgoing_log.clear()
        worker.transfer_incoming_log.clear()
    _expects_comm.cache_clear()
    has_keyword.cache_clear()
    dask.utils.key_split.cache_clear()


def left() -> list[str]:
    gc.collect()
    return sorted(name for name, reference in seen.items() if reference() is not None)


def test_nothing_of_ours_keeps_a_key_a_future_a_result_an_error_or_a_worker(
    sending: pytest.MonkeyPatch,
) -> None:
    # Dask takes keys of exact types only, where a client looks.
    sending.setattr("distributed.client.validate_key", lambda key: None)
    seen.clear()
    go.clear()
    settings = {"distributed.admin.low-level-log-length": 1, "distributed.scheduler.work-stealing": False}
    with dask.config.set(settings):
        asyncio.run(_run_and_release())


async def _run_and_release() -> None:
    there = states_of_workers()  # Other tests' clusters may live on in this process.

    def ours() -> list[Any]:
        return [state for state in states_of_workers() if not any(state is one for one in there)]

    async with scheduling("inproc") as (scheduler, client):
        async with Worker(scheduler.address, nthreads=1, dashboard=False) as worker:
            await _run(scheduler, client, worker)
            await until(lambda: not scheduler.tasks)
            await client.submit(one, 1)
            await until(lambda: not scheduler.tasks)
            assert await dask_otel.flush(client, DEADLINE)
            forget(scheduler, worker)
            await until(lambda: left() == ["worker that stays"])
            assert [state.address for state in ours()] == [worker.address]
        del worker
        await until(lambda: not scheduler.workers)
        forget(scheduler)
        await until(lambda: not left() and not ours())


def states_of_workers() -> list[Any]:
    """There are no weak references to those of a scheduler."""
    return [one for one in gc.get_objects() if type(one) is WorkerState]


async def _run(scheduler: Scheduler, client: Client, worker: Worker) -> None:
    """A task that gives a result, one that needs it elsewhere, one that fails, one that is lost with its worker."""
    async with Worker(scheduler.address, nthreads=1, dashboard=False) as other:
        made = client.submit(make, key=Key("made"), workers=[other.address], allow_other_workers=True)
        await made
        moved = client.submit(make, made, key=Key("moved"), workers=[worker.address])
        failed = client.submit(fail, key=Key("failed"), workers=[worker.address])
        assert type(await moved) is Result
        # Not awaited: Dask keeps the very exception in this process, and its traceback would keep what is here.
        await until(lambda: failed.status == "error")
        lost = client.submit(hold, key=Key("lost"), workers=[other.address], allow_other_workers=True)
        await until(lambda: other.state.executing)
        see("worker that stays", worker)
        see("worker that leaves", other)
        for future in (made, moved, failed, lost):
            name = str(future.key)
            see(f"future {name}", future)
            see(f"key {name}", future.key)
            for server, tasks in (
                ("scheduler", scheduler.tasks),
                ("worker", worker.state.tasks),
                ("other", other.state.tasks),
            ):
                if name in tasks:
                    see(f"state of {name} on {server}", tasks[name])
                    see(f"key {name} on {server}", tasks[name].key)
        await other.close(executor_wait=False)
    go.set()
    assert type(await lost) is Result
    assert len(seen) == 32


# -- what goes on and on -------------------------------------------------------------------------------------------


async def _grown(
    scheduler: Scheduler, client: Client, step: Callable[[int], Awaitable[object]], steps: int
) -> Counter[str]:
    """By how much there is more, by what it is, after so many steps than after half of them."""
    found = []
    for n in range(steps):
        await step(n)
        if n + 1 in (steps // 2, steps):
            await until(lambda: not scheduler.tasks)
            assert await dask_otel.flush(client, DEADLINE)
            assert await dask_otel.flush(client, DEADLINE)
            await until(lambda: none_closed(scheduler))
            found.append(_look(scheduler, client))
    return found[1] - found[0]


def none_closed(scheduler: Scheduler) -> bool:
    """Whether every worker that has left is gone for good."""
    forget(scheduler)
    gc.collect()
    return all(worker.status is not Status.closed for worker in list(Worker._instances))


def _look(scheduler: Scheduler, client: Client) -> Counter[str]:
    """How many objects of ours there are, and how much is in what the servers, the client and the process have."""
    current.group_context.cache_clear()  # Of 1,024 groups.
    found = objects() + lengths(schedulers.telemetry(scheduler), "scheduler")
    found += lengths(client_seam.listening(client), "client")
    for telemetry in filter(None, map(workers.telemetry, Worker._instances)):
        found += lengths(telemetry, "worker")
    for module in [one for name, one in list(sys.modules.items()) if name.startswith("dask_otel")]:
        for name, value in list(vars(module).items()):
            if not name.startswith("__"):
                found |= lengths(value, f"{module.__name__}.{name}")
    # What lies within something that is in a container is there as often as that; Dask's amounts since a heartbeat are Dask's.
    return Counter({path: n for path, n in found.items() if not ("[][]" in path or path.endswith("._since"))})


def flat(grown: Counter[str], steps: int) -> bool:
    """Nothing is one more for each step of the second half, or for every other."""
    return max(grown.values(), default=0) < steps // 4


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered within a bound reaches it in the first half."""
    monkeypatch.setattr("dask_otel.computations.MAX_HISTORY", 3)
    monkeypatch.setattr("dask_otel.trace_budget.MAX_TRACES", 3)
    monkeypatch.setattr("dask_otel.worker_sums.MAX_PLACES", 3)
    monkeypatch.setattr("dask_otel.export.remembered.MAX_VALUES", 3)
    monkeypatch.setattr("dask_otel.export.encode._MAX_HEADS", 3)
    monkeypatch.setattr("dask_otel.export.forms._MAX_FORMS", 3)
    monkeypatch.setattr("dask_otel.export.forms._MAX_ORIGINS", 3)


def test_computations_one_after_the_other_leave_memory_flat(
    sending: pytest.MonkeyPatch, narrow: None
) -> None:
    """Each with two groups of names of their own and a task that fails, each under a span of its own."""

    async def run() -> Counter[str]:
        async with scheduling("inproc") as (scheduler, client), Worker(scheduler.address, nthreads=1):

            async def compute(n: int) -> None:
                with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(n + 1, n + 1, False, SAMPLED))):
                    first = client.map(one, range(2), key=[(f"one-{n:08x}", i) for i in range(2)])
                    second = client.map(one, first, key=[(f"two-{n:08x}", i) for i in range(2)])
                    failed = client.submit(fail, key=f"fail-{n:08x}")
                assert await client.gather(second) == [0, 1]
                await until(lambda: failed.status == "error")

            return await _grown(scheduler, client, compute, STEPS)

    grown = asyncio.run(run())
    assert flat(grown, STEPS), grown.most_common(20)


def test_single_submits_leave_memory_flat(sending: pytest.MonkeyPatch, narrow: None) -> None:
    async def run() -> Counter[str]:
        async with scheduling("inproc") as (scheduler, client), Worker(scheduler.address, nthreads=1):

            async def submit(n: int) -> None:
                futures = [client.submit(one, 10 * n + i) for i in range(10)]
                assert await client.gather(futures) == [10 * n + i for i in range(10)]

            return await _grown(scheduler, client, submit, STEPS)

    grown = asyncio.run(run())
    assert flat(grown, STEPS), grown.most_common(20)


def test_workers_that_come_and_go_leave_memory_flat(sending: pytest.MonkeyPatch, narrow: None) -> None:
    async def run() -> Counter[str]:
        async with scheduling("inproc") as (scheduler, client):

            async def work(n: int) -> None:
                async with Worker(scheduler.address, nthreads=1, dashboard=False):
                    assert await client.submit(one, n) == n
                await until(lambda: not scheduler.workers)

            return await _grown(scheduler, client, work, WORKERS)

    grown = asyncio.run(run())
    assert flat(grown, WORKERS), grown.most_common(20)
