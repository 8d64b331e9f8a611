"""Why threads are free, in the scheduler's view: thread-seconds by reason.

Rules
-----
1. Standard library only; no clock: the moment (s, any clock, never falling) comes with what happened.
2. A total never falls, and the sum of all is the integral of the free threads of the workers that run tasks.
3. Whatever happens costs the same, however many workers and tasks there are; what changes nothing is seen to at once.

A thread is free where a worker has fewer tasks than threads; tasks that have seceded do not count. While no task is at a
worker, queued or without one, and so none waits for another, it waits for clients, or for a graph that is being updated. Else a free
thread stands for each task that could run at once but does not: a task that no worker may run (``no-worker``) comes
first, since no scheduling would help it; then one that is queued, or that lies at a worker which has more tasks than
threads (``imbalance``). What is left has nothing that could run: another graph's tasks are to come, or there is
not enough parallelism.
"""

from __future__ import annotations

from collections.abc import Hashable

from dask_otel.names import GRAPH_UPDATING, IMBALANCE, NO_CLIENT_WORK, NO_WORKER, NOT_ENOUGH_PARALLELISM


class IdleTime:
    """Free threads of one scheduler's workers, by reason.

    Examples
    --------
    >>> idle = IdleTime(now=0)
    >>> idle.worker("w1", spare=4, tasks=0, running=True, now=0)
    >>> idle.worker("w1", spare=3, tasks=1, running=True, now=10)
    >>> {reason: total for reason, total in idle.totals(now=12).items() if total}
    {'no-client-work': 40, 'not-enough-parallelism': 6}
    """

    __slots__ = ("_elsewhere", "_excess", "_free", "_since", "_tasks", "_totals", "_workers")

    def __init__(self, now: float) -> None:
        self._since = now
        #: Thread-seconds by reason, up to `_since`.
        self._totals: dict[str, float] = {
            NO_CLIENT_WORK: 0,
            GRAPH_UPDATING: 0,
            NOT_ENOUGH_PARALLELISM: 0,
            IMBALANCE: 0,
            NO_WORKER: 0,
        }
        #: By worker: threads that are free, or, below zero, tasks beyond its threads; its tasks. None that has neither.
        self._workers: dict[Hashable, tuple[int, int]] = {}
        self._free = self._excess = self._tasks = 0
        #: Tasks that are queued, that may run nowhere; graphs that are being updated.
        self._elsewhere = (0, 0, 0)

    def worker(self, worker: Hashable, spare: int, tasks: int, running: bool, now: float) -> None:
        """A worker has so many ``tasks``, seceded ones too, and ``spare`` more threads than tasks that need one.

        The threads of one that is paused or leaves are not free; the tasks beyond its threads wait all the same.
        """
        if spare > 0 and not running:
            spare = 0
        before = self._workers.get(worker, _NOTHING)
        is_now = (spare, tasks)
        if is_now == before:
            return
        self._close(now)
        if is_now == _NOTHING:
            del self._workers[worker]
        else:
            self._workers[worker] = is_now
        was_spare, had = before
        freed = (spare if spare > 0 else 0) - (was_spare if was_spare > 0 else 0)
        self._free += freed
        self._excess += freed - (spare - was_spare)
        self._tasks += tasks - had

    def worker_left(self, worker: Hashable, now: float) -> None:
        """A worker is no more, nor what it had."""
        self.worker(worker, 0, 0, False, now)

    def elsewhere(self, queued: int, unrunnable: int, updating: int, now: float) -> None:
        """So many tasks are queued, so many may run nowhere, so many graphs are being updated."""
        is_now = (queued, unrunnable, updating)
        if is_now != self._elsewhere:
            self._close(now)
            self._elsewhere = is_now

    def totals(self, now: float) -> dict[str, float]:
        """Thread-seconds by reason, up to now; every reason is there."""
        self._close(now)
        return dict(self._totals)

    def _close(self, now: float) -> None:
        """Add what has been since the last change."""
        totals, free, seconds = self._totals, self._free, now - self._since
        self._since = now
        if not free:
            return
        queued, unrunnable, updating = self._elsewhere
        if not (self._tasks or queued or unrunnable):
            totals[GRAPH_UPDATING if updating else NO_CLIENT_WORK] += free * seconds
            return
        if unrunnable:
            stuck = min(free, unrunnable)
            totals[NO_WORKER] += stuck * seconds
            free -= stuck
        if waiting := self._excess + queued:
            waiting = min(free, waiting)
            totals[IMBALANCE] += waiting * seconds
            free -= waiting
        totals[GRAPH_UPDATING if updating else NOT_ENOUGH_PARALLELISM] += free * seconds


_NOTHING = (0, 0)
