"""Whether what dask-otel costs a task grows with the graph, with the workers, or with the prefixes.

A scheduler and so many workers of one thread share this process and one event loop. Tasks that do nothing run in one graph, as
many of each prefix; dask-otel, traces and metrics, is turned on and off from round to round, in another order each time. What is
counted is the CPU time of the process from the submission until all is released and sent, but for the thread that submits; the
client's part in the event loop is in it. What passes when nothing runs (heartbeats, timers) goes by the second and not by the task: it is
measured beside each round, taken off, and told in the last columns. The first rows vary the tasks, the next the workers, the last the prefixes; what is flat
in *added* does not grow. *without* is what Dask takes, which is not flat itself. Medians over the rounds, with quartiles of the differences.

Each server tells of each garbage collection of its process. A hundred workers have a hundred processes, but for here, where each
collection is told a hundred times: ``--no-gc`` shows what is left without.

``--instructions`` counts instructions by valgrind instead, which other programs do not disturb; what is done by the clock is done as seldom
then as it is slow, lag, samples and garbage collections not at all, and a row takes minutes.

``--functions`` shows which of our functions on the event loop grows: how often each is called for a task, and its own CPU time (µs, slowed
down by the profiler).

    python benchmarks/growth.py --rounds 5
    python benchmarks/growth.py --functions
    python benchmarks/growth.py --instructions --case 1000,1,1 --case 1000,1,100
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import dask
from distributed import Client, LocalCluster
from overhead import SINK, process

import dask_otel
from dask_otel.export.pipeline import Pipeline
from dask_otel.process import components

#: How many times longer everything takes under valgrind, about.
SLOWER = 50

#: Tasks of the small graph that warms up; after how many of a row's tasks there are no more rounds than two.
WARM, ENOUGH = 200, 20_000


class Case(NamedTuple):
    tasks: int
    workers: int
    prefixes: int


CASES = (
    Case(1_000, 10, 30),
    Case(5_000, 10, 30),
    Case(20_000, 10, 30),
    Case(2_000, 1, 30),
    Case(2_000, 10, 30),
    Case(2_000, 100, 30),
    Case(2_000, 10, 1),
    Case(2_000, 10, 1_000),
)
LARGE = Case(200_000, 10, 30)

#: What Dask does by the clock, done seldom or not at all; no limits that a slow run would come to.
QUIET = {
    "distributed.admin.tick.interval": "100s",
    "distributed.admin.tick.limit": "1h",
    "distributed.admin.system-monitor.interval": "1000s",
    "distributed.comm.timeouts.connect": "600s",
    "distributed.scheduler.worker-ttl": None,
    "distributed.scheduler.work-stealing": False,
    "distributed.worker.memory.monitor-interval": "1000s",
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
}


class Cost(NamedTuple):
    """CPU seconds of a graph without what passes anyway, and that (per second)."""

    graph: float
    idle: float


def prefix_name(number: int) -> str:
    """In letters: Dask takes a number for a part of the key."""
    return "task" + "".join(chr(ord(digit) + 49) for digit in str(number))


class Cluster:
    """A scheduler, workers and a client in this process."""

    def __init__(self, workers: int) -> None:
        self._cluster = LocalCluster(
            processes=False,
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address=":0",
            scheduler_kwargs={"dashboard": False},
        )
        self.client = Client(self._cluster, set_as_default=False)

    def close(self) -> None:
        self.client.close()
        self._cluster.close()

    def turn(self, on: bool) -> None:
        if on:
            dask_otel.enable(self.client)
        else:
            dask_otel.disable(self.client)

    def run(self, tasks: int, prefixes: int) -> None:
        """One graph, until nothing of it is left."""
        names = [prefix_name(number) for number in range(prefixes)]
        keys = [(names[number % prefixes], number) for number in range(tasks)]
        futures = self.client.map(abs, range(tasks), key=keys, pure=False)
        for future in futures:
            while not future.done():
                time.sleep(0.02)
        del futures, future
        while self._held():
            time.sleep(0.02)
        for component in components():
            if isinstance(component, Pipeline):
                component.flush(60.0)

    def on_loop(self, call: Callable[[], object]) -> None:
        """Call something in the event loop's thread."""

        async def called() -> None:
            call()

        self.client.sync(called)

    def _held(self) -> int:
        workers = sum(len(worker.state.tasks) for worker in self._cluster.workers.values())
        return workers + len(self._cluster.scheduler.tasks)


