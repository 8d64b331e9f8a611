"""One execution of a task on a worker: what the seam knows of it while it runs, and when it has ended."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import Any

from distributed.metrics import context_meter

from dask_otel.attempts import Failure

_clock = time.perf_counter
_listening = context_meter._callbacks.get


class Posts(list[tuple[Hashable, float, str]]):
    """A ledger's metrics that remember when each was posted and how deep.

    A metering context listens while it is open: the more listen, the deeper.
    """

    __slots__ = ("depths", "moments")

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.depths = bytearray()

    def append(self, post: tuple[Hashable, float, str]) -> None:
        self.moments.append(_clock())
        depth = len(_listening())
        self.depths.append(depth if depth < 255 else 255)
        list.append(self, post)


_NO_POSTS = Posts()


class Run:
    """One execution of a task on this worker, from its first moment.

    ``start`` is in seconds since the epoch; ``shift`` added to a moment of ``posts`` gives such seconds.
    ``listener`` is for whatever the listener wants to keep with it; ``itemized`` is set by it where each post is
    wanted. ``cancelled`` says that the scheduler gave it
    up; its code goes on. ``answered`` is the number of a later dispatch of the same key that came to nothing.
    """

    __slots__ = (
        "answered",
        "cancelled",
        "is_async",
        "itemized",
        "key",
        "listener",
        "posts",
        "ready",
        "run_id",
        "seceded",
        "shift",
        "start",
        "state",
        "thread",
        "waiting",
    )

    def __init__(self, key: Hashable, run_id: int, state: Any) -> None:
        self.key = key
        self.run_id = run_id
        self.state = state
        self.is_async = self.cancelled = self.itemized = False
        self.answered = run_id
        self.thread: int | None = None
        self.listener: Any = None
        self.posts = _NO_POSTS
        self.start = self.shift = 0.0
        self.waiting: float | None = None
        self.ready: float | None = None
        self.seceded: float | None = None


class Ended:
    """How a run ended; every field that is not known is ``None``."""

    __slots__ = (
        "amounts",
        "compute",
        "end",
        "exception_text",
        "failure",
        "outcome",
        "size",
        "thread",
        "traceback_text",
        "type",
    )

    def __init__(self, outcome: str, end: float, amounts: Sequence[tuple[Hashable, float, str]]) -> None:
        self.outcome = outcome
        self.end = end
        self.amounts = amounts
        self.compute: float | None = None
        self.size: int | None = None
        self.type: str | None = None
        self.thread: int | None = None
        #: The exception where the state machine saw it, else its text as Dask gives it.
        self.failure: Failure | None = None
        self.exception_text: str | None = None
        self.traceback_text = ""
