"""Why threads are free, in the scheduler's view: thread-seconds by reason.

Rules
-----
1. Standard library only; no clock: the moment (s, any clock, never falling) comes with what happened.
2. A total never falls, and the sum of all is the integral of the free threads of the workers that run tasks.
3. Whatever happens costs the same, however many workers and tasks there are.

A thread is free where a worker has fewer tasks than threads; tasks that have seceded do not count. While no task is active
(waiting, queued, without a worker, or at one) it waits for clients, or for a graph that is being updated. Else a free
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
    >>> idle.worker("w1", spare=4, running=True, now=0)
    >>> idle.tasks(active=True, queued=0, unrunnable=0, now=10)
    >>> idle.worker("w1", spare=3, running=True, now=10)
    >>> {reason: total for reason, total in idle.totals(now=12).items() if total}
    {'no-client-work': 40, 'not-enough-parallelism': 6}
    """

    __slots__ = (
        "_active",
        "_excess",
        "_free",
        "_graphs",
        "_queued",
        "_since",
        "_spares",
        "_totals",
        "_unrunnable",
    )

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
        #: By worker: threads that are free, or, below zero, tasks beyond its threads. None that are neither.
        self._spares: dict[Hashable, int] = {}
        self._free = self._excess = 0
        self._active = False
        self._queued = self._unrunnable = self._graphs = 0

    def worker(self, worker: Hashable, spare: int, running: bool, now: float) -> None:
        """A worker has ``spare`` more threads than tasks.

        The threads of one that is paused or leaves are not free; the tasks beyond its threads wait all the same.
        """
        if spare > 0 and not running:
            spare = 0
        before = self._spares.get(worker, 0)
        if spare == before:
            return
        self._close(now)
        if spare:
            self._spares[worker] = spare
        else:
            del self._spares[worker]
        freed = (spare if spare > 0 else 0) - (before if before > 0 else 0)
        self._free += freed
        self._excess += freed - (spare - before)

    def worker_left(self, worker: Hashable, now: float) -> None:
        """A worker is no more, nor what it had."""
        self.worker(worker, 0, False, now)

    def tasks(self, active: bool, queued: int, unrunnable: int, now: float) -> None:
        """Whether any task is to run or runs; so many of them are queued, and so many may run nowhere."""
        self._close(now)
        self._active, self._queued, self._unrunnable = active, queued, unrunnable

    def graphs(self, updating: int, now: float) -> None:
        """So many graphs are being updated."""
        self._close(now)
        self._graphs = updating

    def totals(self, now: float) -> dict[str, float]:
        """Thread-seconds by reason, up to now; every reason is there."""
        self._close(now)
        return dict(self._totals)

    def _close(self, now: float) -> None:
        """Add what has been since the last change."""
        if self._free:
            self._add(now - self._since)
        self._since = now

    def _add(self, seconds: float) -> None:
        totals, free = self._totals, self._free
        if not self._active:
            totals[GRAPH_UPDATING if self._graphs else NO_CLIENT_WORK] += free * seconds
            return
        if self._unrunnable:
            stuck = min(free, self._unrunnable)
            totals[NO_WORKER] += stuck * seconds
            free -= stuck
        if elsewhere := self._excess + self._queued:
            elsewhere = min(free, elsewhere)
            totals[IMBALANCE] += elsewhere * seconds
            free -= elsewhere
        totals[GRAPH_UPDATING if self._graphs else NOT_ENOUGH_PARALLELISM] += free * seconds
