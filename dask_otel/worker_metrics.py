"""The worker's shell for metrics: what its seam has counted becomes points, once an interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dask_otel import instruments
from dask_otel.durations import Kept, TaskDurations, TransferDurations
from dask_otel.guard import Guard
from dask_otel.health import Health
from dask_otel.instruments import Instrument
from dask_otel.meter import Meter, Several
from dask_otel.outlet import Outlet
from dask_otel.seam.worker_state import WorkerStateSeam
from dask_otel.seam.worker_time import Activity, WorkerTimeSeam
from dask_otel.series import Folding, Measured, by, keyed, measured

if TYPE_CHECKING:
    from distributed import Worker

#: Prefixes that have series of their own.
MAX_PREFIXES = 30
#: Where the prefix stands in what `_plain` gives, and the unit.
_PREFIX, _UNIT = 1, 3
_OF_UNIT = {
    "seconds": instruments.ACTIVITY_SECONDS,
    "bytes": instruments.ACTIVITY_BYTES,
    "count": instruments.ACTIVITY_OPERATIONS,
}


class WorkerMetrics:
    """The metrics of one worker."""

    def __init__(self, worker: Worker, outlet: Outlet, guard: Guard) -> None:
        self._seam = WorkerTimeSeam(worker, guard)
        self._state = WorkerStateSeam(worker, guard)
        self._folding = Folding(MAX_PREFIXES)
        self._outlet = outlet
        self._health = Health(guard)
        self._counting = Several(self._seam, self._health, self._state)
        self._begin()
        self.meter = Meter(outlet, self, self._measured, guard)

    def _begin(self) -> None:
        self._tasks = TaskDurations()
        self._transfers = TransferDurations()
        self._exemplars = self._outlet.settings.metrics.exemplars != "always_off"

    def install(self) -> None:
        """Count from now on, from 0."""
        self._begin()
        self._counting.install()

    def uninstall(self) -> None:
        """Count no more."""
        self._counting.uninstall()

    def attempted(
        self, prefix: str, outcome: str, seconds: float, error_type: str, kept: Kept | None
    ) -> None:
        """An attempt has ended."""
        self._tasks.add(prefix, outcome, seconds, error_type, kept if self._exemplars else None)

    def transferred(
        self, direction: str, outcome: str, seconds: float, size: int | None, kept: Kept | None
    ) -> None:
        """A transfer has ended; nothing where metrics are off."""
        if self.meter.on:
            kept = kept if self._exemplars else None
            self._transfers.add(direction, outcome, max(0.0, seconds), size, kept)

    def _measured(self) -> Iterator[Measured]:
        activity, compute = _plain(self._seam.activity()), self._seam.compute_time()
        seconds = {key: value for key, value in activity.items() if key[_PREFIX] and key[_UNIT] == "seconds"}
        self._folding.choose(by(seconds, _PREFIX) | compute)
        yield from self._activities(self._folding.fold(activity, _PREFIX))
        yield self._by_prefix(instruments.COMPUTE_SECONDS, compute)
        yield self._by_prefix(instruments.EXECUTING_SECONDS, self._seam.executing_time())
        yield self._by_prefix(instruments.SECEDED_SECONDS, self._seam.seceded_time())
        yield measured(instruments.THREAD_SECONDS, keyed(self._seam.thread_time()))
        yield from self._health.measured()
        yield from self._state.measured()
        yield measured(instruments.TASK_DURATION, self._tasks.snapshots(self._folding.shown))
        for found in (self._transfers.seconds, self._transfers.bytes, self._transfers.bandwidth):
            yield measured(found.instrument, found.snapshots())

    def _activities(self, values: dict[tuple[str, ...], float]) -> Iterator[Measured]:
        for unit, instrument in _OF_UNIT.items():
            yield measured(
                instrument, {key[:_UNIT]: value for key, value in values.items() if key[_UNIT] == unit}
            )
        yield measured(
            instruments.ACTIVITY_AMOUNT_OF,
            {key: value for key, value in values.items() if key[_UNIT] not in _OF_UNIT},
        )

    def _by_prefix(self, instrument: Instrument, values: dict[str, float]) -> Measured:
        return measured(instrument, self._folding.fold(keyed(values), 0))


def _plain(activity: Mapping[Activity, float]) -> dict[tuple[str, ...], float]:
    """By context, prefix (empty where there is none), label and unit."""
    return {(of.context, of.prefix or "", of.activity, of.unit): value for of, value in activity.items()}
