"""What dask-otel takes of a server's event loop: its hooks timed now and then, at no cost in between.

Rules
-----
1. Hooks are timed in windows of `WINDOW` seconds, about one in `PERIOD`; each stands for the time since the one before.
   Between windows they are called as if nobody looked.
2. What is timed are methods of our own objects that are looked up at each call, and that do not call each other; what wraps
   them is not in it.
3. In the loop's thread, all of it.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable
from typing import Any

from dask_otel.guard import Guard

#: Seconds.
WINDOW, PERIOD = 0.1, 5.0


class Overhead:
    """Seconds that one server's hooks have taken, estimated.

    Parameters
    ----------
    clock:
        Gives seconds and never goes back.
    """

    def __init__(self, guard: Guard, clock: Callable[[], float] = time.perf_counter) -> None:
        self._guard = guard
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._hooks: list[tuple[object, str]] = []
        self._next: asyncio.TimerHandle | None = None
        self._timed: list[tuple[object, str]] = []
        #: When the last window was closed, and this one opened; what it has seen (s).
        self._closed = self._opened = 0.0
        self._seen = 0.0
        #: Seconds since the beginning; never falls.
        self.seconds = 0.0

    def watch(self, on: object, *hooks: str) -> None:
        """These methods are hooks."""
        self._hooks += [(on, hook) for hook in hooks]

    def install(self) -> None:
        """Look now and then."""
        self._closed = self._clock()
        self._look_later()

    def uninstall(self) -> None:
        """Look no more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._restore()

    def _look_later(self) -> None:
        # Not in step with whatever else is periodic.
        self._next = self._loop.call_later(PERIOD * random.uniform(0.5, 1.5), self._open)

    def _open(self) -> None:
        try:
            self._seen, self._opened = 0.0, self._clock()
            for on, hook in self._hooks:
                setattr(on, hook, self._time(getattr(on, hook)))
                self._timed.append((on, hook))
            self._next = self._loop.call_later(WINDOW, self._close)
        except Exception:
            self._failed()

    def _close(self) -> None:
        try:
            self._restore()
            now = self._clock()
            if now > self._opened:
                self.seconds += self._seen * (now - self._closed) / (now - self._opened)
            self._closed = now
            self._look_later()
        except Exception:
            self._failed()

    def _failed(self) -> None:
        self._guard.each("overhead", self._restore)
        self._guard.fault("overhead")
        if "overhead" not in self._guard.off:
            self._look_later()

    def _restore(self) -> None:
        while self._timed:
            on, hook = self._timed.pop()
            vars(on).pop(hook, None)

    def _time(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        clock = self._clock

        @functools.wraps(hook)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                return hook(*args, **kwargs)
            finally:
                self._seen += clock() - start

        return timed
