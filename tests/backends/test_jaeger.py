"""A trace made by hand reaches Jaeger whole, by every way that dask-otel's users send one."""

from __future__ import annotations

import time

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, set_span_in_context

from .jaeger import Span, services, trace, tree, wait_for_trace

SECOND = 1_000_000_000


def http(url: str) -> SpanExporter:
    return HttpExporter(endpoint=f"{url}/v1/traces")


def grpc(url: str) -> SpanExporter:
    return GrpcExporter(endpoint=url, insecure=True)


class HandMade:
    """A shop's request and what a warehouse did for it, at full microseconds, which is what Jaeger keeps."""

    def __init__(self) -> None:
        self.start = time.time_ns() // SECOND * SECOND
        self.sent = InMemorySpanExporter()
        shop, warehouse = self.tracer("shop"), self.tracer("warehouse")
        before = SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=True)

        root = shop.start_span("order", kind=SpanKind.CLIENT, start_time=self.start, links=[Link(before)])
        context = set_span_in_context(root)
        pick = warehouse.start_span("pick", context, kind=SpanKind.SERVER, start_time=self.start + SECOND)
        pick.set_attributes({"shelf": "b", "pieces": 3, "weight": 1.5, "fragile": True})
        pack = warehouse.start_span("pack", context, start_time=self.start + SECOND)
        pack.add_event("tape broke", {"tries": 2}, timestamp=self.start + SECOND)
        pack.set_status(Status(StatusCode.ERROR, "no tape"))
        for span in (pick, pack, root):
            span.end(self.start + 2 * SECOND)
        self.contexts = [span.get_span_context() for span in (root, pack, pick)]

    def tracer(self, service: str):
        provider = TracerProvider(resource=Resource({"service.name": service, "place": "north"}))
        provider.add_span_processor(SimpleSpanProcessor(self.sent))
        return provider.get_tracer("made-by-hand")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.sent.get_finished_spans()

    @property
    def trace_id(self) -> int:
        return self.contexts[0].trace_id

    def expected(self) -> list[Span]:
        trace_id = f"{self.trace_id:032x}"
        root, pack, pick = (f"{context.span_id:016x}" for context in self.contexts)
        common = {"trace_id": trace_id, "resource": {"place": "north"}, "warnings": ()}
        scope = {"otel.scope.name": "made-by-hand"}
        start, second = self.start // 1000, SECOND // 1000
        return [
            Span(
                name="order",
                service="shop",
                span_id=root,
                parent_id=None,
                kind="client",
                status="UNSET",
                start=start,
                duration=2 * second,
                tags=scope,
                events=(),
                links=((f"{0xABC:032x}", f"{0xDEF:016x}"),),
                **common,
            ),
            Span(
                name="pack",
                service="warehouse",
                span_id=pack,
                parent_id=root,
                kind="internal",
                status="ERROR",
                start=start + second,
                duration=second,
                tags={**scope, "otel.status_description": "no tape"},
                events=(("tape broke", {"tries": 2}),),
                links=(),
                **common,
            ),
            Span(
                name="pick",
                service="warehouse",
                span_id=pick,
                parent_id=root,
                kind="server",
                status="UNSET",
                start=start + second,
                duration=second,
                tags={**scope, "shelf": "b", "pieces": 3, "weight": 1.5, "fragile": True},
                events=(),
                links=(),
                **common,
            ),
        ]


@pytest.mark.parametrize(
    ("receiver", "exporter"),
    [("collector_http", http), ("collector_grpc", grpc), ("jaeger_http", http), ("jaeger_grpc", grpc)],
)
def test_a_trace_arrives_whole(receiver, exporter, jaeger_api, request):
    made = HandMade()
    sender = exporter(request.getfixturevalue(receiver))
    try:
        assert sender.export(made.spans) is SpanExportResult.SUCCESS
    finally:
        sender.shutdown()

    spans = wait_for_trace(jaeger_api, made.trace_id, lambda spans: len(spans) >= 3)

    assert spans == made.expected()
    assert tree(spans) == "shop: order\n  warehouse: pack\n  warehouse: pick"
    assert {"shop", "warehouse"} <= set(services(jaeger_api))


def test_a_burst_passes_the_collector_in_requests_that_jaeger_takes(collector_grpc, jaeger_api):
    # 12 MB within the second for which the Collector gathers: more than one gRPC request may hold.
    provider = TracerProvider(resource=Resource({"service.name": "burst"}))
    made = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(made))
    tracer = provider.get_tracer("burst")
    with tracer.start_as_current_span("root") as root:
        for _ in range(5_999):
            tracer.start_span("child", attributes={"text": "x" * 2_000}).end()
    spans = made.get_finished_spans()
    sender = grpc(collector_grpc)
    try:
        for first in range(0, 6_000, 1_000):
            assert sender.export(spans[first : first + 1_000]) is SpanExportResult.SUCCESS
    finally:
        sender.shutdown()

    wait_for_trace(jaeger_api, root.get_span_context().trace_id, lambda spans: len(spans) == 6_000)


def test_an_unknown_trace_is_empty(jaeger_api):
    assert trace(jaeger_api, 0xFFFF) == []


def test_waiting_in_vain_says_what_had_arrived(jaeger_api):
    with pytest.raises(TimeoutError, match="is not as expected after 0 s; Jaeger has:\nnothing"):
        wait_for_trace(jaeger_api, 0xFFFE, bool, timeout=0)


def test_a_tree_shows_orphans_and_what_is_below_a_repeated_id_once():
    spans = [
        a_span("b", parent_id="a", start=2),
        a_span("a"),
        a_span("c", parent_id="b", start=3),
        a_span("b", parent_id="a", start=2),
        a_span("lost", parent_id="nobody", start=4),
    ]

    assert tree(spans).splitlines() == [
        "s: a",
        "  s: b",
        "    s: c",
        "  s: b",
        "s: lost (its parent is missing)",
    ]


def a_span(name: str, parent_id: str | None = None, start: int = 1) -> Span:
    """A span whose id is its name."""
    return Span(
        name=name,
        service="s",
        trace_id="t",
        span_id=name,
        parent_id=parent_id,
        kind="internal",
        status="UNSET",
        start=start,
        duration=1,
        tags={},
        events=(),
        links=(),
        resource={},
        warnings=(),
    )
