"""Numbers on their way out: instruments' points, and prefixes folded where there are too many.

Rules
-----
1. Standard library only; no clock.
2. A point is the total up to a moment, or the value at it: never a difference.
3. A prefix that has been given out is kept; totals over prefixes stay exact whatever is folded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dask_otel.distributions import Histogram
from dask_otel.instruments import Instrument
from dask_otel.records import Attributes

#: What stands for all prefixes that are not given out themselves.
OTHER = "other"


class Point(NamedTuple):
    """A value and what it is of: the total of a counter, the value of a gauge, the distribution of a histogram."""

    attributes: Attributes
    value: float | Histogram


class Measured(NamedTuple):
    """The points of one instrument at one moment."""

    instrument: Instrument
    points: Sequence[Point]


def measured(instrument: Instrument, values: Mapping[tuple[str, ...], float | Histogram]) -> Measured:
    """Points by the values of the instrument's attributes, in their order; an empty value is left out.

    Examples
    --------
    >>> from dask_otel.instruments import SECEDED_SECONDS
    >>> measured(SECEDED_SECONDS, {("inc",): 1.5}).points
    [Point(attributes=(('dask.task.prefix', 'inc'),), value=1.5)]
    """
    keys = instrument.attributes
    return Measured(
        instrument,
        [Point(tuple([pair for pair in zip(keys, of) if pair[1]]), value) for of, value in values.items()],
    )


class Folding:
    """Keeps the prefixes of a server few.

    Parameters
    ----------
    limit:
        How many are given out.

    Examples
    --------
    >>> folding = Folding(limit=1)
    >>> folding.choose({"inc": 1.0, "add": 5.0})
    >>> folding.fold({("inc", "compute"): 1.0, ("add", "compute"): 5.0}, at=0)
    {('other', 'compute'): 1.0, ('add', 'compute'): 5.0}
    >>> folding.folded
    1
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shown: set[str] = set()
        self._folded: set[str] = set()

    @property
    def folded(self) -> int:
        """How many prefixes have no series of their own."""
        return len(self._folded)

    def choose(self, busy: Mapping[str, float]) -> None:
        """Give out the busiest of the prefixes that are new, as far as there is room."""
        new = [prefix for prefix in busy if prefix not in self._shown]
        room = self._limit - len(self._shown)
        if len(new) > room:
            new.sort(key=lambda prefix: -busy[prefix])
        self._shown.update(new[:room])
        self._folded = set(new[room:])

    def shown(self, prefix: str) -> str:
        """Under which prefix one is given out."""
        return prefix if prefix in self._shown else OTHER

    def fold(self, values: Mapping[tuple[str, ...], float], at: int) -> dict[tuple[str, ...], float]:
        """The values with the prefix at position ``at`` replaced where it is not given out."""
        if all(of[at] in self._shown or not of[at] for of in values):
            return dict(values)
        folded: defaultdict[tuple[str, ...], float] = defaultdict(int)
        for of, value in values.items():
            shown = of if of[at] in self._shown or not of[at] else (*of[:at], OTHER, *of[at + 1 :])
            folded[shown] += value
        return dict(folded)


def by(values: Mapping[tuple[str, ...], float], at: int) -> dict[str, float]:
    """Sums over everything but what stands at one position.

    Examples
    --------
    >>> by({("execute", "inc"): 1.0, ("execute", "add"): 2.0, ("p2p", "inc"): 3.0}, 1)
    {'inc': 4.0, 'add': 2.0}
    """
    sums: defaultdict[str, float] = defaultdict(float)
    for of, value in values.items():
        sums[of[at]] += value
    return dict(sums)


def keyed(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    """The same by tuples of one."""
    return {(of,): value for of, value in values.items()}
