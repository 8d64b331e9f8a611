"""Distributions of values: the histograms of instruments, by what they are of, in the form that was asked for.

Rules
-----
1. Standard library only; no clock: an exemplar's moment is handed in.
2. A snapshot is a total since the beginning, and never changes.
3. What is no number is not counted. In an exponential histogram what is not above 0 counts as 0: a duration or a size
   is never less.
4. Values of one series are recorded by one thread at a time; snapshots may be taken by another.
5. Single values are kept only where somebody replays them (`Distributions.recent`), and only so many.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from math import frexp, inf
from typing import ClassVar

from dask_otel.histograms import (
    MAX_EXEMPLARS,
    MAX_SCALE,
    Exemplar,
    Histogram,
    factor,
    index,
    narrowed,
    narrowing,
    packed,
)
from dask_otel.instruments import Instrument
from dask_otel.settings import Metrics

__all__ = ["Distributions", "Exemplar", "Histogram", "Histograms"]

EXPONENTIAL = "base2_exponential_bucket_histogram"


class _Explicit:
    """One series with boundaries."""

    __slots__ = ("_boundaries", "_counts", "_max", "_min", "_sum", "exemplars", "values")

    def __init__(self, boundaries: tuple[float, ...]) -> None:
        self._boundaries = boundaries
        self._counts = [0] * (len(boundaries) + 1)
        self._sum = 0.0
        self._min, self._max = inf, -inf
        self.exemplars: dict[int, Exemplar] = {}
        self.values: list[float] = []

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._boundaries, value)] += 1
        self._sum += value
        if value < self._min:
            self._min = value
        if value > self._max:
            self._max = value

    def slot(self, value: float) -> int:
        """Of the exemplars those with one slot displace each other."""
        return bisect_left(self._boundaries, value)

    def snapshot(self, exemplars: tuple[Exemplar, ...]) -> Histogram:
        counts = tuple(self._counts)
        return Histogram(sum(counts), self._sum, self._min, self._max, counts, exemplars)


class _Exponential:
    """One series without boundaries."""

    __slots__ = ("_ends", "_max", "_min", "_scaled", "_sum", "_zeros", "exemplars", "values")

    def __init__(self, boundaries: tuple[float, ...]) -> None:
        # One object, so that whoever takes a snapshot never sees counts of another scale.
        self._scaled: tuple[int, float, dict[int, int]] = (MAX_SCALE, factor(MAX_SCALE), {})
        self._ends: tuple[int, int] | None = None
        self._zeros = 0
        self._sum = 0.0
        self._min, self._max = inf, -inf
        self.exemplars: dict[int, Exemplar] = {}
        self.values: list[float] = []

    def add(self, value: float) -> None:
        if value > 0:
            scale, scales, counts = self._scaled
            at = index(value, scale, scales)
            if at in counts:
                counts[at] += 1
            else:
                self._widen(value, at)
        else:
            self._zeros += 1
        self._sum += value
        if value < self._min:
            self._min = value
        if value > self._max:
            self._max = value

    def _widen(self, value: float, at: int) -> None:
        """Count a value in a bucket that is new, with fewer and wider ones if there would be too many."""
        scale, _, counts = self._scaled
        low, high = self._ends or (at, at)
        low, high = min(low, at), max(high, at)
        change = narrowing(low, high)
        if change:
            scale -= change
            counts = narrowed(counts, change)
            at = index(value, scale, factor(scale))
        counts[at] = counts.get(at, 0) + 1
        if change:
            self._scaled = scale, factor(scale), counts
        self._ends = min(low >> change, at), max(high >> change, at)

    def slot(self, value: float) -> int:
        """One for each power of two, so that exemplars are of all sizes."""
        return frexp(value)[1] % MAX_EXEMPLARS

    def snapshot(self, exemplars: tuple[Exemplar, ...]) -> Histogram:
        scale, _, counts = self._scaled
        offset, packed_counts = packed(counts.copy())
        zeros = self._zeros
        total = sum(packed_counts) + zeros
        scale = scale if packed_counts else 0
        return Histogram(
            total, self._sum, self._min, self._max, packed_counts, exemplars, scale, offset, zeros
        )


class Distributions:
    """The histograms of one instrument by the values of its attributes, in their order.

    Those of a server are made by its `Histograms`; one that is made alone has the instrument's boundaries.

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

    def __init__(self, instrument: Instrument, settings: Metrics | None = None) -> None:
        self.instrument = instrument
        #: How often it has begun: totals of one beginning have nothing to do with those of another.
        self.beginnings = 0
        self.begin(settings or Metrics())

    def begin(self, settings: Metrics) -> None:
        """Forget what was recorded, and go on in the form that these settings ask for."""
        self._make: type[_Explicit | _Exponential] = (
            _Exponential if settings.histograms == EXPONENTIAL else _Explicit
        )
        self._exemplars = settings.exemplars != "always_off"
        self._series: dict[tuple[str, ...], _Explicit | _Exponential] = {}
        self.beginnings += 1

    def record(self, of: tuple[str, ...], value: float, exemplar: Exemplar | None = None) -> None:
        """Count a value."""
        self.record_all(of, (value,))
        if exemplar is not None:
            self.attach(of, exemplar)

    def record_all(self, of: tuple[str, ...], values: Iterable[float]) -> None:
        """Count values of one series; what is no finite number is left out."""
        found = self._series.get(of)
        for value in values:
            if not -inf < value < inf:
                continue
            if found is None:
                found = self._series[of] = self._make(self.instrument.boundaries)
            found.add(value)
            if self.recent and len(found.values) < self.recent:
                found.values.append(value)

    def attach(self, of: tuple[str, ...], exemplar: Exemplar) -> None:
        """Point at where a value that was counted came from.

        Each bucket keeps the last, an exponential histogram the last of each power of two and 20 at
        most; none are kept where ``OTEL_METRICS_EXEMPLAR_FILTER`` is ``always_off``.
        """
        found = self._series.get(of)
        if found is not None and self._exemplars and -inf < exemplar.value < inf:
            found.exemplars[found.slot(exemplar.value)] = exemplar

    def snapshots(self) -> dict[tuple[str, ...], Histogram]:
        """What there is now; each exemplar and each kept value is given out once."""
        found = {}
        for of, one in list(self._series.items()):
            exemplars, one.exemplars = one.exemplars, {}
            values, one.values = one.values, []
            found[of] = one.snapshot(tuple(exemplars.values()))._replace(values=tuple(values))
        return found


class Histograms:
    """Makes the histograms of one server, all in the form that its settings ask for.

    Examples
    --------
    >>> from dask_otel.instruments import GRAPH_UPDATE_SECONDS
    >>> histograms = Histograms()
    >>> found = histograms.of(GRAPH_UPDATE_SECONDS)
    >>> histograms.begin(Metrics(histograms="base2_exponential_bucket_histogram"))
    >>> found.record(("order",), 3.0)
    >>> found.record(("order",), 5.0)
    >>> snapshot = found.snapshots()["order",]
    >>> snapshot.scale, snapshot.offset, sum(snapshot.counts)
    (7, 202, 2)
    """

    def __init__(self) -> None:
        self._made: list[Distributions] = []
        self._settings = Metrics()

    def of(self, instrument: Instrument) -> Distributions:
        """New and empty; they stay the server's, whatever its settings become."""
        self._made.append(Distributions(instrument, self._settings))
        return self._made[-1]

    def begin(self, settings: Metrics) -> None:
        """Counting starts, by these settings."""
        self._settings = settings
        for distributions in self._made:
            distributions.begin(settings)
