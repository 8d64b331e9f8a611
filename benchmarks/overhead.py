"""What dask-otel costs: CPU per task with it, as a ratio to the same run without it.

One cluster of processes: dask-otel is turned on in it, with all that it records sent to a receiver in another process,
and off again, from round to round in another order; so both ways run in the same processes. The same graph of trivial
tasks runs each time, after a small one that warms up. What is counted is the CPU time of the scheduler's process, of
the workers' processes and of all of them with the client, from before the graph is submitted until everything is sent.
Medians over the rounds' ratios, with the quartiles.

With ``--metrics`` it is what metrics cost: both ways with dask-otel, the one with traces only, the other with both. The
CPU of an export, which comes once a minute however many tasks there are, is told apart.

    python benchmarks/overhead.py --tasks 2000 --rounds 15
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dask
import psutil
from distributed import Client

import dask_otel

SINK = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
    def log_message(self, *args): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, *command],
        # Servers that were told nothing go by what comes with `enable`.
        env={name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield started
    finally:
        started.terminate()
        started.wait(10)


class Cluster:
    """A scheduler and workers, each a process of its own, and a client of them in this one.

    What is compared is without dask-otel, or with ``baseline`` for ``OTEL_METRICS_EXPORTER``, and with it.
    """

    def __init__(self, stack: ExitStack, folder: Path, workers: int, baseline: str | None = None) -> None:
        self.baseline = baseline
        #: CPU seconds of the scheduler and of a worker for a flush with nothing new but metrics, by whether there are any.
        self.exports: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        file = folder / "scheduler.json"
        common = ["--scheduler-file", str(file), "--no-dashboard"]
        scheduler = stack.enter_context(process("-m", "dask", "scheduler", *common, "--port", "0"))
        while not file.exists():
            time.sleep(0.05)
        arguments = ["-m", "dask", "worker", *common, "--no-nanny", "--nthreads", "1"]
        started = [stack.enter_context(process(*arguments)) for _ in range(workers)]
        self.workers = [psutil.Process(one.pid) for one in started]
        self.scheduler = psutil.Process(scheduler.pid)
        self.client = stack.enter_context(Client(scheduler_file=str(file), set_as_default=False))
        self.client.wait_for_workers(workers)

    def cpu(self) -> tuple[float, float, float]:
        """Seconds of the scheduler, of the workers, of this process."""
        return (
            seconds(self.scheduler),
            sum(map(seconds, self.workers)),
            seconds(psutil.Process()),
        )

    def run(self, tasks: int, on: bool) -> tuple[float, float, float]:
        """CPU seconds that one graph takes of the scheduler, of the workers, and of all with the client."""
        enabled = on or self.baseline is not None
        if self.baseline is not None:
            os.environ["OTEL_METRICS_EXPORTER"] = "otlp" if on else self.baseline
        if enabled:
            dask_otel.enable(self.client)
        self.compute(100)
        before = self.cpu()
        self.compute(tasks)
        if enabled and self.baseline is None:
            dask_otel.flush(self.client)
        else:
            time.sleep(0.1)
        scheduler, workers, client = (b - a for a, b in zip(before, self.cpu(), strict=True))
        if self.baseline is not None:
            self._flush(on)
        if enabled:
            dask_otel.disable(self.client)
        return scheduler, workers, scheduler + workers + client

    def _flush(self, on: bool) -> None:
        """All spans, then ten times metrics only, if there are."""
        dask_otel.flush(self.client)
        before = self.cpu()
        for _ in range(10):
            dask_otel.flush(self.client)
        scheduler, workers, _ = ((b - a) / 10 for a, b in zip(before, self.cpu(), strict=True))
        self.exports[on].append((scheduler, workers / len(self.workers)))

    def compute(self, tasks: int) -> None:
        leaves = [dask.delayed(abs, pure=False)(i) for i in range(tasks)]
        while len(leaves) > 1:
            leaves = [dask.delayed(min, pure=False)(leaves[i : i + 8]) for i in range(0, len(leaves), 8)]
        future = self.client.compute(leaves[0])
        assert future.result() == 0


def seconds(of: psutil.Process) -> float:
    times = of.cpu_times()
    return times.user + times.system


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--traces-only", action="store_true", help="without metrics")
    which.add_argument("--metrics", action="store_true", help="what metrics add to traces")
    arguments = parser.parse_args()
    if arguments.traces_only:
        os.environ["OTEL_METRICS_EXPORTER"] = "none"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sink = stack.enter_context(process("-c", SINK))
        assert sink.stdout is not None
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{sink.stdout.readline().strip()}"
        baseline = "none" if arguments.metrics else None
        cluster = Cluster(stack, folder, arguments.workers, baseline)
        report(measure(cluster, arguments), arguments)
        if baseline is not None:
            report_exports(cluster)


def measure(
    cluster: Cluster, arguments: argparse.Namespace
) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    rounds = []
    for number in range(arguments.rounds + 1):
        order = (False, True) if number % 2 else (True, False)
        taken = {on: cluster.run(arguments.tasks, on) for on in order}
        if number:  # The first warms up.
            rounds.append((taken[False], taken[True]))
            print(".", end="", flush=True)
    print()
    return rounds


def report(rounds: list[tuple[tuple[float, ...], tuple[float, ...]]], arguments: argparse.Namespace) -> None:
    tasks = arguments.tasks + sum(1 for _ in reductions(arguments.tasks))
    print(f"{tasks} tasks a graph, {arguments.workers} workers, {len(rounds)} rounds of each, alternating\n")
    print(f"{'CPU of':<12}{'without, ms/task':>18}{'with':>10}{'added µs':>10}{'ratio':>9}{'quartiles':>18}")
    for index, name in enumerate(("scheduler", "workers", "everything")):
        ratios = [b[index] / a[index] for a, b in rounds]
        low, middle, high = statistics.quantiles(ratios, n=4)
        a, b = (
            statistics.median(side[index] for side in sides) / tasks * 1e3
            for sides in zip(*rounds, strict=True)
        )
        print(f"{name:<12}{a:>18.3f}{b:>10.3f}{(b - a) * 1e3:>10.1f}{middle:>9.3f}{low:>10.3f} – {high:.3f}")


def report_exports(cluster: Cluster) -> None:
    for index, name in enumerate(("the scheduler", "a worker")):
        without, once = (
            statistics.median(taken[index] for taken in cluster.exports[on]) for on in (False, True)
        )
        print(f"an export of {name}: {(once - without) * 1e3:.1f} ms")


def reductions(tasks: int) -> Iterator[int]:
    while tasks > 1:
        tasks = -(-tasks // 8)
        yield from range(tasks)


if __name__ == "__main__":
    main()
