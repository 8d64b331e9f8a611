"""What dask-otel holds: few bytes a task while a graph runs, nothing after; nobody's key, future or result."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import dask
import pytest
from distributed import Client, Scheduler, Worker

import dask_otel
from dask_otel.scheduler import schedulers
from tests.cluster.held import allocated, drain, size, tracing
from tests.cluster.support import DEADLINE, clean

#: Just more than a dictionary of 2**12 and 2**15 places takes: then an entry takes the most room.
FEW, TASKS = 2_800, 22_000
#: What the scheduler may hold for a task that has not ended (bytes).
MOST = 150


@pytest.fixture
def sending(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[pytest.MonkeyPatch]:
    """This process sends everything to a receiver that keeps nothing; Dask does not log each task that is cancelled."""
    with drain() as endpoint, clean(monkeypatch), caplog.at_level(logging.ERROR, "distributed"):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
        yield monkeypatch


def one(x: int) -> int:
    return x


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come to hold"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def scheduling() -> AsyncIterator[tuple[Scheduler, Client]]:
    """A scheduler in this process and a client, dask-otel turned on."""
    async with (
        Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler,
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
