"""Whose a run was that is over: found by the number of its dispatch, long after its computation was told.

Rules
-----
1. Standard library only.
2. Bounded: the oldest are forgotten first, and what is forgotten is not guessed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from operator import attrgetter

from dask_otel.records import Link

#: Entries of one name that are looked at; only computations that run at once and share a name lie this close.
_NEIGHBOURS = 8


class Runs:
    """The dispatches of one group in one computation: numbers from ``first`` to ``last``, others' among them.

    ``client`` submitted the computation, ``span_id`` is its span's; ``link`` points there, if that is sent.
    """

    __slots__ = ("client", "first", "last", "link", "name", "span_id")

    def __init__(self, name: str, first: int, client: str, span_id: bytes, link: Link | None) -> None:
        self.name = name
        self.first = self.last = first
        self.client = client
        self.span_id = span_id
        self.link = link


class History:
    """The runs of the last groups, by the group's name.

    Parameters
    ----------
    limit:
        How many groups are remembered.

    Examples
    --------
    >>> history = History(limit=10)
    >>> old = history.begin(Runs("inc", 5, "client-1", b"c" * 8, None))
    >>> old.last = 9
    >>> new = history.begin(Runs("inc", 20, "client-1", b"d" * 8, None))
    >>> history.find("inc", 7) is old, history.find("inc", 20) is new, history.find("inc", 12)
    (True, True, None)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._order: deque[Runs] = deque()
        self._by_name: dict[str, list[Runs]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def begin(self, runs: Runs) -> Runs:
        """A group's first dispatch; numbers only rise, so that those of one name are in their order."""
        self._order.append(runs)
        self._by_name.setdefault(runs.name, []).append(runs)
        if len(self._order) > self._limit:
            oldest = self._order.popleft()
            alike = self._by_name[oldest.name]
            del alike[0]
            if not alike:
                del self._by_name[oldest.name]
        return runs

    def find(self, name: str, run: int | None) -> Runs | None:
        """The only group that a run can have been of; ``None`` where several can, or none that is remembered."""
        if run is None or name not in self._by_name:
            return None
        alike = self._by_name[name]
        before = bisect_right(alike, run, key=attrgetter("first"))
        found = [runs for runs in alike[max(0, before - _NEIGHBOURS) : before] if runs.last >= run]
        return found[0] if len(found) == 1 else None
