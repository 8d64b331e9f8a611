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

    __slots__ = ("_away", "_compute", "_given", "_holding", "_latest", "_seceded")

    def __init__(self) -> None:
        self._latest = float("-inf")
        #: Tasks that hold a slot, and tasks that have seceded: their prefix, and since when (s).
        self._holding: dict[Hashable, tuple[str, float]] = {}
        self._away: dict[Hashable, tuple[str, float]] = {}
        #: Seconds by prefix of the tasks that hold a slot no more, that go on no more.
        self._compute: dict[str, float] = {}
        self._seceded: dict[str, float] = {}
        #: What was answered last: sums of the same in another order may be less by a rounding.
        self._given: tuple[dict[str, float], dict[str, float]] = ({}, {})

    def start(self, now: float, task: Hashable, prefix: str) -> None:
        """A task takes a slot."""
        if task in self._holding or task in self._away:
            raise ValueError(f"{task!r} starts and has not stopped: call stop first")
        if now > self._latest:
            self._latest = now
        else:
            now = self._latest
        self._holding[task] = prefix, now
        if prefix not in self._compute:
            self._compute[prefix] = 0.0

    def secede(self, now: float, task: Hashable, prefix: str) -> None:
        """A task gives its slot back and goes on; it may have started before anybody looked."""
        if task in self._away:
            raise ValueError(f"{task!r} has seceded already")
        now = self._advance(now)
        if task in self._holding:
            prefix, since = self._holding.pop(task)
            self._compute[prefix] += now - since
        self._away[task] = prefix, now
        self._seceded.setdefault(prefix, 0.0)

    def stop(self, now: float, task: Hashable) -> None:
        """A task has come to its end, whichever. Raises `KeyError` if it does not run."""
        if now > self._latest:
            self._latest = now
        else:
            now = self._latest
        if task in self._away:
            prefix, since = self._away.pop(task)
            self._seceded[prefix] += now - since
        else:
            prefix, since = self._holding.pop(task)
            self._compute[prefix] += now - since

    def compute(self, now: float) -> dict[str, float]:
        """Seconds up to ``now`` (s) that tasks have held a slot."""
        return _totals(self._compute, self._holding, self._advance(now), self._given[0])

    def seceded(self, now: float) -> dict[str, float]:
        """Seconds up to ``now`` (s) that tasks have run without a slot."""
        return _totals(self._seceded, self._away, self._advance(now), self._given[1])

    def executing(self, now: float) -> dict[str, float]:
        """Seconds since their start of the tasks that hold a slot at ``now`` (s); 0 where none does any more."""
        now = self._advance(now)
        elapsed = dict.fromkeys(self._compute, 0.0)
        for prefix, since in self._holding.values():
            elapsed[prefix] += now - since
        return elapsed

    def _advance(self, now: float) -> float:
        if now > self._latest:
            self._latest = now
        return self._latest


def _totals(
    ended: dict[str, float], running: dict[Hashable, tuple[str, float]], now: float, given: dict[str, float]
) -> dict[str, float]:
    totals = ended.copy()
    for prefix, since in running.values():
        totals[prefix] += now - since
    for prefix, total in totals.items():
        given[prefix] = max(total, given.get(prefix, 0.0))
    return given.copy()
