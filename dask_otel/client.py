"""The client's shell: spans around its calls, the context on its submissions.

Rules
-----
1. An application's sampler, processors and id generator are anybody's code: what they raise never reaches the call.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from distributed import Client
from opentelemetry import context as otel_context
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
    use_span,
)

from dask_otel import names, process, propagation, submission
from dask_otel.current import failure_of
from dask_otel.guard import Guard
from dask_otel.outlet import Outlet
from dask_otel.seam import client as seam
from dask_otel.settings import Settings
from dask_otel.version import __version__

logger = logging.getLogger("dask_otel")


class ClientTelemetry:
    """dask-otel on one client: its own spans, and the context of whatever is current when it submits."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self.settings = settings
        self.guard = Guard(f"client {client.id}")
        #: Who turned dask-otel on here: `holders.BY_PRELOAD`, `holders.BY_CLIENT`.
        self.asked_by: set[str] = set()
        self.ask_scheduler = True
        self._client = weakref.ref(client)
        calls = names.COMPUTE, names.PERSIST, names.MAP, names.GATHER, "_graph_to_futures"
        missing = "its calls have no spans, and what it submits is not below the program's"
        self.guard.part(missing, self._forget, *calls)
        cluster_id = seam.cluster_id(client)
        self.outlet = Outlet(settings, "client", client.id, lambda: {names.CLUSTER_ID: cluster_id})
        carried = propagation.from_environment(os.environ, settings.propagators)
        self._environment = propagation.to_context(carried) if carried is not None else None
        self._first = True

    def _forget(self) -> None:
        client = self._client()
        if client is not None:
            seam.forget(client)

    def call(self, name: str, operation: str, kind: int) -> AbstractContextManager[object]:
        """A span of the real tracer: a client's are few."""
        if not self.outlet.sending:
            return nullcontext()
        return self._span(name, operation, kind)

    @contextmanager
    def _span(self, name: str, operation: str, kind: int) -> Iterator[object]:
        context = self._context()
        span = self._begin(name, operation, kind, context)
        if span is None:
            yield None
            return
        token = otel_context.attach(context)
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except Exception as error:
            with self._complaining("end"):
                _record(span, error)
            raise
        finally:
            otel_context.detach(token)
            with self._complaining("end"):
                span.end()

    def _begin(self, name: str, operation: str, kind: int, context: otel_context.Context) -> Span | None:
        with self._complaining("start"):
            tracer = self.outlet.provider().get_tracer(names.SCOPE, __version__, names.SCHEMA_URL)
            return tracer.start_span(
                name, context=context, kind=SpanKind(kind - 1), attributes={names.OPERATION: operation}
            )
        return None

    @contextmanager
    def _complaining(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # See rule 1.
            if process.application_provider() is None:
                self.guard.fault(f"{what} of a span")
                return
            process.say_once(
                "The tracer provider of this process raised %s at the %s of a span; the computation goes on.",
                type(error).__name__,
                what,
                level=logging.WARNING,
            )

    def submission(self, operation: str) -> object:
        """The context that is current, as it goes with a graph."""
        if self._first:
            self._start()
        carried = propagation.capture(self._context(), self.settings.propagators)
        return submission.pack(carried, operation)

    def _start(self) -> None:
        """The first graph: whoever sets a provider has had the time to."""
        self._first = False
        self.outlet.explain(loud=True)
        client = self._client()
        if client is not None and self.ask_scheduler and self.outlet.sending:
            seam.in_its_loop(client, self._ask_scheduler)

    async def _ask_scheduler(self, client: Client) -> None:
        with suppress(Exception):  # The scheduler is gone, or does not answer.
            version = await seam.scheduler_version(client)
            if version is None:
                process.say_once(
                    "The scheduler at %s does not run dask-otel: only this client's own spans are sent. Start it with "
                    "--preload dask_otel, or call dask_otel.enable(client).",
                    seam.scheduler_address(client),
                    level=logging.WARNING,
                )
            elif version != __version__:
                process.say_once(
                    "The scheduler runs dask-otel %s, this client %s. Install the same everywhere, like "
                    "pip install dask-otel==%s.",
                    version,
                    __version__,
                    __version__,
                    level=logging.WARNING,
                )

    def _context(self) -> otel_context.Context:
        """What is current; where no span is, below the ``TRACEPARENT`` of the environment."""
        current = otel_context.get_current()
        if self._environment is None or get_current_span(current).get_span_context().is_valid:
            return current
        both = otel_context.Context({**self._environment, **current})
        return set_span_in_context(get_current_span(self._environment), both)


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


def _record(span: Span, error: Exception) -> None:
    """As the API does, but for exceptions whose ``__str__`` raises too."""
    failure = failure_of(error)
    span.add_event(
        names.EXCEPTION_EVENT,
        {
            names.EXCEPTION_TYPE: failure.type,
            names.EXCEPTION_MESSAGE: failure.message,
            names.EXCEPTION_STACKTRACE: failure.stacktrace,
        },
    )
    span.set_attribute(names.ERROR_TYPE, failure.type)
    span.set_status(Status(StatusCode.ERROR, failure.message))
