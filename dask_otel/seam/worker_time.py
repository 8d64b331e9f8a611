"""The seam of a worker's time: its threads by state, its tasks by prefix, and Dask's fine metrics as exact totals.

Rules
-----
1. What runs is what ``WorkerState.executing`` and ``long_running`` hold after each stimulus: a task that was cancelled
   is there until its end, one that called ``rejoin()`` stays in the latter.
2. A stimulus changes threads and tasks at one moment, that of its arrival: the threads' ``executing`` is the sum of
   the tasks' time, as long as no more tasks run than there are threads.
3. Totals begin at `install`: threads and tasks from 0, activities from what ``Worker.digests_total`` has.
4. `install` and `uninstall` are for the event loop; the getters are for any thread.
5. Between two stimuli nothing changes: a number of threads that is set by hand is seen at the next one.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_otel.guard import Guard
from dask_otel.intervals import text
from dask_otel.running_time import RunningTime
from dask_otel.seam import Wraps
from dask_otel.thread_time import ThreadTime

if TYPE_CHECKING:
    from distributed import Worker

#: What the key of a fine metric begins with: (context, span's id, …), and (context, …). All else is none of them:
#: bare strings like ``latency``, and what users post to the worker under keys of their own.
_WITH_SPAN = ("execute", "p2p")
_WITHOUT_SPAN = ("gather-dep", "get-data", "memory-monitor")
#: Running, and no tasks that a thread could be free for.
_NONE_FREE = (True, 0, 0, 0)


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
        # Orders the event loop's changes and what others ask; held for microseconds. Reentrant, since the garbage
        # collector may run anybody's code in between.
        self._lock = threading.RLock()
        self._begin()

    def _begin(self) -> None:
        """Totals start, from what there is."""
        self._threads = ThreadTime()
        self._tasks = RunningTime()
        #: Copies of the state's sets as of the last stimulus, and by what a change of them is known.
        self._executing: set[Any] = set()
        self._away: set[Any] = set()
        self._seen: object = None
        #: By key without the span's id. The event loop's own has no lock, since nobody else writes to it.
        self._digests: defaultdict[Hashable, float] = defaultdict(int)
        self._digests_of_others: defaultdict[Hashable, float] = defaultdict(int)
        #: What the keys say.
        self._activities: dict[Hashable, Activity | None] = {}

    def install(self) -> None:
        """Wrap the worker's methods."""
        worker = self._worker
        self._begin()
        for name, value in dict(worker.digests_total).items():
            key = _fine(name)
            if key is not None:
                self._digests[key] += value
        self._wraps.attribute(worker, "digest_metric", self._wrap_digest_metric(worker.digest_metric))
        # A shuffle keeps the method that it found when it began.
        for run in _shuffles(worker):
            self._wraps.attribute(run, "digest_metric", self._wrap_digest_metric(run.digest_metric))
        self._recount(self._clock())
        handle = self._wrap_handle_stimulus(worker.handle_stimulus)
        self._wraps.attribute(worker, "handle_stimulus", handle)

    def uninstall(self) -> None:
        """Put everything back."""
        self._wraps.undo()

    # -- the totals -------------------------------------------------------------------------------------------
    def thread_time(self) -> dict[str, float]:
        """Thread-seconds by each of `names.THREAD_STATES`; their sum is threads × uptime."""
        with self._lock:
            return self._threads.totals(self._clock())

    def compute_time(self) -> dict[str, float]:
        """Seconds by prefix that tasks have held a slot, running ones included."""
        with self._lock:
            return self._tasks.compute(self._clock())

    def executing_time(self) -> dict[str, float]:
        """Elapsed seconds by prefix of the tasks that hold a slot now; 0 where none does any more."""
        with self._lock:
            return self._tasks.executing(self._clock())

    def seceded_time(self) -> dict[str, float]:
        """Seconds by prefix that tasks have run since they seceded, running ones included."""
        with self._lock:
            return self._tasks.seceded(self._clock())

    def activity(self) -> dict[Activity, float]:
        """Exact totals of Dask's fine metrics: those of ``Worker.digests_total``, span ids summed away."""
        return self.activity_later()()

    def activity_later(self) -> Callable[[], dict[Activity, float]]:
        """The same as of now, made of what there is now when it is called: there may be thousands."""
        with self._lock:
            # A copy of a dictionary runs no Python code, so that the event loop cannot write in between.
            digests = self._digests.copy(), self._digests_of_others.copy()
        return lambda: self._sum_up(*digests)

    def _sum_up(self, *digests: Mapping[Hashable, float]) -> dict[Activity, float]:
        found: defaultdict[Activity, float] = defaultdict(int)
        for totals in digests:
            for key, value in totals.items():
                if key not in self._activities:
                    self._activities[key] = _activity(key)
                activity = self._activities[key]
                if activity is not None:
                    found[activity] += value
        return dict(found)

    # -- states -----------------------------------------------------------------------------------------------
    def _wrap_handle_stimulus(self, original: Callable[..., None]) -> Callable[..., None]:
        clock = self._clock

        def handle_stimulus(*stims: Any) -> None:
            now = clock()
            try:
                original(*stims)
            finally:
                try:
                    self._recount(now)
                except Exception:
                    self._guard.fault("handle_stimulus")

        return handle_stimulus

    def _recount(self, now: float) -> None:
        state = self._worker.state
        threads, executing, away = state.nthreads, state.executing, state.long_running
        if len(executing) < threads:
            # Why some are free; a length of Dask's heaps is a call of Python code.
            free = (state.running, len(state.ready), len(state.constrained), len(state.waiting))
        else:
            free = _NONE_FREE
        # Whatever leaves the sets that run has ended, which is counted, or moves from the one to the other.
        seen = (state.executed_count, len(executing), len(away), threads, free)
        if seen == self._seen:
            return
        self._seen = seen
        running, ready, constrained, waiting = free
        with self._lock:
            self._threads.change(
                now,
                threads=threads,
                executing=len(executing),
                running=running,
                ready=ready,
                constrained=constrained,
                waiting=waiting,
            )
            self._compare(now, executing, away)

    def _compare(self, now: float, executing: set[Any], away: set[Any]) -> None:
        """Tell the model what has changed; seceded tasks may be many, and are compared only where one has."""
        tasks, known = self._tasks, self._executing
        if len(away) == len(self._away) and executing == known:
            return
        gone = known - executing
        self._executing = executing.copy()
        if len(away) != len(self._away) or not gone.isdisjoint(away):
            for task in self._away - away:
                tasks.stop(now, task)
            for task in away - self._away:
                tasks.secede(now, task, task.prefix)
            self._away = away.copy()
            gone -= away
        for task in gone:
            tasks.stop(now, task)
        for task in executing - known:
            tasks.start(now, task, task.prefix)

    # -- fine metrics -----------------------------------------------------------------------------------------
    def _wrap_digest_metric(self, original: Callable[..., None]) -> Callable[..., None]:
        loop, digests = get_ident(), self._digests
        others, lock = self._digests_of_others, self._lock

        def digest_metric(name: Hashable, value: float) -> None:
            original(name, value)
            try:
                key = _fine(name)
                if key is None:
                    return
                if get_ident() == loop:
                    digests[key] += value
                else:  # P2P's threads.
                    with lock:
                        others[key] += value
            except Exception:
                self._guard.fault("digest_metric")

        return digest_metric


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


def _shuffles(worker: Worker) -> list[Any]:
    """P2P's runs on a worker."""
    plugin = worker.plugins.get("shuffle")
    return list(plugin.shuffle_runs._runs) if plugin is not None else []
