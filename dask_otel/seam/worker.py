"""The worker's seam: what a `distributed.Worker` does with tasks, as calls to a listener.

Rules
-----
1. A task's context is attached in the asyncio task that executes it, always: an empty one where the task is not
   traced, since `secede` runs the next instruction in the context of the task that seceded.
2. Amounts are those of the very ledger that feeds ``Worker.digests_total``, after it was closed.
3. The outcome is the state that the worker's state machine came to, not the ledger's label.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dask.utils import key_split
from distributed.metrics import context_meter
from distributed.utils import key_split_group
from distributed.worker_state_machine import ExecuteFailureEvent, ExecuteSuccessEvent, RescheduleEvent
from opentelemetry.context import Context, attach, detach

from dask_otel import names
from dask_otel.guard import Guard
from dask_otel.seam import ANNOTATION, METRIC, TOPIC, Wraps, actors, errors
from dask_otel.seam.transfers import Listener as TransferListener
from dask_otel.seam.transfers import TransferSeam
from dask_otel.version import __version__

if TYPE_CHECKING:
    from distributed import Worker

_EMPTY = Context()
#: Stimuli of a `RescheduleEvent` that no task asked for: the worker closes.
_CLOSING = ("worker-closing", "cancelled-by-worker-close")


class Posts(list[tuple[Hashable, float, str]]):
    """A ledger's metrics that remember when each was posted, and the run that they belong to."""

    __slots__ = ("moments", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.moments: list[float] = []

    def append(self, post: tuple[Hashable, float, str]) -> None:
        self.moments.append(time.perf_counter())
        list.append(self, post)


class Run:
    """One execution of a task on this worker, from its first moment.

    ``start`` is in seconds since the epoch; ``shift`` added to a moment of ``posts`` gives such seconds.
    ``listener`` is for whatever the listener wants to keep with it.
    """

    __slots__ = (
        "is_async",
        "key",
        "listener",
        "posts",
        "ready",
        "run_id",
        "seceded",
        "shift",
        "start",
        "state",
        "waiting",
    )

    def __init__(self, key: Hashable, run_id: int, state: Any) -> None:
        self.key = key
        self.run_id = run_id
        self.state = state
        self.is_async = False
        self.listener: Any = None
        self.posts = Posts(self)
        self.start = self.shift = 0.0
        self.waiting: float | None = None
        self.ready: float | None = None
        self.seceded: float | None = None


class Ended:
    """How a run ended; every field that is not known is ``None``."""

    __slots__ = ("amounts", "compute", "end", "exception_text", "outcome", "size", "thread", "traceback_text", "type")

    def __init__(self, outcome: str, end: float, amounts: Sequence[tuple[Hashable, float, str]]) -> None:
        self.outcome = outcome
        self.end = end
        self.amounts = amounts
        self.compute: tuple[float, float] | None = None
        self.size: int | None = None
        self.type: str | None = None
        self.thread: int | None = None
        self.exception_text: str | None = None
        self.traceback_text = ""


class Listener(TransferListener, actors.Listener, Protocol):
    """What the worker's shell must offer."""

    def run_started(self, run: Run, annotation: object) -> Context | None:
        """A task starts to execute; returns the context that is to be current in it, ``None`` if untraced."""

    def run_ended(self, run: Run, ended: Ended) -> None:
        """It ended, its result is stored, its amounts are final."""


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

    def __init__(self, worker: Worker, listener: Listener, guard: Guard) -> None:
        self._worker = worker
        self._listener = listener
        self._guard = guard
        self._wraps = Wraps()
        self._transfers = TransferSeam(worker, listener, guard)
        self._waiting: dict[Hashable, float] = {}
        self._ready: dict[Hashable, float] = {}
        self._seceded: dict[Hashable, float] = {}

    def install(self) -> None:
        """Wrap the worker's methods."""
        worker = self._worker
        self._wraps.attribute(worker, "execute", self._wrap_execute(worker.execute))
        self._wraps.attribute(worker, "_finalize_metrics", self._wrap_finalize(worker._finalize_metrics))
        self._transfers.install()
        errors.install()
        actors.install_worker(worker, self._listener, self._guard, self._wraps)
        worker.metrics[METRIC] = _running

    def uninstall(self) -> None:
        """Put everything back."""
        self._wraps.undo()
        self._transfers.uninstall()
        errors.uninstall()
        actors.uninstall_worker(self._worker)
        self._worker.metrics.pop(METRIC, None)

    # -- what is asked of the worker --------------------------------------------------------------------------
    def tell_scheduler(self, message: dict[str, Any]) -> None:
        """Send a message to the scheduler's dask-otel; lost without a trace where there is none."""
        self._worker.log_event(TOPIC, message)

    def clock_offset(self) -> float:
        """This worker's clock minus the scheduler's (s)."""
        return -float(self._worker.scheduler_delay)

    def group_name(self, key: Hashable) -> str:
        return str(key_split_group(key))

    def prefix(self, key: Hashable) -> str:
        return str(key_split(key))

    def executing(self) -> Iterable[Any]:
        """States of the tasks that run now, seceded ones too."""
        return self._worker.state.all_running_tasks

    # -- what the worker's state machine tells ----------------------------------------------------------------
    def transition(self, key: Hashable, start: str, finish: str) -> None:
        """Remember since when a task waits, is ready, has seceded; ``finish`` is the requested state."""
        if finish == "waiting":
            self._waiting[key] = time.time()
        elif finish == "ready" or finish == "constrained":
            self._ready[key] = time.time()
        elif finish == "long-running":
            self._seceded[key] = time.time()
        elif finish == "released" or finish == "forgotten":
            self._waiting.pop(key, None)
            self._ready.pop(key, None)

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
        if state is None or not state.annotations or ANNOTATION not in state.annotations:
            return _EMPTY
        run = Run(key, state.run_id, state)
        run.is_async = bool(getattr(state.run_spec, "is_coro", False))
        run.waiting, run.ready = waiting, ready
        context = self._listener.run_started(run, state.annotations[ANNOTATION])
        if context is None:
            return _EMPTY
        if run.listener is not None:
            self._measure(run)
        return context

    def _measure(self, run: Run) -> None:
        """Listen to the ledger that this execution's amounts are collected in."""
        callback: Any = context_meter._callbacks.get()["async-instruction"]
        ledger = callback.__self__
        run.shift = time.time() - time.perf_counter()
        run.start = ledger.start + run.shift
        run.posts.extend(ledger.metrics)
        run.posts.moments.extend([ledger.start] * len(run.posts))
        ledger.metrics = run.posts

    def _wrap_finalize(self, original: Callable[..., None]) -> Callable[..., None]:
        def _finalize_metrics(stim: Any, ledger: Any, span_id: str | None = None) -> None:
            posts = ledger.metrics
            ours = type(posts) is Posts
            if not ours and not hasattr(ledger, "transfer"):
                return original(stim, ledger, span_id)
            tee = _Tee(ledger)
            original(stim, tee, span_id)
            try:
                if ours:
                    self._end(posts.run, stim, tee.amounts)
                else:
                    self._transfers.close(stim, ledger, tee.amounts)
            except Exception:
                self._guard.fault("_finalize_metrics")

        return _finalize_metrics

    def _end(self, run: Run, stim: Any, amounts: list[tuple[Hashable, float, str]]) -> None:
        run.seceded = self._seceded.pop(run.key, None)
        state = self._worker.state.tasks.get(run.key)
        outcome = _outcome(run, stim, state)
        if outcome is None:
            return
        total = sum([value for _, value, unit in amounts if unit == "seconds"])
        # A user may post seconds that never passed: the end is never later than now.
        ended = Ended(outcome, min(run.start + total, time.time()), amounts)
        ended.thread = None if run.is_async else self._worker.threads.get(run.key)
        if isinstance(stim, RescheduleEvent):
            self._listener.run_ended(run, ended)
            return
        if stim.start is not None:
            delay = self._worker.scheduler_delay
            ended.compute = (stim.start - delay, stim.stop - delay)
        if isinstance(stim, ExecuteSuccessEvent):
            ended.size = stim.nbytes
            ended.type = stim.type.__qualname__ if stim.type is not None else None
        if isinstance(stim, ExecuteFailureEvent):
            ended.exception_text = stim.exception_text
            ended.traceback_text = stim.traceback_text
        elif state is not None and outcome == names.FAILED:
            ended.exception_text = state.exception_text
            ended.traceback_text = state.traceback_text
        self._listener.run_ended(run, ended)


def _outcome(run: Run, stim: Any, state: Any) -> str | None:
    """``None`` where this worker is not the one to tell."""
    if isinstance(stim, RescheduleEvent):
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


async def _running(worker: Worker) -> str:
    return __version__
