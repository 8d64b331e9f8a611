"""What a scheduler and a worker both show on their Prometheus endpoints, and the frame in which each shows its own.

Rules
-----
1. Reads only: a number that Dask does not have is left out.
2. A part that fails is told to the guard, and the others are given; one that is switched off is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from distributed.metrics import monotonic

from dask_otel import instruments
from dask_otel.guard import Guard
from dask_otel.seam.ticks import TickSeam
from dask_otel.series import Measured, measured

if TYPE_CHECKING:
    from distributed.core import Server

#: Gives some of the points.
Part = Callable[[], Iterable[Measured]]


class ServerState:
    """Reads what one server has."""

    def __init__(self, server: Server, guard: Guard) -> None:
        self._server = server
        self._guard = guard
        self._ticking = TickSeam(server, guard)

    def install(self) -> None:
        """Begin to see what is seen only while it happens."""
        self._ticking.install()

    def uninstall(self) -> None:
        """Put everything back."""
        self._ticking.uninstall()

    def measured(self) -> Iterator[Measured]:
        """All there is now."""
        for part in (*self._parts(), self._ticks, self._gil):
            hook = f"reading {part.__name__.lstrip('_')}"
            if hook in self._guard.off:
                continue
            try:
                yield from list(part())
            except Exception:
                self._guard.fault(hook)

    def _parts(self) -> Sequence[Part]:
        """Those of the server's own kind."""
        raise NotImplementedError

    def _ticks(self) -> Iterator[Measured]:
        yield measured(instruments.LOOP_TICKS, {(): self._server._tick_counter})
        yield measured(instruments.LOOP_TICK_MAX, {(): self._ticking.longest()})

    def _gil(self) -> Iterator[Measured]:
        monitor = self._server.monitor
        if monitor.monitor_gil_contention:
            yield measured(instruments.GIL_SECONDS, {(): float(monitor.cumulative_gil_contention)})

    def _monitor(self) -> Iterator[Measured]:
        # Dask's clock is the machine's, which begins anywhere.
        ago = monotonic() - self._server.monitor.last_time
        yield measured(instruments.MONITOR_TIME, {(): time.time() - ago})
