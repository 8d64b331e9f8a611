"""The scheduler's shell for metrics: what its seam has counted becomes points, once an interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dask_otel import instruments
from dask_otel.graph_phases import GraphPhases
from dask_otel.guard import Guard
from dask_otel.health import Health
from dask_otel.meter import Meter, Several
from dask_otel.names import LOOP_OTHER
from dask_otel.outlet import Outlet
from dask_otel.seam.loop_parts import LoopPartsSeam
from dask_otel.seam.scheduler_time import SchedulerTimeSeam
from dask_otel.series import Measured, keyed, measured

if TYPE_CHECKING:
    from distributed import Scheduler


class SchedulerMetrics:
    """The metrics of one scheduler; ``active`` gives how many computations are not settled."""

    def __init__(self, scheduler: Scheduler, outlet: Outlet, guard: Guard, active: Callable[[], int]) -> None:
        self._active = active
        self.seam = SchedulerTimeSeam(scheduler, guard)
        self._health = Health(guard)
        self._parts = LoopPartsSeam(scheduler, guard, lambda: self.seam.handler_time()[LOOP_OTHER])
        #: Is told of each graph that was worked in.
        self.graphs = GraphPhases()
        self.meter = Meter(
            outlet, Several(self.seam, self._parts, self._health, self.graphs), self._measured, guard
        )

    def _measured(self) -> Iterator[Measured]:
        yield measured(instruments.IDLE_SECONDS, keyed(self.seam.idle_time()))
        handlers = self.seam.handler_time()
        yield measured(instruments.HANDLER_SECONDS, keyed(handlers))
        yield measured(instruments.OTHER_SECONDS, keyed(self._parts.totals(handlers[LOOP_OTHER])))
        yield measured(instruments.ACTIVE_COMPUTATIONS, {(): self._active()})
        yield self.graphs.measured()
        yield from self._health.measured()
