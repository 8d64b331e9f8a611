"""What it costs a scheduler to know what its event loop does, and how much of the loop's time it can name.

One scheduler in a process of its own, kept busy by small tasks. Its bookkeeping (the time of each message handler, and
samples of what the loop does besides) is turned on and off from round to round, in another order each time; what is
counted is the CPU time of its process per task. A connection is timed where it came while the bookkeeping was on: so there
are two sets of workers and clients, each with the rounds that are its own. ``--null`` turns nothing on: what it shows is noise.

On a machine with anything else to do that noise is larger than what is to be found. So the same is told by counting, too: how
often each part of the bookkeeping is called for a task, times what one call takes, at best, in a loop that does nothing else.

    python benchmarks/handlers.py --tasks 2000 --rounds 15
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from distributed import Client, wait
from tornado.ioloop import IOLoop

from dask_otel.guard import Guard
from dask_otel.instruments import REST
from dask_otel.loop_parts import Pace
from dask_otel.names import LOOP_OTHER
from dask_otel.seam.handlers import HandlerSeam
from dask_otel.seam.loop_parts import LoopPartsSeam

OFF, HANDLERS, ALL = "off", "handlers", "handlers, samples"


class Counts(NamedTuple):
    """Looks at the clock and at what is `other`, messages and how many times some were read, rounds of the loop and how many of
    them waited, calls of `_transitions`, CPU seconds of the process."""

    clocks: int
    others: int
    messages: int
    reads: int
    rounds: int
    waits: int
    transitions: int
    cpu: float


class Bookkeeping:
    """Of the scheduler in whose process it is; counts how often it looks at its clock, and at what is `other`."""

    def __init__(self, scheduler: Any) -> None:
        self.clocks = self.others = self.messages = self.reads = self.rounds = self.waits = (
            self.transitions
        ) = 0
        guard = Guard("scheduler")
        self.handlers = HandlerSeam(scheduler, guard, self.clock)
        self.parts = LoopPartsSeam(scheduler, guard, self.other)
        self.mode = OFF
        self.began = 0.0
        self._each = self.handlers._reading._each
        self.handlers._reading._each = self.each

    def each(self, messages: Any) -> Any:
        self.reads += 1
        self.messages += messages.__length_hint__()
        return self._each(messages)

    def clock(self) -> float:
        self.clocks += 1
        return time.perf_counter()

    def other(self) -> float:
        self.others += 1
        return self.handlers.total(LOOP_OTHER, time.perf_counter())

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

    def counts(self) -> Counts:
        counted = (self.clocks, self.others, self.messages, self.reads, self.rounds, self.waits)
        return Counts(*counted, self.transitions, time.process_time())

    def count_rest(self, scheduler: Any) -> None:
        """From now on, the loop's rounds and the calls of `_transitions` too."""
        selector, transitions = scheduler.loop.asyncio_loop._selector, scheduler._transitions
        select = selector.select

        def counted_select(timeout: float | None = None) -> Any:
            self.rounds += 1
            self.waits += timeout != 0
            return select(timeout)

        def counted_transitions(*args: Any) -> Any:
            self.transitions += 1
            return transitions(*args)

        selector.select, scheduler._transitions = counted_select, counted_transitions


def dask_setup(scheduler: Any) -> None:
    """As a preload of the scheduler."""
    scheduler.bookkeeping = Bookkeeping(scheduler)
    scheduler.bookkeeping.count_rest(scheduler)
    scheduler.bookkeeping.turn(ALL)


def turn(mode: str, dask_scheduler: Any) -> None:
    dask_scheduler.bookkeeping.turn(mode)


def cpu(dask_scheduler: Any) -> float:
    """Seconds of the scheduler's process."""
    return time.process_time()


def counts(dask_scheduler: Any) -> Any:
    return dask_scheduler.bookkeeping.counts()


def shares(dask_scheduler: Any) -> Any:
    return dask_scheduler.bookkeeping.shares()


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-m", "dask", *command], stderr=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.kill()  # A worker would wait for the scheduler to come back.
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
            before = Counts(*timed.client.run_on_scheduler(counts))
            timed.run(arguments.busy)
            after = Counts(*timed.client.run_on_scheduler(counts))
            report_shares(*timed.client.run_on_scheduler(shares), arguments.busy)
            report_prices(Counts(*[b - a for a, b in zip(before, after, strict=True)]), arguments.busy)
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


