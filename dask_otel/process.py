"""What the servers and clients of one process share: pipelines, the application's provider, the users' one.

Rules
-----
1. A provider that the application set, of tracers or of meters, is used as it is, with its resource, and is never
   replaced.
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
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from dask_otel import config, names, provided
from dask_otel.export.metric_senders import EntryPointSender
from dask_otel.export.metrics import MetricExporter
from dask_otel.export.pipeline import CLOSE_TIMEOUT, Pipeline
from dask_otel.provider import OwnProvider
from dask_otel.records import RANDOM, Scope
from dask_otel.settings import Metrics, Settings
from dask_otel.version import __version__

logger = logging.getLogger("dask_otel")

SCOPE = Scope(names.SCOPE, __version__, names.SCHEMA_URL)

#: Attributes of a resource that tell one service from another.
_WHO = (names.SERVICE_NAME, names.SERVICE_INSTANCE_ID)

_lock = threading.Lock()
_pipelines: dict[object, Pipeline | MetricExporter] = {}
_said: set[str] = set()
_given: TracerProvider | None = None
_given_for_metrics: MeterProvider | None = None
_unloadable = False
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
    """The process's own settings; the client's where the process was told nothing, signal by signal."""
    own = config.load()
    for complaint in own.complaints:
        say_once("%s", complaint, level=logging.WARNING)
    if shipped is None or own.disabled:
        return own
    told = own.metrics.exporters or not own.metrics.enabled
    own = own if told else replace(own, metrics=shipped.metrics)
    if own.exporters:
        return own
    # Where to send is the client's word; who sends is not: the client's name would merge the roles.
    named = tuple(pair for pair in shipped.resource if pair[0] not in _WHO)
    return replace(
        shipped, metrics=own.metrics, service_name=own.service_name, resource=own.resource or named
    )


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


def use_meter_provider(provider: MeterProvider | None) -> None:
    """As `use_provider`, for metrics."""
    global _given_for_metrics
    _given_for_metrics = provider


def application_meter_provider() -> MeterProvider | None:
    """The SDK provider of meters that the application set as the global one."""
    global _unloadable
    if _given_for_metrics is not None or _unloadable:
        return _given_for_metrics
    try:
        provider = metrics.get_meter_provider()
    except Exception:  # OTEL_PYTHON_METER_PROVIDER names what cannot be loaded; the API logs it each time
        _unloadable = True
        return None
    return provider if isinstance(provider, MeterProvider) else None


def pipeline_for(settings: Settings, provider: TracerProvider | None = None) -> Pipeline:
    """The process's pipeline for these settings; with ``provider`` it feeds that provider's processors instead."""
    settings = replace(settings, complaints=(), metrics=Metrics())
    key = (settings, id(provider) if provider else None)
    with _lock:
        found = _pipelines.get(key)
        if not isinstance(found, Pipeline):
            if provider is None:
                found = Pipeline(settings)
            else:
                found = Pipeline(replace(settings, exporters=()))
                # The SDK offers no other way in for a span that is over already.
                found.add_processor(provider._active_span_processor.on_end)
            _pipelines[key] = found
        return found


def metric_exporters_for(settings: Settings) -> list[MetricExporter]:
    """The process's exporters of metrics for these settings: one for each that is named and can be had."""
    wanted = settings.metrics.exporters if settings.exporting_metrics else ()
    if "prometheus" in wanted:
        say_once(
            "OTEL_METRICS_EXPORTER names prometheus, which listens; dask-otel sends only. Let Prometheus take OTLP "
            "(OTEL_METRICS_EXPORTER=otlp, "
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://<prometheus>:9090/api/v1/otlp/v1/metrics) or scrape a Collector, or "
            "set a MeterProvider with a PrometheusMetricReader in your application.",
            level=logging.WARNING,
        )
    with _lock:
        return [
            _metric_exporter(settings.metrics, name) for name in wanted if name not in ("none", "prometheus")
        ]


def _metric_exporter(settings: Metrics, name: str) -> MetricExporter:
    found = _pipelines.get((settings, name))
    if not isinstance(found, MetricExporter):
        if name == "otlp":
            found = MetricExporter(settings)
        else:
            sender = partial(EntryPointSender, name, settings.timeout)
            found = MetricExporter(settings, sender=sender, where=f"exporter {name}")
        _pipelines[settings, name] = found
    return found


def components() -> list[Pipeline | MetricExporter]:
    """What this process sends by."""
    with _lock:
        return list(_pipelines.values())


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
    for meter_provider, fed in provided.fed():
        flushed.append(_flush_meter_provider(meter_provider, fed, max(0.0, until - time.monotonic())))
    return all(flushed)


def _flush_provider(provider: TracerProvider, timeout: float) -> bool:
    try:
        return provider.force_flush(int(timeout * 1000))
    except Exception as error:  # Processors and exporters are anybody's code
        say_once(
            "The application's tracer provider cannot flush: %s.", type(error).__name__, level=logging.WARNING
        )
        return False


def _flush_meter_provider(provider: MeterProvider, fed: provided.Provided, timeout: float) -> bool:
    try:
        return fed.flush(provider, timeout)
    except Exception as error:  # Readers and exporters are anybody's code
        say_once(
            "The application's meter provider cannot flush: %s.", type(error).__name__, level=logging.WARNING
        )
        return False


async def flush_aside(timeout: float) -> bool:
    """`flush` for event loops. What takes longer than ``timeout`` is left to itself, and holds up nobody's end."""
    with _lock:
        idle = not _pipelines
    if idle and application_provider() is None and not provided.fed():
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
    until = time.monotonic() + timeout
    return all([pipeline.close(max(_HURRY, until - time.monotonic())) for pipeline in pipelines])


#: Flags of an id that we made: the random bit says that it can be sampled by.
FLAGS = RANDOM


def _after_fork() -> None:
    """In a forked child: the thread that held the lock is not there to let go of it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
