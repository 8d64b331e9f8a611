"""The tracer provider that users' own spans in a task have, where the application has set none.

Its spans become records of ours and go where the spans of the server do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from dask_otel.export.queue import Emitter
from dask_otel.export.readable import from_readable
from dask_otel.records import Span
from dask_otel.settings import Limits


class Outlet(Protocol):
    """Where spans of a scope go; ``None`` if nowhere."""

    def emitter_of(self, scope: InstrumentationScope | None) -> Emitter | None: ...

    def flush(self, timeout: float) -> bool: ...


class OwnProvider(TracerProvider):
    """A provider of ours, told from the application's by its class; it sends where its ``outlet`` does."""

    def __init__(self, outlet: Outlet | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.outlet = outlet
        self.add_span_processor(_Forward(self))


class _Readable:
    """A span of the SDK on its way: becomes a record in the background thread."""

    __slots__ = ("_span",)
    weight = 1

    def __init__(self, span: ReadableSpan) -> None:
        self._span = span

    def spans(self) -> Iterator[Span]:
        yield from_readable(self._span)[2]


class _Forward(SpanProcessor):
    """Hands the SDK's finished spans to our pipeline."""

    def __init__(self, provider: OwnProvider) -> None:
        self._provider = provider

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """Nothing: what counts is the end."""

    def on_end(self, span: ReadableSpan) -> None:
        outlet = self._provider.outlet
        if outlet is None or span.context is None or not span.context.trace_flags.sampled:
            return
        emitter = outlet.emitter_of(span.instrumentation_scope)
        if emitter is not None:
            emitter.emit(_Readable(span))

    def shutdown(self) -> None:
        """Nothing: the pipeline has its own end."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        outlet = self._provider.outlet
        return outlet is None or outlet.flush(timeout_millis / 1000)


def span_limits(limits: Limits) -> SpanLimits:
    """The SDK's object with every limit given: it would read the environment, and raise, for one that is not."""

    def given(limit: int | None) -> int:
        return SpanLimits.UNSET if limit is None else limit

    return SpanLimits(
        max_attributes=given(limits.attributes),
        max_events=given(limits.events),
        max_links=given(limits.links),
        max_span_attributes=given(limits.attributes),
        max_event_attributes=given(limits.event_attributes),
        max_link_attributes=given(limits.link_attributes),
        max_attribute_length=given(limits.nested_attribute_length),
        max_span_attribute_length=given(limits.attribute_length),
    )
