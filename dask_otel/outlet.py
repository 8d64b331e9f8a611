"""Where one server's or client's spans go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from dask_otel import config, names, process, resource, sampling
from dask_otel.carried import Decision
from dask_otel.export.bodies import Source
from dask_otel.export.queue import Emitter
from dask_otel.export.readable import from_scope
from dask_otel.process import application_meter_provider, application_provider, pipeline_for, say_once
from dask_otel.provided import is_read
from dask_otel.provider import OwnProvider, span_limits
from dask_otel.records import Attributes, Scope, Value
from dask_otel.settings import Settings
from dask_otel.version import __version__

SCOPE = Scope(names.SCOPE, __version__, names.SCHEMA_URL)


class Outlet:
    """Where one server's or client's spans go; what that is is decided when the first one comes.

    Parameters
    ----------
    settings:
        The server's.
    role, instance_id:
        ``scheduler``, ``worker`` or ``client``, and its id.
    extra:
        Further attributes of the resource, asked for when the resource is made.
    """

    def __init__(
        self, settings: Settings, role: str, instance_id: str, extra: Callable[[], Mapping[str, Value]]
    ) -> None:
        self._role = role
        self._instance_id = instance_id
        self._extra = extra
        #: Whether all is known of the resource that will be.
        self.settled = True
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Go on by other settings."""
        self.settings = settings
        self._sampler = sampling.RootSampler(settings.sampler)
        self._asked: tuple[TracerProvider, sampling.RootSampler] | None = None
        self._emitter: Emitter | None = None
        self._source: Source | None = None
        self._scopes: dict[InstrumentationScope | None, Emitter] = {}
        self._provider: TracerProvider | None = None

    def refresh(self) -> None:
        """More is known of the resource."""
        self._emitter = self._source = None
        self._scopes.clear()

    @property
    def sampler(self) -> sampling.RootSampler:
        """The application's provider's, where there is one; else that of the settings."""
        provider = application_provider()
        if provider is None:
            return self._sampler
        if self._asked is None or self._asked[0] is not provider:
            self._asked = provider, sampling.RootSampler.of(provider.sampler)
        return self._asked[1]

    @property
    def sending(self) -> bool:
        """Whether spans of ours leave this process."""
        if self.settings.disabled or self.sampler.always_off:
            return False
        return self.settings.exporting or application_provider() is not None

    def explain(self, *, loud: bool) -> None:
        """Say what to type where nobody said where to send; a warning in the process of whoever asked for us."""
        settings = self.settings
        told = settings.exporters or settings.exporting_metrics or settings.disabled
        if not (told or self._metered()) and application_provider() is None:
            say_once(config.explain(), level=logging.WARNING if loud else logging.INFO)

    def _metered(self) -> bool:
        """Whether an application's provider has our metrics."""
        provider = application_meter_provider()
        return self.settings.metrics.enabled and provider is not None and is_read(provider)

    def decide(self, trace_id: bytes, name: str, kind: int) -> Decision:
        """Ask the sampler about a trace that starts here; ``kind`` is OTLP's number."""
        return self.sampler.decide(int.from_bytes(trace_id, "big"), name, kind, {}, None)

    def emit(self, item: object) -> bool:
        """Hand in a span, or what becomes spans; whether there was room."""
        return (self._emitter or self.open()).emit(item)  # type: ignore[arg-type]

    @property
    def source(self) -> Source:
        """Who measures, for metrics."""
        if self._source is None:
            self._source = Source(self._resource(), SCOPE)
        return self._source

    def open(self) -> Emitter:
        """Decide now where spans go."""
        if self._emitter is None:
            provider = application_provider()
            attributes = (
                tuple(provider.resource.attributes.items()) if provider is not None else self._resource()
            )
            self._emitter = pipeline_for(self.settings, provider).emitter(attributes, SCOPE)  # type: ignore[arg-type]
        return self._emitter

    def provider(self) -> TracerProvider:
        """The application's provider, else one of our own with this outlet's resource and sampler."""
        found = application_provider()
        if found is not None:
            return found
        if self._provider is None:
            self._provider = OwnProvider(
                self,
                resource=resource.to_sdk(self._resource()),
                sampler=sampling.make(self.settings.sampler),
                span_limits=span_limits(self.settings.limits),
                shutdown_on_exit=False,
            )
        return self._provider

    def emitter_of(self, scope: InstrumentationScope | None) -> Emitter | None:
        """Where spans go that the users' code makes by a provider of ours; ``None`` if nowhere."""
        if not self.settings.exporting:
            return None
        emitter = self._scopes.get(scope)
        if emitter is None:
            emitter = pipeline_for(self.settings).emitter(self._resource(), from_scope(scope))
            self._scopes[scope] = emitter
        return emitter

    def flush(self, timeout: float) -> bool:
        """Send what this process has; whether everything had an answer in time (s)."""
        return process.flush(timeout)

    def _resource(self) -> Attributes:
        return resource.build(self._role, self._instance_id, self.settings, self._extra())

    def set_global_provider(self) -> None:
        """Make our provider the process's, for the users' spans, unless there is one: a worker's own process only."""
        current = trace.get_tracer_provider() if application_provider() is None else None
        if isinstance(current, OwnProvider):  # From before dask-otel was turned off: it cannot be set twice.
            current.outlet = self
        elif (
            self.settings.exporting
            and self.settings.user_spans
            and isinstance(current, trace.ProxyTracerProvider)
        ):
            trace.set_tracer_provider(self.provider())

    def close(self) -> None:
        """The users' spans go nowhere from now on."""
        current = trace.get_tracer_provider()
        if isinstance(current, OwnProvider) and current.outlet is self:
            current.outlet = None
