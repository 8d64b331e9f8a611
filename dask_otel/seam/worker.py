"""The worker's seam: what a `distributed.Worker` does with tasks, as calls to a listener.

Rules
-----
1. A task's context is attached in the asyncio task that executes it, always: an empty one where the task is not
   traced, since `secede` runs the next instruction in the context of the task that seceded.
2. Amounts are those of the very ledger that feeds ``Worker.digests_total``, after it was closed.
3. The outcome is the state that the worker's state machine came to, not the ledger's label.
4. Whatever the scheduler sent to be computed has one answer: the end of its run, or that it never ran.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from dask.utils import key_split
from distributed.core import Status
from distributed.metrics import context_meter
from distributed.utils import key_split_group
from distributed.worker_state_machine import ExecuteFailureEvent, ExecuteSuccessEvent, RescheduleEvent
from opentelemetry.context import Context, attach, detach

from dask_otel import clock, names
from dask_otel.guard import Guard
from dask_otel.seam import ANNOTATION, HERE, METRIC, TOPIC, Wraps, actors, errors, last_said
from dask_otel.seam.gc_pauses import PauseLog
from dask_otel.seam.run import Ended, Posts, Run
from dask_otel.seam.transfers import Listener as TransferListener
from dask_otel.seam.transfers import TransferSeam
from dask_otel.version import __version__

if TYPE_CHECKING:
    from distributed import Worker

_EMPTY = Context()
#: Stimuli of a `RescheduleEvent` that no task asked for: the worker closes.
_CLOSING = ("worker-closing", "cancelled-by-worker-close")
_UNSTARTED = ("waiting", "ready", "constrained")
_RUNNING = ("executing", "long-running")
#: What a task's transition finishes in, as requested, that is of interest.
TOLD = frozenset(("waiting", "ready", "constrained", "long-running", "released", "forgotten"))
#: Seconds after which pauses are told though no run ends.
_PAUSES_AFTER = 1.0


class Listener(actors.Listener, Protocol):
    """What the worker's shell must offer."""

    @property
    def measuring(self) -> bool:
        """Whether all tasks are to be told, those that came without a context too."""

    def passing(self, annotation: object) -> Context | None:
        """The context that is to be current in a task whose run and end nobody wants to know of; else ``None``."""

    def run_started(self, run: Run, annotation: object) -> Context | None:
        """A task starts to execute; ``annotation`` is ``None`` if it came with none. Sets ``run.listener`` if its
        end is to be told; returns the context that is to be current in it, ``None`` if untraced."""

    def untraced(self) -> None:
        """The first task that came without a context starts to execute."""

    def run_cancelled(self, run: Run) -> None:
        """The scheduler gave it up while it runs: it goes on to its end."""

    def run_ended(self, run: Run, ended: Ended) -> None:
        """It ended, its result is stored, its amounts are final."""

    def never_ran(self, key: Hashable, annotation: object) -> None:
        """A task that was sent here will not run: cancelled or stolen before it started."""

    def paused(self, runs: Iterable[Run], seconds: float) -> None:
        """These have stood still for a garbage collection of their process."""


class _Tee:
    """Stands in for a ledger while it is being closed, and keeps what it gives."""

    __slots__ = ("_ledger", "amounts")

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.amounts: list[tuple[Hashable, float, str]] = []

    def finalize(self, *args: Any, **kwargs: Any) -> list[tuple[Hashable, float, str]]:
        self.amounts = list(self._ledger.finalize(*args, **kwargs))
        return self.amounts


