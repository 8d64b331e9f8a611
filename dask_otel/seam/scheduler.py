"""The scheduler's seam: graphs, tasks and workers of a `distributed.Scheduler`, as calls to a listener.

Rules
-----
1. A submission's context is taken out of its annotations before the scheduler sees them: no task pays for it, and
   ``TaskState.annotations`` is no carrier (P2P writes into it).
2. What a task's worker must know is added in ``_task_to_msg``, through which both ways of sending pass.
3. A task goes through six or seven transitions: the plugin returns at once unless a task becomes active, stops being so, or fails.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dask_otel.computations import Activated
from dask_otel.guard import Guard
from dask_otel.seam import ANNOTATION, DETAIL, HERE, METRIC, TOPIC, Wraps
from dask_otel.seam.gc_pauses import PauseLog, paused
from dask_otel.version import __version__

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskState, WorkerState

ACTIVE = frozenset(("waiting", "processing", "queued", "no-worker"))
#: How the stimulus begins with which an attempt that ended makes its task run again.
_RETRIED = ("task-erred", "execute-unknown-error", "reschedule")
#: How the stimulus begins with which a client has a task that failed tried again.
_ASKED = "stimulus-retry"
#: The topic of a nanny that ends its worker at its memory limit.
_OVER_LIMIT = "worker-restart-memory"


class Submission(NamedTuple):
    """A graph that arrived: its stimulus, its client, what the client's annotation held, file and line of the
    calling code where Dask captured it, the detail that the user's annotation asks for."""

    stimulus_id: str
    client: str
    annotation: object
    code: tuple[str, int] | None = None
    detail: object = None


class Arrived(NamedTuple):
    """A graph whose tasks exist: ``sizes`` counts those that may run by group, ``detail`` is what an annotation of some of
    them asks for."""

    stimulus_id: str
    client: str
    computation_id: str
    sizes: Callable[[], dict[str, int]]
    detail: object = None


class Listener(Protocol):
    """What the scheduler's shell must offer."""

    def graph_received(self, submission: Submission) -> object: ...

    def graph_created(self, arrived: Arrived) -> None: ...

    def graph_measured(self, stimulus_id: str, metrics: dict[str, float], failed: bool) -> None: ...

    def graph_finished(self, graph: object) -> None: ...

    def task_activated(self, activated: Activated) -> None: ...

    def task_deactivated(self, key: Hashable, start: str, finish: str, retried: bool) -> None: ...

    def task_blocked(self, task: Activated) -> None: ...

    def dispatched(self, key: Hashable, run_id: int, address: str) -> object: ...

    def worker_told(self, address: str, message: dict[str, Any]) -> None: ...

    def worker_over_limit(self, address: str) -> None: ...


