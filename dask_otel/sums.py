"""Exact totals of a group's attempts: kept on each worker, sent in small pieces, added up on the scheduler.

Rules
-----
1. Standard library only; no clock.
2. Every attempt is added once, whether a span of it is sent or not; a dispatch that came to no attempt is counted.
3. What travels is lists of plain numbers and text, whatever users meter: msgpack takes it as it is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from dask_otel.intervals import Amounts, number, text

#: Relative width of a bucket of durations: a quantile is off by at most 1 % (Masson et al., DDSketch, 2019).
RELATIVE_ERROR = 0.01
_LOG_GAMMA = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
#: The lowest bucket holds everything up to one nanosecond.
_SMALLEST = 1e-9
_LOWEST = -(10**6)
#: What is added up as it is, in the order in which it travels; new ones come last.
_TOTALS = ("size", "emitted", "dropped", "recomputed", "unstarted", "going", "paused", "spans", "bytes")


class Sums:
    """Totals over attempts: seconds, bytes, counts.

    Examples
    --------
    >>> sums = Sums()
    >>> for seconds in (0.1, 0.2, 0.4):
    ...     sums.add("success", seconds, [("compute", seconds, "seconds")], size=8)
    >>> sums.counts["success"], round(sums.total, 3), sums.size
    (3, 0.7, 24)
    >>> abs(sums.quantile(0.5) - 0.2) <= 0.2 * RELATIVE_ERROR
    True
    """

    __slots__ = (
        "amounts",
        "buckets",
        "bytes",
        "counts",
        "dropped",
        "emitted",
        "going",
        "maximum",
        "minimum",
        "paused",
        "recomputed",
        "seconds",
        "size",
        "spans",
        "unstarted",
    )

    def __init__(self) -> None:
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.amounts: defaultdict[tuple[Hashable, str], float] = defaultdict(int)
        self.buckets: defaultdict[int, int] = defaultdict(int)
        self.minimum = math.inf
        self.maximum = 0.0
        self.size = 0
        self.emitted = 0
        self.dropped = 0
        #: Seconds of successes whose result had been there and was lost.
        self.recomputed = 0.0
        #: Dispatches that ended before they began: cancelled or stolen in a worker's queue.
        self.unstarted = 0
        #: Attempts that were cancelled and have not ended.
        self.going = 0
        #: Seconds of garbage collections in a worker's process that stopped the group's computation.
        self.paused: float = 0
        #: Spans of ours that were recorded for the group's tasks, and about how many bytes of OTLP they are.
        self.spans = self.bytes = 0

    def add(
        self,
        outcome: str,
        seconds: float,
        amounts: Iterable[tuple[Hashable, float, str]],
        size: int | None = None,
    ) -> None:
        """Add one attempt that lasted ``seconds`` and whose result, if it has one, holds ``size`` bytes."""
        self.counts[outcome] += 1
        self.seconds[outcome] += seconds
        for label, value, unit in amounts:
            self._total(label, unit, (value,))
        self.buckets[math.ceil(math.log(seconds) / _LOG_GAMMA) if seconds > _SMALLEST else _LOWEST] += 1
        if seconds < self.minimum:
            self.minimum = seconds
        if seconds > self.maximum:
            self.maximum = seconds
        if size:
            self.size += size

    def add_all(self, ended: Sequence[tuple[str, float, Amounts, int | None]]) -> None:
        """Add attempts as `add` does, all at once: those with the same labels column by column.

        Examples
        --------
        >>> sums = Sums()
        >>> one = Amounts(("compute", "other"), (0.25, 0.5), ("seconds", "seconds"))
        >>> sums.add_all([("success", 0.75, one, 8), ("success", 0.75, one, None)])
        >>> dict(sums.amounts), sums.counts["success"], sums.size
        ({('compute', 'seconds'): 0.5, ('other', 'seconds'): 1.0}, 2, 8)
        """
        alike: defaultdict[tuple[tuple[Hashable, ...], tuple[str, ...]], list[tuple[float, ...]]]
        alike = defaultdict(list)
        counts, spent, buckets, log = self.counts, self.seconds, self.buckets, math.log
        for outcome, seconds, (labels, values, units), size in ended:
            counts[outcome] += 1
            spent[outcome] += seconds
            buckets[math.ceil(log(seconds) / _LOG_GAMMA) if seconds > _SMALLEST else _LOWEST] += 1
            alike[labels, units].append(values)
            if size:
                self.size += size
        for (labels, units), rows in alike.items():
            for label, unit, column in zip(labels, units, zip(*rows)):
                self._total(label, unit, column)
        if ended:
            durations = [seconds for _, seconds, _, _ in ended]
            self.minimum = min(self.minimum, *durations)
            self.maximum = max(self.maximum, *durations)

    def _total(self, label: Hashable, unit: str, values: Iterable[float]) -> None:
        try:
            self.amounts[label, unit] += sum(values)
        except Exception:  # They may be anything, with arithmetic of their own.
            self.amounts[label, unit] = math.nan

    def count(self, outcome: str, seconds: float) -> None:
        """Add one attempt of which no more is wanted than how it ended and how long (s) it took."""
        self.counts[outcome] += 1
        self.seconds[outcome] += seconds

    @property
    def attempts(self) -> int:
        """How many attempts were added."""
        return sum(self.counts.values())

    @property
    def answers(self) -> int:
        """Dispatches whose end is known."""
        return self.attempts + self.unstarted

    @property
    def total(self) -> float:
        """Seconds of all attempts."""
        return sum(self.seconds.values())

    @property
    def wasted(self) -> float:
        """Seconds of the attempts that gave no result, or one that had been there before."""
        return self.recomputed + sum(
            seconds for outcome, seconds in self.seconds.items() if outcome != "success"
        )

    def quantile(self, q: float) -> float:
        """The duration (s) that a fraction ``q`` of the attempts did not exceed, within `RELATIVE_ERROR`."""
        rank = q * (self.attempts - 1)
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen > rank:
                middle = 2 * math.exp(bucket * _LOG_GAMMA) / (1 + math.exp(_LOG_GAMMA))
                return min(max(middle, self.minimum), self.maximum)
        return self.maximum

    def to_wire(self) -> list[object]:
        """A list of plain lists and numbers."""
        return [
            [[outcome, n, self.seconds[outcome]] for outcome, n in self.counts.items()],
            [
                [text(label), unit, amount]
                for (label, unit), value in self.amounts.items()
                if (amount := number(value)) is not None
            ],
            [[bucket, n] for bucket, n in self.buckets.items()],
            self.minimum if self.buckets else -1.0,
            self.maximum,
            *[number(getattr(self, name)) or 0 for name in _TOTALS],
        ]

    def merge(self, wire: list[Any]) -> None:
        """Add what `to_wire` gave elsewhere, be it of a version that has more of it or less.

        Examples
        --------
        >>> sums = Sums()
        >>> sums.merge([[["success", 1, 0.5]], [], [[0, 1]], 0.5, 0.5])
        >>> sums.counts["success"], sums.maximum, sums.size
        (1, 0.5, 0)
        """
        counts, amounts, buckets, minimum, maximum, *totals = wire
        for outcome, n, seconds in counts:
            self.counts[outcome] += n
            self.seconds[outcome] += seconds
        for label, unit, value in amounts:
            self.amounts[label, unit] += value
        for bucket, n in buckets:
            self.buckets[bucket] += n
        if minimum >= 0:
            self.minimum = min(self.minimum, minimum)
        self.maximum = max(self.maximum, maximum)
        for name, total in zip(_TOTALS, totals):
            setattr(self, name, getattr(self, name) + total)


def used_wire(spans: int) -> list[object]:
    """What `Sums.to_wire` gives where there is nothing but so many spans.

    Examples
    --------
    >>> total_on_wire(used_wire(2), "spans")
    2
    """
    sums = Sums()
    sums.spans = spans
    return sums.to_wire()


def counts_on_wire(wire: list[Any]) -> Iterable[tuple[str, int, float]]:
    """Outcomes of what `Sums.to_wire` gave, with how many attempts and seconds each has."""
    counts: Iterable[tuple[str, int, float]] = wire[0]
    return counts


def total_on_wire(wire: list[Any], name: str) -> float:
    """One of its totals.

    Examples
    --------
    >>> sums = Sums()
    >>> sums.going = 2
    >>> total_on_wire(sums.to_wire(), "going"), total_on_wire([[], [], [], -1.0, 0.0], "going")
    (2, 0)
    """
    at = 5 + _TOTALS.index(name)
    value: float = wire[at] if at < len(wire) else 0
    return value
