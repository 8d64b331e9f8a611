"""Attempts and wasted seconds of a cluster by prefix, of computations that are traced and of those that are not.

Rules
-----
1. Standard library only; no clock.
2. Totals never fall: an attempt is counted when its end is known, from its worker's sums or by the scheduler's own
   knowledge, also where its group was told before.
3. Over reasons wasted seconds sum to `Sums.wasted`; like Dask's own metering a task that rescheduled itself, and a
   run whose result nobody took, are `cancelled`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from dask_otel import names
from dask_otel.instruments import WASTE_RECOMPUTED
from dask_otel.series import listed
from dask_otel.sums import counts_on_wire, total_on_wire

_REASONS = {
    names.FAILED: names.FAILED,
    names.LOST: names.LOST,
    names.CANCELLED: names.CANCELLED,
    names.RESCHEDULED: names.CANCELLED,
    names.DISCARDED: names.CANCELLED,
}


class AttemptTotals:
    """Totals since `install`; before it, and after `uninstall`, nothing is counted.

    Attempts are also told apart by the innermost of their ``tags`` that the user listed, if any; what comes after its
    group was told is not.

    Examples
    --------
    >>> totals = AttemptTotals()
    >>> totals.install()
    >>> totals.add("inc", [[["success", 3, 0.5], ["failed", 1, 0.25]], [], [], -1.0, 0.0])
    >>> totals.lost("inc", 2.0)
    >>> totals.attempts
    {('inc', 'success', ''): 3, ('inc', 'failed', ''): 1, ('inc', 'lost', ''): 1}
    >>> totals.wasted
    {('inc', 'failed'): 0.25, ('inc', 'lost'): 2.0}
    """

    def __init__(self) -> None:
        self.on = False
        #: The user's list.
        self.span_names: frozenset[str] = frozenset()
        self._forget()

    def _forget(self) -> None:
        self._attempts: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._wasted: defaultdict[tuple[str, ...], float] = defaultdict(float)
        #: Cancelled runs by prefix that were counted while they went on.
        self._early: defaultdict[str, int] = defaultdict(int)

    def install(self) -> None:
        """Count from now on, from 0."""
        self._forget()
        self.on = True

    def uninstall(self) -> None:
        """Count no more."""
        self.on = False

    @property
    def attempts(self) -> dict[tuple[str, ...], int]:
        """By prefix, outcome and listed tag."""
        return dict(self._attempts)

    @property
    def wasted(self) -> dict[tuple[str, ...], float]:
        """Seconds by prefix and reason."""
        return dict(self._wasted)

    def add(self, prefix: str, wire: list[Any], tags: Sequence[str] = (), late: bool = False) -> None:
        """Sums have come from a worker (`Sums.to_wire`); ``late`` if their group was told before."""
        if not self.on or not prefix:
            return
        span_name = listed(self.span_names, tags)
        going = int(total_on_wire(wire, "going"))
        early = min(self._early.get(prefix, 0), -going) if late and going < 0 else 0
        if early:
            self._early[prefix] -= early
        for outcome, n, seconds in counts_on_wire(wire):
            if early and outcome in (names.CANCELLED, names.DISCARDED):
                n, early = max(0, n - early), max(0, early - n)
            if n:
                self._attempts[prefix, outcome, span_name] += n
            if outcome in _REASONS:
                self._wasted[prefix, _REASONS[outcome]] += seconds
        if recomputed := total_on_wire(wire, "recomputed"):
            self._wasted[prefix, WASTE_RECOMPUTED] += recomputed
        if late and going > 0:
            self.go_on(prefix, going)

    def go_on(self, prefix: str, n: int, tags: Sequence[str] = ()) -> None:
        """Cancelled runs, ``n`` of them, go on while their group is told: their seconds come when they end."""
        if self.on:
            self._attempts[prefix, names.CANCELLED, listed(self.span_names, tags)] += n
            self._early[prefix] += n

    def lost(self, prefix: str, seconds: float, tags: Sequence[str] = (), outcome: str = names.LOST) -> None:
        """An attempt ended with its worker."""
        if self.on:
            self._attempts[prefix, outcome, listed(self.span_names, tags)] += 1
            self._wasted[prefix, _REASONS[outcome]] += seconds

    def untold(self, prefix: str, outcome: str, tags: Sequence[str] = ()) -> None:
        """An attempt has ended on a worker that tells nothing."""
        if self.on:
            self._attempts[prefix, outcome, listed(self.span_names, tags)] += 1
