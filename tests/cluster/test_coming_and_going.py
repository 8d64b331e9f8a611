"""Schedulers that come back, clients that reconnect, workers that join at a bad moment: each server reports once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, Scheduler, Worker
from distributed.diagnostics.plugin import SchedulerPlugin

import dask_otel
from dask_otel import names, process
from dask_otel.holders import BY_CLIENT, BY_PRELOAD
from dask_otel.instruments import TASK_ATTEMPTS
from dask_otel.receiver import Receiver
from dask_otel.scheduler import schedulers
from dask_otel.tree import outline
from dask_otel.turning_on import workers
from tests.cluster.commands import PRELOAD, Commands, commands, until
from tests.cluster.metering import samples, totals
from tests.cluster.support import DEADLINE, attributes, tasks
from tests.cluster.test_failures import Gate, facts, held
from tests.cluster.test_turning_on import compute, expected_senders, flushed, senders, told, whole


@pytest.fixture
def started(tmp_path: Path, receiver: Receiver) -> Iterator[Commands]:
    """Processes of a cluster."""
    with commands(tmp_path) as started:
        yield started


def reporting(client: Client) -> dict[str, tuple[list[str], int]]:
    """By server: the names of our plugins there, and how many of them report."""
    return {
        "scheduler": client.run_on_scheduler(plugins_of_scheduler),
        **client.run(plugins_of_worker),
    }


def plugins_of_scheduler(dask_scheduler: Scheduler) -> tuple[list[str], int]:
    return ours(dask_scheduler.plugins, schedulers._plugins.get(dask_scheduler, []))


def plugins_of_worker(dask_worker: Worker) -> tuple[list[str], int]:
    return ours(dask_worker.plugins, workers._plugins.get(dask_worker, []))


def ours(plugins: dict[str, Any], held: list[Any]) -> tuple[list[str], int]:
    """Whoever is on a server's list is known to its holder, and nobody else."""
    named_ours = sorted(name for name in plugins if name.startswith("dask-otel"))
    assert sorted(map(id, held)) == sorted(id(plugins[name]) for name in named_ours)
    return named_ours, sum(plugin.telemetry is not None for plugin in held)


@pytest.mark.parametrize("how", ["preloaded", "enabled"])
def test_a_scheduler_that_comes_back_at_its_address_has_one_plugin_and_whole_traces_as_has_each_worker(
    started: Commands, receiver: Receiver, how: str
) -> None:
    """Scenario 22: the scheduler is killed, its workers are started anew, the client reconnects by itself."""
    preload = PRELOAD if how == "preloaded" else ()
    with dask.config.set({"distributed.client.preload": ["dask_otel"] if preload else []}):
        scheduler, worker = started.scheduler(*preload), started.worker(*preload)
        with started.client(1) as client:
            port = client.scheduler.address.rpartition(":")[2]

            def reports(seen: int) -> None:
                if not preload:
                    dask_otel.enable(client)
                compute(client, seen)
                spans = flushed(client, receiver, seen)
                assert outline(spans) == whole(1)
                assert senders(spans) == expected_senders(client)
                plugin = BY_PRELOAD if preload else BY_CLIENT
                assert list(reporting(client).values()) == [([plugin], 1)] * 2

            reports(0)
            scheduler.process.send_signal(signal.SIGKILL)
            until(lambda: client.status == "connecting")
            worker.process.send_signal(signal.SIGTERM)
            worker.process.wait()
            seen = len(receiver.spans())
            started.scheduler("--port", port, *preload)
            started.worker(*preload)
            until(lambda: client.status == "running", started.logs)
            client.wait_for_workers(1)
            reports(seen)
            found = samples(receiver)
            by_scheduler = {
                one.instance: totals(
                    [s for s in found if s.instance == one.instance],
                    TASK_ATTEMPTS.name,
                    names.TASK_PREFIX,
                    names.OUTCOME,
                )
                for one in found
                if one.role == "scheduler"
            }
            assert list(by_scheduler.values()) == [{("neg", "success"): 1.0}] * 2


class Slow(SchedulerPlugin):
    """Keeps workers that join waiting for the scheduler's answer."""

    name = "slow"

    def __init__(self) -> None:
        self.joining, self.go = asyncio.Event(), asyncio.Event()

    async def add_worker(self, scheduler: Scheduler, worker: str) -> None:  # type: ignore[override]
        self.joining.set()
        await self.go.wait()


async def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_a_worker_that_joins_while_the_plugin_is_registered_has_one_and_its_tasks_are_told_once(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 22: it has the plugin with the scheduler's answer, and once more as all the others; tasks begin meanwhile."""
    gate = Gate(tmp_path / "gate")
    parting = asyncio.Event()
    farewell = process.farewell

    async def farewell_for_long() -> None:
        parting.set()
        await eventually(lambda: any(gate.folder.iterdir()))
        await farewell()

    async def run() -> None:
        slow = Slow()
        async with (
            Scheduler(host="127.0.0.1", port=0, dashboard=False, plugins=[slow]) as scheduler,
            Client(scheduler.address, asynchronous=True) as client,
        ):
            joining = asyncio.ensure_future(Worker(scheduler.address, nthreads=1, dashboard=False))
            await slow.joining.wait()
            monkeypatch.setattr(process, "farewell", farewell_for_long)
            enabling = asyncio.ensure_future(dask_otel.enable(client))
            await eventually(lambda: BY_CLIENT in scheduler.worker_plugins)
            slow.go.set()
            worker = await joining
            await eventually(lambda: parting.is_set() or enabling.done())
            futures = [client.submit(held, n, gate, key=f"held-{n}") for n in range(2)]
            await eventually(lambda: any(gate.folder.iterdir()))
            gate.open()
            assert await client.gather(futures) == [0, 1]
            await enabling
            assert await dask_otel.flush(client)
            assert plugins_of_worker(worker) == plugins_of_scheduler(scheduler) == ([BY_CLIENT], 1)
            await dask_otel.disable(client)
            assert plugins_of_worker(worker) == plugins_of_scheduler(scheduler) == ([], 0)
            await worker.close()

    asyncio.run(run())
    spans = told(receiver.spans())
    attempts = tasks(spans, "held")
    assert [facts(r) for r in attempts] == [{names.ATTEMPT: 1, names.OUTCOME: names.SUCCESS}] * 2
    assert sorted(attributes(r)[names.TASK_KEY] for r in attempts) == ["held-0", "held-1"]
    found = totals(samples(receiver), TASK_ATTEMPTS.name, names.TASK_PREFIX, names.OUTCOME)
    assert found == {("held", names.SUCCESS): 2}
