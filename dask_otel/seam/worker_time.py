"""The seam of a worker's time: its threads by state, its tasks by prefix, and Dask's fine metrics as exact totals.

Rules
-----
1. What runs is what ``WorkerState.executing`` and ``long_running`` hold after each stimulus: a task that was cancelled
   is there until its end, one that called ``rejoin()`` stays in the latter.
2. A stimulus changes threads and tasks at one moment, that of its arrival: the threads' ``executing`` is the sum of
   the tasks' time, as long as no more tasks run than there are threads.
3. Totals begin at `install`: threads and tasks from 0, activities from what ``Worker.digests_total`` has.
4. Everything is called in the thread of the worker's event loop, the getters too, but for what `activity_later` gives.
5. Between two stimuli nothing changes: a number of threads that is set by hand is seen at the next one.
6. Amounts are read where Dask keeps those since the last heartbeat, at each heartbeat and when somebody asks: what is
   digested costs nothing more, and ``digests_total`` may be cleared.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_otel.guard import Guard
from dask_otel.intervals import text
from dask_otel.running_time import RunningTime
from dask_otel.seam import Wraps, members
from dask_otel.thread_time import ThreadTime

if TYPE_CHECKING:
    from distributed import Worker

#: What the key of a fine metric begins with: (context, span's id, …), and (context, …). All else is none of them:
#: bare strings like ``latency``, and what users post to the worker under keys of their own.
_WITH_SPAN = ("execute", "p2p")
_WITHOUT_SPAN = ("gather-dep", "get-data", "memory-monitor")


class Activity(NamedTuple):
    """What an amount is of: the metering context, the task prefix (``None`` but for ``execute``), the label, the unit.

    P2P's label begins with where it was metered: ``foreground``, ``background-comms``, ``background-disk``.
    """

    context: str
    prefix: str | None
    activity: str
    unit: str


class WorkerTimeSeam:
    """Hooks on one worker; ``clock`` gives seconds and never goes back."""

    def __init__(self, worker: Worker, guard: Guard, clock: Callable[[], float] = time.perf_counter) -> None:
        self._worker = worker
        self._guard = guard
        self._clock = clock
        self._wraps = Wraps()
        self._begin()

    def _begin(self) -> None:
        """Totals start, from what there is."""
        self._threads = ThreadTime()
        self._holding = RunningTime()
        self._seceded = RunningTime()
        #: By what a change of the state is known: see `_wrap_handle_stimulus`.
        self._seen: tuple[Any, ...] = (0, 0, 0, 0, None)
        #: By key without the span's id: all but what `_since` holds.
        self._digests: defaultdict[Hashable, float] = defaultdict(int)
        #: Dask's own amounts since a heartbeat, the last or the one before.
        self._since: Mapping[Hashable, float] = {}
        #: What the keys say.
        self._activities: dict[Hashable, Activity | None] = {}

    def install(self) -> None:
        """Wrap the worker's methods."""
        worker = self._worker
        self._begin()
        self._wrap_handle_stimulus(lambda: None, worker.state)()  # What is there.
        _add(self._digests, worker.digests_total)
        self._since = worker.digests_total_since_heartbeat
        _add(self._digests, {name: -value for name, value in dict(self._since).items() if _fine(name)})
        self._wraps.attribute(worker, "get_metrics", self._wrap_get_metrics(worker.get_metrics))
        handle = self._wrap_handle_stimulus(worker.handle_stimulus, worker.state)
        self._wraps.attribute(worker, "handle_stimulus", handle)

    def uninstall(self) -> None:
        """Put everything back."""
        self._wraps.undo()

    # -- the totals -------------------------------------------------------------------------------------------
    def thread_time(self) -> dict[str, float]:
        """Thread-seconds by each of `names.THREAD_STATES`; their sum is threads × uptime."""
        now = self._clock()
        return self._threads.totals(now, sum(self._holding.totals(now).values()))

    def compute_time(self) -> dict[str, float]:
        """Seconds by prefix that tasks have held a slot, running ones included."""
        return self._holding.totals(self._clock())

    def executing_time(self) -> dict[str, float]:
        """Elapsed seconds by prefix of the tasks that hold a slot now; 0 where none does any more."""
        return self._holding.elapsed(self._clock())

    def seceded_time(self) -> dict[str, float]:
        """Seconds by prefix that tasks have run since they seceded, running ones included."""
        return self._seceded.totals(self._clock())

    def activity(self) -> dict[Activity, float]:
        """Exact totals of Dask's fine metrics: those of ``Worker.digests_total``, span ids summed away."""
        return self.activity_later()()

    def activity_later(self) -> Callable[[], dict[Activity, float]]:
        """The same as of now, made of what there is now when it is called: there may be thousands."""
        # Copies of dictionaries run no Python code: nobody writes to them in between.
        digests, latest = self._digests.copy(), self._worker.digests_total_since_heartbeat
        # What was put aside stays there until a heartbeat: to add it is as much work as to sum it up.
        since = [dict(self._since)] if latest is self._since else [dict(self._since), dict(latest)]
        return lambda: self._sum_up(digests, since)

    def _sum_up(
        self, digests: defaultdict[Hashable, float], since: Sequence[Mapping[Hashable, float]]
    ) -> dict[Activity, float]:
        for more in since:
            _add(digests, more)
        found: defaultdict[Activity, float] = defaultdict(int)
        for key, value in digests.items():
            if key not in self._activities:
                self._activities[key] = _activity(key)
            activity = self._activities[key]
            if activity is not None:
                found[activity] += value
        return dict(found)

    # -- states -----------------------------------------------------------------------------------------------
    def _wrap_handle_stimulus(self, original: Callable[..., None], state: Any) -> Callable[..., None]:
        """Called three times a task: it looks at what it can without a call of Python code."""
        clock, change, fault = self._clock, self._change, self._guard.fault
        executing, away, waiting = state.executing, state.long_running, state.waiting
        ready, constrained = members(state.ready), members(state.constrained)

        def handle_stimulus(*stims: Any) -> None:
            now = clock()
            try:
                original(*stims)
            finally:
                try:
                    count, threads = len(executing), state.nthreads
                    odd: object = count > threads
                    if count < threads and (waiting or constrained or not state.running):
                        odd = (state.running, len(ready), len(constrained), len(waiting))
                    # Whatever leaves the sets that run has ended, which is counted, or moves from the one to the other.
                    seen = (state.executed_count, count, len(away), threads, odd)
                    if seen != self._seen:
                        change(now, seen, executing, away)
                except Exception:
                    fault("handle_stimulus")

        return handle_stimulus

    def _change(self, now: float, seen: tuple[Any, ...], executing: set[Any], away: set[Any]) -> None:
        _, _, gone, threads, odd = self._seen
        self._seen = seen
        self._holding.change(now, executing)
        if gone or away:
            self._seceded.change(now, away)
        # Threads that hold a task or are idle are none of the model's business.
        if odd or seen[4] or threads != seen[3]:
            told = seen[4] if type(seen[4]) is tuple else ()
            self._threads.change(now, seen[3], seen[1], *told)

    # -- fine metrics -----------------------------------------------------------------------------------------
    def _wrap_get_metrics(
        self, original: Callable[[], Awaitable[dict[str, Any]]]
    ) -> Callable[[], Awaitable[dict[str, Any]]]:
        """A heartbeat: what was digested since the last is put aside, and an empty dictionary takes its place."""

        @functools.wraps(original)
        async def get_metrics() -> dict[str, Any]:
            try:
                self._absorb()
            except Exception:
                self._guard.fault("get_metrics")
            return await original()

        return get_metrics

    def _absorb(self) -> None:
        """Add what was put aside since this was called last, to which nobody adds any more."""
        since = self._worker.digests_total_since_heartbeat
        if since is not self._since:
            _add(self._digests, self._since)
            self._since = since