def report_prices(counted: Counts, tasks: int) -> None:
    prices = asyncio.run(measure_prices())
    # A message and the end of a read look at the clock once, all others twice: a handler that replies, a wait.
    calls = (counted.clocks - counted.messages - counted.reads) / 2 - counted.waits
    parts = (
        ("a message of a stream", counted.messages, prices["message"]),
        ("a read of some", counted.reads, prices["read"]),
        ("a handler that replies", calls, prices["handler"]),
        ("the selector", counted.rounds, prices["select"]),
        ("a round that is not looked at", counted.rounds, prices["round"]),
        ("a callback that is looked at", counted.others / 2, prices["look"]),
        ("_transitions", counted.transitions, prices["transitions"]),
    )
    each = counted.cpu / tasks
    print(f"{'by counting':<34}{'a task':>8}{'µs each':>9}{'µs/task':>9}{'of the CPU':>12}")
    whole = 0.0
    for name, n, price in parts:
        whole += n * price / tasks
        print(
            f"  {name:<32}{n / tasks:>8.2f}{price * 1e6:>9.2f}{n * price / tasks * 1e6:>9.2f}{n * price / tasks / each:>12.4f}"
        )
    print(f"  {'all of it':<32}{'':>17}{whole * 1e6:>9.2f}{whole / each:>12.4f}\n")


class Connection:
    """What it gives is there at once."""

    messages: list[dict[str, str]]

    async def read(self) -> list[dict[str, str]]:
        return self.messages


async def measure_prices() -> dict[str, float]:
    """Seconds that one call of each part adds, at best."""
    server = SimpleNamespace(
        loop=IOLoop.current(),
        # As many operations as a scheduler's loop has.
        handlers={f"op-{number}": lambda key=None: None for number in range(30)},
        stream_handlers={"op": lambda key=None: None},
        handle_stream=lambda comm: None,
        stream_comms={"worker": SimpleNamespace(comm=Connection(), closed=lambda: False)},
        _transitions=lambda *args: None,
    )
    handlers = HandlerSeam(server, Guard("benchmark"), time.perf_counter)
    others = 0

    def other() -> float:
        nonlocal others
        others += 1
        return handlers.total(LOOP_OTHER, time.perf_counter())

    def calls(function: Any, *args: Any, **kwargs: Any) -> float:
        start = time.process_time()
        for _ in range(20_000):
            function(*args, **kwargs)
        return (time.process_time() - start) / 20_000

    async def rounds() -> float:
        start = time.process_time()
        for _ in range(5_000):
            await asyncio.sleep(0)
        return (time.process_time() - start) / 5_000

    async def added(seam: Any, look: Any) -> float:
        """The best of several without, the best with; in turns."""
        without, with_ = [], []
        for _ in range(9):
            without.append(await look())
            seam.install()
            with_.append(await look())
            seam.uninstall()
        return min(with_) - min(without)

    async def handler() -> float:
        return calls(server.handlers["op-0"], key="x")

    def reads(messages: int) -> Callable[[], Awaitable[float]]:
        comm = server.stream_comms["worker"].comm

        async def look() -> float:
            comm.messages = [{"op": "op"}] * messages
            start = time.process_time()
            for _ in range(5_000):
                for _message in await comm.read():
                    pass
            return (time.process_time() - start) / 5_000

        return look

    async def transitions() -> float:
        return calls(server._transitions, {}, {}, {}, "x")

    class Never(Pace):
        def pause(self, now: float, dice: float, callbacks: int = 0) -> int:
            return 1 << 40

    class Always(Pace):
        def pause(self, now: float, dice: float, callbacks: int = 0) -> int:
            return 0

    def parts(pace: type[Pace]) -> LoopPartsSeam:
        return LoopPartsSeam(server, Guard("benchmark"), other, pace=pace)

    one, eleven = await added(handlers, reads(1)), await added(handlers, reads(11))
    message = (eleven - one) / 10
    prices = {
        "message": message,
        "read": one - message,
        "handler": await added(handlers, handler),
        "select": await added(handlers, rounds),
        "round": await added(parts(Never), rounds),
        "transitions": await added(parts(Never), transitions),
    }
    handlers.install()
    for timed in server.handlers.values():
        timed()
    others = 0
    looked = await added(parts(Always), rounds)
    # In each of these rounds one callback: as often is `other` asked for, half of it a callback.
    prices["look"] = (looked - prices["round"]) / (others / (9 * 5_000) / 2)
    handlers.uninstall()
    return prices


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
    print(
        f"{'scheduler CPU':<20}{'µs/task':>9}{'added':>8}{'ratio':>8}{'quartiles':>18}{'fastest quarter, µs/task':>27}"
        f"{'ratio':>8}"
    )
    for mode, sides in taken.items():
        ratios = [one / off for one, off in zip(sides, taken[OFF], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        each = statistics.median(sides) / arguments.tasks * 1e6
        added = each - statistics.median(taken[OFF]) / arguments.tasks * 1e6
        fastest = undisturbed(sides)
        print(
            f"{mode:<20}{each:>9.1f}{added:>8.1f}{middle:>8.3f}{low:>9.3f} – {high:.3f}"
            f"{fastest / arguments.tasks * 1e6:>27.1f}{fastest / undisturbed(taken[OFF]):>8.3f}"
        )


def undisturbed(sides: list[float]) -> float:
    """The mean of the fastest quarter: whatever else runs on the machine makes a round slower, never faster."""
    fastest = sorted(sides)[: max(1, len(sides) // 4)]
    return statistics.mean(fastest)


if __name__ == "__main__":
    main()
