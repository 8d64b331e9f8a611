"""How a worker's threads spend their time: seconds by state, one slot a thread.

Rules
-----
1. Standard library only; no clock: time (s) is handed in.
2. At every moment each thread is in one state, so the states' seconds sum to threads × time, however both change.
3. No total ever falls. The model's time is the latest that it was told, be it by a change or by a question: it stands
   still while the clock is behind it.
"""

from __future__ import annotations

from dask_otel import names


class ThreadTime:
    """Thread-seconds of one worker by state, from the first `change` on.

    Examples
    --------
    Two threads, a task in one of them; another task waits for data from its sixth second on.

    >>> threads = ThreadTime()
    >>> threads.change(100.0, threads=2, executing=1)
    >>> threads.change(106.0, threads=2, executing=1, waiting=1)
    >>> threads.totals(110.0)
    {'executing': 10.0, 'paused': 0.0, 'constrained': 0.0, 'gather-dep': 4.0, 'idle': 6.0}
    """

    __slots__ = ("_counts", "_latest", "_seconds")

    def __init__(self) -> None:
        #: Nobody has a thread before the first change.
        self._latest = float("-inf")
        self._counts = (0, 0, 0, 0, 0)
        self._seconds = [0.0, 0.0, 0.0, 0.0, 0.0]

    def change(
        self,
        now: float,
        threads: int,
        executing: int = 0,
        running: bool = True,
        ready: int = 0,
        constrained: int = 0,
        waiting: int = 0,
    ) -> None:
        """From ``now`` (s) on the worker has so many threads, and so many tasks in these states of Dask's.

        A thread without a task has the first of these reasons that holds: the worker is paused (not ``running``) and
        has tasks that it could run; a resource is missing (``constrained``); data is on its way (``waiting``). Else
        it is idle.
        """
        if now > self._latest:
            self._advance(now)
        # Comparisons: each `min` would be a call.
        if executing > threads:
            executing = threads
        free = threads - executing
        paused = limited = gathering = 0
        if free:
            if running:
                limited = constrained if constrained < free else free
            else:
                paused = ready + constrained if ready + constrained < free else free
            free -= paused + limited
            gathering = waiting if waiting < free else free
        self._counts = (executing, paused, limited, gathering, free - gathering)

    def totals(self, now: float) -> dict[str, float]:
        """Seconds by each of `names.THREAD_STATES` up to ``now`` (s)."""
        if now > self._latest:
            self._advance(now)
        return dict(zip(names.THREAD_STATES, self._seconds))

    def _advance(self, now: float) -> None:
        passed = now - self._latest
        self._latest = now
        seconds = self._seconds
        executing, paused, constrained, gathering, idle = self._counts
        # None of them times the eternity before the first change is no number.
        if executing:
            seconds[0] += executing * passed
        if idle:
            seconds[4] += idle * passed
        if paused or constrained or gathering:
            seconds[1] += paused * passed
            seconds[2] += constrained * passed
            seconds[3] += gathering * passed
