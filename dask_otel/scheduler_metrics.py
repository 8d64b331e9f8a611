"""The scheduler's shell for metrics: what its seam has counted becomes points, once an interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from dask_otel import instruments
from dask_otel.attempt_totals import AttemptTotals
from dask_otel.guard import Guard
from dask_otel.instruments import Instrument
from dask_otel.meter import Meter
from dask_otel.outlet import Outlet
from dask_otel.seam.scheduler_time import SchedulerTimeSeam
from dask_otel.series import Folding, Measured, by, keyed, measured

if TYPE_CHECKING:
    from distributed import Scheduler

#: Prefixes that have series of their own.
MAX_PREFIXES = 100


class SchedulerMetrics:
    """The metrics of one scheduler; ``active`` gives how many computations are not settled."""

    def __init__(
        self,
        scheduler: Scheduler,
        outlet: Outlet,
        guard: Guard,
        active: Callable[[], int],
        totals: AttemptTotals,
    ) -> None:
        self._active = active
        self._totals = totals
        self._outlet = outlet
        self._folding = Folding(MAX_PREFIXES)
        self.seam = SchedulerTimeSeam(scheduler, guard)
        self.meter = Meter(outlet, self, self._measured, guard)

    def install(self) -> None:
        """Count from now on."""
        self.seam.install()
        self._totals.start(self._outlet.settings.metrics.span_names)

    def uninstall(self) -> None:
        """Count no more."""
        self.seam.uninstall()
        self._totals.stop()

    def _measured(self) -> Iterator[Measured]:
        yield measured(instruments.IDLE_SECONDS, keyed(self.seam.idle_time()))
        yield measured(instruments.HANDLER_SECONDS, keyed(self.seam.handler_time()))
        yield measured(instruments.ACTIVE_COMPUTATIONS, {(): self._active()})
        attempts = self._totals.attempts
        self._folding.choose(by(attempts, 0))
        yield self._by_prefix(instruments.TASK_ATTEMPTS, attempts)
        yield self._by_prefix(instruments.WASTED_SECONDS, self._totals.wasted)

    def _by_prefix(self, instrument: Instrument, values: Mapping[tuple[str, ...], float]) -> Measured:
        return measured(instrument, self._folding.fold(values, 0))
