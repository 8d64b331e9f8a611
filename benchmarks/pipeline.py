"""What a span costs from its making to the bytes of a request: OpenTelemetry's SDK against our pipeline.

Both make the same spans from the same values: for each task one span with twelve attributes, seven of them
floats, and below it two activity spans with three attributes in common and two of their own. CPU is of all
threads of the process (`time.process_time`), from the first span's making until the last request is built.
Spans come in bursts of about a thousand, and a burst is seen out before the next one, as in a process that
makes a few thousand a second: neither way has a queue that grows. The ways take turns in one process; a row
is the median over the rounds.

SDK: ``start_span`` with all attributes at once (its fastest way), or with those that are known then and
``set_attribute`` for each of the others, as instrumentations do; ``BatchSpanProcessor`` as it comes, the OTLP
exporter's own encoder, serialised and thrown away. Its exporter does not compress by default; with gzip it
takes level 9.

Ours: records made and emitted, the pipeline's thread, our encoder, serialised and thrown away; with gzip,
which is our default, at level 1. "Ours" makes a `Span` with a tuple of pairs for each span, "shapes" a tuple
of values for a `Shape`.

Run: ``python benchmarks/pipeline.py [rounds] [tasks]``.
"""

from __future__ import annotations

import gc
import gzip
import io
import random
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from statistics import quantiles
from typing import Any, NamedTuple

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import SpanKind, set_span_in_context

from dask_otel.export import http
from dask_otel.export.outcome import DELIVERED, Outcome
from dask_otel.export.pipeline import Pipeline
from dask_otel.export.shape import Shape
from dask_otel.records import CONSUMER, INTERNAL, SAMPLED, Attributes, Scope, Span
from dask_otel.settings import Settings

RESOURCE = (("service.name", "dask-worker"), ("service.instance.id", "Worker-4711"), ("dask.role", "worker"))
SCOPE = ("dask_otel", "0.1.0")
#: Tasks in a burst: 1,020 spans.
BURST = 340


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


def make_tasks(number: int) -> list[Task]:
    """Tasks as a run has them: few prefixes, many keys, times that differ."""
    rng = random.Random(4711)
    return [_task(rng, i) for i in range(number)]


def _task(rng: random.Random, i: int) -> Task:
    prefix = rng.choice(("random_sample", "sum", "sum-aggregate", "getitem", "read-parquet"))
    group = f"{prefix}-{rng.choice('abcd') * 16}"
    start = 1_790_000_000_000_000_000 + i * 1_234_567
    seconds = tuple([rng.expovariate(50) for _ in range(7)])
    size = rng.choice((8_000_000, 8_000_000, rng.randrange(10**7)))
    end = start + rng.randrange(10**8)
    return Task(prefix, f"('{group}', {i}, 3)", group, start, end, seconds, size, 140_001_000 + i % 4)


