"""How long a server's event loop was held between two of Dask's ticks, at most.

Rules
-----
1. The maximum is ours: Dask clears its own at every scrape of a scheduler.
2. What is wrapped is called once a tick, never once a task.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distributed.metrics import time

from dask_otel.guard import Guard
from dask_otel.seam import Wraps

if TYPE_CHECKING:
    from distributed.core import Server


class TickSeam:
    """Looks at the ticks of one server."""

    def __init__(self, server: Server, guard: Guard) -> None:
        self._server = server
        self._guard = guard
        self._wraps = Wraps()
        self._longest = 0.0

    def install(self) -> None:
        """Look at every tick from now on."""
        self._guard.part("dask.event_loop.tick.max is of single ticks", self.uninstall, "tick")
        ticking = self._server.periodic_callbacks["tick"]
        self._wraps.attribute(ticking, "callback", self._wrap_tick(ticking.callback))

    def uninstall(self) -> None:
        """Put it back."""
        self._wraps.undo()

    def longest(self) -> float:
        """Seconds between two ticks, since this was asked before; the one that has not ended counts too."""
        longest, self._longest = self._longest, 0.0
        return max(longest, float(time() - self._server._last_tick))

    def _wrap_tick(self, original: Callable[[], Any]) -> Callable[[], Any]:
        server = self._server

        @functools.wraps(original)
        def tick() -> Any:
            before = server._last_tick
            try:
                return original()
            finally:
                try:
                    self._longest = max(self._longest, server._last_tick - before)
                except Exception:
                    self._guard.fault("tick")

        return tick
