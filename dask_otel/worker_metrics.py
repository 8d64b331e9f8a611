"""The worker's shell for metrics: what its seam has counted becomes points, once an interval."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from dask_otel import instruments
from dask_otel.durations import Kept, TaskDurations, TransferDurations
from dask_otel.export.metric_bodies import Later
from dask_otel.folding import Folding
from dask_otel.guard import Guard
from dask_otel.health import Health
from dask_otel.instruments import Instrument
from dask_otel.intervals import number
from dask_otel.meter import Meter, Several
from dask_otel.outlet import Outlet
from dask_otel.overhead import Overhead
from dask_otel.seam.worker_state import WorkerStateSeam
from dask_otel.seam.worker_time import Activity, WorkerTimeSeam
from dask_otel.series import Measured, by, keyed, listed, measured

if TYPE_CHECKING:
    from distributed import Worker

#: Hooks whose totals are of each other's moments.
_TIME = "handle_stimulus", "get_metrics"
#: Prefixes that have series of their own.
MAX_PREFIXES = 30
#: Where the prefix stands among the attributes of an activity.
_PREFIX = 1
_OF_UNIT = {
    "seconds": instruments.ACTIVITY_SECONDS,
    "bytes": instruments.ACTIVITY_BYTES,
    "count": instruments.ACTIVITY_OPERATIONS,
}


class WorkerMetrics:
    """The metrics of one worker.

    What is by task prefix is summed up and folded in the exporter's thread: there may be thousands of them.
    """

    def __init__(self, worker: Worker, outlet: Outlet, guard: Guard) -> None:
        self._seam = WorkerTimeSeam(worker, guard)
        self._state = WorkerStateSeam(worker, guard)
        self._folding = Folding(MAX_PREFIXES)
        self._outlet = outlet
        #: Seconds by prefix as of the export before.
        self._busy: dict[str, float] = {}
        self.meter = Meter(outlet, self, self._measured, guard)
        self._health = Health(self.meter.histograms, guard)
        self._tasks = TaskDurations(self.meter.histograms)
        self._transfers = TransferDurations(self.meter.histograms)
        #: Of the durations that were folded.
        self._beginnings = 0
        #: Is told of the hooks.
        self.overhead = Overhead(guard)
        self._guard, self._loop = guard, asyncio.get_running_loop()
        self._counting = Several(self._seam, self._health, self._state, self.overhead)
        #: Names of the user's spans that are attributes.
        self.span_names: frozenset[str] = frozenset()

    def install(self) -> None:
        """Count from now on, from 0."""
        self.span_names = frozenset(self._outlet.settings.metrics.span_names)
        self._tasks.begin()
        self._folding.begin()
        self._guard.part(
            "what its threads do, and the seconds and bytes of its tasks, are not exported",
            lambda: self._loop.call_soon_threadsafe(lambda: self._guard.each("off", self._seam.uninstall)),
            *_TIME,
        )
        self._counting.install()
        self._busy = _busy(_by_unit(self._seam.activity()))

    def uninstall(self) -> None:
        """Count no more."""
        self._counting.uninstall()

    def attempted(
        self,
        prefix: str,
        outcome: str,
        seconds: float,
        error_type: str,
        kept: Kept | None,
        tags: Sequence[str],
    ) -> None:
        """An attempt has ended, of a task within spans of these names."""
        self._tasks.add(prefix, outcome, seconds, error_type, kept, listed(self.span_names, tags))

    def transferred(
        self, direction: str, outcome: str, seconds: float, size: int | None, kept: Kept | None
    ) -> None:
        """A transfer has ended; nothing where metrics are off."""
        if self.meter.on:
            self._transfers.add(direction, outcome, max(0.0, seconds), size, kept)

    def _measured(self) -> Iterator[Measured | Later]:
        if _TIME[0] not in self._guard.off:
            yield from self._time()
        yield from self._health.measured()
        yield from self._state.measured()
        yield measured(instruments.OVERHEAD_SECONDS, {(): self.overhead.seconds})
        self._tasks.count()
        yield self._durations
        for found in (self._transfers.seconds, self._transfers.bytes, self._transfers.bandwidth):
            yield measured(found.instrument, found.snapshots())
        yield measured(instruments.PREFIXES_FOLDED, {(): self._folding.folded})

    def _time(self) -> Iterator[Measured | Later]:
        # First: it is compared with the time of the export.
        threads = self._seam.thread_time()
        compute = self._seam.compute_time()
        self._folding.choose(self._busy | compute)
        yield partial(self._activities, self._seam.activity_later())
        tasks = {
            instruments.COMPUTE_SECONDS: compute,
            instruments.EXECUTING_SECONDS: self._seam.executing_time(),
            instruments.SECEDED_SECONDS: self._seam.seceded_time(),
        }
        yield partial(self._by_prefix, tasks)
        yield measured(instruments.THREAD_SECONDS, keyed(threads))

    def _activities(self, totals: Callable[[], Mapping[Activity, float]]) -> Iterator[Measured]:
        activity = _by_unit(totals())
        for instrument, values in activity.items():
            yield measured(instrument, self._folding.fold(values, _PREFIX, instrument))
        self._busy = _busy(activity)

    def _durations(self) -> Iterator[Measured]:
        duration = instruments.TASK_DURATION
        if self._tasks.beginnings != self._beginnings:
            self._beginnings = self._tasks.beginnings
            self._folding.forget(duration)
        yield measured(duration, self._folding.fold(self._tasks.snapshots(), 0, duration))

    def _by_prefix(self, found: Mapping[Instrument, Mapping[str, float]]) -> Iterator[Measured]:
        for instrument, values in found.items():
            yield measured(instrument, self._folding.fold(keyed(values), 0, instrument))


def _by_unit(activity: Mapping[Activity, float]) -> dict[Instrument, dict[tuple[str, ...], float]]:
    """By what they are amounts of; their context, prefix (empty where there is none) and label, and a unit of the users'.

    Of what is no number, or less than nothing, there is no total.
    """
    found: dict[Instrument, dict[tuple[str, ...], float]] = {
        instrument: {} for instrument in (*_OF_UNIT.values(), instruments.ACTIVITY_AMOUNT_OF)
    }
    of_unit = {unit: found[instrument] for unit, instrument in _OF_UNIT.items()}
    others = found[instruments.ACTIVITY_AMOUNT_OF]
    for (context, prefix, label, unit), amount in activity.items():
        value = number(amount)
        if value is None or value < 0:
            continue
        values = of_unit.get(unit)
        if values is None:
            others[context, prefix or "", label, unit] = value
        else:
            values[context, prefix or "", label] = value
    return found


def _busy(activity: Mapping[Instrument, Mapping[tuple[str, ...], float]]) -> dict[str, float]:
    busy = by(activity[instruments.ACTIVITY_SECONDS], _PREFIX)
    busy.pop("", None)
    return busy
