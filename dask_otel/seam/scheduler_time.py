"""Where the scheduler's time goes, and its workers' free threads: the sources of two metrics.

Rules
-----
1. Everything is called in the thread of the scheduler's event loop, the getters too.
2. Whatever happens costs the same, however many workers, groups and tasks there are; only `install` and `idle_time`
   look at all groups.
3. What the scheduler holds is read, not kept twice, where that takes no search: what is queued, what no worker may run,
   which tasks a worker has. How many are active is told by transitions; what they get wrong (a transition within another
   of the same task is told first) or do not tell (a scatter over a task that is active) is put right by `idle_time`.

Notes
-----
Until its handler runs, a graph is on its way, or a message that is being read: its time is ``no-client-work`` if nothing
else is active.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_otel.guard import Guard
from dask_otel.idle_time import IdleTime
from dask_otel.seam import Wraps
from dask_otel.seam.handlers import HandlerSeam
from dask_otel.seam.scheduler import ACTIVE

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import WorkerState

#: Active tasks of which the scheduler knows how many there are.
_COUNTED = frozenset(("queued", "no-worker"))


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
        self._handlers = HandlerSeam(scheduler, guard, clock)
        self._idle = IdleTime(clock())
        self._active = self._updating = 0
        #: What the getters give once it was uninstalled.
        self._last: tuple[dict[str, float], dict[str, float]] | None = None

    def install(self) -> None:
        """Wrap the scheduler's methods; what was counted before is forgotten."""
        scheduler, handlers = self._scheduler, self._scheduler.stream_handlers
        self._last = None
        self._look()
        for name, wrap in (
            ("check_idle_saturated", self._wrap_check_idle_saturated),
            ("handle_worker_status_change", self._wrap_status_change),
            ("remove_worker", self._wrap_remove_worker),
        ):
            self._wraps.attribute(scheduler, name, wrap(getattr(scheduler, name)))
        for entries, op, wrap in (
            (handlers, "worker-status-change", self._wrap_status_change),
            (handlers, "update-graph", self._wrap_update_graph),
            (scheduler.handlers, "unregister", self._wrap_remove_worker),
        ):
            self._wraps.entry(entries, op, wrap(entries[op]))
        self._handlers.install()

    def uninstall(self) -> None:
        """Put everything back; the getters give what there was until now."""
        self._last = (self.idle_time(), self.handler_time())
        self._handlers.uninstall()
        self._wraps.undo()

    def idle_time(self) -> dict[str, float]:
        """Thread-seconds of free threads by reason since `install`; every reason is there."""
        if self._last is not None:
            return dict(self._last[0])
        totals = self._idle.totals(self._clock())
        self._count()
        return totals

    def handler_time(self) -> dict[str, float]:
        """Seconds of the event loop by operation since `install`, with ``idle`` and ``other``: they sum to all of it."""
        if self._last is not None:
            return dict(self._last[1])
        return self._handlers.totals(self._clock())

    def _look(self) -> None:
        """What there is already."""
        self._idle = IdleTime(self._clock())
        self._count()
        self._idle.graphs(self._updating, self._clock())
        for ws in self._scheduler.workers.values():
            self._read(ws)

    # -- tasks --------------------------------------------------------------------------------------------------
    def transition(self, key: Hashable, start: str, finish: str) -> None:
        """The plugin's ``transition``."""
        before = self._active
        self._active = after = before + (finish in ACTIVE) - (start in ACTIVE)
        # How many are active matters to none of the reasons, only whether any is.
        if (after > 0) is not (before > 0) or start in _COUNTED or finish in _COUNTED:
            self._tell_tasks()

    def _count(self) -> None:
        groups = self._scheduler.task_groups.values()
        self._active = sum([group.states[state] for group in groups for state in ACTIVE])
        self._tell_tasks()

    def _tell_tasks(self) -> None:
        scheduler = self._scheduler
        self._idle.tasks(self._active > 0, len(scheduler.queued), len(scheduler.unrunnable), self._clock())

    # -- graphs -------------------------------------------------------------------------------------------------
    def _wrap_update_graph(self, original: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        @functools.wraps(original)
        async def update_graph(*args: Any, **kwargs: Any) -> None:
            self._graph(+1)
            try:
                await original(*args, **kwargs)
            finally:
                self._graph(-1)

        return update_graph

    def _graph(self, change: int) -> None:
        try:
            self._updating += change
            self._idle.graphs(self._updating, self._clock())
        except Exception:
            self._guard.fault("idle_time")

    # -- workers ------------------------------------------------------------------------------------------------
    def _read(self, ws: WorkerState) -> None:
        spare = ws.nthreads - len(ws.processing) + len(ws.long_running)
        self._idle.worker(ws.address, spare, ws.status is Status.running, self._clock())

    def _wrap_check_idle_saturated(self, original: Callable[..., None]) -> Callable[..., None]:
        """Called whenever a worker's tasks have changed."""
        read, guard = self._read, self._guard

        @functools.wraps(original)
        def check_idle_saturated(ws: WorkerState, occ: float = -1.0) -> None:
            original(ws, occ)
            try:
                read(ws)
            except Exception:
                guard.fault("idle_time")

        return check_idle_saturated

    def _wrap_status_change(self, original: Callable[..., None]) -> Callable[..., None]:
        """A worker is paused, runs again, or is about to leave: only some of these are checked for idleness."""

        @functools.wraps(original)
        def handle_worker_status_change(status: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
            try:
                original(status, worker, *args, **kwargs)
            finally:
                self._reread(worker)

        return handle_worker_status_change

    def _reread(self, worker: str | WorkerState) -> None:
        try:
            ws = self._scheduler.workers.get(worker) if isinstance(worker, str) else worker
            if ws is not None:
                self._read(ws)
        except Exception:
            self._guard.fault("idle_time")

    def _wrap_remove_worker(self, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(original)
        async def remove_worker(address: str, **kwargs: Any) -> Any:
            try:
                self._leave(address)
            except Exception:
                self._guard.fault("idle_time")
            return await original(address, **kwargs)

        return remove_worker

    def _leave(self, address: str) -> None:
        """It is taken out in the same tick, before its tasks' transitions."""
        scheduler = self._scheduler
        if scheduler.status is not Status.closed:
            known = address if address in scheduler.workers else scheduler.coerce_address(address)
            self._idle.worker_left(known, self._clock())