class WorkerSeam:
    """Hooks on one worker: tasks here, data in its `TransferSeam`."""

    def __init__(self, worker: Worker, listener: Listener, data: TransferListener, guard: Guard) -> None:
        self._worker = worker
        self._listener = listener
        self._guard = guard
        self._wraps = Wraps()
        self._data = data
        self._transfers = TransferSeam(worker, data, guard)
        self._waiting: dict[Hashable, float] = {}
        self._ready: dict[Hashable, float] = {}
        self._runs: dict[Hashable, Run] = {}
        #: By task: annotations of dispatches that were given up in the tick in which they were to start.
        self._early: WeakKeyDictionary[Any, dict[int, object]] = WeakKeyDictionary()
        self._met_untraced = False
        self._delay = self._offset = 0.0
        #: Of the last heartbeats.
        self._readings: deque[float] = deque(maxlen=8)
        self._pauses: PauseLog | None = None
        self._next_look: asyncio.TimerHandle | None = None

    def install(self) -> None:
        """Wrap the worker's methods."""
        worker = self._worker
        self._wraps.attribute(worker, "execute", self._wrap_execute(worker.execute))
        self._wraps.attribute(worker, "_finalize_metrics", self._wrap_finalize(worker._finalize_metrics))
        self._wraps.also(self._transfers.uninstall)
        self._transfers.install()
        errors.install()
        self._wraps.also(errors.uninstall)
        actors.install_worker(worker, self._listener, self._guard, self._wraps)
        self._wraps.also(lambda: actors.uninstall_worker(worker))
        worker.metrics[METRIC] = _running
        self._wraps.also(lambda: worker.metrics.pop(METRIC, None))
        self._wraps.also(self._forget_pauses)
        self._pauses = PauseLog()
        self._look_again()

    def uninstall(self) -> None:
        """Put everything back."""
        self._wraps.undo()

    def _forget_pauses(self) -> None:
        looking, pauses = self._next_look, self._pauses
        self._next_look = self._pauses = None
        if looking is not None:
            looking.cancel()
        if pauses is not None:
            pauses.close()

    # -- what is asked of the worker --------------------------------------------------------------------------
    def tell_scheduler(self, message: dict[str, Any]) -> None:
        """Send a message to the scheduler's dask-otel; lost without a trace where there is none."""
        self._worker.log_event(TOPIC, message)

    async def scheduler_says(self) -> dict[str, Any]:
        """The ``version`` of dask-otel that the scheduler runs, and its ``id``; nothing if it does not."""
        return last_said(await self._worker.scheduler.events(topic=HERE))

    @property
    def scheduler_address(self) -> str:
        return str(self._worker.scheduler.address)

    def clock_offset(self) -> float:
        """This worker's clock minus the scheduler's (s); 0 where that is less than a message takes."""
        worker = self._worker
        delay = worker.scheduler_delay
        if delay != self._delay:
            self._delay = delay
            self._readings.append(-float(delay))
            self._offset = clock.offset(self._readings)
        return self._offset if abs(self._offset) > worker.latency else 0.0

    def group_name(self, key: Hashable) -> str:
        return str(key_split_group(key))

    def prefix(self, key: Hashable) -> str:
        return str(key_split(key))

    def tags(self, run: Run) -> Sequence[str]:
        """Names of the user's spans that a run's task is in, outermost first."""
        annotations = run.state.annotations
        span = annotations.get("span") if annotations else None
        names_of: Sequence[str] = span["name"] if span else ()
        return names_of

    def executing(self) -> Iterable[Any]:
        """States of the tasks that run now, seceded ones too."""
        running: Iterable[Any] = self._worker.state.all_running_tasks
        return running

    @property
    def closing(self) -> bool:
        return self._worker.status is Status.closing

    def left_behind(self) -> Iterator[Run]:
        """Runs that the scheduler gave up and that go on, where the worker closes: their ends will not be seen."""
        if self.closing:
            yield from [run for run in self._runs.values() if run.cancelled]

    # -- what the worker's state machine tells ----------------------------------------------------------------
    def transition(self, key: Hashable, start: str, finish: str) -> None:
        """Remember since when a task waits, is ready, has seceded; ``finish`` is the requested state, one of `TOLD`."""
        if finish == "waiting":
            self._waiting[key] = time.time()
        elif finish == "ready" or finish == "constrained":
            self._ready[key] = time.time()
        elif finish == "long-running":
            run = self._runs.get(key)
            if run is not None and run.seceded is None:
                run.seceded = time.time()
        elif finish == "released" or finish == "forgotten":
            self._waiting.pop(key, None)
            self._ready.pop(key, None)
            if finish == "released" and start != "memory":
                self._freed(key, start)

    def _freed(self, key: Hashable, start: str) -> None:
        """The scheduler wants a task no more, or it was stolen."""
        if start in _RUNNING:
            run = self._runs.get(key)
            if run is not None:
                self._cancel(run)
            else:
                self._note_early(key)
        elif start in _UNSTARTED or start == "resumed":
            state = self._worker.state.tasks.get(key)
            # Resumed from executing there is a run, whose end is the answer.
            if state is not None and (start != "resumed" or state.previous == "flight"):
                self._answer(state)

    def _note_early(self, key: Hashable) -> None:
        """Given up while it executes, and no run is known: it is about to begin, unless nobody wants to know of it."""
        state = self._worker.state.tasks.get(key)
        if state is not None and state.annotations and ANNOTATION in state.annotations:
            self._early.setdefault(state, {})[state.run_id] = state.annotations[ANNOTATION]

    def _answer_early(self, state: Any) -> None:
        """What begins now is the last of the dispatches that came until then."""
        for run_id, annotation in (self._early.pop(state, None) or {}).items():
            if run_id != state.run_id:
                self._listener.never_ran(state.key, annotation)

    def _cancel(self, run: Run) -> None:
        if not run.cancelled:
            run.cancelled = True
            # Forgotten by the worker when its run ends.
            threads = self._worker.active_threads.copy()
            run.thread = next((thread for thread, key in threads.items() if key == run.key), None)
            self._listener.run_cancelled(run)
        self._answer_later(run)

    def _answer_later(self, run: Run) -> None:
        """A dispatch that came while this run of the same key was going on has no run of its own."""
        run_id = run.state.run_id
        if run_id not in (run.run_id, run.answered):
            run.answered = run_id
            self._answer(run.state)

    def _answer(self, state: Any) -> None:
        if state.annotations and ANNOTATION in state.annotations:
            self._listener.never_ran(state.key, state.annotations[ANNOTATION])

    # -- execution --------------------------------------------------------------------------------------------
    def _wrap_execute(self, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def execute(key: Hashable, *, stimulus_id: str) -> Any:
            try:
                context = self._begin(key)
            except Exception:
                context = _EMPTY
                self._guard.fault("execute")
            token = attach(context)
            try:
                return await original(key, stimulus_id=stimulus_id)
            finally:
                detach(token)

        return execute

    def _begin(self, key: Hashable) -> Context:
        waiting = self._waiting.pop(key, None)
        ready = self._ready.pop(key, None)
        state = self._worker.state.tasks.get(key)
        if self._early and state is not None:
            self._answer_early(state)
        annotation = state.annotations.get(ANNOTATION) if state is not None and state.annotations else None
        if state is None or (annotation is None and not self._listener.measuring):
            return self._begin_untraced()
        passing = self._listener.passing(annotation)
        if passing is not None:
            return passing
        run = Run(key, state.run_id, state)
        run.is_async = bool(getattr(state.run_spec, "is_coro", False))
        run.waiting, run.ready = waiting, ready
        context = self._listener.run_started(run, annotation)
        if run.listener is not None:
            self._measure(run)
            self._runs[key] = run
            if (
                state.state == "cancelled"
            ):  # In the tick in which it was to start: its code runs nevertheless.
                self._cancel(run)
        # It has an annotation where the client sent one with the graph, and no scheduler has taken it out.
        return context if context is not None else self._begin_untraced()

    def _begin_untraced(self) -> Context:
        if not self._met_untraced:
            self._met_untraced = True
            self._listener.untraced()
        return _EMPTY

    def _measure(self, run: Run) -> None:
        """Listen to the ledger that this execution's amounts are collected in."""
        callback: Any = context_meter._callbacks.get()["async-instruction"]
        ledger = callback.__self__
        run.shift = time.time() - time.perf_counter()
        run.start = ledger.start + run.shift
        ledger.run = run
        if run.itemized:
            run.posts = Posts()
            for post in ledger.metrics:
                run.posts.append(post)
            ledger.metrics = run.posts

    def _wrap_finalize(self, original: Callable[..., None]) -> Callable[..., None]:
        def _finalize_metrics(stim: Any, ledger: Any, span_id: str | None = None) -> None:
            run: Run | None = getattr(ledger, "run", None)
            if run is None and not hasattr(ledger, "transfer"):
                return original(stim, ledger, span_id)
            try:
                tee = _Tee(ledger)
            except Exception:
                self._guard.fault("_finalize_metrics")
                return original(stim, ledger, span_id)
            try:
                original(stim, tee, span_id)
            finally:  # It raises where a user metered what is no number.
                try:
                    if run is not None:
                        self._end(run, stim, tee.amounts)
                    else:
                        self._transfers.close(stim, ledger, tee.amounts)
                except Exception:
                    self._guard.fault("_finalize_metrics")

        return _finalize_metrics

    def _look_again(self) -> None:
        """In a while, at the pauses that no run's end has told."""
        self._next_look = asyncio.get_running_loop().call_later(_PAUSES_AFTER, self._look)

    def _look(self) -> None:
        try:
            self._look_again()
            self._tell_pauses()
        except Exception:
            self._guard.fault("gc")

    def _tell_pauses(self) -> None:
        """What runs now and began before a pause was stopped by it: nothing has ended since, or it had been told then."""
        for start, end, _ in self._pauses.take() if self._pauses is not None else ():
            stopped = [run for run in self._runs.values() if run.start - run.shift <= start]
            if stopped:
                self._listener.paused(stopped, end - start)

    def _end(self, run: Run, stim: Any, amounts: list[tuple[Hashable, float, str]]) -> None:
        if self._pauses:
            self._tell_pauses()
        if self._runs.get(run.key) is run:
            del self._runs[run.key]
        state = self._worker.state.tasks.get(run.key)
        outcome = _outcome(run, stim, state)
        self._answer_later(run)
        if outcome is None:
            return
        now = time.time()
        # Dask gives none where the sum of a user's is no number.
        total = (
            sum([value for _, value, unit in amounts if unit == "seconds"]) if amounts else now - run.start
        )
        if isnan(total):
            _leave_out_nan(amounts)
            _leave_out_nan(run.posts)
        # A user may post seconds that never passed: the end is never later than now; what is compared with NaN comes last.
        ended = Ended(outcome, min(now, run.start + total), amounts)
        ended.thread = None if run.is_async else self._worker.threads.get(run.key, run.thread)
        if isinstance(stim, RescheduleEvent):
            self._listener.run_ended(run, ended)
            return
        if stim.start is not None:
            # Both were shifted by the clock's delay of that moment: only their difference is of use here.
            ended.compute = stim.stop - stim.start
        if outcome == names.SUCCESS:
            ended.size = stim.nbytes
            ended.type = stim.type.__qualname__ if stim.type is not None else None
        if outcome == names.FAILED:
            told = stim if isinstance(stim, ExecuteFailureEvent) else state
            ended.failure = errors.noted(told.exception)
            ended.exception_text = told.exception_text
            ended.traceback_text = told.traceback_text
        self._listener.run_ended(run, ended)


class Deaf(WorkerSeam):
    """The seam of a worker whose tracing is switched off: it answers what it is asked, and hears nothing."""

    def __init__(self, seam: WorkerSeam) -> None:
        super().__init__(seam._worker, seam._listener, seam._data, seam._guard)

    def transition(self, key: Hashable, start: str, finish: str) -> None: ...


def _outcome(run: Run, stim: Any, state: Any) -> str | None:
    """``None`` where this worker is not the one to tell."""
    if isinstance(stim, RescheduleEvent) and not run.cancelled:
        return None if stim.stimulus_id.startswith(_CLOSING) else names.RESCHEDULED
    if state is None or state is not run.state:
        return names.CANCELLED
    if state.run_id != run.run_id:
        return names.DISCARDED
    if state.state == "error":
        return names.FAILED
    if state.state == "memory" and isinstance(stim, ExecuteSuccessEvent):
        return names.SUCCESS
    return names.CANCELLED


def _leave_out_nan(posts: list[tuple[Hashable, float, str]]) -> None:
    """Seconds that are no number take no time: an interval must have an end."""
    posts[:] = [(label, value if value == value else 0.0, unit) for label, value, unit in posts]


async def _running(worker: Worker) -> str:
    return __version__
