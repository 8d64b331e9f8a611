"""The demo's own span, as an application would have one around its use of Dask.

Rules
-----
1. Its provider is the demo's own and never the global one: what Dask's client does is traced as in any program.
2. It is sent when it is asked for, and the answer is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import use_span

from dask_otel.demo.endpoints import GRPC

__all__ = ["Root"]

SERVICE = "dask-otel-demo"
NAME = "demo"


class _Keep(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class Root:
    """One span by the environment's sampler, resource and limits.

    Examples
    --------
    >>> root = Root()
    >>> with root.open():
    ...     pass
    >>> root.sampled, len(root.trace_id)
    (True, 32)
    """

    def __init__(self) -> None:
        resource = Resource.create({SERVICE_NAME: SERVICE}).merge(OTELResourceDetector().detect())
        self._kept = _Keep()
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._kept)
        # An empty context: a root whatever is current here.
        self._span = provider.get_tracer("dask_otel.demo").start_span(NAME, context=Context())
        context = self._span.get_span_context()
        self.sampled = bool(context.trace_flags.sampled)
        self.trace_id = f"{context.trace_id:032x}"
        self.span_id = context.span_id.to_bytes(8, "big")

    @contextmanager
    def open(self) -> Iterator[None]:
        """Current in the block, ended with it."""
        with use_span(self._span, end_on_exit=True):
            yield

    def send(self, protocol: str, timeout: float) -> bool:
        """Export it with the exporter that the environment configures; False where that did not work."""
        exporter = _exporter(protocol, timeout)
        try:
            return exporter.export(self._kept.spans) is SpanExportResult.SUCCESS
        finally:
            exporter.shutdown()


def _exporter(protocol: str, timeout: float) -> SpanExporter:
    if protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(timeout=timeout)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(timeout=timeout)
