"""What a total is made of, estimated from samples of it.

Rules
-----
1. Standard library only; no clock: the total (s) and the samples (s) are handed in.
2. The parts add up to the total; none ever falls.
3. What the total has grown by is shared out by the samples that were taken while it grew, else by all that there were;
   before the first it is `REST`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from dask_otel.instruments import REST


class LoopParts:
    """The parts of one total.

    Examples
    --------
    >>> parts = LoopParts()
    >>> parts.sampled("read", 1)
    >>> parts.sampled("write", 3)
    >>> parts.totals(100)
    {'read': 25.0, 'write': 75.0}
    >>> parts.sampled("read", 2)
    >>> parts.totals(110)
    {'read': 35.0, 'write': 75.0}
    """

    __slots__ = ("_all", "_new", "_shared", "_totals")

    def __init__(self) -> None:
        self._totals: defaultdict[str, float] = defaultdict(float)
        #: How much of the total was shared out.
        self._shared = 0.0
        #: Samples since then, and all before.
        self._new: defaultdict[str, float] = defaultdict(float)
        self._all: defaultdict[str, float] = defaultdict(float)

    def sampled(self, part: str, seconds: float) -> None:
        """A part was seen to take so long."""
        if seconds > 0:
            self._new[part] += seconds

    def totals(self, total: float) -> dict[str, float]:
        """Seconds of each part, of ``total`` seconds that have passed for all of them."""
        grown = total - self._shared
        if grown > 0:
            self._share(grown, self._new or self._all or {REST: 1.0})
            self._shared = total
            for part, seconds in self._new.items():
                self._all[part] += seconds
            self._new.clear()
        return dict(self._totals)

    def _share(self, seconds: float, samples: Mapping[str, float]) -> None:
        whole = sum(samples.values())
        for part, sampled in samples.items():
            self._totals[part] += seconds * (sampled / whole)
