"""What came into a histogram between two snapshots, value by value: for whoever takes values only.

Rules
-----
1. Standard library only.
2. As many values come out as were counted, each in the bucket in which it was counted.
3. A value that was kept comes out as it is; one that was not is the middle of its bucket.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from dask_otel.distributions import Exemplar, Histogram


def values_since(
    before: Histogram | None, now: Histogram, boundaries: Sequence[float]
) -> Iterator[tuple[float, Exemplar | None]]:
    """The values of ``now`` that ``before`` does not hold, with their exemplars, those first.

    Examples
    --------
    >>> now = Histogram(3, 4.1, 0.1, 2.5, (1, 2), values=(0.1, 2.5))
    >>> list(values_since(None, now, (1.0,)))
    [(0.1, None), (2.5, None), (1.75, None)]
    """
    missing = list(now.counts)
    if before is not None:
        missing = [count - had for count, had in zip(missing, before.counts, strict=True)]
    kept = Counter(now.values)
    for exemplar in now.exemplars:
        if _take(missing, bisect_left(boundaries, exemplar.value)):
            kept[exemplar.value] -= 1
            yield exemplar.value, exemplar
    for value, times in kept.items():
        at = bisect_left(boundaries, value)
        for _ in range(times):
            if _take(missing, at):
                yield value, None
    for at, times in enumerate(missing):
        middle = _middle(at, now, boundaries)
        for _ in range(times):
            yield middle, None


def _take(missing: list[int], at: int) -> bool:
    """Whether there was one more in this bucket."""
    missing[at] -= 1
    return missing[at] >= 0


def _middle(at: int, now: Histogram, boundaries: Sequence[float]) -> float:
    """Of the part of a bucket in which values were."""
    low = boundaries[at - 1] if at else now.min
    high = boundaries[at] if at < len(boundaries) else now.max
    return (max(low, now.min) + min(high, now.max)) / 2
