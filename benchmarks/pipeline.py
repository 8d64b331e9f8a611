"""What a span costs from its making to the bytes of a request: OpenTelemetry's SDK against our pipeline.

All make the same spans from the same values: for each task one span with fifteen attributes and below it three activity
spans. CPU is of all threads of the process (`time.process_time`), from the first span's making until the last request
is built. Spans come in bursts of about a thousand, and a burst is seen out before the next one, as in a process that
makes a few thousand a second: neither way has a queue that grows. The ways take turns in one process; a row is the
median over the rounds.

SDK: ``start_span`` with all attributes at once (its fastest way), or with those that all spans of a kind share and
``set_attribute`` for each of the others, as instrumentations do; ``BatchSpanProcessor`` as it comes, the OTLP exporter's
own encoder, serialised and thrown away. Its exporter does not compress by default; with gzip it takes level 9.

Ours: records made and emitted, the pipeline's thread, our encoder, serialised and thrown away; with gzip, which is our
default, at level 1. "attempts" is what a worker hands in, one `Attempt` for each task; "spans" makes a `Span` for each
of its spans, as servers do for all that is not an attempt.

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
from statistics import quantiles
from typing import Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanKind, set_span_in_context

from dask_otel.attempts import Attempt, origin
from dask_otel.current import span_context
from dask_otel.export import http
from dask_otel.export.outcome import DELIVERED, Outcome
from dask_otel.export.pipeline import Pipeline
from dask_otel.intervals import Amounts
from dask_otel.parents import ACTIVITY, Parent
from dask_otel.records import Scope, Span
from dask_otel.settings import Settings

RESOURCE = (("service.name", "dask-worker"), ("service.instance.id", "Worker-4711"), ("dask.role", "worker"))
SCOPE = ("dask_otel", "0.1.0")
PARENT = Parent(b"\x11" * 16, b"\x22" * 8, b"\x33" * 8, flags=1, detail=ACTIVITY)
#: Spans of a task, and tasks in a burst.
SPANS, BURST = 4, 255


class Task(NamedTuple):
    """The fields of a finished attempt, and the spans that stand for it with their attributes."""

    attempt: tuple[Any, ...]
    spans: list[tuple[Span, dict[str, Any], dict[str, Any]]]


def make_tasks(number: int) -> list[Task]:
    """Tasks as a run has them: few prefixes, many keys, times that differ."""
    rng = random.Random(4711)
    groups = {}
    for prefix in ("random_sample", "sum", "sum-aggregate", "getitem", "read-parquet"):
        for letter in "abcd":
            group = f"{prefix}-{letter * 16}"
            groups[group] = origin(PARENT, prefix, group, "tcp://127.0.0.1:40000", "0")
    return [_task(rng, i, groups) for i in range(number)]


def _task(rng: random.Random, i: int, groups: dict[str, Any]) -> Task:
    group = rng.choice(list(groups))
    before, cpu, noncpu, around, other, dependencies, slot = (rng.expovariate(50) for _ in range(7))
    posts = [
        ("deserialize", before, "seconds"),
        ("thread-cpu", cpu, "seconds"),
        ("thread-noncpu", noncpu, "seconds"),
        ("executor", around, "seconds"),
    ]
    start, end = 1_790_000_000.0 + i * 1.234567e-3, before + cpu + noncpu + around
    attempt = Attempt(
        groups[group],
        f"('{group}', {i}, 3)",
        rng.randbytes(8),
        1,
        b"",
        "",
        start,
        start + end + other,
        "success",
        Amounts.of([*posts, ("other", other, "seconds")]),
        None,
        (before, end - around / 2, end - around / 2, end),
        start,
        cpu + noncpu,
        rng.choice((8_000_000, 8_000_000, rng.randrange(10**7))),
        "ndarray",
        dependencies,
        slot,
        None,
        140_001_000 + i % 4,
        depths=b"\1\2\2\1",
    )
    return Task(
        tuple(attempt), [(span, dict(span.common), dict(span.attributes)) for span in attempt.spans()]
    )


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


class Given(IdGenerator):
    """The spans' own ids, for the comparison."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._ids = (int.from_bytes(span.span_id, "big") for task in tasks for span, _, _ in task.spans)

    def generate_span_id(self) -> int:
        return next(self._ids)

    def generate_trace_id(self) -> int:
        raise AssertionError("every span has a parent")


