"""Numbers on their way out: instruments' points, by the values of their attributes.

Rules
-----
1. Standard library only; no clock.
2. A point is the total up to a moment, or the value at it: never a difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from dask_otel.histograms import Value
from dask_otel.instruments import NUMBERS, Instrument
from dask_otel.records import Attributes


class Point(NamedTuple):
    """A value and what it is of: the total of a counter, the value of a gauge, the distribution of a histogram."""

    attributes: Attributes
    value: Value


class Measured(NamedTuple):
    """What one instrument shows at one moment, by the values of its attributes, in their order."""

    instrument: Instrument
    values: Mapping[tuple[str, ...], Value]

    @property
    def points(self) -> Sequence[Point]:
        """The same with the attributes' keys; an empty value is left out."""
        return [Point(attributes(self.instrument, of), value) for of, value in self.values.items()]


def attributes(instrument: Instrument, of: tuple[str, ...]) -> Attributes:
    """The attributes that these are values of, optional ones last, an empty one left out.

    Examples
    --------
    >>> from dask_otel.instruments import GC_PAUSE
    >>> attributes(GC_PAUSE, ("0",))
    (('cpython.gc.generation', 0),)
    """
    pairs = [pair for pair in zip(instrument.attributes + instrument.optional, of) if pair[1]]
    return tuple([(key, int(text) if key in NUMBERS else text) for key, text in pairs])


def measured(instrument: Instrument, values: Mapping[tuple[str, ...], Value]) -> Measured:
    """Points by the values of the instrument's attributes and its optional ones, in their order; an empty value is left out.

    Examples
    --------
    >>> from dask_otel.instruments import SECEDED_SECONDS
    >>> measured(SECEDED_SECONDS, {("inc",): 1.5}).points
    [Point(attributes=(('dask.task.prefix', 'inc'),), value=1.5)]
    """
    return Measured(instrument, dict(values))


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


def listed(span_names: Collection[str], tags: Sequence[str]) -> str:
    """The innermost of a task's ``tags``, outermost first, that the user listed; empty if none is.

    Examples
    --------
    >>> listed({"load", "train"}, ("train", "load", "part 7")), listed((), ("train",))
    ('load', '')
    """
    return next((tag for tag in reversed(tags) if tag in span_names), "") if span_names else ""
