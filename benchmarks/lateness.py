"""How late an event loop is while spans are recorded on it: by nobody, by our pipeline, by OpenTelemetry's SDK.

A loop as a worker's is called as often as attempts end that give 5,000 spans a second, of four spans each. What it does then is nothing
(*idle*), to hand the attempt to our pipeline, or to start and end its spans by the SDK with ``BatchSpanProcessor``. Both export as they come to a
receiver in another process, over OTLP/HTTP: ours with gzip, the SDK's without. Meanwhile timers at random moments, 200 a second, note how late they are
called (ms). The ways take turns; what one has left is sent before the next begins. Medians over the rounds of each round's
quantile, with the quartiles.

The loop's selector is `select`, whose timeouts are exact: that of `epoll` would add up to 1 ms.

    python benchmarks/lateness.py --rounds 9 --seconds 3
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import random
import selectors
from collections.abc import Callable, Sequence
from statistics import mean, quantiles
from typing import Any

import pipeline
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from overhead import SINK, process
from pipeline import SPANS, Task, make_tasks

from dask_otel.attempts import Attempt
from dask_otel.export.pipeline import Pipeline
from dask_otel.records import Scope
from dask_otel.settings import Otlp, Settings

PERCENTILES = (50, 90, 99)
#: Timers a second that note how late they are.
PROBES = 200


class Idle:
    """Records nothing."""

    exported = 0

    def record(self, task: Task) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class Ours:
    """Hands attempts to our pipeline."""

    def __init__(self, url: str) -> None:
        self._pipeline = Pipeline(Settings(exporters=("otlp",), otlp=Otlp(endpoint=f"{url}/v1/traces")))
        self._emit = self._pipeline.emitter(pipeline.RESOURCE, Scope(*pipeline.SCOPE)).emit

    def record(self, task: Task) -> None:
        self._emit(Attempt(*task.attempt))

    @property
    def exported(self) -> int:
        return self._pipeline.counts.exported

    def flush(self) -> None:
        self._pipeline.flush(30.0)

    def close(self) -> None:
        self._pipeline.close()


class Counting(OTLPSpanExporter):
    """Counts what was sent."""

    exported = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        self.exported += len(spans) if result is SpanExportResult.SUCCESS else 0
        return result


class Sdk(pipeline.Sdk):
    """Starts and ends spans by the SDK."""

    def __init__(self, url: str) -> None:
        super().__init__(False)
        self._provider.shutdown()
        self._provider = TracerProvider(resource=Resource(dict(pipeline.RESOURCE)), shutdown_on_exit=False)
        self._exporter = Counting(endpoint=f"{url}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer(*pipeline.SCOPE)

    def record(self, task: Task) -> None:
        self._task(task)

    @property
    def exported(self) -> int:
        return self._exporter.exported

    def flush(self) -> None:
        self._provider.force_flush()


async def lateness(record: Callable[[Task], None], tasks: Sequence[Task], rate: float, seconds: float) -> Any:
    """How late each timer was (s), and how many tasks were recorded."""
    loop = asyncio.get_running_loop()
    start, late, done, dice = loop.time(), [], 0, random.Random(4711)
    end = start + seconds
    each = itertools.cycle(tasks)

    def finish(due: float) -> None:
        nonlocal done
        record(next(each))
        done += 1
        if due < end:
            loop.call_at(due + 1 / rate, finish, due + 1 / rate)

    def probe(due: float) -> None:
        now = loop.time()
        late.append(now - due)
        if now < end:
            after = now + dice.expovariate(PROBES)
            loop.call_at(after, probe, after)

    finish(start)
    probe(start)
    await asyncio.sleep(seconds)
    while loop.time() < end + 0.05:
        await asyncio.sleep(0.01)
    return late[1:], done


def run(record: Callable[[Task], None], tasks: Sequence[Task], rate: float, seconds: float) -> Any:
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    try:
        return loop.run_until_complete(lateness(record, tasks, rate, seconds))
    finally:
        loop.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each way in a round")
    parser.add_argument("--spans", type=float, default=5_000, help="a second")
    arguments = parser.parse_args()
    tasks = make_tasks(2_550)
    gc.freeze()
    with process("-c", SINK) as sink:
        assert sink.stdout is not None
        url = f"http://127.0.0.1:{sink.stdout.readline().strip()}"
        ways: dict[str, Any] = {"idle": Idle(), "ours": Ours(url), "SDK": Sdk(url)}
        rounds = measure(ways, tasks, arguments)
        for way in ways.values():
            way.close()
    report(rounds, ways, arguments)


def measure(
    ways: dict[str, Any], tasks: Sequence[Task], arguments: argparse.Namespace
) -> list[dict[str, tuple[list[float], float]]]:
    """By round and way: the percentiles (s), the part of the spans that was exported."""
    rounds = []
    for number in range(arguments.rounds + 1):
        order = list(ways)
        order = order[number % 3 :] + order[: number % 3]
        taken = {}
        for name in order:
            way = ways[name]
            gc.collect()
            before = way.exported
            seconds = arguments.seconds if number else 0.5
            late, done = run(way.record, tasks, arguments.spans / SPANS, seconds)
            way.flush()
            cut = quantiles(late, n=100)
            taken[name] = (
                [cut[percent - 1] for percent in PERCENTILES],
                (way.exported - before) / (SPANS * done),
            )
        if number:  # The first warms up.
            rounds.append(taken)
            print(".", end="", flush=True)
    print()
    return rounds


def report(
    rounds: list[dict[str, tuple[list[float], float]]], ways: dict[str, Any], arguments: argparse.Namespace
) -> None:
    print(f"{arguments.spans:g} spans/s, {len(rounds)} rounds of {arguments.seconds:g} s each, alternating\n")
    print(
        f"{'late, ms':<12}" + "".join(f"{f'p{percent}':>9}{'quartiles':>18}" for percent in PERCENTILES),
        end="",
    )
    print(f"{'exported':>11}")
    for name in ways:
        print(f"{name:<12}", end="")
        for index in range(len(PERCENTILES)):
            low, middle, high = quantiles([1e3 * taken[name][0][index] for taken in rounds], n=4)
            print(f"{middle:>9.2f}{low:>9.2f} – {high:<6.2f}", end="")
        exported = mean(taken[name][1] for taken in rounds)
        print(f"{exported:>11.3f}" if exported else f"{'':>11}")


if __name__ == "__main__":
    main()
