"""How long a worker's tasks run: seconds by prefix, tasks that still run included up to now.

Rules
-----
1. Standard library only; no clock: time (s) is handed in.
2. A task counts from when it was first told to run until it was first left out, however it ended, and once.
3. Between two moments a prefix's total rises by the seconds in between times its tasks.
4. No total ever falls. The model's time is the latest that it was told, be it by a change or by a question: it stands
   still while the clock is behind it.
5. A task's own hash may be a call of Python code, and is never asked for: sets have it, the rest goes by ``id``.
"""

from __future__ import annotations

from typing import Protocol


class Task(Protocol):
    """What runs; two are the same if they are the same object."""

    @property
    def prefix(self) -> str: ...


class RunningTime:
    """Seconds of one worker's tasks by prefix: of those that hold a slot, or of those that have seceded.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> class Running(SimpleNamespace):
    ...     __hash__ = object.__hash__
    >>> inc, load = Running(prefix="inc"), Running(prefix="load")
    >>> tasks = RunningTime()
    >>> tasks.change(100.0, {inc})
    >>> tasks.change(101.0, {inc, load})
    >>> tasks.totals(102.5)
    {'inc': 2.5, 'load': 1.5}
    >>> tasks.change(103.0, {load})
    >>> tasks.totals(200.0), tasks.elapsed(200.0)
    ({'inc': 3.0, 'load': 99.0}, {'inc': 0.0, 'load': 99.0})
    """

    __slots__ = ("_ended", "_given", "_latest", "_running", "_since")

    def __init__(self) -> None:
        self._latest = float("-inf")
        self._running: set[Task] = set()
        #: Since when (s) each runs.
        self._since: dict[int, float] = {}
        #: Seconds by prefix of the tasks that run no more.
        self._ended: dict[str, float] = {}
        #: What was answered last: a sum of the same in another order may be less by a rounding.
        self._given: dict[str, float] = {}

    def change(self, now: float, running: set[Task]) -> None:
        """From ``now`` (s) on these tasks run, and no others; the set remains the caller's."""
        if now > self._latest:
            self._latest = now
        else:
            now = self._latest
        known, since, ended = self._running, self._since, self._ended
        # Whoever has left is in ``known`` until the end: nobody else can have its id.
        for task in known - running:
            ended[task.prefix] += now - since.pop(id(task))
        for task in running - known:
            since[id(task)] = now
            if task.prefix not in ended:
                ended[task.prefix] = 0.0
        self._running = running.copy()

    def totals(self, now: float) -> dict[str, float]:
        """Seconds up to ``now`` (s) by prefix."""
        given = self._given
        for prefix, elapsed in self.elapsed(now).items():
            given[prefix] = max(self._ended[prefix] + elapsed, given.get(prefix, 0.0))
        return given.copy()

    def elapsed(self, now: float) -> dict[str, float]:
        """Seconds since their start of the tasks that run at ``now`` (s); 0 where none does any more."""
        now = self._latest = max(now, self._latest)
        elapsed = dict.fromkeys(self._ended, 0.0)
        for task in self._running:
            elapsed[task.prefix] += now - self._since[id(task)]
        return elapsed
