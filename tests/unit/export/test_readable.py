"""There and back between our records and the SDK's ReadableSpan."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from dask_otel.export.readable import from_readable, from_scope, to_readable, to_resource, to_scope
from dask_otel.records import (
    ERROR,
    IS_REMOTE,
    IS_REMOTE_KNOWN,
    PRODUCER,
    RANDOM,
    SAMPLED,
    Event,
    Link,
    Scope,
    Span,
)

from . import spans as samples
from .spans import TRACE, span
from .test_encode import sdk_spans

RESOURCE, SCOPE = (("service.name", "demo"), ("n", 1)), Scope("app", "1.0", "https://schema", (("a", True),))


def there(made: Span) -> ReadableSpan:
    return to_readable(made, to_resource(RESOURCE), to_scope(SCOPE))


def canonical(made: Span) -> bytes:
    """A span as bytes, in which not-a-number equals itself."""
    return samples.message(made).SerializeToString(deterministic=True)


@samples.steady
@given(sdk_spans())
def test_a_span_survives_the_way_there_and_back(made: Span) -> None:
    resource, scope, back = from_readable(there(made))
    assert (resource, scope) == (RESOURCE, SCOPE)
    assert canonical(back) == canonical(made)


@samples.steady
@given(sdk_spans())
def test_a_readable_span_survives_the_way_back_and_there(made: Span) -> None:
    first = there(made)
    second = to_readable(from_readable(first)[2], to_resource(RESOURCE), to_scope(SCOPE))
    for name in ("name", "context", "parent", "kind", "start_time", "end_time"):
        assert getattr(first, name) == getattr(second, name), name
    assert (first.status.status_code, first.status.description) == (
        second.status.status_code,
        second.status.description,
    )
    for name in ("dropped_attributes", "dropped_events", "dropped_links"):
        assert getattr(first, name) == getattr(second, name), name
    assert repr(first.attributes) == repr(second.attributes)
    assert [link.context for link in first.links] == [link.context for link in second.links]


@samples.steady
@given(samples.spans())
def test_any_span_becomes_readable(made: Span) -> None:
    logging.disable()
    try:
        assert there(made).name == made.name
    finally:
        logging.disable(logging.NOTSET)


def test_a_span_becomes_readable_with_every_field() -> None:
    made = Span(
        name="inc",
        kind=PRODUCER,
        trace_id=TRACE,
        span_id=b"\x02" * 8,
        parent_id=b"\x03" * 8,
        flags=SAMPLED | RANDOM | IS_REMOTE_KNOWN | IS_REMOTE,
        trace_state="a=1",
        start=5,
        end=7,
        common=(("c", 1),),
        attributes=(("d", (1.5, 2.5)),),
        events=(Event("e", 6, (("x", 1),), 2),),
        links=(Link(TRACE, b"\x04" * 8, SAMPLED | IS_REMOTE_KNOWN, "b=2", (("y", 2),), 3),),
        status=ERROR,
        message="bad",
        dropped_attributes=4,
        dropped_events=5,
        dropped_links=6,
    )
    readable = there(made)
    number, state = int.from_bytes(TRACE, "big"), TraceState([("a", "1")])
    assert readable.context == SpanContext(
        number, int.from_bytes(b"\x02" * 8, "big"), False, TraceFlags(3), state
    )
    assert readable.parent == SpanContext(
        number, int.from_bytes(b"\x03" * 8, "big"), True, TraceFlags(3), state
    )
    assert (readable.name, readable.kind) == ("inc", SpanKind.PRODUCER)
    assert (readable.start_time, readable.end_time) == (5, 7)
    assert dict(readable.attributes or {}) == {"c": 1, "d": (1.5, 2.5)}
    [event], [link] = readable.events, readable.links
    assert (event.name, event.timestamp, dict(event.attributes or {})) == ("e", 6, {"x": 1})
    assert (link.context.trace_state, dict(link.attributes or {})) == (TraceState([("b", "2")]), {"y": 2})
    assert (event.dropped_attributes, link.dropped_attributes) == (2, 3)  # type: ignore[attr-defined]
    assert (readable.status.status_code, readable.status.description) == (StatusCode.ERROR, "bad")
    assert (readable.dropped_attributes, readable.dropped_events, readable.dropped_links) == (4, 5, 6)
    assert readable.resource.attributes == dict(RESOURCE)
    assert readable.instrumentation_scope == to_scope(SCOPE)
    assert json.loads(readable.to_json())["name"] == "inc"


def finished(provider: TracerProvider) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def test_a_users_span_becomes_a_record_with_every_field() -> None:
    provider = TracerProvider(resource=Resource({"service.name": "worker"}))
    exporter = finished(provider)
    parent = SpanContext(5, 6, True, TraceFlags(3), TraceState([("k", "v")]))
    other = SpanContext(7, 8, True, TraceFlags(1))
    made = provider.get_tracer("app", "2.0", "https://schema").start_span(
        "read",
        set_span_in_context(NonRecordingSpan(parent)),
        SpanKind.CLIENT,
        {"rows": 3, "names": ["a", "b"]},
        [SdkLink(other, {"why": "retry"})],
        start_time=10,
    )
    made.add_event("page", {"number": 1}, timestamp=11)
    made.set_status(Status(StatusCode.ERROR, "late"))
    made.end(12)
    resource, scope, record = from_readable(exporter.get_finished_spans()[0])
    assert (resource, scope) == ((("service.name", "worker"),), Scope("app", "2.0", "https://schema"))
    assert record == Span(
        name="read",
        kind=3,
        trace_id=(5).to_bytes(16, "big"),
        span_id=made.get_span_context().span_id.to_bytes(8, "big"),
        parent_id=(6).to_bytes(8, "big"),
        flags=SAMPLED | RANDOM | IS_REMOTE_KNOWN | IS_REMOTE,
        trace_state="k=v",
        start=10,
        end=12,
        attributes=(("rows", 3), ("names", ("a", "b"))),
        events=(Event("page", 11, (("number", 1),)),),
        links=(Link((7).to_bytes(16, "big"), (8).to_bytes(8, "big"), 0x301, "", (("why", "retry"),)),),
        status=ERROR,
        message="late",
    )


def test_what_the_sdk_dropped_is_counted_in_the_record() -> None:
    from opentelemetry.sdk.trace import SpanLimits

    provider = TracerProvider(
        span_limits=SpanLimits(max_span_attributes=1, max_events=1, max_links=1, max_event_attributes=1)
    )
    exporter = finished(provider)
    links = [SdkLink(SpanContext(1, number, False)) for number in (1, 2, 3)]
    with provider.get_tracer("app").start_as_current_span(
        "s", attributes={"a": 1, "b": 2}, links=links
    ) as made:
        for _ in range(3):
            made.add_event("e", {"a": 1, "b": 2})
    record = from_readable(exporter.get_finished_spans()[0])[2]
    assert (record.dropped_attributes, record.dropped_events, record.dropped_links) == (1, 2, 2)
    assert record.events[0].dropped_attributes == 1


def test_a_local_parent_is_known_to_be_local() -> None:
    provider = TracerProvider()
    exporter = finished(provider)
    tracer = provider.get_tracer("app")
    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner"):
        pass
    inner, outer = (from_readable(made)[2] for made in exporter.get_finished_spans())
    assert [made.flags & (IS_REMOTE_KNOWN | IS_REMOTE) for made in (inner, outer)] == [IS_REMOTE_KNOWN] * 2
    assert (inner.parent_id, outer.parent_id) == (outer.span_id, b"")


def test_a_span_without_context_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="the span 'lost' has no context"):
        from_readable(ReadableSpan("lost"))


def test_a_span_without_scope_has_an_empty_one() -> None:
    assert from_scope(None) == Scope("")


def test_an_end_before_the_start_becomes_the_start() -> None:
    assert there(span(start=9, end=3)).end_time == 9
