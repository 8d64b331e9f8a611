"""Where the scheduler's time goes, and its workers' free threads: the sources of two metrics.

Rules
-----
1. Everything is called in the thread of the scheduler's event loop, the getters too.
2. Whatever happens costs the same, however many workers, groups and tasks there are; only `install` looks at all workers.
3. What the scheduler holds is read, not kept twice: what is queued, what no worker may run, which tasks a worker has.
4. It is read after each wait of the loop that took a millisecond, as of its beginning, and else once a millisecond: what
   comes and goes in between has taken no time. A hook notes whose tasks have changed, no more.
5. A loop without a selector of its own (uvloop) is looked at every `_LOOK` seconds instead.

Notes
-----
Until its handler runs, a graph is on its way, or a message that is being read: its time is ``no-client-work`` if nothing
else is active.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_otel.guard import Guard
from dask_otel.idle_time import NOTHING, IdleTime
from dask_otel.names import LOOP_OTHER
from dask_otel.seam import Wraps, members
from dask_otel.seam.handlers import HandlerSeam, selector_of

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import WorkerState

_RUNNING = Status.running  # A look at the enumeration itself is a call.
#: Seconds between two looks at a scheduler whose loop does not tell its turns.
_LOOK = 0.05


class SchedulerTimeSeam:
    """Hooks on one scheduler.

    Parameters
    ----------
    clock
        Gives moments (s) that never fall.
    """

    def __init__(
        self, scheduler: Scheduler, guard: Guard, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._scheduler = scheduler
        self._guard = guard
        self._clock = clock
        self._wraps = Wraps()
        self._handlers = HandlerSeam(scheduler, guard, clock, self._turn)
        self._idle = IdleTime(clock())
        #: Workers whose tasks, status or being have changed since the last look, by address.
        self._changed: dict[str, WorkerState] = {}
        self._queued = members(scheduler.queued)
        #: By what else it is known that nothing has.
        self._transitions = self._updating = -1
        self._next_look: asyncio.TimerHandle | None = None
        #: What the getters give once it was uninstalled.
        self._last: tuple[dict[str, float], dict[str, float]] | None = None

    def install(self) -> None:
        """Wrap the scheduler's methods; what was counted before is forgotten."""
        scheduler = self._scheduler
        self._last = None
        self._idle = IdleTime(self._clock())
        self._changed.update(scheduler.workers)
        self._transitions = self._updating = -1
        self._turn(self._clock())
        status = self._wrap_status_change
        for name, wrap in (
            ("check_idle_saturated", self._wrap_check_idle_saturated),
            ("handle_worker_status_change", status),
            ("remove_worker", self._wrap_remove_worker),
        ):
            self._wraps.attribute(scheduler, name, wrap(getattr(scheduler, name)))
        for entries, op, wrap in (
            (scheduler.stream_handlers, "worker-status-change", status),
            (scheduler.handlers, "unregister", self._wrap_remove_worker),
        ):
            self._wraps.entry(entries, op, wrap(entries[op]))
        self._handlers.install()
        if selector_of(scheduler) is None:
            self._look_again()

    def uninstall(self) -> None:
        """Put everything back; the getters give what there was until now."""
        try:
            self._last = (self.idle_time(), self.handler_time())
        finally:
            if self._next_look is not None:
                self._next_look.cancel()
                self._next_look = None
            try:
                self._handlers.uninstall()
            finally:
                self._wraps.undo()

    def idle_time(self) -> dict[str, float]:
        """Thread-seconds of free threads by reason since `install`; every reason is there."""
        if self._last is not None:
            return dict(self._last[0])
        now = self._clock()
        self._turn(now)
        return self._idle.totals(now)

    def handler_time(self) -> dict[str, float]:
        """Seconds of the event loop by operation since `install`, with ``idle`` and ``other``: they sum to all of it."""
        if self._last is not None:
            return dict(self._last[1])
        return self._handlers.totals(self._clock())

    def other(self) -> float:
        """What `handler_time` gives for ``other``."""
        if self._last is not None:
            return self._last[1][LOOP_OTHER]
        return self._handlers.total(LOOP_OTHER, self._clock())

    # -- looking ------------------------------------------------------------------------------------------------
    def _turn(self, now: float) -> None:
        """Nothing has happened since: look at what has changed."""
        scheduler = self._scheduler
        transitions, updating = scheduler.transition_counter, scheduler._active_graph_updates
        changed, idle = self._changed, self._idle
        if not changed and transitions == self._transitions and updating == self._updating:
            return
        self._transitions, self._updating = transitions, updating
        for address, ws in changed.items():
            # A worker that has left may be told once more, after another has come by its address.
            known = ws if ws.status is _RUNNING else scheduler.workers.get(address)
            if known is None:
                has = NOTHING
            else:
                tasks = len(known.processing)
                spare = known.nthreads - tasks + len(known.long_running)
                has = (0 if spare > 0 and known.status is not _RUNNING else spare, tasks)
            if has != idle.workers.get(address, NOTHING):
                idle.worker(address, *has, now)
        changed.clear()
        elsewhere = (len(self._queued), len(scheduler.unrunnable), updating)
        if elsewhere != idle.elsewhere:
            idle.others(*elsewhere, now)

    def _look_again(self) -> None:
        try:
            self._turn(self._clock())
        except Exception:
            self._guard.fault("idle_time")
        if "idle_time" not in self._guard.off:
            self._next_look = self._scheduler.loop.asyncio_loop.call_later(_LOOK, self._look_again)

    # -- workers ------------------------------------------------------------------------------------------------
    def _wrap_check_idle_saturated(self, original: Callable[..., None]) -> Callable[..., None]:
        """Called whenever a worker's tasks have changed, at least twice a task."""
        changed = self._changed

        @functools.wraps(original)
        def check_idle_saturated(ws: WorkerState, occ: float = -1.0) -> None:
            original(ws, occ)
            changed[ws.address] = ws

        return check_idle_saturated

    def _wrap_status_change(self, original: Callable[..., None]) -> Callable[..., None]:
        """A worker is paused, runs again, or is about to leave: only some of these are checked for idleness."""

        @functools.wraps(original)
        def handle_worker_status_change(status: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
            try:
                original(status, worker, *args, **kwargs)
            finally:
                try:
                    self._note(worker if isinstance(worker, str) else worker.address)
                except Exception:
                    self._guard.fault("idle_time")

        return handle_worker_status_change

    def _wrap_remove_worker(self, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """It is taken out in the same tick."""

        @functools.wraps(original)
        async def remove_worker(address: str, **kwargs: Any) -> Any:
            try:
                self._leaves(address)
            except Exception:
                self._guard.fault("idle_time")
            return await original(address, **kwargs)

        return remove_worker

    def _leaves(self, address: str) -> None:
        scheduler = self._scheduler
        if scheduler.status is not Status.closed:
            self._note(address if address in scheduler.workers else scheduler.coerce_address(address))

    def _note(self, address: str) -> None:
        ws = self._scheduler.workers.get(address)
        if ws is not None:
            self._changed[address] = ws
