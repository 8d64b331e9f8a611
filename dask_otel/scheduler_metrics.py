"""The scheduler's shell for metrics: what its seam has counted becomes points, once an interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dask_otel import instruments
from dask_otel.guard import Guard
from dask_otel.meter import Meter, Together
from dask_otel.outlet import Outlet
from dask_otel.seam.scheduler_state import SchedulerStateSeam
from dask_otel.seam.scheduler_time import SchedulerTimeSeam
from dask_otel.series import Folding, Measured, keyed, measured

if TYPE_CHECKING:
    from distributed import Scheduler


#: Prefixes that have series of their own.
MAX_PREFIXES = 100


class SchedulerMetrics:
    """The metrics of one scheduler.

    ``active`` gives how many computations are not settled, ``unsent`` how many attempts are told by their
    groups only, and how many were not sampled.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        outlet: Outlet,
        guard: Guard,
        active: Callable[[], int],
        unsent: Callable[[], tuple[int, int]],
    ) -> None:
        self._active, self._unsent = active, unsent
        self.seam = SchedulerTimeSeam(scheduler, guard)
        self._folding = Folding(MAX_PREFIXES)
        self._state = SchedulerStateSeam(scheduler, self._folding, guard)
        self.meter = Meter(outlet, Together(self.seam, self._state), self._measured, guard)

    def _measured(self) -> Iterator[Measured]:
        yield measured(instruments.IDLE_SECONDS, keyed(self.seam.idle_time()))
        yield measured(instruments.HANDLER_SECONDS, keyed(self.seam.handler_time()))
        yield measured(instruments.ACTIVE_COMPUTATIONS, {(): self._active()})
        fates = zip((instruments.ROLLED_UP, instruments.SAMPLED_OUT), self._unsent())
        yield measured(instruments.SPANS_BY_FATE, {(fate,): n for fate, n in fates if n})
        yield from self._state.measured()
