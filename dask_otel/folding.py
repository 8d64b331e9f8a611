"""Prefixes folded where a server has too many: the busiest have series of their own, all others one together.

Rules
-----
1. Standard library only; no clock.
2. A prefix that has been given out is kept; totals over prefixes stay exact whatever is folded, and no total falls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from heapq import nlargest
from statistics import median
from typing import Any

from dask_otel.histograms import Histogram, V, added, fell, risen, since
from dask_otel.instruments import COUNTER, HISTOGRAM, Instrument

#: What stands for all prefixes that are not given out themselves.
OTHER = "other"


class _Stream:
    """What was folded of one instrument whose values are totals."""

    def __init__(self) -> None:
        #: How many rooms there were, and what was measured then.
        self.rooms = 0
        self.previous: Mapping[tuple[str, ...], Any] = {}
        #: What stays in `OTHER` of those that were given out later: by themselves, and by what they are folded into.
        self.past: dict[tuple[str, ...], Any] = {}
        self.kept: dict[tuple[str, ...], Any] = {}

    def move(self, given: list[str], at: int) -> None:
        """Prefixes that have been given out since leave behind what was measured of them then."""
        for key, value in self.previous.items():
            if key[at] in given:
                into = _into(key, at)
                self.past[key] = value
                self.kept[into] = added(self.kept[into], value) if into in self.kept else value

    def apart(self, values: dict[tuple[str, ...], V]) -> dict[tuple[str, ...], V]:
        """Values with the past of each where it was shown."""
        for key, past in self.past.items():
            if key in values:
                values[key] = _own(values[key], past)
        for key, kept in self.kept.items():
            values[key] = added(values[key], kept) if key in values else kept
        return values


class Folding:
    """Keeps the prefixes of a server few; all its instruments share one.

    Three quarters of the rooms go to whoever comes. Where more come than there are rooms, they go to the busiest of
    those that have worked at all; where more than twice as many come as ``limit``, each choice gives out half of what
    is left, so that whoever comes first does not take everything. The last quarter is for those that come late: the
    first room for whoever has more work than half of the prefixes that are shown, each further one for twice as much.

    What is guaranteed: no more than ``limit`` are shown, and what has been given out is kept; of the prefixes that were
    new at a choice none that was left out had worked more than one that was given a room; a prefix that comes late finds
    a room if it has more work than half of those shown, and as many after it as there are rooms in a quarter if each
    does twice as much. A prefix that is given out after it was folded leaves its past in `OTHER`, and its own totals
    start at 0: no total falls.

    Parameters
    ----------
    limit:
        How many are given out.
    late:
        How many of them are for those that come late; a quarter where nothing is said.

    Examples
    --------
    >>> folding = Folding(limit=1)
    >>> folding.choose({"inc": 1.0, "add": 5.0})
    >>> folding.fold({("inc", "compute"): 1.0, ("add", "compute"): 5.0}, at=0)
    {('other', 'compute'): 1.0, ('add', 'compute'): 5.0}
    >>> folding.folded
    1
    """

    def __init__(self, limit: int, late: int | None = None) -> None:
        self._limit = limit
        self._kept = limit // 4 if late is None else late
        self.begin()

    def begin(self) -> None:
        """Forget what was given out: totals start anew."""
        #: In the order in which they were given out; of those the ones that were folded before; and all that are.
        self._shown: dict[str, None] = {}
        self._late: set[str] = set()
        self._waiting: set[str] = set()
        self._streams: defaultdict[str, _Stream] = defaultdict(_Stream)
        #: How many prefixes had no series of their own; it never falls.
        self.folded = 0

    @property
    def rooms(self) -> int:
        """How many were given out."""
        return len(self._shown)

    def shown(self, prefix: str) -> str:
        """Under which prefix one is given out now."""
        return prefix if prefix in self._shown else OTHER

    def choose(self, busy: Mapping[str, float]) -> None:
        """Give out rooms to the prefixes that are new, by what each has worked."""
        new = [prefix for prefix in busy if prefix not in self._shown and prefix != OTHER]
        room = self._limit - len(self._shown)
        if new and room:
            given = self._give(new, room, busy)
            new = [prefix for prefix in new if prefix not in given]
        self._waiting.update(new)
        self.folded = max(self.folded, len(new))

    def _give(self, new: list[str], room: int, busy: Mapping[str, float]) -> set[str]:
        free = max(0, room - self._kept)
        if len(new) > free:
            now = free if len(new) <= 2 * self._limit else (free + 1) // 2
            worked = [prefix for prefix in new if busy[prefix] > 0]
            new = nlargest(now, worked, busy.__getitem__) if free else self._worth(worked, room, busy)
        self._late |= self._waiting.intersection(new)
        self._shown.update(dict.fromkeys(new))
        self._waiting.difference_update(new)
        return set(new)

    def _worth(self, waiting: list[str], room: int, busy: Mapping[str, float]) -> list[str]:
        """Those that have done the work that the last rooms ask for."""
        price = median([busy.get(prefix, 0.0) for prefix in self._shown]) * 2.0 ** (self._kept - room)
        busier = [prefix for prefix in waiting if busy[prefix] > price]
        given: list[str] = []
        for prefix in nlargest(room, busier, key=busy.__getitem__):
            if busy[prefix] > price:
                given.append(prefix)
                price *= 2
        return given

    def fold(
        self, values: Mapping[tuple[str, ...], V], at: int, of: Instrument | None = None
    ) -> dict[tuple[str, ...], V]:
        """The values with the prefix at position ``at`` replaced where it is not given out.

        Parameters
        ----------
        values:
            Totals since the beginning, or values at this moment.
        of:
            What they are values of; each instrument is for one thread, whichever chooses. Without it a prefix that was folded
            before has no room here: nobody knows how much of it is in `OTHER`.
        """
        # Another thread may give out rooms meanwhile: they count from the next time on.
        shown = dict(self._shown)
        if of is None:
            return self._fold_unknown(values, at, shown)
        if of.kind not in (COUNTER, HISTOGRAM):
            return _folded(values, at, shown)
        stream = self._streams[of.name]
        if stream.rooms != len(shown):
            stream.move(list(shown)[stream.rooms :], at)
            stream.rooms = len(shown)
        stream.previous = dict(values)
        return stream.apart(_folded(stream.previous, at, shown))

    def forget(self, of: Instrument) -> None:
        """Its totals begin anew: nothing of what was folded is in them."""
        self._streams.pop(of.name, None)

    def _fold_unknown(
        self, values: Mapping[tuple[str, ...], V], at: int, shown: dict[str, None]
    ) -> dict[tuple[str, ...], V]:
        for prefix in self._late:
            del shown[prefix]
        self._waiting.update([key[at] for key in values if key[at] not in self._shown])
        return _folded(values, at, shown)


def _folded(
    values: Mapping[tuple[str, ...], V], at: int, shown: Mapping[str, None]
) -> dict[tuple[str, ...], V]:
    found: dict[tuple[str, ...], V] = {}
    for key, value in values.items():
        if key[at] not in shown and key[at]:
            key = _into(key, at)
            if key in found:
                value = added(found[key], value) if isinstance(value, Histogram) else found[key] + value  # type: ignore[operator]
        found[key] = value
    return found


def _into(key: tuple[str, ...], at: int) -> tuple[str, ...]:
    return (*key[:at], OTHER, *key[at + 1 :])


def _own(value: V, past: V) -> V:
    return value if fell(value, past) else since(risen(value, past), past)
