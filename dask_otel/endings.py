"""What has ended on a scheduler, and when it is told: groups, then the tags and the computation that they are of.

Rules
-----
1. Standard library only; no clock: moments are handed in (s since the epoch).
2. A computation is settled when none of its tasks is active and none of its graphs is still being worked in. It is
   told when its groups are.
3. A group is told when its computation is settled and the workers have answered for every dispatch that is over, or
   `PATIENCE` later. Where the computation goes on it is told once it has been without a task for `LINGER`: what is
   submitted in small pieces is one group, and what ended long ago does not wait for the end of all.
4. What is told is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

from dask_otel import names, summary
from dask_otel.attempt_totals import AttemptTotals
from dask_otel.parents import OFF
from dask_otel.records import Span
from dask_otel.rollup import Computation, Group

#: Seconds that a group of a settled computation waits for its workers' sums.
PATIENCE = 1.0
#: Seconds that a group waits for more of its tasks while its computation goes on.
LINGER = 10.0


class Endings:
    """Computations and groups that are not told yet.

    Parameters
    ----------
    emit:
        Gets each span as it is told.
    settled:
        Is called with a computation that is to be joined no more.
    totals:
        Attempts are counted there too.
    """

    def __init__(
        self,
        emit: Callable[[Span], object],
        settled: Callable[[Computation], object],
        totals: AttemptTotals,
    ) -> None:
        self._emit = emit
        self._settled = settled
        self._totals = totals
        #: Computations by their span's id.
        self.unsettled: dict[bytes, Computation] = {}
        self._groups: dict[bytes, Group] = {}
        #: Groups without an active task, in the order in which they lost the last.
        self._idle: dict[Group, None] = {}
        self._touched: set[Computation] = set()
        #: Attempts of all computations that are told by their groups only.
        self.rolled_up = 0

    def __bool__(self) -> bool:
        """Whether `check` has something to look at."""
        return bool(self._touched)

    def open(self, group: Group) -> None:
        """A group has come into being."""
        self._groups[group.span_id] = group

    def touch(self, computation: Computation) -> None:
        """Something of it has ended."""
        self._touched.add(computation)

    def resume(self, group: Group) -> None:
        """It has a task again."""
        self._idle.pop(group, None)

    def idle(self, group: Group, now: float) -> None:
        """Its last active task has ended."""
        group.end = now
        self._idle[group] = None
        self._touched.add(group.computation)

    def add(self, span_id: bytes, wire: list[object], prefix: str = "") -> Group | None:
        """Sums of a group have come from a worker; gives the group, ``None`` if it was told already."""
        group = self._groups.get(span_id)
        if group is None:
            self._totals.add(prefix, wire, late=True)
            return None
        self._totals.add(group.prefix, wire, group.tags)
        group.sums.merge(wire)
        if not group.pending:
            self._touched.add(group.computation)
        return group

    @property
    def ending(self) -> bool:
        """Whether a computation is settled and not told."""
        return any(computation.settled for computation in self.unsettled.values())

    def check(self, now: float) -> float | None:
        """Tell what has ended; to be called after the tick in which something did.

        Returns the seconds after which it is to be called again though nothing else happens.
        """
        again: float | None = None
        for computation in list(self._touched):
            left = self._tell_settled(computation, now) if computation.settled else None
            if left is None:
                self._touched.discard(computation)
            else:
                again = left if again is None else min(again, left)
        while self._idle:
            group = next(iter(self._idle))
            left = group.end + LINGER - now
            if left > 0:
                return left if again is None else min(again, left)
            self._tell_group(group)
        return again

    def _tell_settled(self, computation: Computation, now: float) -> float | None:
        """Tell what can be; for how long (s) a group waits for sums at most, ``None`` if none does."""
        self._settled(computation)
        for group in list(computation.groups.values()):
            if group.complete or now - group.end >= PATIENCE or not computation.told:
                self._tell_group(group)
        if computation.groups:
            return PATIENCE - (now - min(group.end for group in computation.groups.values()))
        self._tell_computation(computation, names.FINISHED)
        return None

    def _tell_group(self, group: Group) -> None:
        computation = group.computation
        group.told = True
        self._idle.pop(group, None)
        self._groups.pop(group.span_id, None)
        computation.groups.pop(group.place, None)
        if group.sums.going > 0:
            group.own[names.CANCELLED] += group.sums.going
            self._totals.go_on(group.prefix, group.sums.going, group.tags)
        before = computation.rolled_up
        computation.take(group)
        if computation.detail > OFF:
            self.rolled_up += computation.rolled_up - before
        if computation.detail > OFF:
            self._emit(summary.group_span(group))

    def _tell_computation(self, computation: Computation, state: str) -> None:
        if self.unsettled.pop(computation.span_id, None) is None or computation.detail == OFF:
            return
        computation.release(computation.planned)
        for tag in reversed(computation.tags.values()):
            self._emit(summary.tag_span(tag))
        self._emit(summary.computation_span(computation, state))

    def stop(self, now: float) -> None:
        """Tell everything that is open: the scheduler closes."""
        for computation in list(self.unsettled.values()):
            for group in list(computation.groups.values()):
                if group.pending:
                    group.end = now
                self._tell_group(group)
            computation.pending = 0
            if computation.end == computation.start:
                computation.end = max(computation.end, now)
            self._tell_computation(computation, names.CLOSED)
        self._touched.clear()

    def forget(self) -> None:
        """Hold nothing of what is open, and tell nothing of it."""
        for held in (self.unsettled, self._groups, self._idle, self._touched):
            held.clear()
