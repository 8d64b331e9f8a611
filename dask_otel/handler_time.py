"""An event loop's time by what it was spent on, each exclusive of what ran inside it.

Rules
-----
1. Standard library only; no clock: the moment (s, any clock, never falling) comes with what happened.
2. A total never falls, and the sum of all is the time since the beginning: what nothing has claimed is ``other``.
3. What is entered is left in reverse order: a coroutine enters and leaves once for each time that it is resumed.
4. Whoever is called for each message may spell `HandlerTime.enter` and `leave` out: all that they change is public.
"""

from __future__ import annotations

from dask_otel.names import LOOP_OTHER


class HandlerTime:
    """Seconds of one event loop by operation.

    Attributes
    ----------
    running
        The tally of what runs now.
    since
        The moment (s) up to which the tallies are right: what has passed since then belongs to `running`.

    Examples
    --------
    >>> times = HandlerTime(now=0)
    >>> read, finished = times.tally("read"), times.tally("task-finished")
    >>> outer = times.enter(read, now=1)
    >>> inner = times.enter(finished, now=3)
    >>> times.leave(inner, now=7)
    >>> times.leave(outer, now=8)
    >>> times.totals(now=15)
    {'other': 8, 'read': 3, 'task-finished': 4}
    >>> times.total("other", now=15)
    8
    """

    __slots__ = ("_tallies", "running", "since")

    def __init__(self, now: float) -> None:
        self.since = now
        self.running: list[float] = [0]
        self._tallies = {LOOP_OTHER: self.running}

    def tally(self, operation: str) -> list[float]:
        """The seconds (s) of an operation up to `since`, in a list of one: it is added to in place."""
        return self._tallies.setdefault(operation, [0])

    def enter(self, tally: list[float], now: float) -> list[float]:
        """An operation begins, or goes on; what ran until now is to be given to `leave`."""
        before = self.running
        before[0] += now - self.since
        self.since = now
        self.running = tally
        return before

    def leave(self, before: list[float], now: float) -> None:
        """The operation that was entered last ends, or waits."""
        self.running[0] += now - self.since
        self.since = now
        self.running = before

    def total(self, operation: str, now: float) -> float:
        """Seconds of one operation, up to now: asked for far more often than all of them."""
        tally = self._tallies[operation]
        return tally[0] + now - self.since if tally is self.running else tally[0]

    def totals(self, now: float) -> dict[str, float]:
        """Seconds by operation, up to now; of the operations only those that took any."""
        passed = now - self.since
        totals = {
            operation: tally[0] + passed if tally is self.running else tally[0]
            for operation, tally in self._tallies.items()
        }
        return {operation: total for operation, total in totals.items() if total or operation == LOOP_OTHER}
