"""An event loop's time by what it was spent on, each exclusive of what ran inside it.

Rules
-----
1. Standard library only; no clock: the moment (s, any clock, never falling) comes with what happened.
2. A total never falls, and the sum of all is the time since the beginning: what nothing has claimed is ``other``.
3. What is entered is left in reverse order: a coroutine enters and leaves once for each time that it is resumed.
"""

from __future__ import annotations

from dask_otel.names import LOOP_OTHER


class HandlerTime:
    """Seconds of one event loop by operation.

    Examples
    --------
    >>> times = HandlerTime(now=0)
    >>> times.enter("register-worker", now=1)
    >>> times.enter("task-finished", now=3)
    >>> times.leave(now=7)
    >>> times.leave(now=8)
    >>> times.spent("idle", start=9, end=14)
    >>> times.totals(now=15)
    {'other': 3, 'register-worker': 3, 'task-finished': 4, 'idle': 5}
    """

    __slots__ = ("_since", "_stack", "_totals")

    def __init__(self, now: float) -> None:
        self._since = now
        #: Seconds by operation, up to `_since`.
        self._totals: dict[str, float] = {LOOP_OTHER: 0}
        #: What runs now, the innermost last.
        self._stack = [LOOP_OTHER]

    def enter(self, operation: str, now: float) -> None:
        """An operation begins, or goes on."""
        stack = self._stack
        self._totals[stack[-1]] += now - self._since
        self._since = now
        if operation not in self._totals:
            self._totals[operation] = 0
        stack.append(operation)

    def leave(self, now: float) -> None:
        """The operation that was entered last ends, or waits."""
        stack = self._stack
        self._totals[stack[-1]] += now - self._since
        self._since = now
        if len(stack) > 1:  # An `enter` may have failed.
            stack.pop()

    def spent(self, operation: str, start: float, end: float) -> None:
        """An operation in which nothing else can run lasted from ``start`` to ``end``, which is now."""
        totals = self._totals
        totals[self._stack[-1]] += start - self._since
        totals[operation] = totals.get(operation, 0) + (end - start)
        self._since = end

    def totals(self, now: float) -> dict[str, float]:
        """Seconds by operation, up to now; an operation that never ran is not there."""
        totals = dict(self._totals)
        totals[self._stack[-1]] += now - self._since
        return totals
