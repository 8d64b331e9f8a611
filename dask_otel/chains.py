"""Chains of attempts: which attempt of a task comes next, and which span it links to.

Rules
-----
1. Standard library only.
2. Only tasks that need more than one attempt, or that failed, are held: the others cost a look-up.
3. What a task leaves when it has ended is remembered for its next life, within a bound: by the number of its last
   dispatch, which no other has, so that no key is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple


class Past(NamedTuple):
    """What came before an attempt: how many, the span of the last (with its trace's id before it where that may
    be another, empty where nobody sends it), and why the task runs although it had a result."""

    attempts: int = 0
    span_id: bytes = b""
    cause: str = ""


class Chains:
    """The pasts of tasks.

    Parameters
    ----------
    limit:
        How many ended tasks are remembered.

    Examples
    --------
    >>> chains = Chains(limit=10)
    >>> chains.attempted("x", b"1" * 8)
    >>> chains.past("x")
    Past(attempts=1, span_id=b'11111111', cause='')
    >>> chains.end("x", 5, b"t" * 16)
    >>> chains.past("x")
    >>> chains.resume("x", 5, "recomputed")
    True
    >>> chains.past("x")
    Past(attempts=1, span_id=b'tttttttttttttttt11111111', cause='recomputed')
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[Hashable, Past] = {}
        self._ended: OrderedDict[int, Past] = OrderedDict()

    def __len__(self) -> int:
        """Tasks that are not at their first attempt and have not ended."""
        return len(self._open)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._open

    def past(self, key: Hashable) -> Past | None:
        """What came before a task's next attempt; ``None`` if that is its first."""
        return self._open.get(key)

    def attempted(self, key: Hashable, span_id: bytes) -> None:
        """An attempt has ended."""
        past = self._open.get(key, Past())
        self._open[key] = Past(past.attempts + 1, span_id, past.cause)

    def end(self, key: Hashable, run_id: int, trace_id: bytes) -> None:
        """A task has ended, for now, with the dispatch ``run_id``."""
        past = self._open.pop(key)
        if len(past.span_id) == 8:
            past = past._replace(span_id=trace_id + past.span_id)
        self._ended[run_id] = past
        self._ended.move_to_end(run_id)
        if len(self._ended) > self._limit:
            self._ended.popitem(last=False)

    def resume(self, key: Hashable, run_id: int, cause: str) -> bool:
        """A task that had ended runs again; whether its past is known."""
        past = self._ended.get(run_id)
        if past is None:
            return False
        self._open[key] = past._replace(cause=cause)
        return True

    def begin(self, key: Hashable, past: Past) -> None:
        """A task runs that has this past."""
        self._open[key] = past

    def forget(self, key: Hashable) -> None:
        """A task will not run again."""
        self._open.pop(key, None)

    def clear(self) -> None:
        """No task will."""
        self._open.clear()
        self._ended.clear()
