"""Hands in what a server measures, once an interval, on the server's event loop.

Rules
-----
1. A server that exports no metrics measures and schedules nothing.
2. What is handed in last, when the server goes, holds its last values.
3. A receiver that takes no metrics ends the counting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from dask_otel.distributions import Histograms
from dask_otel.export.metric_bodies import Batch, Later
from dask_otel.guard import Guard
from dask_otel.outlet import Outlet
from dask_otel.process import metric_exporter_for, say_once
from dask_otel.series import Measured


class Counting(Protocol):
    """What counts on a server."""

    def install(self) -> None: ...

    def uninstall(self) -> None: ...


class Meter:
    """The metrics of one server.

    Parameters
    ----------
    outlet:
        The server's: whose resource they bear and by whose settings they go.
    seam:
        Counts while it is installed.
    collect:
        Gives the points at this moment; what takes longer to make of what is there now as a function, which another
        thread calls.
    """

    def __init__(
        self, outlet: Outlet, seam: Counting, collect: Callable[[], Iterable[Measured | Later]], guard: Guard
    ) -> None:
        self._outlet = outlet
        self._seam = seam
        self._collect = collect
        self._guard = guard
        #: Makes the server's histograms.
        self.histograms = Histograms()
        #: Called where counting starts, and starts anew.
        self.at_start: list[Callable[[], object]] = []
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.TimerHandle | None = None
        self._began = 0.0

    @property
    def on(self) -> bool:
        """Whether it counts and exports."""
        return self._next is not None

    def start(self) -> None:
        """Count and export from now on, if metrics are to be exported."""
        settings = self._outlet.settings
        if not settings.exporting_metrics or self.on:
            return
        if "otlp" not in settings.metrics.exporters:
            say_once(
                "OTEL_METRICS_EXPORTER is %s; dask-otel sends metrics over OTLP only: set it to otlp, or to none.",
                ",".join(settings.metrics.exporters),
                level=logging.WARNING,
            )
            return
        try:
            self.histograms.begin(settings.metrics)
            self._seam.install()
            for begin in self.at_start:
                begin()
            self._began = time.time()
            self._schedule()
        except Exception:
            self._guard.fault("metrics")

    def export(self, last: bool = False) -> None:
        """Hand in what there is now."""
        if not self.on:
            return
        try:
            settings = self._outlet.settings
            batch = Batch(self._outlet.source, self._began, time.time(), list(self._collect()), last)
            metric_exporter_for(settings).submit(batch)
        except Exception:
            self._guard.fault("metrics")

    def stop(self) -> None:
        """Hand in the last values; no more after them."""
        self.export(last=True)
        if self._next is not None:
            self._next.cancel()
            self._next = None
            self._seam.uninstall()

    def _schedule(self) -> None:
        self._next = self._loop.call_later(self._outlet.settings.metrics.interval, self._tick)

    def _tick(self) -> None:
        if metric_exporter_for(self._outlet.settings).refused:
            self._next = None
            self._seam.uninstall()
            return
        self.export()
        self._schedule()
