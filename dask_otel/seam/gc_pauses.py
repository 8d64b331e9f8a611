"""The garbage collections of this process, each of which stops all of its threads: when they began and ended.

Rules
-----
1. One callback of the interpreter for a process, however many servers listen; none once the last has gone, or in a
   forked child.
2. The callback runs in any thread, at any allocation, also while that thread holds a lock: it takes none, and only
   appends. Collections never run within one another.
3. A log that nobody reads keeps the last `MOST`; the seconds of all are never lost.
4. Moments are of ``time.perf_counter`` (s).
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

#: When a collection began and ended, and the generation that was collected.
Pause: TypeAlias = tuple[float, float, int]

#: Pauses that a log holds at most: minutes of a process that collects hundreds of times a second.
MOST = 50_000


class _Collector:
    """Listens to the interpreter while there are logs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Replaced, never changed: the callback may run at any moment.
        self._logs: tuple[deque[Pause], ...] = ()
        self._start = 0.0
        self.seconds = 0.0

    def add(self, log: deque[Pause]) -> None:
        with self._lock:
            self._logs = (*self._logs, log)
            if self._called not in gc.callbacks:
                self._start = 0.0
                gc.callbacks.append(self._called)

    def remove(self, log: deque[Pause]) -> None:
        with self._lock:
            self._logs = tuple([one for one in self._logs if one is not log])
            if not self._logs and self._called in gc.callbacks:
                gc.callbacks.remove(self._called)

    def _called(
        self, phase: str, info: dict[str, Any], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if phase == "start":
            self._start = clock()
            return
        start, end = self._start, clock()
        if start:  # It was there from the beginning of this collection.
            self._start = 0.0
            self.seconds += end - start
            for log in self._logs:
                log.append((start, end, info["generation"]))

    def leave(self) -> None:
        """In a forked child: whoever listened does not run here. The lock may be held by a thread that is not there."""
        self._lock = threading.Lock()
        self._logs = ()
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)


_collector = _Collector()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_collector.leave)


def paused() -> float:
    """Seconds that this process has stood still for collections, as far as somebody listened; never falls."""
    return _collector.seconds


class PauseLog(deque[Pause]):
    """The pauses of this process from now on, for one who reads them now and then; false where there are none.

    Parameters
    ----------
    most:
        How many it holds; 0 for one who only wants `paused` to count.

    Examples
    --------
    >>> log = PauseLog()
    >>> _ = gc.collect()
    >>> [generation for start, end, generation in log.take() if start < end][-1]
    2
    >>> log.close()
    """

    def __init__(self, most: int = MOST) -> None:
        super().__init__(maxlen=most)
        _collector.add(self)

    def take(self) -> list[Pause]:
        """What came since the last time, the oldest first."""
        return [self.popleft() for _ in range(len(self))] if self else []

    def close(self) -> None:
        """No more; what was not read is forgotten."""
        _collector.remove(self)
        self.clear()
