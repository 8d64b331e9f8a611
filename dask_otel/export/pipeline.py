"""One background thread in a process that takes finished spans and sees them out.

Rules
-----
1. The thread starts with the first item that is emitted, is a daemon, and is the only one that encodes and
   sends.
2. `close` returns within its timeout from any thread and at interpreter exit, whatever a receiver does; what
   was not sent by then is counted and said.
3. In a forked child the pipeline is off: nothing is queued, no lock is taken, no thread is started.
4. A receiver that is down delays the other sinks by the time that its requests are tried; it never delays
   those who emit.
"""

from __future__ import annotations

import atexit
import os
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event, Lock, Thread, current_thread
from time import monotonic, thread_time
from weakref import WeakSet

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value
from opentelemetry.sdk.trace import ReadableSpan

from dask_otel.export.bodies import Source, number
from dask_otel.export.complaints import Complaints
from dask_otel.export.fates import INVALID, QUEUE_FULL, Counts, Fates, Tally
from dask_otel.export.forms import Forms
from dask_otel.export.intake import Intake
from dask_otel.export.queue import NEVER, Bell, Emitter, Line
from dask_otel.export.sinks import Batch, OtlpSink, ProcessorSink, Sink, make_sinks
from dask_otel.records import Attributes, Scope
from dask_otel.settings import Settings

#: Seconds that `Pipeline.close` may take; a nanny kills its worker after 4.
CLOSE_TIMEOUT = 1.5

#: Of them those that are left to sinks for giving up.
_GIVE_UP = 0.2

#: Spans at which the thread does not wait any longer: so many fit into a processor's cache and take a third
#: less CPU each than many thousands do, and hold the interpreter for 2 ms at a time.
_WAKE = 1_024

#: Seconds that the thread waits at most: more than a year is more than a lock can wait.
_LONGEST_DELAY = 86_400.0

#: Seconds that the thread waits where it cannot wait for its bell.
_AFTER_FAULT = 1.0
#: What its faults are counted by.
_HOOK = "export of spans"

_pipelines: WeakSet[Pipeline] = WeakSet()


