"""How a worker's threads spend their time: seconds by state, one slot a thread.

Rules
-----
1. Standard library only; no clock: time (s) is handed in.
2. At every moment each thread is in one state, so the states' seconds sum to threads × time, however both change.
3. What tasks hold threads for is counted elsewhere, and handed in with the question: a worker whose threads either have
   a task or are idle tells nothing here while tasks come and go.
4. No total ever falls. The model's time is the latest that it was told, be it by a change or by a question: it stands
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
    >>> threads.change(100.0, threads=2)
    >>> threads.change(106.0, threads=2, executing=1, waiting=1)
    >>> threads.totals(110.0, held=10.0)
    {'executing': 10.0, 'paused': 0.0, 'constrained': 0.0, 'gather-dep': 4.0, 'idle': 6.0}
    """

    __slots__ = ("_counts", "_given", "_latest", "_seconds")

    def __init__(self) -> None:
        self._latest: float | None = None
        #: Threads; tasks beyond them; threads that are paused, constrained, waiting for data.
        self._counts = (0, 0, 0, 0, 0)
        self._seconds = [0.0, 0.0, 0.0, 0.0, 0.0]
        #: What was answered last: a difference may be less by a rounding.
        self._given = (0.0, 0.0)

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
        self._advance(now)
        free = max(0, threads - executing)
        paused = limited = 0
        if running:
            limited = min(free, constrained)
        else:
            paused = min(free, ready + constrained)
        gathering = min(free - paused - limited, waiting)
        self._counts = (threads, max(0, executing - threads), paused, limited, gathering)

    def totals(self, now: float, held: float) -> dict[str, float]:
        """Seconds by each of `names.THREAD_STATES` up to ``now`` (s); tasks have held slots for ``held`` (s)."""
        self._advance(now)
        threads, beyond, paused, limited, gathering = self._seconds
        executing, idle = self._given
        executing = max(executing, held - beyond)
        idle = max(idle, threads - executing - paused - limited - gathering)
        self._given = executing, idle
        return dict(zip(names.THREAD_STATES, (executing, paused, limited, gathering, idle)))

    def _advance(self, now: float) -> None:
        if self._latest is None:
            self._latest = now
        elif now > self._latest:
            passed = now - self._latest
            self._latest = now
            self._seconds = [seconds + count * passed for seconds, count in zip(self._seconds, self._counts)]