def bursts(tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
    """The tasks in their order, a burst at a time."""
    for start in range(0, len(tasks), BURST):
        yield tasks[start : start + BURST]


# -- the SDK -------------------------------------------------------------------------------------------------


class Discard(SpanExporter):
    """Encodes as the SDK's OTLP exporter does and sends nothing."""

    def __init__(self, zipped: bool, keep: list[bytes] | None) -> None:
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
    """Ids that are the same in both ways, for the comparison."""

    def __init__(self) -> None:
        self._ids = count(1)

    def generate_span_id(self) -> int:
        return next(self._ids)

    def generate_trace_id(self) -> int:
        return next(self._ids)


class Sdk:
    """Every task's spans through the SDK."""

    def __init__(self, zipped: bool, at_start: bool = True, keep: list[bytes] | None = None) -> None:
        ids = Counting() if keep is not None else None
        self._provider = TracerProvider(
            resource=Resource(dict(RESOURCE)), id_generator=ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(Discard(zipped, keep)))
        self._tracer = self._provider.get_tracer(*SCOPE)
        self._at_start = at_start

    def run(self, tasks: Sequence[Task]) -> None:
        for burst in bursts(tasks):
            for task in burst:
                self._task(task)
            self._provider.force_flush()

    def close(self) -> None:
        self._provider.shutdown()

    def _task(self, task: Task) -> None:
        common = {"dask.operation": "task", "dask.task.prefix": task.prefix}
        own = {
            "dask.task.key": task.key,
            "dask.task.group": task.group,
            "thread.id": task.thread,
            "dask.task.wait.dependencies": task.seconds[4],
            "dask.task.wait.slot": task.seconds[5],
            "dask.task.seceded_time": task.seconds[6],
            "dask.task.activity.compute.seconds": task.seconds[0],
            "dask.task.activity.deserialize.seconds": task.seconds[1],
            "dask.task.activity.other.seconds": task.seconds[2],
            "dask.task.activity.serialize.seconds": task.seconds[3],
        }
        span = self._start(task.prefix, None, SpanKind.CONSUMER, task.start, common, own)
        context = set_span_in_context(span)
        for name, seconds in (("deserialize", task.seconds[0]), ("compute", task.seconds[1])):
            common = {
                "dask.operation": "activity",
                "dask.task.prefix": task.prefix,
                "dask.activity.name": name,
            }
            own = {"dask.activity.thread_cpu_time": seconds, "dask.activity.size": task.size}
            self._start(name, context, SpanKind.INTERNAL, task.start, common, own).end(task.end)
        span.end(task.end)

    def _start(self, name: str, context: Any, kind: SpanKind, start: int, common: Any, own: Any) -> Any:
        if self._at_start:
            return self._tracer.start_span(name, context, kind, common | own, start_time=start)
        span = self._tracer.start_span(name, context, kind, common, start_time=start)
        for key, value in own.items():
            span.set_attribute(key, value)
        return span


# -- ours ----------------------------------------------------------------------------------------------------


class Nowhere:
    """A sender that compresses and throws away."""

    def __init__(self, zipped: bool, keep: list[bytes] | None) -> None:
        self._zipped = zipped
        self._keep = keep

    def send(self, body: bytes, spans: int) -> Outcome:
        if self._zipped:
            http.compress(body, "gzip")
        if self._keep is not None:
            self._keep.append(body)
        return Outcome(DELIVERED)

    def close(self) -> None:
        pass


class Ours:
    """Every task's spans through our pipeline."""

    def __init__(self, zipped: bool, keep: list[bytes] | None = None) -> None:
        self._pipeline = Pipeline(Settings(exporters=("otlp",)))
        self._pipeline._sinks[0]._sender = Nowhere(zipped, keep)  # type: ignore[attr-defined]
        self._emit = self._pipeline.emitter(RESOURCE, Scope(*SCOPE)).emit
        self._commons: dict[tuple[str, str], Attributes] = {}
        self._id = Counting().generate_span_id if keep is not None else lambda: random.getrandbits(64)

    def run(self, tasks: Sequence[Task]) -> None:
        before = self._pipeline.counts.exported
        for burst in bursts(tasks):
            for task in burst:
                self._task(task)
            self._pipeline.flush(60.0)
        assert self._pipeline.counts.exported - before == 3 * len(tasks), self._pipeline.counts

    def close(self) -> None:
        self._pipeline.close()

    def _task(self, task: Task) -> None:
        prefix, start, end, seconds = task.prefix, task.start, task.end, task.seconds
        trace_id, span_id = self._id().to_bytes(16, "big"), self._id().to_bytes(8, "big")
        for name, cpu in (("deserialize", seconds[0]), ("compute", seconds[1])):
            common = self._common(prefix, name)
            own = (("dask.activity.thread_cpu_time", cpu), ("dask.activity.size", task.size))
            own_id = self._id().to_bytes(8, "big")
            self._emit(Span(name, INTERNAL, trace_id, own_id, span_id, SAMPLED, "", start, end, common, own))
        common = self._common(prefix, "")
        its = (
            ("dask.task.key", task.key),
            ("dask.task.group", task.group),
            ("thread.id", task.thread),
            ("dask.task.wait.dependencies", seconds[4]),
            ("dask.task.wait.slot", seconds[5]),
            ("dask.task.seceded_time", seconds[6]),
            ("dask.task.activity.compute.seconds", seconds[0]),
            ("dask.task.activity.deserialize.seconds", seconds[1]),
            ("dask.task.activity.other.seconds", seconds[2]),
            ("dask.task.activity.serialize.seconds", seconds[3]),
        )
        self._emit(Span(prefix, CONSUMER, trace_id, span_id, b"", SAMPLED, "", start, end, common, its))

    def _common(self, prefix: str, activity: str) -> Attributes:
        common = self._commons.get((prefix, activity))
        if common is None:
            common = (("dask.operation", "activity" if activity else "task"), ("dask.task.prefix", prefix))
            if activity:
                common += (("dask.activity.name", activity),)
            self._commons[prefix, activity] = common
        return common


class Shaped(Ours):
    """Every task's spans through our pipeline, as tuples of shapes."""

    def __init__(self, zipped: bool, keep: list[bytes] | None = None) -> None:
        super().__init__(zipped, keep)
        self._shapes: dict[tuple[str, str], Shape] = {}

    def _task(self, task: Task) -> None:
        prefix, start, end, seconds = task.prefix, task.start, task.end, task.seconds
        trace_id, span_id = self._id().to_bytes(16, "big"), self._id().to_bytes(8, "big")
        for name, cpu in (("deserialize", seconds[0]), ("compute", seconds[1])):
            shape = self._shapes.get((prefix, name)) or self._shape(prefix, name)
            own_id = self._id().to_bytes(8, "big")
            self._emit((shape, trace_id, own_id, span_id, SAMPLED, start, end, cpu, task.size))
        shape = self._shapes.get((prefix, "")) or self._shape(prefix, "")
        known = (shape, trace_id, span_id, b"", SAMPLED, start, end, task.key, task.group, task.thread)
        self._emit((*known, *seconds[4:], *seconds[:4]))

    def _shape(self, prefix: str, activity: str) -> Shape:
        common = self._common(prefix, activity)
        made = (
            Shape(activity, INTERNAL, common, ACTIVITY) if activity else Shape(prefix, CONSUMER, common, TASK)
        )
        self._shapes[prefix, activity] = made
        return made


ACTIVITY = (("dask.activity.thread_cpu_time", float), ("dask.activity.size", int))
TASK = (
    ("dask.task.key", str),
    ("dask.task.group", str),
    ("thread.id", int),
    ("dask.task.wait.dependencies", float),
    ("dask.task.wait.slot", float),
    ("dask.task.seceded_time", float),
    ("dask.task.activity.compute.seconds", float),
    ("dask.task.activity.deserialize.seconds", float),
    ("dask.task.activity.other.seconds", float),
    ("dask.task.activity.serialize.seconds", float),
)


# -- both ----------------------------------------------------------------------------------------------------


def decoded(bodies: Sequence[bytes]) -> Iterator[Any]:
    """Resource, scope and span of each span in requests, as protobuf reads them.

    Left out is what the SDK's encoder is known to do otherwise (it omits the trace flags, and writes a status
    where there is none) and the order of attributes, which has no meaning.
    """
    for body in bodies:
        for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    span.ClearField("flags")
                    span.ClearField("status")
                    pairs = sorted(span.attributes, key=lambda pair: str(pair.key))
                    del span.attributes[:]
                    span.attributes.extend(pairs)
                    yield resource_spans.resource, scope_spans.scope, span


def same(tasks: Sequence[Task]) -> bool:
    """Whether all ways' requests decode to the same spans."""
    bodies: list[list[bytes]] = [[], [], []]
    ways = (Sdk(False, keep=bodies[0]), Ours(False, keep=bodies[1]), Shaped(False, keep=bodies[2]))
    for way in ways:
        way.run(tasks)
        way.close()
    theirs, ours, shaped = (list(decoded(kept)) for kept in bodies)
    return len(theirs) == 3 * len(tasks) and theirs == ours == shaped


def microseconds(way: Sdk | Ours, tasks: Sequence[Task]) -> float:
    """CPU of all threads for a span."""
    gc.collect()
    before = time.process_time()
    way.run(tasks)
    return (time.process_time() - before) / (3 * len(tasks)) * 1e6


def main(rounds: int = 31, number: int = 3_400) -> None:
    tasks = make_tasks(number)
    print("The same spans when decoded:", "yes" if same(tasks[:1_000]) else "NO")
    gc.freeze()
    ways: dict[str, Sdk | Ours] = {
        "SDK, at start": Sdk(False),
        "SDK, one by one": Sdk(False, at_start=False),
        "SDK, at start, gzip": Sdk(True),
        "SDK, one by one, gzip": Sdk(True, at_start=False),
        "ours": Ours(False),
        "ours, gzip": Ours(True),
        "shapes": Shaped(False),
        "shapes, gzip": Shaped(True),
    }
    for way in ways.values():
        way.run(tasks)
    took = [{name: microseconds(way, tasks) for name, way in ways.items()} for _ in range(rounds)]
    for way in ways.values():
        way.close()
    show(took, spans=3 * number)


def show(took: Sequence[dict[str, float]], spans: int) -> None:
    """Print what the rounds took."""
    print(f"\nCPU per span (µs): median of {len(took)} rounds of {spans} spans, and quartiles\n")
    for name in took[0]:
        low, middle, high = quantiles([one[name] for one in took], n=4)
        print(f"  {name:<24}{middle:7.2f}  ({low:.2f} to {high:.2f})")
    print("\nSDK's over ours: median of the rounds' ratios, and quartiles\n")
    for theirs, ours in PAIRS:
        low, middle, high = quantiles([one[theirs] / one[ours] for one in took], n=4)
        print(f"  {theirs + ' / ' + ours:<40}{middle:5.1f}  ({low:.1f} to {high:.1f})")


#: Like with like, and ours as it comes with the SDK's as it comes.
PAIRS = (
    ("SDK, at start", "ours"),
    ("SDK, at start", "shapes"),
    ("SDK, one by one", "ours"),
    ("SDK, one by one", "shapes"),
    ("SDK, at start, gzip", "ours, gzip"),
    ("SDK, at start, gzip", "shapes, gzip"),
    ("SDK, one by one, gzip", "ours, gzip"),
    ("SDK, one by one, gzip", "shapes, gzip"),
    ("SDK, at start", "ours, gzip"),
    ("SDK, at start", "shapes, gzip"),
)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