def _add(digests: defaultdict[Hashable, float], more: Mapping[Hashable, float]) -> None:
    # P2P's threads digest too: a copy of a dictionary runs no Python code, so that they cannot in between.
    for name, value in dict(more).items():
        key = _fine(name)
        if key is not None:
            digests[key] += value


def _fine(name: Any) -> tuple[Any, ...] | None:
    """A fine metric's key without the span's id: however many spans there are, totals are as many as activities."""
    if type(name) is not tuple or not name:
        return None
    context = name[0]
    if context in _WITH_SPAN:
        return (context, *name[2:])
    return name if context in _WITHOUT_SPAN else None


def _activity(key: Any) -> Activity | None:
    """What a key without its span's id says; ``None`` where it is no fine metric's.

    Examples
    --------
    >>> _activity(("execute", "inc", "thread-cpu", "seconds"))
    Activity(context='execute', prefix='inc', activity='thread-cpu', unit='seconds')
    >>> _activity(("p2p", "foreground", "shards", "count"))
    Activity(context='p2p', prefix=None, activity='foreground.shards', unit='count')
    >>> _activity(("execute", "seconds"))
    """
    context, *label = key
    unit = label.pop() if label else None
    prefix = str(label.pop(0)) if context == "execute" and label else None
    if not label or not isinstance(unit, str):
        return None
    return Activity(context, prefix, text(label[0] if len(label) == 1 else tuple(label)), unit)
