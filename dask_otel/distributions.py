"""Distributions of values: histograms with fixed boundaries, by what they are of.

Rules
-----
1. Standard library only; no clock: an exemplar's moment is handed in.
2. A snapshot is a total since the beginning, and never changes.
3. Single values are kept only where somebody replays them (`Distributions.recent`), and only so many.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import add
from typing import ClassVar, NamedTuple

from dask_otel.instruments import Instrument


class Exemplar(NamedTuple):
    """A value that was recorded, when (s since the epoch), and the span in which it was."""

    value: float
    time: float
    trace_id: bytes
    span_id: bytes


class Histogram(NamedTuple):
    """What was recorded until now; ``counts`` are one more than the boundaries.

    ``values`` are those since the snapshot before, as far as they were kept.
    """

    total: int
    sum: float
    min: float
    max: float
    counts: tuple[int, ...]
    exemplars: tuple[Exemplar, ...] = ()
    values: tuple[float, ...] = ()


class _Buckets:
    """One series."""

    __slots__ = ("counts", "exemplars", "max", "min", "sum", "values")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.sum = 0.0
        self.min = float("inf")
        self.max = float("-inf")
        self.exemplars: dict[int, Exemplar] = {}
        self.values: list[float] = []


class Distributions:
    """The histograms of one instrument by the values of its attributes, in their order.

    Examples
    --------
    >>> from dask_otel.instruments import GRAPH_UPDATE_SECONDS
    >>> found = Distributions(GRAPH_UPDATE_SECONDS)
    >>> found.record(("order",), 0.02)
    >>> found.record(("order",), 0.03)
    >>> snapshot = found.snapshots()["order",]
    >>> snapshot.total, snapshot.sum, snapshot.counts[:6]
    (2, 0.05, (0, 0, 0, 0, 1, 1))
    """

    #: How many values each series keeps between two snapshots, for the whole process.
    recent: ClassVar[int] = 0

    def __init__(self, instrument: Instrument) -> None:
        self.instrument = instrument
        self._boundaries = instrument.boundaries
        self._series: dict[tuple[str, ...], _Buckets] = {}

    def record(self, of: tuple[str, ...], value: float, exemplar: Exemplar | None = None) -> None:
        """Count a value; of the exemplars each bucket keeps the last."""
        found = self._series.get(of)
        if found is None:
            found = self._series[of] = _Buckets(len(self._boundaries) + 1)
        at = bisect_left(self._boundaries, value)
        found.counts[at] += 1
        found.sum += value
        if value < found.min:
            found.min = value
        if value > found.max:
            found.max = value
        if exemplar is not None:
            found.exemplars[at] = exemplar
        if self.recent and len(found.values) < self.recent:
            found.values.append(value)

    def series(self) -> list[tuple[str, ...]]:
        """What there are histograms of."""
        return list(self._series)

    def move(self, of: tuple[str, ...], to: tuple[str, ...]) -> None:
        """Add one series to another and forget it."""
        moved = self._series.pop(of)
        into = self._series.setdefault(to, moved)
        if into is not moved:
            into.counts = list(map(add, into.counts, moved.counts))
            into.sum += moved.sum
            into.min = min(into.min, moved.min)
            into.max = max(into.max, moved.max)
            into.exemplars |= moved.exemplars
            into.values += moved.values

    def snapshots(self) -> dict[tuple[str, ...], Histogram]:
        """What there is now; each exemplar and each kept value is given out once."""
        found = {}
        for of, one in list(self._series.items()):
            exemplars, one.exemplars = one.exemplars, {}
            values, one.values = one.values, []
            counts = tuple(one.counts)
            found[of] = Histogram(
                sum(counts), one.sum, one.min, one.max, counts, tuple(exemplars.values()), tuple(values)
            )
        return found
