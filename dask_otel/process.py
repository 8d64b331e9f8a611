"""What the servers and clients of one process share: pipelines, the application's provider, the users' one.

Rules
-----
1. A provider that the application set is used as it is, with its resource, and is never replaced.
2. One pipeline, and so one thread, for each settings; several servers of one process share it and stay apart by
   their resources.
3. A global provider is set only in a process that is a worker's own, when its first task starts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from dask_otel import config, names, resource, sampling
from dask_otel.carried import Decision
from dask_otel.export.pipeline import CLOSE_TIMEOUT, Pipeline
from dask_otel.export.queue import Emitter
from dask_otel.export.readable import from_readable, from_scope
from dask_otel.records import RANDOM, Attributes, Scope, Span, Value
from dask_otel.settings import Limits, Settings
from dask_otel.version import __version__

logger = logging.getLogger("dask_otel")

SCOPE = Scope(names.SCOPE, __version__, names.SCHEMA_URL)

#: Attributes of a resource that tell one service from another.
_WHO = (names.SERVICE_NAME, names.SERVICE_INSTANCE_ID)

_lock = threading.Lock()
_pipelines: dict[tuple[Settings, int | None], Pipeline] = {}
_said: set[str] = set()
_given: TracerProvider | None = None
#: When somebody waited in vain for what this process has to be sent (monotonic).
_vain = float("-inf")

#: Seconds for which a wait in vain speaks for the next ones, and how long they last then.
VAIN, _HURRY = 10.0, 0.2


def say_once(sentence: str, *args: object, level: int = logging.INFO) -> None:
    """Log a sentence the first time that this process has it to say."""
    line = sentence % args
    with _lock:
        if line in _said:
            return
        _said.add(line)
    logger.log(level, "%s", line)


def settings_for_server(shipped: Settings | None) -> Settings:
    """The process's own settings; the client's where the process was told nothing."""
    own = config.load()
    for complaint in own.complaints:
        say_once("%s", complaint, level=logging.WARNING)
    if shipped is not None and not own.exporters and not own.disabled:
        # Where to send is the client's word; who sends is not: the client's name would merge the roles.
        named = tuple(pair for pair in shipped.resource if pair[0] not in _WHO)
        return replace(shipped, service_name=own.service_name, resource=own.resource or named)
    return own


#: Not the module's own, which users seed; without a system call for each id.
_random = random.Random(secrets.randbits(256))
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _random.seed(secrets.randbits(256)))


def new_trace_id() -> bytes:
    """A random trace id, never zero."""
    return (_random.getrandbits(128) or 1).to_bytes(16, "big")


def new_span_id() -> bytes:
    """A random span id, never zero."""
    return (_random.getrandbits(64) or 1).to_bytes(8, "big")


def use_provider(provider: TracerProvider | None) -> None:
    """Take this one for the application's, whatever the global one is; ``None`` for the global one again."""
    global _given
    _given = provider


def application_provider() -> TracerProvider | None:
    """The SDK provider that the application set as the global one, if it did and it is not ours."""
    if _given is not None:
        return _given
    try:
        provider = trace.get_tracer_provider()
    except Exception:  # OTEL_PYTHON_TRACER_PROVIDER names what cannot be loaded; the API has logged it
        return None
    if isinstance(provider, TracerProvider) and not isinstance(provider, OwnProvider):
        return provider
    return None


def pipeline_for(settings: Settings, provider: TracerProvider | None = None) -> Pipeline:
    """The process's pipeline for these settings; with ``provider`` it feeds that provider's processors instead."""
    settings = replace(settings, complaints=())
    key = (settings, id(provider) if provider else None)
    with _lock:
        found = _pipelines.get(key)
        if found is None:
            if provider is None:
                found = Pipeline(settings)
            else:
                found = Pipeline(replace(settings, exporters=()))
                # The SDK offers no other way in for a span that is over already.
                found.add_processor(provider._active_span_processor.on_end)
            _pipelines[key] = found
        return found


def flush(timeout: float) -> bool:
    """Send what this process has; whether all had a fate in time. Blocks: not for event loops.

    An application's provider may take longer: the SDK's own processors do not look at the clock (1.45.2).
    """
    until = time.monotonic() + timeout
    with _lock:
        pipelines = list(_pipelines.values())
    flushed = [pipeline.flush(max(0.0, until - time.monotonic())) for pipeline in pipelines]
    if (provider := application_provider()) is not None:
        flushed.append(_flush_provider(provider, max(0.0, until - time.monotonic())))
    return all(flushed)


