"""OTLP's bytes back into records: what the receiver and the tests read with.

Rules
-----
1. It knows only what the protocol says, by way of ``opentelemetry-proto``: nothing of how we encode.
2. What the bytes do not say is left at a record's defaults; `Span.flags` at 0.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from dask_otel.records import Attributes, Event, Link, Span, Value
from dask_otel.tree import Received


def decode(body: bytes) -> list[Received]:
    """The spans of an ``ExportTraceServiceRequest``, as our own records.

    All attributes are in `Span.attributes`; arrays are tuples.

    Raises
    ------
    google.protobuf.message.DecodeError
        When `body` is something else.

    Examples
    --------
    >>> decode(b"")
    []
    """
    return [
        Received(
            dict(attributes(group.resource.attributes)), (part.scope.name, part.scope.version), _span(span)
        )
        for group in ExportTraceServiceRequest.FromString(body).resource_spans
        for part in group.scope_spans
        for span in part.spans
    ]


def _span(span: trace_pb2.Span) -> Span:
    return Span(
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_span_id,
        flags=span.flags,
        trace_state=span.trace_state,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=attributes(span.attributes),
        events=tuple(_event(event) for event in span.events),
        links=tuple(_link(link) for link in span.links),
        status=span.status.code,
        message=span.status.message,
        dropped_attributes=span.dropped_attributes_count,
        dropped_events=span.dropped_events_count,
        dropped_links=span.dropped_links_count,
    )


def _event(event: trace_pb2.Span.Event) -> Event:
    return Event(
        event.name, event.time_unix_nano, attributes(event.attributes), event.dropped_attributes_count
    )


def _link(link: trace_pb2.Span.Link) -> Link:
    ids = link.trace_id, link.span_id
    return Link(
        *ids, link.flags, link.trace_state, attributes(link.attributes), link.dropped_attributes_count
    )


def attributes(pairs: Any) -> Attributes:
    """What a list of ``KeyValue`` says; arrays are tuples."""
    return tuple((pair.key, _value(pair.value)) for pair in pairs)


def _value(value: common_pb2.AnyValue) -> Value:
    match value.WhichOneof("value"):
        case "array_value":
            return tuple(_value(item) for item in value.array_value.values)
        case "kvlist_value":
            return dict(attributes(value.kvlist_value.values))
        case None:
            return None
        case which:
            scalar: str | bool | int | float | bytes = getattr(value, which)
            return scalar
