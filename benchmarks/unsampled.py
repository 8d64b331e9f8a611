"""What a computation costs that the sampler refuses, beside one that is traced, and one without dask-otel.

Metrics are off in all three: they count unsampled computations as well, at their own price. The cluster is that of
`overhead.py`: in the same processes each round runs a graph of trivial tasks in each of the three ways, in another order from
round to round. What is counted is CPU time until everything is sent; medians over the rounds' ratios, with the quartiles.
*share* is what an unsampled task adds, by what a traced one does.

``--instructions`` counts instructions by valgrind instead, which other programs do not disturb: of scheduler, worker and the
thread that sends, in one process; what is done by the clock is turned off then. It takes minutes.

    python benchmarks/unsampled.py --tasks 2000 --rounds 15
    python benchmarks/unsampled.py --instructions --tasks 400
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import dask
from distributed import Client, LocalCluster
from overhead import SINK, Cluster, process, reductions

import dask_otel
from dask_otel.export.pipeline import Pipeline
from dask_otel.process import components

WITHOUT, UNSAMPLED, TRACED = WAYS = ("without", "unsampled", "traced")
_SAMPLER = {
    UNSAMPLED: {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"},
    TRACED: {"OTEL_TRACES_SAMPLER": "parentbased_always_on", "OTEL_TRACES_SAMPLER_ARG": ""},
}

#: What Dask does by the clock, done seldom or not at all; no limits that a slow run would come to.
QUIET = {
    "distributed.admin.tick.interval": "100s",
    "distributed.admin.tick.limit": "1h",
    "distributed.admin.system-monitor.interval": "1000s",
    "distributed.client.heartbeat": "1000s",
    "distributed.comm.timeouts.connect": "600s",
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-ttl": None,
    "distributed.worker.memory.monitor-interval": "1000s",
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
}


class Ways(Cluster):
    """A cluster that runs a graph in one of three ways."""

    def run_way(self, tasks: int, way: str) -> tuple[float, ...]:
        """CPU seconds of the scheduler, of the workers, of everything, until all is sent, if anything is."""
        os.environ.update(_SAMPLER.get(way, {}))
        if way != WITHOUT:
            dask_otel.enable(self.client)
        self._compute(100)
        before = self.cpu()
        self._compute(tasks)
        if way == TRACED:
            dask_otel.flush(self.client)
        else:
            time.sleep(0.1)
        scheduler, workers, client = (b - a for a, b in zip(before, self.cpu(), strict=True))
        if way != WITHOUT:
            dask_otel.disable(self.client)
        return scheduler, workers, scheduler + workers + client


def rounds_of(cluster: Ways, arguments: argparse.Namespace) -> list[dict[str, tuple[float, ...]]]:
    """CPU seconds of the scheduler, of the workers, of everything, by way."""
    rounds = []
    for number in range(arguments.rounds + 1):
        order = WAYS[number % 3 :] + WAYS[: number % 3]
        taken = {}
        for way in order[:: 1 if number % 2 else -1]:
            taken[way] = cluster.run_way(arguments.tasks, way)
        if number:  # The first warms up.
            rounds.append(taken)
            print(".", end="", flush=True)
    print()
    return rounds


def report(rounds: list[dict[str, tuple[float, ...]]], arguments: argparse.Namespace) -> None:
    tasks = arguments.tasks + sum(1 for _ in reductions(arguments.tasks))
    print(f"{tasks} tasks a graph, {arguments.workers} workers, {len(rounds)} rounds of each, alternating\n")
    print(
        f"{'CPU of':<12}{'without, ms/task':>18}"
        + f"{'added µs':>12}{'ratio':>8}{'quartiles':>17}" * 2
        + f"{'share':>8}"
    )
    print(f"{'':<30}{UNSAMPLED:>37}{TRACED:>37}")
    for index, name in enumerate(("scheduler", "workers", "everything")):
        middle = {way: statistics.median(one[way][index] for one in rounds) / tasks for way in WAYS}
        cells, added = [], {}
        for way in (UNSAMPLED, TRACED):
            low, ratio, high = statistics.quantiles(
                [one[way][index] / one[WITHOUT][index] for one in rounds], n=4
            )
            added[way] = (ratio - 1) * middle[WITHOUT]
            cells.append(f"{added[way] * 1e6:>12.1f}{ratio:>8.3f}{low:>9.3f} – {high:.3f}")
        share = added[UNSAMPLED] / added[TRACED]
        print(f"{name:<12}{middle[WITHOUT] * 1e3:>18.3f}{''.join(cells)}{share:>8.2f}")


# -- by valgrind ---------------------------------------------------------------------------------------------


#: Twice, so that the two differ by what is noise, and none is always the first.
_ORDER = WAYS + WAYS[::-1]


def count(tasks: int, folder: Path) -> dict[str, list[int]]:
    """Instructions of all threads but the one that submits, by way."""
    command = [
        *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"),
        f"--callgrind-out-file={folder}/out",
        *(sys.executable, __file__, "--counted", "--tasks", str(tasks)),
    ]
    done = subprocess.run(
        command, check=False, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    dumps = [0] * len(_ORDER)
    for file in folder.glob("out.*-*"):
        dump, _, thread = file.name.rpartition(".")[2].partition("-")
        if int(dump) <= len(_ORDER) and int(thread) > 1:
            dumps[int(dump) - 1] += totals(file)
    return {way: [n for of, n in zip(_ORDER, dumps, strict=True) if of == way] for way in WAYS}


def totals(file: Path) -> int:
    """Instructions of one dump."""
    with file.open() as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("totals:")), 0)


def report_counted(tasks: int, counts: dict[str, list[int]]) -> None:
    print(f"{tasks} tasks, thousands of instructions a task, each way twice\n")
    print(f"{'':<12}{'all':>20}{'added':>10}{'ratio':>10}")
    middle = {way: statistics.mean(of) / tasks / 1e3 for way, of in counts.items()}
    without = middle[WITHOUT]
    for way, of in counts.items():
        both = ", ".join(f"{one / tasks / 1e3:.1f}" for one in of)
        print(f"{way:<12}{both:>20}{middle[way] - without:>10.1f}{middle[way] / without:>10.4f}")
    print(f"share {(middle[UNSAMPLED] - without) / (middle[TRACED] - without):.2f}")


def counted(tasks: int) -> None:
    """What `count` runs."""
    still_the_clock()
    with LocalCluster(
        processes=False,
        n_workers=1,
        threads_per_worker=1,
        dashboard_address=":0",
        scheduler_kwargs={"dashboard": False},
    ) as cluster:
        client = Client(cluster, set_as_default=False)
        compute(client, cluster, 100)
        for way in _ORDER:
            os.environ.update(_SAMPLER.get(way, {}))
            if way != WITHOUT:
                dask_otel.enable(client)
            compute(client, cluster, 50)
            gc.collect()
            control("-i", "on")
            compute(client, cluster, tasks)
            control("-d")
            control("-i", "off")  # Which forgets what was counted.
            if way != WITHOUT:
                dask_otel.disable(client)
        os._exit(0)


def compute(client: Client, cluster: LocalCluster, tasks: int) -> None:
    """One graph, until nothing of it is left and all is sent."""
    future = client.compute(dask.delayed(max)([dask.delayed(abs, pure=False)(i) for i in range(tasks - 1)]))
    while not future.done():
        time.sleep(0.02)
    del future
    while cluster.scheduler.tasks or any(worker.state.tasks for worker in cluster.workers.values()):
        time.sleep(0.02)
    for component in components():
        if isinstance(component, Pipeline):
            component.flush(60.0)


def control(*arguments: str) -> None:
    """To the callgrind that runs this process."""
    subprocess.run(["callgrind_control", *arguments, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)


def still_the_clock() -> None:
    """Turn off what Dask and dask-otel do by the clock."""
    import distributed.scheduler

    from dask_otel import worker_sums
    from dask_otel.overhead import Overhead
    from dask_otel.seam.lag import LagTimer

    dask.config.set(QUIET)
    distributed.scheduler.heartbeat_interval = lambda n: 1000
    worker_sums.FLUSH_AFTER = 3.0
    for kind, method in ((LagTimer, "start"), (Overhead, "install")):
        setattr(kind, method, lambda self: None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--instructions", action="store_true", help="count them by valgrind")
    parser.add_argument("--counted", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.counted:
        counted(arguments.tasks)
    os.environ["OTEL_METRICS_EXPORTER"] = "none"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sink = stack.enter_context(process("-c", SINK))
        assert sink.stdout is not None
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{sink.stdout.readline().strip()}"
        if arguments.instructions:
            report_counted(arguments.tasks, count(arguments.tasks, folder))
            return
        report(rounds_of(Ways(stack, folder, arguments.workers), arguments), arguments)


if __name__ == "__main__":
    main()