def _flush_provider(provider: TracerProvider, timeout: float) -> bool:
    try:
        return provider.force_flush(int(timeout * 1000))
    except Exception as error:  # Processors and exporters are anybody's code
        say_once(
            "The application's tracer provider cannot flush: %s.", type(error).__name__, level=logging.WARNING
        )
        return False


async def flush_aside(timeout: float) -> bool:
    """`flush` for event loops. What takes longer than ``timeout`` is left to itself, and holds up nobody's end."""
    with _lock:
        idle = not _pipelines
    if idle and application_provider() is None:
        return True
    loop = asyncio.get_running_loop()
    flushed: asyncio.Future[bool] = loop.create_future()

    def settle(result: bool) -> None:
        if not flushed.done():
            flushed.set_result(result)

    def run() -> None:
        result = flush(timeout)
        try:
            loop.call_soon_threadsafe(settle, result)
        except RuntimeError:
            pass  # The loop is closed: nobody waits any more.

    # A daemon, not the loop's executor, whose threads asyncio.run() waits for.
    threading.Thread(target=run, name="dask-otel-flush", daemon=True).start()
    try:
        return await asyncio.wait_for(flushed, timeout)
    except asyncio.TimeoutError:
        return False


async def farewell() -> None:
    """Flush since a server or client of this process ends.

    Many may end one after the other, and the process last: a wait in vain is not repeated within `VAIN`.
    """
    global _vain
    in_vain = time.monotonic() - _vain < VAIN
    answered = await flush_aside(_HURRY if in_vain else CLOSE_TIMEOUT)
    _vain = float("-inf") if answered else time.monotonic()
    with _lock:
        for pipeline in _pipelines.values():
            pipeline.patience = CLOSE_TIMEOUT if answered else _HURRY


def deliver_at_sigterm() -> None:
    """Where SIGTERM ends this process on the spot, send what waits before it does (in `CLOSE_TIMEOUT` at most).

    For a nanny's worker: nobody in its process catches what a batch system sends to all, or the nanny at its memory
    limit. It still dies of it.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def deliver(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        # In a thread, since the signal may have found this one with a lock of ours.
        closing = threading.Thread(target=close, args=(CLOSE_TIMEOUT,), daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT + _HURRY)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, deliver)
    _keep_from_children(signal.SIGTERM, deliver)


def _keep_from_children(number: signal.Signals, handler: Callable[[int, object], None]) -> None:
    """A process that is forked has the signal's default action again, and a signal that comes meanwhile is not lost.

    A Pool ends its workers by SIGTERM. One that waits for a lock would never come to a handler of Python's.
    """
    if not hasattr(os, "register_at_fork"):
        return
    masks = threading.local()

    def block() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def unblock_in_child() -> None:
        if signal.getsignal(number) is handler:
            signal.signal(number, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=unblock_in_child)


def close(timeout: float) -> bool:
    """Send what this process has, and stop: the process is about to end."""
    with _lock:
        pipelines = list(_pipelines.values())
        _pipelines.clear()
    return all([pipeline.close(timeout) for pipeline in pipelines])


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
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Go on by other settings."""
        self.settings = settings
        self._sampler = sampling.RootSampler(settings.sampler)
        self._asked: tuple[TracerProvider, sampling.RootSampler] | None = None
        self._emitter: Emitter | None = None
        self._scopes: dict[InstrumentationScope | None, Emitter] = {}
        self._provider: TracerProvider | None = None

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
        if not self.settings.exporters and not self.settings.disabled and application_provider() is None:
            say_once(config.explain(), level=logging.WARNING if loud else logging.INFO)

    def decide(self, trace_id: bytes, name: str, kind: int) -> Decision:
        """Ask the sampler about a trace that starts here; ``kind`` is OTLP's number."""
        return self.sampler.decide(int.from_bytes(trace_id, "big"), name, kind, {}, None)

    def emit(self, item: object) -> bool:
        """Hand in a span, or what becomes spans; whether there was room."""
        return (self._emitter or self.open()).emit(item)  # type: ignore[arg-type]

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
                span_limits=_span_limits(self.settings.limits),
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
        return flush(timeout_millis / 1000)


def _span_limits(limits: Limits) -> SpanLimits:
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


#: Flags of an id that we made: the random bit says that it can be sampled by.
FLAGS = RANDOM


def _after_fork() -> None:
    """In a forked child: the thread that held the lock is not there to let go of it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
