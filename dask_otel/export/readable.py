"""Between our spans and ``ReadableSpan``, OpenTelemetry's span as its processors and exporters see it.

Rules
-----
1. There and back again nothing is lost but what the other side has no place for: a parent's tracestate and
   flags (the span's own are taken), and of `common` and `attributes` which was which.
2. Only for users' own processors and exporters, and for users' spans: never between our spans and OTLP.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from dask_otel.records import IS_REMOTE, IS_REMOTE_KNOWN, Attributes, Event, Link, Scope, Span

_KINDS = {kind.value + 1: kind for kind in SpanKind}
_STATUSES = {code.value: code for code in StatusCode}


class _Readable(ReadableSpan):
    """A ReadableSpan that knows how much of it was dropped; the SDK keeps that in containers of its own."""

    def __init__(self, span: Span, **fields: Any) -> None:
        super().__init__(span.name, **fields)
        self._span = span

    @property
    def dropped_attributes(self) -> int:
        return self._span.dropped_attributes

    @property
    def dropped_events(self) -> int:
        return self._span.dropped_events

    @property
    def dropped_links(self) -> int:
        return self._span.dropped_links


# -- ours to OpenTelemetry's ---------------------------------------------------------------------------------


def to_resource(resource: Attributes) -> Resource:
    """A resource as the SDK has it."""
    return Resource(dict(resource))


def to_scope(scope: Scope) -> InstrumentationScope:
    """A scope as the SDK has it."""
    return InstrumentationScope(scope.name, scope.version, scope.schema_url, dict(scope.attributes))


def to_readable(span: Span, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    """A span as processors and exporters of OpenTelemetry take it.

    Examples
    --------
    >>> span = Span("inc", 5, b"\\x01" * 16, b"\\x02" * 8, start=1, end=2, attributes=(("a", 1),))
    >>> readable = to_readable(span, to_resource(()), to_scope(Scope("dask_otel")))
    >>> readable.name, readable.kind.name, dict(readable.attributes)
    ('inc', 'CONSUMER', {'a': 1})
    """
    state = _trace_state(span.trace_state)
    own, remote = span.flags & 0xFF, bool(span.flags & IS_REMOTE)
    return _Readable(
        span,
        context=_context(span.trace_id, span.span_id, own, state, remote=False),
        parent=_context(span.trace_id, span.parent_id, own, state, remote) if span.parent_id else None,
        resource=resource,
        attributes=dict(span.common + span.attributes),
        events=tuple([_sdk_event(event) for event in span.events]),
        links=tuple([_sdk_link(link) for link in span.links]),
        kind=_KINDS.get(span.kind, SpanKind.INTERNAL),
        status=Status(_STATUSES.get(span.status, StatusCode.UNSET), span.message or None),
        start_time=int(span.start),
        end_time=max(int(span.start), int(span.end)),
        instrumentation_scope=scope,
    )


def _context(trace_id: bytes, span_id: bytes, flags: int, state: TraceState, remote: bool) -> SpanContext:
    numbers = int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big")
    return SpanContext(*numbers, remote, TraceFlags(flags), state)


def _trace_state(header: str) -> TraceState:
    return TraceState.from_header([header]) if header else TraceState()


def _bounded(attributes: Attributes, dropped: int) -> Any:
    if not dropped:
        return dict(attributes)
    bounded = BoundedAttributes(attributes=dict(attributes), immutable=True)
    bounded.dropped = dropped
    return bounded


def _sdk_event(event: Event) -> SdkEvent:
    return SdkEvent(event.name, _bounded(event.attributes, event.dropped_attributes), int(event.time))


def _sdk_link(link: Link) -> SdkLink:
    state, remote = _trace_state(link.trace_state), bool(link.flags & IS_REMOTE)
    context = _context(link.trace_id, link.span_id, link.flags & 0xFF, state, remote)
    return SdkLink(context, _bounded(link.attributes, link.dropped_attributes))


# -- OpenTelemetry's to ours ---------------------------------------------------------------------------------


def from_readable(readable: ReadableSpan) -> tuple[Attributes, Scope, Span]:
    """The resource's attributes, the scope and the span of a span that OpenTelemetry's SDK has made.

    Raises
    ------
    ValueError
        The span has no context, hence no identity.

    Examples
    --------
    >>> from opentelemetry.sdk.trace import TracerProvider
    >>> with TracerProvider().get_tracer("app", "1.0").start_as_current_span("read") as made:
    ...     made.set_attribute("rows", 3)
    >>> resource, scope, span = from_readable(made)
    >>> scope.name, span.name, span.attributes, span.parent_id
    ('app', 'read', (('rows', 3),), b'')
    """
    return (
        _attributes(readable.resource.attributes),
        from_scope(readable.instrumentation_scope),
        _span(readable),
    )


def from_scope(scope: InstrumentationScope | None) -> Scope:
    """A scope of the SDK as ours."""
    if scope is None:
        return Scope("")
    return Scope(scope.name or "", scope.version or "", scope.schema_url or "", _attributes(scope.attributes))


def _span(readable: ReadableSpan) -> Span:
    context, parent = readable.context, readable.parent
    if context is None:
        raise ValueError(f"the span {readable.name!r} has no context")
    start = readable.start_time or 0
    return Span(
        name=str(readable.name),
        kind=readable.kind.value + 1,
        trace_id=context.trace_id.to_bytes(16, "big"),
        span_id=context.span_id.to_bytes(8, "big"),
        parent_id=parent.span_id.to_bytes(8, "big") if parent is not None and parent.span_id else b"",
        flags=_flags(context, parent),
        trace_state=context.trace_state.to_header(),
        start=start,
        end=readable.end_time or start,
        attributes=_attributes(readable.attributes),
        events=tuple([_event(event) for event in readable.events]),
        links=tuple([_link(link) for link in readable.links]),
        status=readable.status.status_code.value,
        message=readable.status.description or "",
        dropped_attributes=readable.dropped_attributes,
        dropped_events=readable.dropped_events,
        dropped_links=readable.dropped_links,
    )


def _flags(context: SpanContext, other: SpanContext | None) -> int:
    """W3C's flags of ``context`` and whether ``other`` (a span's parent, a link's own context) is remote."""
    remote = IS_REMOTE if other is not None and other.is_remote else 0
    return int(context.trace_flags) & 0xFF | IS_REMOTE_KNOWN | remote


def _attributes(attributes: Any) -> Attributes:
    return tuple((attributes or {}).items())


def _event(event: Any) -> Event:
    dropped = getattr(event, "dropped_attributes", 0)
    return Event(event.name, event.timestamp, _attributes(event.attributes), dropped)


def _link(link: SdkLink) -> Link:
    context = link.context
    return Link(
        trace_id=context.trace_id.to_bytes(16, "big"),
        span_id=context.span_id.to_bytes(8, "big"),
        flags=_flags(context, context),
        trace_state=context.trace_state.to_header(),
        attributes=_attributes(link.attributes),
        dropped_attributes=link.dropped_attributes,
    )
