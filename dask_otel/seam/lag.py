"""How late a server's event loop is: a timer of ours, ten times a second.

Rules
-----
1. A lateness (s) is how long after its time the timer was called: while the loop runs something else it cannot be. A
   loop that is blocked for a second is seen once, with what was left of it when the timer was due: 0.9 to 1 s.
2. The next time is counted from when it was called: what was missed is not caught up with.
3. In the loop's thread, all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dask_otel.guard import Guard

_HOOK = "event_loop.lag"
#: Seconds from one look to the next.
INTERVAL = 0.1


class LagTimer:
    """Looks at one event loop.

    Parameters
    ----------
    loop
        Whose timers and whose clock.
    late
        Gets each lateness (s).
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, late: Callable[[float], object], guard: Guard
    ) -> None:
        self._loop = loop
        self._late = late
        self._guard = guard
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look from now on."""
        self._next = self._loop.call_later(INTERVAL, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _look(self) -> None:
        timer = self._next
        if timer is None:
            return
        try:
            # The loop calls what is due within the resolution of its clock.
            self._late(max(0.0, self._loop.time() - timer.when()))
        except Exception:
            self._guard.fault(_HOOK)
        finally:
            if _HOOK in self._guard.off:
                self._next = None
            elif self._next is timer:
                self.start()
