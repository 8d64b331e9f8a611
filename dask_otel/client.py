"""The client's shell: spans around its calls, the context on its submissions."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from distributed import Client
from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind, get_current_span

from dask_otel import config, names, process, propagation, submission
from dask_otel.guard import Guard
from dask_otel.seam import client as seam
from dask_otel.settings import Settings
from dask_otel.version import __version__

logger = logging.getLogger("dask_otel")


class ClientTelemetry:
    """dask-otel on one client: its own spans, and the context of whatever is current when it submits."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self.settings = settings
        self.guard = Guard(f"client {client.id}")
        self.by_client = False
        cluster_id = (client._scheduler_identity or {}).get("id")
        self.outlet = process.Outlet(settings, "client", client.id, lambda: {names.CLUSTER_ID: cluster_id})
        carried = propagation.from_environment(os.environ, settings.propagators)
        self._environment = propagation.to_context(carried) if carried is not None else None
        if not self.outlet.sending and not settings.disabled:
            process.say_once(config.explain())

    def call(self, name: str, operation: str, kind: int) -> AbstractContextManager[object]:
        """A span of the real tracer: a client's are few."""
        if not self.outlet.sending:
            return nullcontext()
        return self._span(name, operation, kind)

    @contextmanager
    def _span(self, name: str, operation: str, kind: int) -> Iterator[object]:
        tracer = self.outlet.provider().get_tracer(names.SCOPE, __version__, names.SCHEMA_URL)
        with tracer.start_as_current_span(
            name,
            context=self._context(),
            kind=SpanKind(kind - 1),
            attributes={names.OPERATION: operation},
        ) as span:
            yield span

    def submission(self, operation: str) -> object:
        """The context that is current, as it goes with a graph."""
        carried = propagation.capture(self._context(), self.settings.propagators)
        return submission.pack(carried, operation)

    def _context(self) -> otel_context.Context:
        """What is current; a ``TRACEPARENT`` of the environment where nothing is."""
        current = otel_context.get_current()
        if self._environment is not None and not get_current_span(current).get_span_context().is_valid:
            return self._environment
        return current


class TaskClients:
    """The clients that tasks use on a worker: no spans of their own, what they submit lies below the task."""

    def __init__(self, settings: Settings, guard: Guard) -> None:
        self.settings = settings
        self.guard = guard

    def call(self, name: str, operation: str, kind: int) -> AbstractContextManager[object]:
        return nullcontext()

    def submission(self, operation: str) -> object | None:
        carried = propagation.capture(otel_context.get_current(), self.settings.propagators)
        return submission.pack(carried, "") if carried is not None else None
