"""Which attempts a worker tells whose tasks were not certain to be told when they began.

Rules
-----
1. Standard library only; no clock.
2. One that failed is told, and one that is slower than the scheduler says is slow; as many of each as the scheduler allows a
   worker for a computation.
3. Until the scheduler knows what is slow, it is the longest of its group here so far, once some have ended.
"""

from __future__ import annotations

import math

from dask_otel import names
from dask_otel.parents import Keep

#: Attempts of a group that end on a worker before one can be called slow there.
FEW = 10


class Keeper:
    """Decides for the attempts of one group on one worker.

    Examples
    --------
    >>> keeper, keep = Keepers().of(b"group"), Keep(detail=3, failed=1, slow=1, slower=2.0)
    >>> [keeper.keeps(keep, outcome, seconds) for outcome, seconds in
    ...  (("failed", 0.1), ("failed", 0.1), ("success", 1.9), ("success", 2.1), ("success", 9.0))]
    [True, False, False, True, False]
    """

    __slots__ = ("_all", "_ended", "_longest", "_slower")

    def __init__(self, all_: Keepers) -> None:
        self._all = all_
        self._ended = 0
        self._longest = 0.0
        self._slower = math.inf

    def keeps(self, keep: Keep, outcome: str, seconds: float) -> bool:
        """Whether an attempt that has ended is told; ``keep`` is what came with it."""
        kept = self._all
        longest = seconds > self._longest and self._ended >= FEW
        self._ended += 1
        self._longest = max(self._longest, seconds)
        if keep.slower < math.inf:
            self._slower = keep.slower
        if outcome == names.FAILED:
            if kept.failed >= keep.failed:
                return False
            kept.failed += 1
            return True
        slow = seconds >= self._slower if self._slower < math.inf else longest
        if not slow or kept.slow >= keep.slow:
            return False
        kept.slow += 1
        return True


class Keepers:
    """Those of one computation's groups on one worker, and what they have told."""

    def __init__(self) -> None:
        self.failed = self.slow = 0
        self._keepers: dict[bytes, Keeper] = {}

    def of(self, group_id: bytes) -> Keeper:
        """The group's."""
        return self._keepers.setdefault(group_id, Keeper(self))
