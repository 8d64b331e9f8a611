"""The scheduler's shell for metrics: what its seam has counted becomes points, once an interval."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from dask_otel import instruments
from dask_otel.attempt_totals import AttemptTotals
from dask_otel.folding import Folding
from dask_otel.graph_phases import GraphPhases
from dask_otel.guard import Guard
from dask_otel.health import Health
from dask_otel.instruments import Instrument
from dask_otel.meter import Meter, Several
from dask_otel.names import LOOP_OTHER
from dask_otel.outlet import Outlet
from dask_otel.overhead import Overhead
from dask_otel.seam.loop_parts import LoopPartsSeam
from dask_otel.seam.scheduler_state import SchedulerStateSeam
from dask_otel.seam.scheduler_time import SchedulerTimeSeam
from dask_otel.series import Measured, keyed, measured

if TYPE_CHECKING:
    from distributed import Scheduler

#: Hooks on the event loop: idle threads are looked at when it waits, parts are of what no handler took.
_TIME = "handler_time", "idle_time", "loop_parts"
#: One of those that go off together, without which no attempt is counted.
_TRACING = "transition"
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
        totals: AttemptTotals,
        unsent: Callable[[], tuple[int, int]],
    ) -> None:
        self._active, self._unsent = active, unsent
        self._totals = totals
        self._outlet = outlet
        self._folding = Folding(MAX_PREFIXES)
        self.seam = SchedulerTimeSeam(scheduler, guard)
        self._state = SchedulerStateSeam(scheduler, self._folding, guard)
        self.meter = Meter(outlet, self, self._measured, guard)
        self._health = Health(self.meter.histograms, guard)
        self._parts = LoopPartsSeam(scheduler, guard, self.seam.other)
        #: Is told of each graph that was worked in.
        self.graphs = GraphPhases(self.meter.histograms)
        #: Is told of the hooks.
        self.overhead = Overhead(guard)
        self._guard, self._loop = guard, asyncio.get_running_loop()
        self._counting = Several(self.seam, self._parts, self._health, totals, self._state, self.overhead)

    def install(self) -> None:
        """Count from now on."""
        self._totals.span_names = frozenset(self._outlet.settings.metrics.span_names)
        self._folding.begin()
        self._guard.part(
            "where its time goes, and why threads are idle, is not exported",
            lambda: self._loop.call_soon_threadsafe(self._stop_time),
            *_TIME,
        )
        self._counting.install()

    def uninstall(self) -> None:
        """Count no more."""
        self._counting.uninstall()

    def _stop_time(self) -> None:
        self._guard.each("off", self._parts.uninstall, self.seam.uninstall)

    def _measured(self) -> Iterator[Measured]:
        if _TIME[0] not in self._guard.off:
            yield measured(instruments.IDLE_SECONDS, keyed(self.seam.idle_time()))
            handlers = self.seam.handler_time()
            yield measured(instruments.HANDLER_SECONDS, keyed(handlers))
            yield measured(instruments.OTHER_SECONDS, keyed(self._parts.totals(handlers[LOOP_OTHER])))
        yield measured(instruments.ACTIVE_COMPUTATIONS, {(): self._active()})
        yield self.graphs.measured()
        yield from self._health.measured()
        yield measured(instruments.OVERHEAD_SECONDS, {(): self.overhead.seconds})
        fates = zip((instruments.ROLLED_UP, instruments.SAMPLED_OUT), self._unsent())
        yield measured(instruments.SPANS_BY_FATE, {(fate,): n for fate, n in fates if n})
        # Gives out the prefixes that have series of their own.
        yield from self._state.measured()
        if _TRACING not in self._guard.off:
            yield self._by_prefix(instruments.TASK_ATTEMPTS, self._totals.attempts)
            yield self._by_prefix(instruments.WASTED_SECONDS, self._totals.wasted)
        yield measured(instruments.PREFIXES_FOLDED, {(): self._folding.folded})

    def _by_prefix(self, instrument: Instrument, values: Mapping[tuple[str, ...], float]) -> Measured:
        return measured(instrument, self._folding.fold(values, 0, instrument))
