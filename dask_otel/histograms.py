"""Histograms as numbers that can be added and subtracted: with boundaries of their own, or exponential ones.

Rules
-----
1. Standard library only; no clock.
2. What is added or subtracted is of one instrument and one form.
3. The scale of an exponential histogram only falls, so that no count is ever divided among buckets.

Source: OpenTelemetry's specification, ``metrics/data-model.md`` (exponential histograms) and ``metrics/sdk.md``
(base-2 exponential bucket histogram aggregation: at most 160 buckets, scale 20 at most).
"""

from __future__ import annotations

from math import floor, frexp, inf, isclose, ldexp, log
from operator import add, sub
from typing import Any, NamedTuple, TypeVar

#: Of an exponential histogram: the scale that it begins with, and its most buckets.
MAX_SCALE, MAX_BUCKETS = 20, 160
#: Exemplars that a histogram has at most where it has no boundaries to keep one for each.
MAX_EXEMPLARS = 20
#: Below it floats lose digits: all are of one bucket.
_LEAST, _LEAST_EXPONENT = 2.0**-1022, -1022
#: What adding in another order may change.
_ROUNDING = 1e-9


class Exemplar(NamedTuple):
    """A value that was recorded, when (s since the epoch), and the span in which it was."""

    value: float
    time: float
    trace_id: bytes
    span_id: bytes


class Histogram(NamedTuple):
    """What was recorded until now.

    With boundaries ``counts`` are one more than they are. With a ``scale`` the histogram is exponential: ``counts[i]``
    are of values above ``base ** (offset + i)`` up to ``base ** (offset + i + 1)``, where ``base = 2 ** (2 ** -scale)``,
    and ``zeros`` of values up to 0. A ``min`` above ``max`` is not known. ``values`` are those since the snapshot before, as far as
    they were kept.
    """

    total: int
    sum: float
    min: float
    max: float
    counts: tuple[int, ...]
    exemplars: tuple[Exemplar, ...] = ()
    scale: int | None = None
    offset: int = 0
    zeros: int = 0
    values: tuple[float, ...] = ()


Value = float | Histogram
V = TypeVar("V", bound=Value)


def factor(scale: int) -> float:
    """What `index` needs to know of a scale."""
    return ldexp(1 / log(2), scale)


def index(value: float, scale: int, factor: float) -> int:
    """The exponential bucket of a value above 0.

    Examples
    --------
    >>> [index(value, 0, factor(0)) for value in (0.5, 1.0, 1.5, 2.0, 2.5)]
    [-2, -1, 0, 0, 1]
    >>> index(1.5, 3, factor(3))
    4
    """
    mantissa, exponent = frexp(value)
    if scale <= 0:
        return max(exponent - 1 - (mantissa == 0.5), _LEAST_EXPONENT - 1) >> -scale
    # A power of two is the upper end of its bucket; the logarithm may miss that by its rounding.
    if mantissa == 0.5:
        return (max(exponent - 1, _LEAST_EXPONENT) << scale) - 1
    if value < _LEAST:
        return (_LEAST_EXPONENT << scale) - 1
    return floor(log(value) * factor)


def narrowing(low: int, high: int) -> int:
    """By how much a scale must fall for the buckets from ``low`` to ``high`` to be few enough.

    Examples
    --------
    >>> narrowing(0, 159), narrowing(0, 160), narrowing(-1, 159)
    (0, 1, 1)
    """
    change = 0
    while (high >> change) - (low >> change) >= MAX_BUCKETS:
        change += 1
    return change


def added(one: V, other: V) -> V:
    """Both together.

    Examples
    --------
    >>> added(1.5, 2)
    3.5
    >>> added(Histogram(1, 1.0, 1.0, 1.0, (1, 0)), Histogram(1, 5.0, 5.0, 5.0, (0, 1)))[:5]
    (2, 6.0, 1.0, 5.0, (1, 1))
    """
    first: Any = one
    return _added(first, other) if isinstance(other, Histogram) else first + other  # type: ignore[return-value]


def since(now: V, before: V) -> V:
    """What has come since ``before``; its least and greatest value are not known.

    Examples
    --------
    >>> since(3.5, 2)
    1.5
    >>> since(Histogram(3, 7.0, 1.0, 5.0, (1, 2)), Histogram(1, 1.0, 1.0, 1.0, (1, 0)))[:5]
    (2, 6.0, inf, -inf, (0, 2))
    """
    total: Any = now
    return _since(total, before) if isinstance(before, Histogram) else total - before  # type: ignore[return-value]


def nothing(value: Value) -> Value:
    """A total of the same form before anything was counted.

    Examples
    --------
    >>> nothing(7), nothing(7.5)
    (0, 0.0)
    """
    if not isinstance(value, Histogram):
        return type(value)(0)
    counts = (0,) * len(value.counts) if value.scale is None else ()
    return Histogram(0, 0.0, inf, -inf, counts, (), value.scale)


