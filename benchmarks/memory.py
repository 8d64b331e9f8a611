"""What dask-otel holds: bytes a task while a graph runs and after, and what computations, submits and workers leave.

The scheduler, its workers and the client are in this process; everything is sent to a receiver that keeps nothing. Each
row is a run in a process of its own, with dask-otel and without: bytes that Python has allocated (`tracemalloc`, garbage
collected), so that the difference is what dask-otel holds, wherever it was allocated.

    python benchmarks/memory.py --tasks 200000 --computations 1000 --submits 10000 --workers 200

Notes
-----
Without dask-otel memory is not flat either: Dask's logs fill, and it remembers prefixes and methods of servers for good.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import dask
from distributed import Client, Scheduler, Worker
from distributed.core import _expects_comm
from overhead import SINK, process

import dask_otel


def one(x: int) -> int:
    return x


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.05)


class Run:
    """One cluster; what is held at some moments of it."""

    def __init__(self, on: bool) -> None:
        self.on = on
        self.held: list[int] = []

    async def look(self, scheduler: Scheduler, client: Client) -> None:
        await until(lambda: not any(comm.buffer for comm in scheduler.stream_comms.values()))
        if self.on:
            await dask_otel.flush(client, 60)
            await dask_otel.flush(client, 60)
        await asyncio.sleep(1)
        _expects_comm.cache_clear()
        gc.collect()
        self.held.append(tracemalloc.get_traced_memory()[0])

    async def graph(self, scheduler: Scheduler, client: Client, n: int) -> None:
        """All tasks lie at a worker that begins none; then the client that wants them goes."""
        async with Worker(scheduler.address, nthreads=1, dashboard=False) as worker:
            had: set[Any] = set()
            worker.stream_handlers["compute-task"] = lambda key, **message: had.add(key)
            worker.stream_handlers["free-keys"] = lambda keys, **message: had.difference_update(keys)
            await self.look(scheduler, client)
            async with Client(scheduler.address, asynchronous=True, set_as_default=False) as other:
                futures = other.map(one, range(n), key=[("one", i) for i in range(n)], batch_size=None)
                await until(lambda: len(had) == n)
                # Until the next message a worker's read loop holds the last ones.
                scheduler.stream_comms[worker.address].send({"op": "compute-task", "key": "last"})
                await until(lambda: "last" in had)
                had.discard("last")
                await self.look(scheduler, client)
            del futures
            await until(lambda: not had)
            await self.look(scheduler, client)

    async def computations(self, scheduler: Scheduler, client: Client, n: int) -> None:
        async def step(i: int) -> None:
            await client.gather(client.map(one, range(2), key=[(f"one-{i:08x}", k) for k in range(2)]))

        async with Worker(scheduler.address, nthreads=1, dashboard=False):
            await self.halves(scheduler, client, n, step)

    async def submits(self, scheduler: Scheduler, client: Client, n: int) -> None:
        async def step(i: int) -> None:
            await client.submit(one, i)

        async with Worker(scheduler.address, nthreads=1, dashboard=False):
            await self.halves(scheduler, client, n, step)

    async def workers(self, scheduler: Scheduler, client: Client, n: int) -> None:
        async def step(i: int) -> None:
            async with Worker(scheduler.address, nthreads=1, dashboard=False):
                await client.submit(one, i)
            await until(lambda: not scheduler.workers)

        await self.halves(scheduler, client, n, step)

    async def halves(self, scheduler: Scheduler, client: Client, n: int, step: Callable[[int], Any]) -> None:
        await self.look(scheduler, client)
        for i in range(n):
            await step(i)
            if i + 1 in (n // 2, n):
                await until(lambda: not scheduler.tasks)
                await self.look(scheduler, client)


async def run(what: str, n: int, on: bool) -> None:
    with process("-c", SINK) as sink:
        assert sink.stdout is not None
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{sink.stdout.readline().strip()}"
        await measure(what, n, on)


async def measure(what: str, n: int, on: bool) -> None:
    tracemalloc.start(1)
    dask.config.set({"distributed.scheduler.worker-saturation": float("inf"), "logging.distributed": "error"})
    started, measured = time.monotonic(), Run(on)
    async with (
        Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler,
        Client(scheduler.address, asynchronous=True, set_as_default=False) as client,
    ):
        if on:
            await dask_otel.enable(client)
        await getattr(measured, what)(scheduler, client, n)
    print(json.dumps({"held": measured.held, "seconds": time.monotonic() - started}))


def held(what: str, n: int, on: bool) -> list[int]:
    command = [sys.executable, __file__, "--run", what, str(n), str(int(on))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: list[int] = json.loads(done.stdout.splitlines()[-1])["held"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, n in (("tasks", 200_000), ("computations", 1_000), ("submits", 10_000), ("workers", 200)):
        parser.add_argument(f"--{name}", type=int, default=n, help="0 leaves it out")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        asyncio.run(run(options.run[0], int(options.run[1]), options.run[2] == "1"))
        return
    print(f"{'':30}{'without':>12}{'with':>12}{'dask-otel':>12}")
    if n := options.tasks:
        without, with_ = held("graph", n, False), held("graph", n, True)
        for at, text in ((1, "bytes a task while it runs"), (2, "bytes a task after")):
            a, b = ((one[at] - one[0]) / n for one in (without, with_))
            print(f"{text:30}{a:12.1f}{b:12.1f}{b - a:12.1f}")
    for what in ("computations", "submits", "workers"):
        if n := getattr(options, what):
            without, with_ = held(what, n, False), held(what, n, True)
            a, b = ((one[2] - one[1]) / (n / 2) for one in (without, with_))
            print(f"{f'bytes one of {n} {what} leaves':30}{a:12.1f}{b:12.1f}{b - a:12.1f}")


if __name__ == "__main__":
    main()
