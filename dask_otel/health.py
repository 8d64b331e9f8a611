"""What stops a server: its event loop's lateness and its process's garbage collections, as two histograms.

Rules
-----
1. Measured while installed; what was measured stays until the next `install`.
2. Pauses are of the process: of the servers that share one, each tells of all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from dask_otel.distributions import Histograms
from dask_otel.guard import Guard
from dask_otel.instruments import GC_PAUSE, LOOP_LAG
from dask_otel.seam.gc_pauses import PauseLog
from dask_otel.seam.lag import LagTimer
from dask_otel.series import Measured, measured


class Health:
    """One server's, on whose event loop it is made and called."""

    def __init__(self, histograms: Histograms, guard: Guard) -> None:
        self._timer = LagTimer(asyncio.get_running_loop(), self._late, guard)
        self._log: PauseLog | None = None
        self._lags = histograms.of(LOOP_LAG)
        self._pauses = histograms.of(GC_PAUSE)

    def install(self) -> None:
        """Measure from now on."""
        self._log = PauseLog()
        self._timer.start()

    def uninstall(self) -> None:
        """Measure no more."""
        try:
            self._fold()
        finally:
            log, self._log = self._log, None
            if log is not None:
                log.close()
            self._timer.stop()

    def measured(self) -> Iterator[Measured]:
        """What there is up to now."""
        self._fold()
        yield measured(LOOP_LAG, self._lags.snapshots())
        yield measured(GC_PAUSE, self._pauses.snapshots())

    def _late(self, seconds: float) -> None:
        self._lags.record((), seconds)
        self._fold()

    def _fold(self) -> None:
        if self._log is not None:
            for start, end, generation in self._log.take():
                self._pauses.record((str(generation),), end - start)