def fell(now: Value, before: Value) -> bool:
    """Whether a total is less than it was, by more than rounding."""
    if isinstance(now, Histogram) and isinstance(before, Histogram):
        return now.total < before.total
    assert not isinstance(now, Histogram)
    assert not isinstance(before, Histogram)
    return now < before and not isclose(now, before, rel_tol=_ROUNDING, abs_tol=_ROUNDING)


def risen(now: V, before: V) -> V:
    """A total that has not fallen, where adding in another order may have made it less by rounding.

    Examples
    --------
    >>> risen(0.1 + 0.2 + 0.3, 0.1 + (0.2 + 0.3)), risen(0.1 + (0.2 + 0.3), 0.1 + 0.2 + 0.3)
    (0.6000000000000001, 0.6000000000000001)
    """
    if isinstance(now, Histogram) and isinstance(before, Histogram):
        now = now if now.sum >= before.sum else now._replace(sum=before.sum)
    elif now < before:  # type: ignore[operator]
        return before
    return now


def _added(one: Histogram, other: Histogram) -> Histogram:
    scale, offset, counts = None, 0, tuple(map(add, one.counts, other.counts))
    if one.scale is not None:
        scale, offset, counts = _buckets_added(one, other)
    return Histogram(
        one.total + other.total,
        one.sum + other.sum,
        min(one.min, other.min),
        max(one.max, other.max),
        counts,
        (one.exemplars + other.exemplars)[-MAX_EXEMPLARS:],
        scale,
        offset,
        one.zeros + other.zeros,
        one.values + other.values,
    )


def _since(now: Histogram, before: Histogram) -> Histogram:
    offset, counts = 0, tuple(map(sub, now.counts, before.counts))
    if now.scale is not None:
        offset, counts = _buckets_since(now, before)
    return now._replace(
        total=now.total - before.total,
        sum=now.sum - before.sum,
        min=inf,
        max=-inf,
        counts=counts,
        offset=offset,
        zeros=now.zeros - before.zeros,
    )


def _buckets_added(one: Histogram, other: Histogram) -> tuple[int, int, tuple[int, ...]]:
    """Scale, offset and counts."""
    found = [histogram for histogram in (one, other) if histogram.counts]
    if not found:
        return min(one.scale or 0, other.scale or 0), 0, ()
    scale = min([histogram.scale or 0 for histogram in found])
    change = narrowing(
        min([_ends(histogram, scale)[0] for histogram in found]),
        max([_ends(histogram, scale)[1] for histogram in found]),
    )
    scale -= change
    buckets = _scaled(found[0], scale)
    for histogram in found[1:]:
        for at, count in _scaled(histogram, scale).items():
            buckets[at] = buckets.get(at, 0) + count
    return scale, *packed(buckets)


def _buckets_since(now: Histogram, before: Histogram) -> tuple[int, tuple[int, ...]]:
    """Offset and counts."""
    scale = now.scale or 0
    buckets = _scaled(now, scale)
    for at, count in _scaled(before, scale).items():
        buckets[at] = buckets.get(at, 0) - count
    return packed({at: count for at, count in buckets.items() if count})


def _ends(histogram: Histogram, scale: int) -> tuple[int, int]:
    change = (histogram.scale or 0) - scale
    return histogram.offset >> change, (histogram.offset + len(histogram.counts) - 1) >> change


def _scaled(histogram: Histogram, scale: int) -> dict[int, int]:
    """Counts by bucket at a scale that is not above the histogram's own."""
    if not histogram.counts:
        return {}
    counts = dict(enumerate(histogram.counts, histogram.offset))
    return narrowed(counts, (histogram.scale or 0) - scale)


def narrowed(counts: dict[int, int], change: int) -> dict[int, int]:
    """Counts by bucket at a scale that is less by ``change``.

    Examples
    --------
    >>> narrowed({-1: 1, 0: 1, 1: 1, 2: 5}, 1)
    {-1: 1, 0: 2, 1: 5}
    """
    found: dict[int, int] = {}
    for at, count in counts.items():
        found[at >> change] = found.get(at >> change, 0) + count
    return found


def packed(counts: dict[int, int]) -> tuple[int, tuple[int, ...]]:
    """The first bucket, and the counts from it to the last.

    Examples
    --------
    >>> packed({3: 1, 1: 7}), packed({})
    ((1, (7, 0, 1)), (0, ()))
    """
    if not counts:
        return 0, ()
    first = min(counts)
    return first, tuple([counts.get(at, 0) for at in range(first, max(counts) + 1)])
