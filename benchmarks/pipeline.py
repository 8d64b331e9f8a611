"""What a span costs from its making to the bytes of a request: OpenTelemetry's SDK against our pipeline.

Both make the same spans from the same values: for each task one span with twelve attributes, seven of them floats,
and below it two activity spans with three attributes in common and two of their own. CPU is of all threads of the
process (`time.process_time`), from the first span's making until the last request is built. The two take turns in
one process; a row is the median over the rounds, its spread the quartiles.

SDK: ``start_span`` with all attributes at once (its fastest way), ``end``, ``BatchSpanProcessor`` as it comes but
with a queue that drops nothing, the OTLP exporter's own encoder, serialised and thrown away; without compression as
its exporter is by default, and with gzip as it does it (level 9).
Ours: records made and emitted, the pipeline's thread, our encoder, gzip level 1 as is our default; thrown away.

Run: ``python benchmarks/pipeline.py [rounds] [tasks]``.
"""

from __future__ import annotations

import gzip
import io
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median, quantiles
from typing import Any, NamedTuple

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import SpanKind, set_span_in_context

from dask_otel.export import http, sinks
from dask_otel.export.outcome import DELIVERED, Outcome
from dask_otel.export.pipeline import Pipeline
from dask_otel.records import CONSUMER, INTERNAL, SAMPLED, Scope, Span
from dask_otel.settings import Queue, Settings

RESOURCE = (("service.name", "dask-worker"), ("service.instance.id", "Worker-4711"), ("dask.role", "worker"))
SCOPE = ("dask_otel", "0.1.0")
ADDRESS, WORKER = "tcp://10.0.0.17:40231", "worker-17"
AMOUNTS = tuple(f"dask.task.activity.{label}.seconds" for label in ("compute", "deserialize", "other", "serialize"))


class Task(NamedTuple):
    """What a finished task is told by; times in ns."""

    prefix: str
    key: str
    group: str
    start: int
    end: int
    seconds: tuple[float, ...]
    size: int
    thread: int


def tasks(number: int) -> list[Task]:
    """Tasks as a run has them: few prefixes, many keys, times that differ."""
    rng = random.Random(4711)
    made = []
    for i in range(number):
        prefix = rng.choice(("random_sample", "sum", "sum-aggregate", "getitem", "read-parquet"))
        group = f"{prefix}-{rng.choice('abcd') * 16}"
        start = 1_790_000_000_000_000_000 + i * 1_234_567
        seconds = tuple(rng.expovariate(50) for _ in range(7))
        size = rng.choice((8_000_000, 8_000_000, rng.randrange(10**7)))
        end = start + rng.randrange(10**8)
        made.append(Task(prefix, f"('{group}', {i}, 3)", group, start, end, seconds, size, 140_001_000 + i % 4))
    return made


# -- the SDK ----------------------------------------------------------------------------------------------------


class Discard(SpanExporter):
    """Encodes as the SDK's OTLP exporter does and sends nothing."""

    def __init__(self, zipped: bool, keep: list[bytes] | None = None) -> None:
        self._zipped = zipped
        self._keep = keep

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        body = encode_spans(spans).SerializePartialToString()
        if self._zipped:
            with gzip.GzipFile(fileobj=io.BytesIO(), mode="w") as file:
                file.write(body)
        if self._keep is not None:
            self._keep.append(body)
        return SpanExportResult.SUCCESS


class Counting(IdGenerator):
    """Ids that can be told beforehand, for the comparison."""

    def __init__(self) -> None:
        self._last = 0

    def generate_span_id(self) -> int:
        self._last += 1
        return self._last

    def generate_trace_id(self) -> int:
        return self.generate_span_id()


def with_sdk(run: Sequence[Task], zipped: bool = False, keep: list[bytes] | None = None) -> None:
    """Every task's spans through the SDK."""
    provider = TracerProvider(
        resource=Resource(dict(RESOURCE)),
        span_limits=SpanLimits(),
        id_generator=Counting() if keep is not None else None,
        shutdown_on_exit=False,
    )
    processor = BatchSpanProcessor(Discard(zipped, keep), max_queue_size=10 * len(run))
    provider.add_span_processor(processor)
    tracer = provider.get_tracer(*SCOPE)
    for task in run:
        attributes: dict[str, Any] = {
            "dask.operation": "task",
            "dask.task.prefix": task.prefix,
            "dask.task.key": task.key,
            "dask.task.group": task.group,
            "thread.id": task.thread,
            "dask.task.wait.dependencies": task.seconds[4],
            "dask.task.wait.slot": task.seconds[5],
            "dask.task.seceded_time": task.seconds[6],
        }
        attributes.update(zip(AMOUNTS, task.seconds[:4], strict=True))
        span = tracer.start_span(
            task.prefix, kind=SpanKind.CONSUMER, attributes=attributes, start_time=task.start
        )
        context = set_span_in_context(span)
        for name, seconds in (("deserialize", task.seconds[0]), ("compute", task.seconds[1])):
            activity = tracer.start_span(
                name,
                context,
                attributes={
                    "dask.operation": "activity",
                    "dask.task.prefix": task.prefix,
                    "dask.activity.name": name,
                    "dask.activity.thread_cpu_time": seconds,
                    "dask.activity.size": task.size,
                },
                start_time=task.start,
            )
            activity.end(task.end)
        span.end(task.end)
    provider.shutdown()


