"""What an export of metrics costs: how long it holds up the event loop, and what it takes the background thread.

A real worker, in this process, is told of the activities of so many task prefixes as Dask meters them: seconds, bytes and
counts. Its export then runs on its event loop as it does once an interval, and a receiver in this process takes what is sent. On
the loop counts the wall time of `Meter.export`; in the thread the CPU time of building the request and compressing it, in which it holds the
interpreter's lock a few milliseconds at a time at most. Totals grow between exports. Medians and the greatest of the rounds.

Histograms are measured beside it: how long it takes to record a value, and to copy what a hundred series hold.

    python benchmarks/export.py [rounds]
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from distributed import Client, LocalCluster, Worker

import dask_otel
from dask_otel import process
from dask_otel.distributions import Distributions
from dask_otel.export.http import compress
from dask_otel.export.metric_bodies import Batch, Series
from dask_otel.instruments import TASK_DURATION
from dask_otel.receiver import Receiver
from dask_otel.settings import Metrics
from dask_otel.turning_on import workers

ACTIVITIES = 15
UNITS = ("seconds", "bytes", "count")
#: What the loop may be held up for (s).
BAR = 0.002


def meter_work(server: Worker, span: str, prefixes: int) -> None:
    """Another amount of each activity of each prefix; a third of the activities in bytes and counts too."""
    for prefix in range(prefixes):
        for activity in range(ACTIVITIES):
            for unit in UNITS if activity % 3 == 0 else UNITS[:1]:
                amount = random.random() if unit == "seconds" else random.randrange(1_000)
                server.digest_metric(
                    ("execute", span, f"prefix-{prefix}", f"activity-{activity}", unit), amount
                )


async def exports(server: Worker, prefixes: int, rounds: int) -> list[tuple[float, float, int]]:
    """Seconds on the loop, CPU seconds of the encoding, and points, of each export."""
    telemetry = workers.telemetry(server)
    assert telemetry is not None
    meter = telemetry.metrics.meter
    assert meter.on, "set no OTEL_METRICS_EXPORTER"
    (span,) = {key[1] for key in server.digests_total if isinstance(key, tuple) and key[0] == "execute"}
    series, found = Series(), []
    for number in range(rounds):
        meter_work(server, span, prefixes)
        start = time.perf_counter()
        meter.export()
        on_loop = time.perf_counter() - start
        assert await process.flush_aside(10)
        # The thread's work, done once more where nothing else runs.
        batch = Batch(telemetry.outlet.source, 0.0, 1.0 + number, list(telemetry.metrics._measured()))
        start = time.thread_time()
        body, points = series.request(batch)
        compress(body, "gzip")
        found.append((on_loop, time.thread_time() - start, points))
        series.taken()
    return found[1:]


def distributions() -> list[tuple[str, str]]:
    """The price of a value, and of a snapshot of a hundred series, by form."""
    rows = []
    values = [random.lognormvariate(-3, 2) for _ in range(20_000)]
    for form in ("explicit_bucket_histogram", "base2_exponential_bucket_histogram"):
        found = Distributions(TASK_DURATION, Metrics(histograms=form))

        def record(found: Distributions = found) -> None:
            for number, value in enumerate(values):
                found.record((f"prefix-{number % 100}", "success", ""), value)

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
    slow = 0
    with Receiver() as receiver:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.endpoint
        print(f"{'prefixes × activities':>24} {'points':>7} {'on the loop':>22} {'in the thread':>22}")
        for prefixes in (1, 10, 30, 100):
            with (
                LocalCluster(
                    processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0"
                ) as cluster,
                Client(cluster) as client,
            ):
                dask_otel.enable(client)
                client.submit(int, 1).result()
                found = client.sync(exports, cluster.workers[0], prefixes, rounds + 1)
                dask_otel.disable(client)
            loop, thread = [one[0] for one in found], [one[1] for one in found]
            slow += statistics.median(loop) > BAR
            print(f"{f'{prefixes} × {ACTIVITIES}':>24} {found[-1][2]:>7} {told(loop):>22} {told(thread):>22}")
    print()
    for what, price in distributions():
        print(f"{what:>60} {price:>10}")
    return slow


def told(times: list[float]) -> str:
    return f"{1e3 * statistics.median(times):.2f} ms (max {1e3 * max(times):.2f})"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30))