class Sdk:
    """Every task's spans through the SDK."""

    def __init__(
        self,
        zipped: bool,
        at_start: bool = True,
        keep: list[bytes] | None = None,
        ids: IdGenerator | None = None,
    ) -> None:
        self._provider = TracerProvider(
            resource=Resource(dict(RESOURCE)), id_generator=ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(Discard(zipped, keep)))
        self._tracer = self._provider.get_tracer(*SCOPE)
        self._at_start = at_start
        group = NonRecordingSpan(span_context(PARENT, PARENT.group_id, is_remote=True))
        self._group = set_span_in_context(group, Context())

    def run(self, tasks: Sequence[Task]) -> None:
        for burst in bursts(tasks):
            for task in burst:
                self._task(task)
            self._provider.force_flush()

    def close(self) -> None:
        self._provider.shutdown()

    def _task(self, task: Task) -> None:
        above = {PARENT.group_id: self._group}
        open_ = []
        for span, common, own in task.spans:
            started = self._start(span, above[span.parent_id], common, own)
            above[span.span_id] = set_span_in_context(started, Context())
            open_.append((started, span.end))
        for started, end in open_:
            started.end(end)

    def _start(self, span: Span, context: Context, common: dict[str, Any], own: dict[str, Any]) -> Any:
        kind = KINDS[span.kind]
        if self._at_start:
            return self._tracer.start_span(span.name, context, kind, common | own, start_time=span.start)
        started = self._tracer.start_span(span.name, context, kind, common, start_time=span.start)
        for key, value in own.items():
            started.set_attribute(key, value)
        return started


KINDS = {1: SpanKind.INTERNAL, 5: SpanKind.CONSUMER}


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


class Spans:
    """Every task's spans through our pipeline, one by one."""

    def __init__(self, zipped: bool, keep: list[bytes] | None = None) -> None:
        self._pipeline = Pipeline(Settings(exporters=("otlp",)))
        self._pipeline._sinks[0]._sender = Nowhere(zipped, keep)  # type: ignore[attr-defined]
        self._emit = self._pipeline.emitter(RESOURCE, Scope(*SCOPE)).emit

    def run(self, tasks: Sequence[Task]) -> None:
        before = self._pipeline.counts.exported
        for burst in bursts(tasks):
            for task in burst:
                self._task(task)
            self._pipeline.flush(60.0)
        assert self._pipeline.counts.exported - before == SPANS * len(tasks), self._pipeline.counts

    def close(self) -> None:
        self._pipeline.close()

    def _task(self, task: Task) -> None:
        for span, _, own in task.spans:
            self._emit(Span(*span[:10], tuple([(key, value) for key, value in own.items()])))


class Attempts(Spans):
    """Every task as an attempt through our pipeline."""

    def _task(self, task: Task) -> None:
        self._emit(Attempt(*task.attempt))


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
    sdk = Sdk(False, keep=bodies[0], ids=Given(tasks))
    for way in (sdk, Spans(False, keep=bodies[1]), Attempts(False, keep=bodies[2])):
        way.run(tasks)
        way.close()
    theirs, spans, attempts = (sorted(decoded(kept), key=lambda of: of[2].span_id) for kept in bodies)
    return len(theirs) == SPANS * len(tasks) and theirs == spans == attempts


def microseconds(way: Sdk | Spans, tasks: Sequence[Task]) -> float:
    """CPU of all threads for a span."""
    gc.collect()
    before = time.process_time()
    way.run(tasks)
    return (time.process_time() - before) / (SPANS * len(tasks)) * 1e6


def main(rounds: int = 31, number: int = 2_550) -> None:
    tasks = make_tasks(number)
    print("The same spans when decoded:", "yes" if same(tasks[:1_000]) else "NO")
    gc.freeze()
    ways: dict[str, Sdk | Spans] = {
        "SDK, at start": Sdk(False),
        "SDK, one by one": Sdk(False, at_start=False),
        "SDK, at start, gzip": Sdk(True),
        "SDK, one by one, gzip": Sdk(True, at_start=False),
        "spans": Spans(False),
        "spans, gzip": Spans(True),
        "attempts": Attempts(False),
        "attempts, gzip": Attempts(True),
    }
    for way in ways.values():
        way.run(tasks)
    took = [{name: microseconds(way, tasks) for name, way in ways.items()} for _ in range(rounds)]
    for way in ways.values():
        way.close()
    show(took, spans=SPANS * number)


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
    ("SDK, at start", "spans"),
    ("SDK, at start", "attempts"),
    ("SDK, one by one", "spans"),
    ("SDK, one by one", "attempts"),
    ("SDK, at start, gzip", "spans, gzip"),
    ("SDK, at start, gzip", "attempts, gzip"),
    ("SDK, one by one, gzip", "spans, gzip"),
    ("SDK, one by one, gzip", "attempts, gzip"),
    ("SDK, at start", "attempts, gzip"),
)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
