"""Why threads are free, in the scheduler's view: thread-seconds by reason.

Rules
-----
1. Standard library only; no clock: the moment (s, any clock) comes with what happened.
2. A total never falls, and the sum of all is the integral of the free threads of the workers that run tasks.
3. Time stands still while what is told is older than what was told before.
4. Whatever happens costs the same, however many workers and tasks there are. What changes nothing need not be told.

A thread is free where a worker has fewer tasks than threads; tasks that have seceded do not count. While no task is at a
worker, queued or without one, and so none waits for another, it waits for clients, or for a graph that is being
updated. Else a free thread stands for each task that could run at once but does not: a task that no worker may run
(``no-worker``) comes first, since no scheduling would help it; then one that is queued, or that lies at a worker which
has more tasks than threads (``imbalance``). What is left has nothing that could run: another graph's tasks are to come,
or there is not enough parallelism.
"""

from __future__ import annotations

from collections.abc import Hashable

from dask_otel.names import GRAPH_UPDATING, IMBALANCE, NO_CLIENT_WORK, NO_WORKER, NOT_ENOUGH_PARALLELISM

#: A worker without a thread to spare, tasks beyond its threads, or any.
NOTHING = (0, 0)


class IdleTime:
    """Free threads of one scheduler's workers, by reason.

    Attributes
    ----------
    workers
        What was told last, by worker: threads that are free, or, below zero, tasks beyond its threads; its tasks.
        A worker that has neither is not there: it is as `NOTHING`.
    elsewhere
        What was told last: tasks that are queued, that may run nowhere; graphs that are being updated.

    Examples
    --------
    >>> idle = IdleTime(now=0)
    >>> idle.worker("w1", spare=4, tasks=0, now=0)
    >>> idle.worker("w1", spare=3, tasks=1, now=10)
    >>> {reason: total for reason, total in idle.totals(now=12).items() if total}
    {'no-client-work': 40, 'not-enough-parallelism': 6}
    """

    __slots__ = ("_excess", "_free", "_since", "_tasks", "_totals", "elsewhere", "workers")

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
        self.workers: dict[Hashable, tuple[int, int]] = {}
        self.elsewhere = (0, 0, 0)
        self._free = self._excess = self._tasks = 0

    def worker(self, worker: Hashable, spare: int, tasks: int, now: float) -> None:
        """A worker has so many ``tasks``, seceded ones too, and ``spare`` more threads than tasks that need one.

        The threads of one that is paused or leaves are not spare; the tasks beyond its threads wait all the same.
        """
        self._close(now)
        was_spare, had = self.workers.pop(worker, NOTHING)
        if spare or tasks:
            self.workers[worker] = (spare, tasks)
        freed = (spare if spare > 0 else 0) - (was_spare if was_spare > 0 else 0)
        self._free += freed
        self._excess += freed - (spare - was_spare)
        self._tasks += tasks - had

    def others(self, queued: int, unrunnable: int, updating: int, now: float) -> None:
        """So many tasks are queued, so many may run nowhere, so many graphs are being updated."""
        self._close(now)
        self.elsewhere = (queued, unrunnable, updating)

    def totals(self, now: float) -> dict[str, float]:
        """Thread-seconds by reason, up to now; every reason is there."""
        self._close(now)
        return dict(self._totals)

    def _close(self, now: float) -> None:
        """Add what has been since the last change."""
        totals, free, seconds = self._totals, self._free, now - self._since
        if seconds <= 0:
            return
        self._since = now
        if not free:
            return
        queued, unrunnable, updating = self.elsewhere
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
