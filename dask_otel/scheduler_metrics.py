"""The scheduler's shell for metrics: what its seam has counted becomes points, once an interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dask_otel import instruments
from dask_otel.guard import Guard
from dask_otel.meter import Meter
from dask_otel.outlet import Outlet
from dask_otel.seam.scheduler_time import SchedulerTimeSeam
from dask_otel.series import Folding, Measured, keyed, measured

if TYPE_CHECKING:
    from distributed import Scheduler


#: Prefixes that have series of their own.
MAX_PREFIXES = 100


class SchedulerMetrics:
    """The metrics of one scheduler; ``active`` gives how many computations are not settled."""

    def __init__(self, scheduler: Scheduler, outlet: Outlet, guard: Guard, active: Callable[[], int]) -> None:
        self._active = active
        self.seam = SchedulerTimeSeam(scheduler, guard)
        #: All that is told by prefix goes through it, after it was shown once an export how busy each is.
        self.folding = Folding(MAX_PREFIXES)
        self.meter = Meter(outlet, self.seam, self._measured, guard)
        self.meter.at_start.append(self.folding.begin)

    def _measured(self) -> Iterator[Measured]:
        yield measured(instruments.IDLE_SECONDS, keyed(self.seam.idle_time()))
        yield measured(instruments.HANDLER_SECONDS, keyed(self.seam.handler_time()))
        yield measured(instruments.ACTIVE_COMPUTATIONS, {(): self._active()})
        yield measured(instruments.PREFIXES_FOLDED, {(): self.folding.folded})
