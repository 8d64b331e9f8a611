"""The bounded queue between those who finish spans, on any thread, and the one thread that exports them.

Rules
-----
1. `Emitter.emit` takes no lock, never waits and never raises: it is called on event loops, in task threads
   and in finalizers.
2. The bound counts spans. What stands for several spans stands in the queue as often as it has spans, so that
   the queue's length is their number.
3. What does not fit is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock
from typing import Protocol, TypeAlias

from dask_otel.export.bodies import Source
from dask_otel.export.fates import Tally
from dask_otel.records import Span

#: More than any queue's length.
NEVER = 2**63


class Expandable(Protocol):
    """Something cheap to make that becomes spans in the background thread.

    ``weight`` is the number of spans; it does not change.
    """

    @property
    def weight(self) -> int: ...

    def spans(self) -> Iterable[Span]: ...


Item: TypeAlias = "Span | Expandable"

#: Who made it, what, and how often it stands in the queue.
Entry: TypeAlias = "tuple[Source, Item, int]"


class Line:
    """The queue and what emitters need to know of it.

    ``size`` is the bound (negative: nothing is taken), ``wake_at`` the length from which ``wake`` is called.
    """

    __slots__ = ("dropped", "entries", "size", "wake", "wake_at")

    def __init__(self, size: int, wake: Callable[[], None]) -> None:
        self.entries: deque[Entry] = deque()
        self.size = size
        self.wake = wake
        self.wake_at = 0
        self.dropped = Tally()


class Emitter:
    """Hands the spans of one resource and scope to a pipeline; made by `Pipeline.emitter`."""

    __slots__ = ("_line", "_source")

    def __init__(self, line: Line, source: Source) -> None:
        self._line = line
        self._source = source

    def emit(self, item: Item) -> bool:
        """Queue a span, or what becomes spans; whether it fits, and if not it is counted as dropped."""
        line = self._line
        entries = line.entries
        waiting = len(entries)
        try:
            if type(item) is Span:
                fits = waiting < line.size
                if fits:
                    entries.append((self._source, item, 1))
                else:
                    line.dropped.add()
            else:
                fits = self._emit_many(line, item, item.weight)  # type: ignore[union-attr]
            if waiting >= line.wake_at:
                line.wake()
            return fits
        except Exception:
            line.dropped.add()
            return False

    def _emit_many(self, line: Line, item: Item, weight: int) -> bool:
        weight = max(weight, 1)
        if len(line.entries) + weight <= line.size:
            # One call, hence not interrupted: the copies stand side by side.
            line.entries.extend([(self._source, item, weight)] * weight)
            return True
        line.dropped.add(weight)
        return False


class Bell:
    """Wakes a thread. An Event has a lock inside, which a finalizer may find taken by its own thread.

    Examples
    --------
    >>> bell = Bell()
    >>> bell.ring(), bell.ring(), bell.wait(0.0), bell.wait(0.0)
    (None, None, True, False)
    """

    def __init__(self) -> None:
        self._silent = Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """End the wait, or the next one."""
        with suppress(RuntimeError):
            self._silent.release()

    def wait(self, timeout: float) -> bool:
        """Wait for a ring; whether there was one."""
        return self._silent.acquire(timeout=timeout)
