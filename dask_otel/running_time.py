"""How long a worker's tasks run: seconds by prefix, tasks that still run included up to now.

Rules
-----
1. Standard library only; no clock: time (s) is handed in.
2. A task holds a slot from its start until it secedes or stops, however it stops; from its secession until it stops
   it has seceded. It is counted in one of the two, and once.
3. Between two moments a prefix's total rises by the seconds in between times its tasks.
4. No total ever falls. The model's time is the latest that it was told, be it by a change or by a question: it stands
   still while the clock is behind it.
"""

from __future__ import annotations

from collections.abc import Hashable


class _Integrals:
    """By name the integral over time of a number that changes."""

    __slots__ = ("_counts", "_seconds", "_since")

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._since: dict[str, float] = {}

    def change(self, now: float, name: str, by: int) -> None:
        count = self._counts.get(name, 0)
        self._seconds[name] = self._seconds.get(name, 0.0) + count * (now - self._since.get(name, now))
        self._counts[name] = count + by
        self._since[name] = now

    def totals(self, now: float) -> dict[str, float]:
        counts, since = self._counts, self._since
        return {name: seconds + counts[name] * (now - since[name]) for name, seconds in self._seconds.items()}


class RunningTime:
    """Seconds of one worker's tasks by prefix; a task is whatever tells it from the others that run.

    Examples
    --------
    >>> tasks = RunningTime()
    >>> tasks.start(100.0, "inc-1", "inc")
    >>> tasks.start(101.0, "load-1", "load")
    >>> tasks.compute(102.5)
    {'inc': 2.5, 'load': 1.5}
    >>> tasks.stop(103.0, "inc-1")
    >>> tasks.secede(103.0, "load-1", "load")
    >>> tasks.compute(200.0), tasks.executing(200.0), tasks.seceded(200.0)
    ({'inc': 3.0, 'load': 2.0}, {'inc': 0.0, 'load': 0.0}, {'load': 97.0})
    """

    __slots__ = ("_away", "_compute", "_holding", "_latest", "_seceded")

    def __init__(self) -> None:
        self._latest: float | None = None
        #: Tasks that hold a slot: their prefix, and since when (s).
        self._holding: dict[Hashable, tuple[str, float]] = {}
        #: Tasks that have seceded: their prefix.
        self._away: dict[Hashable, str] = {}
        self._compute = _Integrals()
        self._seceded = _Integrals()

    def start(self, now: float, task: Hashable, prefix: str) -> None:
        """A task takes a slot."""
        if task in self._holding or task in self._away:
            raise ValueError(f"{task!r} starts and has not stopped: call stop first")
        now = self._advance(now)
        self._holding[task] = prefix, now
        self._compute.change(now, prefix, 1)

    def secede(self, now: float, task: Hashable, prefix: str) -> None:
        """A task gives its slot back and goes on; it may have started before anybody looked."""
        if task in self._away:
            raise ValueError(f"{task!r} has seceded already")
        now = self._advance(now)
        if task in self._holding:
            prefix, _ = self._holding.pop(task)
            self._compute.change(now, prefix, -1)
        self._away[task] = prefix
        self._seceded.change(now, prefix, 1)

    def stop(self, now: float, task: Hashable) -> None:
        """A task has come to its end, whichever. Raises `KeyError` if it does not run."""
        now = self._advance(now)
        if task in self._away:
            self._seceded.change(now, self._away.pop(task), -1)
        else:
            prefix, _ = self._holding.pop(task)
            self._compute.change(now, prefix, -1)

    def compute(self, now: float) -> dict[str, float]:
        """Seconds up to ``now`` (s) that tasks have held a slot."""
        return self._compute.totals(self._advance(now))

    def seceded(self, now: float) -> dict[str, float]:
        """Seconds up to ``now`` (s) that tasks have run without a slot."""
        return self._seceded.totals(self._advance(now))

    def executing(self, now: float) -> dict[str, float]:
        """Seconds since their start of the tasks that hold a slot at ``now`` (s); 0 where none does any more."""
        now = self._advance(now)
        elapsed = dict.fromkeys(self._compute.totals(now), 0.0)
        for prefix, start in self._holding.values():
            elapsed[prefix] += now - start
        return elapsed

    def _advance(self, now: float) -> float:
        if self._latest is None or now > self._latest:
            self._latest = now
        return self._latest