def cpu() -> float:
    """Seconds of all threads but this one."""
    return time.process_time() - time.thread_time()


def measure(cluster: Cluster, case: Case, on: bool) -> Cost:
    if on:
        cluster.turn(True)
    cluster.run(WARM, case.prefixes)
    gc.collect()
    before, start = cpu(), time.perf_counter()
    time.sleep(0.5)
    idle = (cpu() - before) / (time.perf_counter() - start)
    before, start = cpu(), time.perf_counter()
    cluster.run(case.tasks, case.prefixes)
    graph = cpu() - before - idle * (time.perf_counter() - start)
    if on:
        cluster.turn(False)
    return Cost(graph, idle)


def rounds_of(case: Case, rounds: int) -> Iterator[tuple[Cost, Cost]]:
    """Without and with."""
    cluster = Cluster(case.workers)
    try:
        for on in (False, True):
            measure(cluster, case._replace(tasks=WARM), on)
        for number in range(max(2, min(rounds, ENOUGH // case.tasks))):
            order = (False, True) if number % 2 else (True, False)
            taken = {on: measure(cluster, case, on) for on in order}
            yield taken[False], taken[True]
    finally:
        cluster.close()


HEAD = (
    f"{'tasks':>8}{'workers':>9}{'prefixes':>10}{'without, µs/task':>18}{'with':>9}{'added':>8}{'quartiles':>18}"
    f"{'ratio':>8}{'quartiles':>18}{'idle, ms/s':>12}{'with':>8}"
)


def report(case: Case, rounds: Sequence[tuple[Cost, Cost]]) -> None:
    scale = 1e6 / case.tasks
    without, with_ = (statistics.median(one[on].graph for one in rounds) * scale for on in (0, 1))
    low, added, high = statistics.quantiles([(b.graph - a.graph) * scale for a, b in rounds], n=4)
    least, ratio, most = statistics.quantiles([b.graph / a.graph for a, b in rounds], n=4)
    idle, busy = (statistics.median(one[on].idle for one in rounds) * 1e3 for on in (0, 1))
    print(
        f"{case.tasks:>8}{case.workers:>9}{case.prefixes:>10}{without:>18.0f}{with_:>9.0f}{added:>8.0f}"
        f"{low:>9.0f} – {high:<6.0f}{ratio:>8.3f}{least:>9.3f} – {most:<6.3f}{idle:>12.1f}{busy:>8.1f}",
        flush=True,
    )


# -- by valgrind ---------------------------------------------------------------------------------------------


def count(case: Case, folder: Path) -> tuple[float, float]:
    """Instructions of all threads but the one that submits, without and with."""
    command = [
        *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"),
        f"--callgrind-out-file={folder}/{'-'.join(map(str, case))}",
        *(sys.executable, __file__, "--no-gc", "--counted", ",".join(map(str, case))),
    ]
    subprocess.run(
        command,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "0", "OTEL_BSP_SCHEDULE_DELAY": str(1_000 * SLOWER)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    found: dict[int, int] = {1: 0, 2: 0}
    for file in folder.glob(f"{'-'.join(map(str, case))}.*-*"):
        dump, _, thread = file.name.rpartition(".")[2].partition("-")
        if int(dump) in found and int(thread) > 1:
            found[int(dump)] += summary(file)
    return found[1], found[2]


def summary(file: Path) -> int:
    """Instructions of one dump."""
    for line in file.read_text().splitlines():
        if line.startswith("totals:"):
            return int(line.split()[1])
    return 0


def control(*arguments: str) -> None:
    """To the callgrind that runs this process."""
    subprocess.run(["callgrind_control", *arguments, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)


def counted(case: Case) -> None:
    """What `count` runs."""
    still_the_clock()
    cluster = Cluster(case.workers)
    for on in (False, True):
        if on:
            cluster.turn(True)
        cluster.run(WARM, case.prefixes)
        cluster.run(WARM, case.prefixes)
        gc.collect()
        control("-i", "on")
        cluster.run(case.tasks, case.prefixes)
        control("-d")
        control("-i", "off")  # Which forgets what was counted.
    os._exit(0)


def still_the_clock() -> None:
    """What is done by the clock is done as often for a task as elsewhere, or not at all: under valgrind all takes so much longer."""
    from distributed import scheduler

    from dask_otel import worker_sums
    from dask_otel.overhead import Overhead
    from dask_otel.seam.lag import LagTimer
    from dask_otel.seam.loop_parts import LoopPartsSeam

    worker_sums.FLUSH_AFTER *= SLOWER
    often = scheduler.heartbeat_interval
    scheduler.heartbeat_interval = lambda workers: often(workers) * SLOWER
    for kind, method in ((LagTimer, "start"), (Overhead, "install"), (LoopPartsSeam, "install")):
        setattr(kind, method, lambda self: None)


# -- by function ---------------------------------------------------------------------------------------------


def functions(case: Case) -> dict[str, tuple[float, float]]:
    """Of our functions on the event loop: calls and own time (µs) for a task."""
    cluster = Cluster(case.workers)
    try:
        cluster.turn(True)
        cluster.run(WARM, case.prefixes)
        profile = cProfile.Profile(time.thread_time)
        cluster.on_loop(profile.enable)
        cluster.run(case.tasks, case.prefixes)
        cluster.on_loop(profile.disable)
        cluster.turn(False)
    finally:
        cluster.close()
    found: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for entry in profile.getstats():
        if "/dask_otel/" in (file := getattr(entry.code, "co_filename", "")):
            name = f"{file.partition('/dask_otel/')[2]}:{entry.code.co_name}"
            found[name] += entry.callcount
            times[name] += entry.inlinetime
    return {name: (n / case.tasks, times[name] / case.tasks * 1e6) for name, n in found.items()}


def report_functions(cases: Sequence[Case]) -> None:
    found = [functions(case) for case in cases]
    print(f"{'tasks, workers, prefixes':<44}" + "".join(f"{f'{a}, {b}, {c}':>18}" for a, b, c in cases))
    totals = [tuple(map(sum, zip(*one.values()))) for one in found]
    print(f"{'all':<44}" + "".join(f"{calls:>10.2f}{time:>8.1f}" for calls, time in totals))
    names = {name for one in found for name in one}
    most = {name: max(one.get(name, (0, 0))[1] for one in found) for name in names}
    for name in sorted(names, key=most.__getitem__, reverse=True)[:40]:
        cells = (one.get(name, (0.0, 0.0)) for one in found)
        print(f"{name:<44}" + "".join(f"{calls:>10.2f}{time:>8.1f}" for calls, time in cells))


# ------------------------------------------------------------------------------------------------------------


def case_of(text: str) -> Case:
    return Case(*map(int, text.split(",")))


@contextmanager
def environment(detail: str) -> Iterator[None]:
    """Everything on, sent to a receiver in another process; no export of metrics within a round."""
    with process("-c", SINK) as sink:
        assert sink.stdout is not None
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{sink.stdout.readline().strip()}"
        os.environ["OTEL_METRIC_EXPORT_INTERVAL"] = "3600000"
        os.environ["DASK_OTEL__TRACES__DETAIL"] = detail
        dask.config.refresh()
        dask.config.set(QUIET)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each row, fewer of a large graph")
    parser.add_argument("--detail", default="activity", help="otel.traces.detail")
    parser.add_argument("--large", action="store_true", help="200,000 tasks too")
    parser.add_argument("--case", action="append", type=case_of, help="tasks,workers,prefixes instead of all")
    parser.add_argument("--no-gc", action="store_true", help="no garbage collections within a graph")
    parser.add_argument("--functions", action="store_true", help="of ours, with calls and time")
    parser.add_argument("--instructions", action="store_true", help="count them by valgrind")
    parser.add_argument("--counted", type=case_of, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    dask.config.set(QUIET)
    if arguments.no_gc:
        gc.disable()
    if arguments.counted is not None:
        counted(arguments.counted)
    cases = arguments.case or [*CASES, *([LARGE] if arguments.large else [])]
    with environment(arguments.detail), tempfile.TemporaryDirectory() as folder:
        if arguments.instructions:
            report_counted(cases, Path(folder))
            return
        if arguments.functions:
            report_functions(cases)
            return
        print(HEAD)
        for case in cases:
            report(case, list(rounds_of(case, arguments.rounds)))


def report_counted(cases: Sequence[Case], folder: Path) -> None:
    print(
        f"{'tasks':>8}{'workers':>9}{'prefixes':>10}{'without, k/task':>18}{'with':>9}{'added':>8}{'ratio':>8}"
    )
    for case in cases:
        without, with_ = (each / case.tasks / 1e3 for each in count(case, folder))
        print(
            f"{case.tasks:>8}{case.workers:>9}{case.prefixes:>10}{without:>18.1f}{with_:>9.1f}"
            f"{with_ - without:>8.1f}{with_ / without:>8.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
