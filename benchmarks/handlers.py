"""What it costs a scheduler to know what its event loop does, and how much of the loop's time it can name.

One scheduler in a process of its own, kept busy by small tasks. Its bookkeeping (the time of each message handler, and
samples of what the loop does besides) is turned on and off from round to round, in another order each time; what is
counted is the CPU time of its process per task. A connection is timed where it came while the bookkeeping was on: so there
are two sets of workers and clients, each with the rounds that are its own. ``--null`` turns nothing on: what it shows is noise.

    python benchmarks/handlers.py --tasks 2000 --rounds 15
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from distributed import Client, wait
from distributed.scheduler import Scheduler

from dask_otel.guard import Guard
from dask_otel.instruments import REST
from dask_otel.names import LOOP_OTHER
from dask_otel.seam.handlers import HandlerSeam
from dask_otel.seam.loop_parts import LoopPartsSeam

OFF, HANDLERS, ALL = "off", "handlers", "handlers, samples"


class Bookkeeping:
    """Of the scheduler in whose process it is."""

    def __init__(self, scheduler: Scheduler) -> None:
        guard = Guard("scheduler")
        self.handlers = HandlerSeam(scheduler, guard, time.perf_counter)
        self.parts = LoopPartsSeam(scheduler, guard, lambda: self.totals()[LOOP_OTHER])
        self.mode = OFF
        self.began = 0.0

    def totals(self) -> dict[str, float]:
        return self.handlers.totals(time.perf_counter())

    def turn(self, mode: str) -> None:
        if self.mode == ALL:
            self.parts.uninstall()
        if self.mode != OFF:
            self.handlers.uninstall()
        self.mode = mode
        if mode != OFF:
            self.began = time.perf_counter()
            self.handlers.install()
        if mode == ALL:
            self.parts.install()

    def shares(self) -> tuple[float, dict[str, float], dict[str, float]]:
        """The loop's time, its shares by operation, and what `other` is made of."""
        totals = self.totals()
        seconds = sum(totals.values())
        assert abs(seconds - (time.perf_counter() - self.began)) < 0.01
        parts = self.parts.totals(totals[LOOP_OTHER])
        return seconds, *({of: value / seconds for of, value in found.items()} for found in (totals, parts))


def dask_setup(scheduler: Any) -> None:
    """As a preload of the scheduler."""
    scheduler.bookkeeping = Bookkeeping(scheduler)
    scheduler.bookkeeping.turn(ALL)


def turn(mode: str, dask_scheduler: Any) -> None:
    dask_scheduler.bookkeeping.turn(mode)


def cpu(dask_scheduler: Any) -> float:
    """Seconds of the scheduler's process."""
    return time.process_time()


def shares(dask_scheduler: Any) -> Any:
    return dask_scheduler.bookkeeping.shares()


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-m", "dask", *command], stderr=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(10)


class Side:
    """Workers and a client that came to the scheduler together."""

    def __init__(self, stack: ExitStack, file: Path, workers: int) -> None:
        common = ("--scheduler-file", str(file), "--no-dashboard", "--no-nanny", "--nthreads", "1")
        self.client = stack.enter_context(Client(scheduler_file=str(file), set_as_default=False))
        before = set(self._workers())
        for _ in range(workers):
            stack.enter_context(process("worker", *common))
        while len(found := set(self._workers()) - before) < workers:
            time.sleep(0.05)
        self.workers = sorted(found)

    def _workers(self) -> list[str]:
        return list(self.client.scheduler_info(n_workers=-1)["workers"])

    def run(self, tasks: int) -> None:
        with self.client.as_current():
            wait(self.client.map(abs, range(tasks), pure=False, workers=self.workers))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=2000, help="of a round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2, help="of each of the two sets")
    parser.add_argument("--busy", type=int, default=20_000, help="tasks whose loop time is told")
    parser.add_argument("--null", action="store_true", help="turn nothing on")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "scheduler.json"
        stack.enter_context(
            process(
                "scheduler",
                "--scheduler-file",
                str(file),
                "--no-dashboard",
                "--port",
                "0",
                "--preload",
                __file__,
            )
        )
        while not file.exists():
            time.sleep(0.05)
        timed = Side(stack, file, arguments.workers)
        if arguments.busy:
            timed.run(arguments.busy)
            report_shares(*timed.client.run_on_scheduler(shares), arguments.busy)
        timed.client.run_on_scheduler(turn, OFF)
        untimed = Side(stack, file, arguments.workers)
        if arguments.rounds:
            report(measure(timed, untimed, arguments), arguments)


def report_shares(seconds: float, operations: dict[str, float], parts: dict[str, float], tasks: int) -> None:
    print(f"{tasks} tasks, from the scheduler's start: {seconds:.1f} s of its event loop\n")
    for title, found in (("by operation", operations), ("of these, other", parts)):
        print(f"{title:<40}share")
        for of, share in sorted(found.items(), key=lambda pair: -pair[1]):
            if share >= 0.001:
                print(f"  {of:<38}{share:.3f}")
    print(f"\nnamed{1 - parts.get(REST, 0.0):>40.3f}\n")


def measure(timed: Side, untimed: Side, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """CPU seconds of the scheduler in each round by mode."""
    taken: dict[str, list[float]] = {OFF: [], HANDLERS: [], ALL: []}
    for number in range(arguments.rounds + 1):
        order = list(taken)
        order = order[number % 3 :] + order[: number % 3]
        for mode in order if number % 2 else reversed(order):
            side = untimed if mode == OFF else timed
            side.client.run_on_scheduler(turn, OFF if arguments.null else mode)
            side.run(100)
            before = side.client.run_on_scheduler(cpu)
            side.run(arguments.tasks)
            if number:  # The first warms up.
                taken[mode].append(side.client.run_on_scheduler(cpu) - before)
        print(".", end="", flush=True)
    print()
    return taken


def report(taken: dict[str, list[float]], arguments: argparse.Namespace) -> None:
    print(f"{arguments.tasks} tasks a round, {arguments.rounds} rounds of each, alternating\n")
    print(f"{'scheduler CPU':<20}{'µs/task':>9}{'added':>8}{'ratio':>8}{'quartiles':>18}")
    for mode, sides in taken.items():
        ratios = [one / off for one, off in zip(sides, taken[OFF], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        each = statistics.median(sides) / arguments.tasks * 1e6
        added = each - statistics.median(taken[OFF]) / arguments.tasks * 1e6
        print(f"{mode:<20}{each:>9.1f}{added:>8.1f}{middle:>8.3f}{low:>9.3f} – {high:.3f}")


if __name__ == "__main__":
    main()
