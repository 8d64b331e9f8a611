"""What an export of metrics costs: how long it holds up the event loop, and what it takes the background thread.

A scheduler and a worker, in this process, have run tasks of so many prefixes; the worker is told of their activities as Dask meters
them, again before each export: seconds, bytes and counts. An export then runs on its server's event loop as it does once an interval,
and a receiver in this process takes what is sent. On the loop counts `Meter.export`, by the clock and by its CPU, which is all of it on a
machine that has nothing else to do; in the thread the CPU time of what it does but for sending: summing up, folding, building the request, compressing it. There the interpreter's lock is let
go of after each metric. Medians and the greatest of the rounds. Bytes are those of a request, compressed.

Histograms are measured beside it: how long it takes to record a value, and to copy what a hundred series hold.

    python benchmarks/export.py [rounds]
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from distributed import Client, LocalCluster, Worker

import dask_otel
from dask_otel import process
from dask_otel.distributions import Distributions
from dask_otel.export.http import compress
from dask_otel.export.metric_bodies import Batch, Series
from dask_otel.instruments import TASK_DURATION
from dask_otel.receiver import Receiver
from dask_otel.scheduler import schedulers
from dask_otel.settings import Metrics
from dask_otel.turning_on import workers

ACTIVITIES = 15
UNITS = ("seconds", "bytes", "count")
#: What the loop may be held up for (s).
BAR = 0.002


class Export(NamedTuple):
    """Seconds on the loop, of them CPU, CPU seconds of the thread's work; points, and bytes of the compressed request."""

    loop: float
    cpu: float
    thread: float
    points: int
    size: int


def prefix_name(number: int) -> str:
    """In letters: Dask takes a number for a part of the key."""
    return "task" + "".join(chr(ord(digit) + 49) for digit in str(number))


def meter_work(server: Worker, span: str, prefixes: int) -> None:
    """Another amount of each activity of each prefix; a third of the activities in bytes and counts too."""
    for prefix in range(prefixes):
        for activity in range(ACTIVITIES):
            for unit in UNITS if activity % 3 == 0 else UNITS[:1]:
                amount = random.random() if unit == "seconds" else random.randrange(1_000)
                server.digest_metric(
                    ("execute", span, prefix_name(prefix), f"activity-{activity}", unit), amount
                )


async def exports(telemetry: Any, rounds: int, work: Callable[[], object] = lambda: None) -> list[Export]:
    meter = telemetry.metrics.meter
    assert meter.on, "set no OTEL_METRICS_EXPORTER"
    series, found = Series(), []
    for number in range(rounds):
        work()
        start, cpu = time.perf_counter(), time.thread_time()
        meter.export()
        cpu, on_loop = time.thread_time() - cpu, time.perf_counter() - start
        assert await process.flush_aside(10)
        # The thread's work, done once more where nothing else runs.
        batch = Batch(telemetry.outlet.source, 0.0, 1.0 + number, list(telemetry.metrics._measured()))
        start = time.thread_time()
        body, points = series.request(batch)
        size = len(compress(body, "gzip"))
        found.append(Export(on_loop, cpu, time.thread_time() - start, points, size))
        series.taken()
    return found[1:]


def measure(client: Client, cluster: LocalCluster, prefixes: int, rounds: int) -> Iterator[tuple[str, Any]]:
    """By server what `exports` gives."""
    client.gather([client.submit(int, n, key=(prefix_name(n), 0)) for n in range(prefixes)])
    (server,) = cluster.workers.values()
    span = next(key[1] for key in server.digests_total if isinstance(key, tuple) and key[0] == "execute")
    work = partial(meter_work, server, span, prefixes)
    yield f"worker, {prefixes} × {ACTIVITIES}", client.sync(exports, workers.telemetry(server), rounds, work)
    yield f"scheduler, {prefixes}", client.sync(exports, schedulers.telemetry(cluster.scheduler), rounds)


def distributions() -> list[tuple[str, str]]:
    """The price of a value, and of a snapshot of a hundred series, by form."""
    rows = []
    of = [(f"prefix-{number}", "success", "") for number in range(100)]
    values = [random.lognormvariate(-3, 2) for _ in range(20_000)]
    for form in ("explicit_bucket_histogram", "base2_exponential_bucket_histogram"):
        found = Distributions(TASK_DURATION, Metrics(histograms=form))

        def record(found: Distributions = found) -> None:
            for number, value in enumerate(values):
                found.record(of[number % 100], value)

        rows.append((f"record a value, {form}", f"{1e6 * best(record) / len(values):.2f} µs"))
        rows.append((f"copy 100 series, {form}", f"{1e3 * best(found.snapshots):.2f} ms"))
    return rows


def best(call: Callable[[], Any], rounds: int = 5) -> float:
    """Seconds of the fastest."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main(rounds: int) -> int:
    """How many are above the bar."""
    slow = 0
    with Receiver() as receiver:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.endpoint
        print(
            f"{'prefixes × activities':>24} {'points':>7} {'bytes':>7} {'on the loop':>22} {'of it CPU':>22} {'CPU in the thread':>22}"
        )
        for prefixes in (1, 10, 30, 100):
            with (
                LocalCluster(
                    processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0"
                ) as cluster,
                Client(cluster) as client,
            ):
                dask_otel.enable(client)
                for what, found in measure(client, cluster, prefixes, rounds + 1):
                    slow += statistics.median([one.cpu for one in found]) > BAR
                    times = [told(column) for column in zip(*[one[:3] for one in found])]
                    counts = f"{found[-1].points:>7} {found[-1].size:>7}"
                    print(f"{what:>24} {counts} {' '.join(f'{one:>22}' for one in times)}")
                dask_otel.disable(client)
    print()
    for what, price in distributions():
        print(f"{what:>60} {price:>10}")
    return slow


def told(times: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(times):.2f} ms (max {1e3 * max(times):.2f})"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30))