class SchedulerSeam:
    """Hooks on one scheduler."""

    def __init__(self, scheduler: Scheduler, listener: Listener, guard: Guard) -> None:
        self._scheduler = scheduler
        self._listener = listener
        self._guard = guard
        self._wraps = Wraps()
        self._numbers = itertools.count()
        #: The stimulus of the last graph.
        self._graph = ""
        #: The task of whose dispatch before the last an error is being handled.
        self._stale: Hashable = None
        #: States of workers, also of those that are being removed: their last heartbeat is asked for then.
        self._workers: dict[str, WorkerState] = dict(scheduler.workers)
        #: Workers that are being removed since somebody wanted it so.
        self._retired: set[str] = set()

    def install(self) -> None:
        """Wrap the scheduler's methods, and tell whoever asks that we are here."""
        scheduler = self._scheduler
        scheduler.log_event(HERE, {"version": __version__, "id": scheduler.id})
        handlers = scheduler.stream_handlers
        self._wraps.entry(handlers, "update-graph", self._wrap_update_graph(handlers["update-graph"]))
        self._wraps.entry(handlers, "task-erred", self._wrap_task_erred(handlers["task-erred"]))
        self._wraps.attribute(scheduler, "_task_to_msg", self._wrap_task_to_msg(scheduler._task_to_msg))
        self._wraps.also(PauseLog(0).close)
        self._wraps.attribute(scheduler, "remove_worker", self._wrap_remove_worker(scheduler.remove_worker))

    def uninstall(self) -> None:
        """Put everything back."""
        try:
            self.release()
        finally:
            self._scheduler._broker.truncate(HERE)

    def release(self) -> None:
        """Put everything back; whoever asks is still told that we are here."""
        # What somebody has wrapped stays below theirs, and what runs now goes on.
        self._listener = _Nobody()
        self._wraps.undo()

    # -- what is asked of the scheduler -------------------------------------------------------------------------
    def paused(self) -> float:
        """Seconds that its process has stood still for garbage collections; never falls."""
        return paused()

    def version(self, address: str) -> object:
        """The version of dask-otel that a worker runs by its last heartbeat, the first of which is its arrival."""
        return self._scheduler.workers[address].metrics.get(METRIC)

    def alive(self, address: str) -> bool:
        return address in self._scheduler.workers

    def worker_name(self, address: str) -> str:
        ws = self._workers.get(address)
        return str(ws.name) if ws is not None else address

    def retired(self, address: str) -> bool:
        """Whether a worker is being removed since it was retired: what ran there is sent elsewhere, and no failure."""
        return address in self._retired

    def has_nanny(self, address: str) -> bool:
        """Whether somebody may say why a worker has died."""
        ws = self._workers.get(address)
        return ws is not None and ws.nanny is not None

    def started(self, address: str, sent: dict[Hashable, float]) -> dict[Hashable, float | None]:
        """Which tasks ran on a worker that is lost, and since when: ``None`` where it can only be assumed.

        ``sent`` holds the tasks that were there, and when they were sent. The last heartbeat's word comes first;
        its free slots are filled by priority.
        """
        ws = self._workers.get(address)
        if ws is None:
            return {}
        found: dict[Hashable, float | None] = {}
        slots = ws.nthreads
        for ts, duration in ws.executing.items():
            since = ws.last_seen - duration
            # What began before it was sent is another run of the same task.
            if ts.key in sent and since >= sent[ts.key]:
                found[ts.key] = since
                slots -= ts not in ws.long_running
        for ts in ws.long_running:  # It said that it has seceded.
            if ts.key in sent:
                found.setdefault(ts.key, None)
        tasks = self._scheduler.tasks
        rest = [tasks[key] for key in sent if key not in found and key in tasks]
        rest.sort(key=lambda ts: ts.priority or ())
        for ts in rest[: max(0, slots)]:
            found[ts.key] = None
        return found

    def busy(self) -> bool:
        """Whether there is anything to be run, or that runs."""
        scheduler = self._scheduler
        waiting = scheduler.queued or scheduler.unrunnable or scheduler._active_graph_updates
        return bool(waiting) or any(ws.processing for ws in scheduler.workers.values())

    # -- workers come and go ------------------------------------------------------------------------------------
    def worker_added(self, address: str) -> None:
        self._workers[address] = self._scheduler.workers[address]

    def worker_removed(self, address: str) -> None:
        if address not in self._scheduler.workers:
            self._workers.pop(address, None)

    def _wrap_remove_worker(self, original: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
        async def remove_worker(address: str, **kwargs: Any) -> str:
            if kwargs.get("expected"):
                self._retired.add(address)
            try:
                return await original(address, **kwargs)
            finally:
                self._retired.discard(address)

        return remove_worker

    # -- graphs -------------------------------------------------------------------------------------------------
    def _wrap_update_graph(self, original: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def update_graph(
            client: str,
            annotations: dict[str, Any] | None = None,
            stimulus_id: str | None = None,
            **kwargs: Any,
        ) -> None:
            stimulus_id = stimulus_id or f"update-graph-{time.time()}-{next(self._numbers)}"
            graph = None
            try:
                carried = annotations.pop(ANNOTATION, None) if annotations else None
                detail = annotations.pop(DETAIL, None) if annotations else None
                code = kwargs.get("code") or ()
                called = (code[-1].filename, code[-1].lineno_frame) if code else None
                graph = self._listener.graph_received(
                    Submission(stimulus_id, client, carried, called, detail)
                )
            except Exception:
                self._guard.fault("update_graph")
            try:
                await original(client=client, annotations=annotations, stimulus_id=stimulus_id, **kwargs)
            finally:
                if graph is not None:
                    try:
                        self._listener.graph_finished(graph)
                    except Exception:
                        self._guard.fault("update_graph")

        return update_graph

    def graph_created(
        self, client: str, stimulus_id: str, tasks: Iterable[Hashable], annotations: Mapping[str, Any]
    ) -> None:
        """The plugin's ``update_graph``: the transitions that follow with this stimulus are the graph's."""
        self._graph = stimulus_id
        computations = self._scheduler.computations
        computation_id = str(computations[-1].id) if computations else ""
        detail = next(iter(annotations.get(DETAIL, {}).values()), None)
        self._listener.graph_created(
            Arrived(stimulus_id, client, computation_id, lambda: self._sizes(tasks), detail)
        )

    def _sizes(self, keys: Iterable[Hashable]) -> dict[str, int]:
        tasks = self._scheduler.tasks
        return Counter(ts.group.name for ts in map(tasks.__getitem__, keys) if ts.state == "released")

    def event(self, topic: str, message: Any) -> None:
        """The plugin's ``log_event``, which is called once for each topic of an event."""
        if topic == TOPIC:
            # Kept for nobody: the broker would remember up to 100,000 of them.
            self._scheduler._broker.truncate(TOPIC)
            self._listener.worker_told(message.get("worker", ""), message)
        elif topic == _OVER_LIMIT:
            self._listener.worker_over_limit(message["worker"])
        elif topic == "scheduler" and isinstance(message, dict) and message.get("action") == "update-graph":
            self._listener.graph_measured(
                message["stimulus_id"], message.get("metrics") or {}, message["status"] == "error"
            )

    # -- tasks --------------------------------------------------------------------------------------------------
    def transition(self, key: Hashable, start: str, finish: str, stimulus_id: str) -> None:
        """The plugin's ``transition``."""
        was, is_ = start in ACTIVE, finish in ACTIVE
        if was:
            if not is_:
                retried = finish == "released" and stimulus_id.startswith(_RETRIED) and key != self._stale
                self._listener.task_deactivated(key, start, finish, retried)
                if start == "waiting" and self._scheduler.tasks[key].exception_blame is not None:
                    self._listener.task_blocked(self._activated(key, stimulus_id))
        elif is_:
            self._listener.task_activated(self._activated(key, stimulus_id))
        elif start == "released" and finish == "erred":
            self._listener.task_blocked(self._activated(key, stimulus_id))

    def _wrap_task_erred(self, original: Callable[..., None]) -> Callable[..., None]:
        """An error of a run that was cancelled makes the task, which was submitted again, run again: no retry."""

        def task_erred(key: Hashable, run_id: int, **message: Any) -> None:
            try:
                ts = self._scheduler.tasks.get(key)
                self._stale = key if ts is not None and ts.run_id != run_id else None
            except Exception:
                self._guard.fault("task-erred")
            try:
                original(key=key, run_id=run_id, **message)
            finally:
                self._stale = None

        return task_erred

    def _activated(self, key: Hashable, stimulus_id: str) -> Activated:
        ts = self._scheduler.tasks[key]
        span = ts.annotations.get("span") if ts.annotations else None
        tags: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        if span is not None and span["name"] != _DEFAULT:
            tags = (span["name"], span["ids"])
        if stimulus_id == self._graph:  # Whose it is is known: the rest would cost more than all of this.
            return Activated(key, stimulus_id, ts.prefix.name, ts.group.name, tags, (), (), None, False)
        return Activated(
            key,
            stimulus_id,
            ts.prefix.name,
            ts.group.name,
            tags,
            (dependent.key for dependent in ts.dependents),
            (dependency.key for dependency in ts.dependencies),
            ts.run_id,
            stimulus_id.startswith(_ASKED),
        )

    def _wrap_task_to_msg(
        self, original: Callable[[TaskState], dict[str, Any]]
    ) -> Callable[..., dict[str, Any]]:
        def _task_to_msg(ts: TaskState) -> dict[str, Any]:
            msg = original(ts)
            try:
                worker = ts.processing_on
                if worker is not None:
                    handed = self._listener.dispatched(ts.key, ts.run_id, worker.address)
                    if handed is not None:
                        msg["annotations"] = {**msg["annotations"], ANNOTATION: handed}
            except Exception:
                self._guard.fault("_task_to_msg")
            return msg

        return _task_to_msg


class _Nobody(Listener):
    """Listens no more."""

    def graph_received(self, submission: Submission) -> object:
        return None

    def graph_created(self, arrived: Arrived) -> None: ...

    def graph_measured(self, stimulus_id: str, metrics: dict[str, float], failed: bool) -> None: ...

    def graph_finished(self, graph: object) -> None: ...

    def task_activated(self, activated: Activated) -> None: ...

    def task_deactivated(self, key: Hashable, start: str, finish: str, retried: bool) -> None: ...

    def task_blocked(self, task: Activated) -> None: ...

    def dispatched(self, key: Hashable, run_id: int, address: str) -> object:
        return None

    def worker_told(self, address: str, message: dict[str, Any]) -> None: ...

    def worker_over_limit(self, address: str) -> None: ...


class Deaf(SchedulerSeam):
    """The seam of a scheduler whose tracing is switched off: it answers what it is asked, and hears nothing."""

    def __init__(self, seam: SchedulerSeam) -> None:
        super().__init__(seam._scheduler, seam._listener, seam._guard)

    def worker_added(self, address: str) -> None: ...

    def worker_removed(self, address: str) -> None: ...

    def graph_created(
        self, client: str, stimulus_id: str, tasks: Iterable[Hashable], annotations: Mapping[str, Any]
    ) -> None: ...

    def transition(self, key: Hashable, start: str, finish: str, stimulus_id: str) -> None: ...

    def event(self, topic: str, message: Any) -> None:
        """What workers tell is kept for nobody."""
        if topic == TOPIC:
            self._scheduler._broker.truncate(TOPIC)


_DEFAULT = ("default",)