# -- ours -------------------------------------------------------------------------------------------------------


class Nowhere:
    """A sender that compresses and throws away."""

    def __init__(self, zipped: bool, keep: list[bytes] | None = None) -> None:
        self._zipped = zipped
        self._keep = keep

    def send(self, body: bytes, spans: int) -> Outcome:
        if self._zipped:
            http._compress(body, 31)
        if self._keep is not None:
            self._keep.append(body)
        return Outcome(DELIVERED)

    def close(self) -> None:
        pass


def with_ours(run: Sequence[Task], zipped: bool = True, keep: list[bytes] | None = None) -> None:
    """Every task's spans through our pipeline."""
    sinks.make_sender = lambda otlp: Nowhere(zipped, keep)
    pipeline = Pipeline(Settings(exporters=("otlp",), queue=Queue(size=10 * len(run))))
    emit = pipeline.emitter(RESOURCE, Scope(*SCOPE)).emit
    bits = iter(range(1, sys.maxsize)).__next__ if keep is not None else lambda: random.getrandbits(64)
    commons: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {}
    for task in run:
        span_id, trace_id = bits().to_bytes(8, "big"), bits().to_bytes(16, "big")
        common = commons.get((task.prefix, "")) or commons.setdefault(
            (task.prefix, ""), (("dask.operation", "task"), ("dask.task.prefix", task.prefix))
        )
        for name, seconds in (("deserialize", task.seconds[0]), ("compute", task.seconds[1])):
            shared = commons.get((task.prefix, name)) or commons.setdefault(
                (task.prefix, name),
                (
                    ("dask.operation", "activity"),
                    ("dask.task.prefix", task.prefix),
                    ("dask.activity.name", name),
                ),
            )
            own = (("dask.activity.thread_cpu_time", seconds), ("dask.activity.size", task.size))
            emit(
                Span(
                    name,
                    INTERNAL,
                    trace_id,
                    bits().to_bytes(8, "big"),
                    span_id,
                    SAMPLED,
                    "",
                    task.start,
                    task.end,
                    shared,
                    own,
                )
            )
        attributes = (
            ("dask.task.key", task.key),
            ("dask.task.group", task.group),
            ("thread.id", task.thread),
            ("dask.task.wait.dependencies", task.seconds[4]),
            ("dask.task.wait.slot", task.seconds[5]),
            ("dask.task.seceded_time", task.seconds[6]),
            (AMOUNTS[0], task.seconds[0]),
            (AMOUNTS[1], task.seconds[1]),
            (AMOUNTS[2], task.seconds[2]),
            (AMOUNTS[3], task.seconds[3]),
        )
        emit(
            Span(
                task.prefix,
                CONSUMER,
                trace_id,
                span_id,
                b"",
                SAMPLED,
                "",
                task.start,
                task.end,
                common,
                attributes,
            )
        )
    pipeline.close(timeout=60.0)
    assert pipeline.counts.exported == 3 * len(run), pipeline.counts


# -- both -------------------------------------------------------------------------------------------------------


def decoded(bodies: Sequence[bytes]) -> Iterator[Any]:
    """Resource, scope and span of each span in requests, as protobuf reads them, but for the listed deviations."""
    for body in bodies:
        for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    span.ClearField("flags")  # The SDK leaves out the trace flags.
                    span.ClearField("status")  # The SDK writes an empty message where there is no status.
                    pairs = sorted(span.attributes, key=lambda pair: pair.key)
                    del span.attributes[:]
                    span.attributes.extend(pairs)
                    yield resource_spans.resource, scope_spans.scope, span


def same(run: Sequence[Task]) -> bool:
    """Whether both ways' requests decode to the same spans."""
    theirs: list[bytes] = []
    ours: list[bytes] = []
    with_sdk(run, keep=theirs)
    with_ours(run, keep=ours)
    return list(decoded(theirs)) == list(decoded(ours))


def microseconds(way: Callable[[], None], spans: int) -> float:
    """CPU of all threads for a span."""
    before = time.process_time()
    way()
    return (time.process_time() - before) / spans * 1e6


def main(rounds: int = 15, number: int = 4_000) -> None:
    run = tasks(number)
    print("The same spans when decoded:", same(run[:500]))
    ways: dict[str, Callable[[], None]] = {
        "SDK, no compression": lambda: with_sdk(run),
        "SDK, gzip 9": lambda: with_sdk(run, zipped=True),
        "ours, no compression": lambda: with_ours(run, zipped=False),
        "ours, gzip 1": lambda: with_ours(run),
    }
    for way in ways.values():
        way()
    took = [{name: microseconds(way, 3 * number) for name, way in ways.items()} for _ in range(rounds)]
    print(f"\nCPU per span (µs), {rounds} rounds of {3 * number} spans\n")
    for name in ways:
        low, middle, high = quantiles([one[name] for one in took], n=4)
        print(f"  {name:<22}{middle:8.2f}   ({low:.2f} to {high:.2f})")
    print("\nSDK's CPU over ours, round by round\n")
    for theirs, ours in (
        ("SDK, no compression", "ours, gzip 1"),
        ("SDK, no compression", "ours, no compression"),
        ("SDK, gzip 9", "ours, gzip 1"),
    ):
        ratios = [one[theirs] / one[ours] for one in took]
        print(f"  {theirs} / {ours:<22}{median(ratios):6.1f}   ({min(ratios):.1f} to {max(ratios):.1f})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
