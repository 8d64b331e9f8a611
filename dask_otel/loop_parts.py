"""What a total is made of, estimated from samples of it, and when to take them.

Rules
-----
1. Standard library only; no clock, no random: the total, the samples, the moments (s) and the dice are handed in.
2. The parts add up to the total; none ever falls.
3. What the total has grown by is shared out by the samples that were taken while it grew, else by all that there were;
   before the first it is `REST`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from dask_otel.instruments import REST

#: Rounds of a loop that are looked at in a second, about.
LOOKS = 20
#: Callbacks that are looked at in a second at most, about: a round of a scheduler with many workers holds hundreds.
CALLBACKS = 200
#: How much of what was known of a loop's pace counts after one more look.
_KEPT = 0.9


class Pace:
    """Which rounds of a loop to look at: about `LOOKS` a second, be they long or short, fewer where that would be more
    than `CALLBACKS`.

    Rounds are let pass at random, since a fixed number would fall in step with what goes round; what one that is looked at
    stands for is ``weight`` rounds.

    Examples
    --------
    >>> pace = Pace(now=0)
    >>> pace.weight, pace.pause(now=0.001, dice=0.5)
    (1, 49)
    >>> pace.weight, pace.pause(now=0.051, dice=0.5)
    (50, 49)
    """

    __slots__ = ("_before", "_callbacks", "_looks", "_paused", "_rounds", "_seconds", "weight")

    def __init__(self, now: float) -> None:
        self._before = now
        self._paused = 0
        self._rounds = self._seconds = self._looks = self._callbacks = 0.0
        #: Rounds, those that were let pass before the look included, on average.
        self.weight = 1

    def pause(self, now: float, dice: float, callbacks: int = 0) -> int:
        """How many rounds to let pass until the next look.

        Parameters
        ----------
        now:
            When the last look ended.
        dice:
            At least 0 and below 1.
        callbacks:
            How many the round had that was looked at.
        """
        self._rounds = self._rounds * _KEPT + self._paused + 1
        self._seconds = self._seconds * _KEPT + (now - self._before)
        self._before = now
        self._looks = self._looks * _KEPT + 1
        self._callbacks = self._callbacks * _KEPT + callbacks
        often = min(LOOKS, CALLBACKS * self._looks / self._callbacks) if self._callbacks else LOOKS
        looks = self._seconds * often
        self.weight = max(1, round(self._rounds / looks)) if looks > 0 else self.weight
        self._paused = int(dice * (2 * self.weight - 1))
        return self._paused


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