class Pipeline:
    """Exports spans as settings say.

    Examples
    --------
    >>> from dask_otel.records import Span
    >>> pipeline, seen = Pipeline(Settings()), []
    >>> pipeline.add_processor(lambda span: seen.append(span.name))
    >>> emitter = pipeline.emitter((("service.name", "demo"),), Scope("dask_otel"))
    >>> emitter.emit(Span("inc", 5, b"\\x01" * 16, b"\\x02" * 8, start=1, end=2))
    True
    >>> pipeline.close(), seen, pipeline.counts.exported
    (True, ['inc'], 1)
    """

    def __init__(self, settings: Settings) -> None:
        #: Seconds that `close` may take where it is not told.
        self.patience = CLOSE_TIMEOUT
        #: CPU seconds of its thread.
        self.cpu = 0.0
        #: What its thread has failed at, beside what is counted as the fate of spans.
        self.faults: Counter[str] = Counter()
        self._settings = settings
        self._complaints = Complaints()
        self._closing = Event()
        self._sinks: list[Sink] = make_sinks(settings, self._closing, self._complaints)
        self._processors: ProcessorSink | None = None
        self._bell = Bell()
        self._line = Line(settings.queue.size if self._sinks else -1, self._wake)
        if not self._sinks:
            self._line.wake_at = NEVER
        self._wake_at = max(1, min(_WAKE, settings.queue.batch // 2, settings.queue.size // 2))
        self._intake = Intake(self._line, settings.limits, self._complaints, self._forms())
        self._flushes: deque[Event] = deque()
        self._changing = Lock()
        self._thread: Thread | None = None
        self._refused = 0
        self._aborted = False
        self._final: Counts | None = None
        _pipelines.add(self)

    # -- for everybody ---------------------------------------------------------------------------------------

    def emitter(self, resource: Attributes, scope: Scope) -> Emitter:
        """Where spans of this resource and scope are handed in; keep it, since it holds both encoded."""
        return Emitter(self._line, Source(resource, scope))

    def add_processor(self, on_end: Callable[[ReadableSpan], object]) -> None:
        """Call this with each span too, in the pipeline's thread."""
        with self._changing:
            if self._processors is None:
                self._processors = ProcessorSink(self._complaints)
                self._intake.forms = None
                self._sinks = [*self._sinks, self._processors]
            self._processors.processors.append(on_end)
            if self._final is None:
                self._line.size = self._settings.queue.size
                self._line.wake_at = 0

    @property
    def counts(self) -> Counts:
        """What became of the spans at the first sink (OTLP, where it is one); exact while nothing moves."""
        settled, dropped, waiting = self._final, self._line.dropped.value(), len(self._line.entries)
        if settled is None:
            settled = self._settled()
        else:  # Whoever was about to emit when the pipeline closed.
            dropped, waiting = dropped + waiting, 0
        return settled._replace(
            emitted=settled.emitted + dropped + waiting,
            dropped=settled.dropped + dropped,
            waiting=settled.waiting + waiting,
        )

    @property
    def sending(self) -> bool:
        """Whether there is somebody to hand spans to."""
        return bool(self._sinks)

    @property
    def capacity(self) -> int:
        """Spans that can wait at most."""
        return self._settings.queue.size

    @property
    def queued(self) -> int:
        """Spans that wait to be sent."""
        return len(self._line.entries)

    @property
    def processed(self) -> dict[str, int]:
        """Spans that were emitted and do not wait, by `error.type`: those that left the queue have none."""
        return {"": self._intake.taken, QUEUE_FULL: self._line.dropped.value()}

    @property
    def settled(self) -> dict[str, int]:
        """Spans that left the queue and have a fate at the first sink, by `error.type`: those that arrived have none."""
        settled = self._sinks[0].fates.by_error() if self._sinks else Fates().by_error()
        settled[INVALID] += self._intake.failed
        return settled

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all that was emitted before has a fate; whether that was so in time."""
        if self._thread is None and self._line.entries:
            self._wake()
        if self._thread is None or self._final is not None or current_thread() is self._thread:
            return not self._line.entries
        done = Event()
        self._flushes.append(done)
        self._bell.ring()
        # Who closes sets what it finds, and may have looked before.
        return self._final is not None or done.wait(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Send what waits, then stop for good; whether all was handed on. A second time does nothing."""
        timeout = self.patience if timeout is None else timeout
        until = monotonic() + timeout
        if self._final is not None or not self._changing.acquire(timeout=timeout):
            return self._final is not None
        try:
            return self._final is not None or self._close(until, timeout)
        finally:
            self._changing.release()

    def _forms(self) -> Forms | None:
        """The cheap way of attempts, where nothing needs their spans one by one."""
        limits = self._settings.limits
        if limits.attribute_length is not None or not all(isinstance(sink, OtlpSink) for sink in self._sinks):
            return None
        return Forms(limits.attributes)

    # -- the end ---------------------------------------------------------------------------------------------

    def _close(self, until: float, timeout: float) -> bool:
        atexit.unregister(self.close)
        self._line.size, self._line.wake_at = -1, NEVER
        self._complaints.hush()
        before = self._settled()
        self._closing.set()
        self._bell.ring()
        if not self._join(until - min(_GIVE_UP, timeout / 4)):
            self._abort()
            self._join(until)
            self._intake.stop(timeout=_GIVE_UP)
        settled = self._settled()
        # What the thread still holds may have been sent.
        self._final = settled._replace(unknown=settled.unknown + settled.waiting, waiting=0)
        left = len(self._line.entries) + settled.waiting
        if left:
            self._complaints.lost(left, "closing", f"not sent within {timeout:g} s")
        self._complaints.conclude()
        for done in self._flushes:
            done.set()
        return not left and _lost(self._final) == _lost(before)

    def _join(self, until: float) -> bool:
        """Wait for the thread's end; whether it came."""
        if self._thread is None:
            return True
        if current_thread() is self._thread:
            return False
        self._thread.join(max(0.0, until - monotonic()))
        return not self._thread.is_alive()

    def _abort(self) -> None:
        self._aborted = True
        for sink in self._sinks:
            sink.abort()

    def _settled(self) -> Counts:
        """Counts of the spans that left the queue."""
        fates = self._sinks[0].fates if self._sinks else Fates()
        taken, failed = self._intake.taken, fates.failed + self._intake.failed
        waiting = taken - self._intake.failed - fates.total
        return Counts(taken, fates.exported, fates.dropped, failed, fates.unknown, waiting)

    def _turn_off(self) -> None:
        """In a forked child: the thread is not there, and a lock may be held by one that is not either."""
        self._line.size, self._line.wake_at = -1, NEVER
        self._line.wake = _nothing
        self._line.entries = deque()
        self._line.dropped = Tally()
        self._final = Counts()
        self._changing = Lock()
        self._thread = None

    # -- the thread ------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Called by an emitter when enough waits; the first time there is no thread yet."""
        self._line.wake_at = NEVER
        try:
            if self._thread is None:
                self._start()
        except Exception as error:  # No more threads, for one: it is tried again, not at each span.
            self._fail(error)
            self._line.wake_at = len(self._line.entries) + self._wake_at
        self._bell.ring()

    def _start(self) -> None:
        if not self._changing.acquire(blocking=False):
            self._line.wake_at = 0
            return
        try:
            if self._thread is None and self._final is None:
                thread = Thread(target=self._run, name="dask-otel-export", daemon=True)
                thread.start()
                self._thread = thread
                atexit.register(self.close)
        finally:
            self._changing.release()

    def _run(self) -> None:
        # Instrumented grpc and sockets would make spans of our own requests.
        attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        while not self._closing.is_set():
            if not self._guard(self._wait):
                self._closing.wait(_AFTER_FAULT)
            self._guard(self._pass)
            self.cpu = thread_time()
        self._guard(self._pass)
        self.cpu = thread_time()
        for sink in self._sinks:
            self._guard(sink.close)

    def _wait(self) -> None:
        self._bell.wait(min(self._settings.queue.delay, _LONGEST_DELAY))

    def _pass(self) -> None:
        """Hand on what waits now; what comes meanwhile is the next pass's."""
        flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
        until = self._intake.places + len(self._line.entries)
        try:
            while self._intake.places < until and not self._aborted:
                batch = self._intake.batch(self._settings.queue.batch)
                for sink in reversed(self._sinks):
                    self._guard(partial(self._deliver, sink, batch))
            self._tell_dropped()
        finally:
            self._settle()
            self._line.wake_at = self._wake_at
            for done in flushes:
                done.set()

    def _settle(self) -> None:
        """What was taken and has no fate was lost where something of ours failed."""
        if self._sinks:
            fates = self._sinks[0].fates
            fates.failed += max(0, self._intake.taken - self._intake.failed - fates.total)

    def _deliver(self, sink: Sink, batch: Batch) -> None:
        given = sum([number(spans) for _, spans in batch])
        until = sink.fates.total + given
        self._guard(partial(sink.deliver, batch))
        sink.fates.failed += until - sink.fates.total

    def _guard(self, call: Callable[[], object]) -> bool:
        """Whether it did not fail. What it raises is counted, and told if that can be."""
        try:
            call()
            return True
        except BaseException as error:  # Users' code runs here: a SystemExit of theirs would end the thread.
            self._fail(error)
            return False

    def _fail(self, error: BaseException) -> None:
        self.faults[_HOOK] += 1
        with suppress(Exception):
            self._complaints.lost(0, "export", f"{type(error).__name__}: {error}"[:300])

    def _tell_dropped(self) -> None:
        refused = self._line.dropped.value()
        if refused > self._refused:
            size = self._settings.queue.size
            self._complaints.lost(refused - self._refused, "queue", f"full, it holds {size} spans")
            self._refused = refused


def _lost(counts: Counts) -> int:
    return counts.dropped + counts.failed + counts.unknown


def _nothing() -> None:
    """What a forked child's emitters call."""


def _after_fork() -> None:
    for pipeline in list(_pipelines):
        pipeline._turn_off()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
