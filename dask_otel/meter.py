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

from dask_otel import about_us
from dask_otel.export.metric_bodies import Batch
from dask_otel.guard import Guard
from dask_otel.outlet import Outlet
from dask_otel.process import components, metric_exporter_for, say_once
from dask_otel.series import Measured, merged


class Counting(Protocol):
    """What counts on a server."""

    def install(self) -> None: ...

    def uninstall(self) -> None: ...


class Together:
    """Several that count, as one.

    Examples
    --------
    >>> Together().install()
    """

    def __init__(self, *counting: Counting) -> None:
        self._counting = counting

    def install(self) -> None:
        """Install all, in order."""
        for one in self._counting:
            one.install()

    def uninstall(self) -> None:
        """Uninstall all, the last first."""
        for one in reversed(self._counting):
            one.uninstall()


class Meter:
    """The metrics of one server.

    Parameters
    ----------
    outlet:
        The server's: whose resource they bear and by whose settings they go.
    seam:
        Counts while it is installed.
    collect:
        Gives the points at this moment.
    """

    def __init__(
        self, outlet: Outlet, seam: Counting, collect: Callable[[], Iterable[Measured]], guard: Guard
    ) -> None:
        self._outlet = outlet
        self._seam = seam
        self._collect = collect
        self._guard = guard
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
            self._seam.install()
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
            exporter = metric_exporter_for(settings)
            found = merged([*self._collect(), *self._about_us()])
            exporter.submit(Batch(self._outlet.source, self._began, time.time(), found, last))
        except Exception:
            self._guard.fault("metrics")

    def _about_us(self) -> list[Measured]:
        try:
            return list(about_us.told(self, components()))
        except Exception:
            self._guard.fault("metrics about dask-otel")
            return []

    def stop(self) -> None:
        """Hand in the last values; no more after them."""
        self.export(last=True)
        if self._next is not None:
            self._next.cancel()
            self._end()

    def _end(self) -> None:
        self._next = None
        about_us.leave(self)
        self._seam.uninstall()

    def _schedule(self) -> None:
        self._next = self._loop.call_later(self._outlet.settings.metrics.interval, self._tick)

    def _tick(self) -> None:
        if metric_exporter_for(self._outlet.settings).refused:
            self._end()
            return
        self.export()
        self._schedule()
