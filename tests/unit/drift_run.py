"""One run of a cluster in this process, without dask-otel, watched from where the seam's wrappers would be."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import dask
import distributed.worker
from distributed import Client, LocalCluster, Scheduler, Worker, span
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import context_meter

from dask_otel.seam import Wraps

#: Seconds that are only reached when something is broken.
DEADLINE = 30.0


@dataclass
class Seen:
    """What was seen in the run."""

    #: Calls of the scheduler's hooks, in order.
    hooks: list[tuple[Any, ...]] = field(default_factory=list)
    #: What came with each graph.
    graphs: list[dict[str, Any]] = field(default_factory=list)
    #: Messages of tasks to workers, as `Scheduler._task_to_msg` gave them.
    messages: dict[Hashable, dict[str, Any]] = field(default_factory=dict)
    #: By key: the annotations, the run id, the ledger that `Worker.execute` found.
    executed: dict[Hashable, tuple[dict[str, Any], int, Any]] = field(default_factory=dict)
    #: By key: the stimulus, the ledger, the task's state that `_finalize_metrics` was given.
    finalized: dict[Hashable, tuple[Any, Any, str]] = field(default_factory=dict)
    #: By key: what the task itself saw.
    results: dict[Hashable, Any] = field(default_factory=dict)
    #: Annotations of tasks on the scheduler.
    annotations: dict[Hashable, dict[str, Any] | None] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    digests: list[Hashable] = field(default_factory=list)
    events: list[tuple[str, Any]] = field(default_factory=list)
    executing: dict[Hashable, object] = field(default_factory=dict)
    metric: object = None
    threads: dict[Hashable, int] = field(default_factory=dict)
    active: dict[int, Hashable] = field(default_factory=dict)
    worker: dict[str, object] = field(default_factory=dict)
    computation: object = None


_context: ContextVar[str] = ContextVar("drift", default="lost")


def _thread() -> tuple[str, int]:
    with context_meter.meter("mine"):
        return _context.get(), threading.get_ident()


async def _coroutine() -> str:
    return _context.get()


def _sum(xs: list[object]) -> int:
    return len(xs)


def _fail() -> None:
    raise ValueError("meant")


class _Hooks(SchedulerPlugin):
    name = "drift"

    def __init__(self, seen: Seen, scheduler: Scheduler) -> None:
        self._seen = seen
        self._scheduler = scheduler

    def update_graph(self, scheduler: Scheduler, *, client: str, stimulus_id: str, **kwargs: Any) -> None:
        self._seen.computation = scheduler.computations[-1].id
        self._seen.hooks.append(("update_graph", client, stimulus_id))

    def transition(
        self, key: Any, start: Any, finish: Any, *args: Any, stimulus_id: str, **kwargs: Any
    ) -> None:
        self._seen.hooks.append(("transition", key, start, finish, stimulus_id))
        self._seen.annotations.setdefault(key, dict(self._scheduler.tasks[key].annotations or {}))

    def log_event(self, topic: str, msg: Any) -> None:
        self._seen.events.append((topic, msg))


def _observe(seen: Seen, scheduler: Scheduler, workers: list[Worker], wraps: Wraps) -> None:
    """Put observers where the seam puts its wrappers."""
    update_graph, task_to_msg = scheduler.stream_handlers["update-graph"], scheduler._task_to_msg
    error_message, get_data_from_worker = (
        distributed.worker.error_message,
        distributed.worker.get_data_from_worker,
    )

    async def on_update_graph(**kwargs: Any) -> None:
        seen.graphs.append(kwargs)
        await update_graph(**kwargs)

    def on_task_to_msg(ts: Any) -> dict[str, Any]:
        msg = task_to_msg(ts)
        msg["annotations"] = {**msg["annotations"], "drift": b"handed"}
        seen.messages[ts.key] = dict(msg)
        return msg

    def on_error_message(e: BaseException, *args: Any, **kwargs: Any) -> Any:
        seen.errors.append(e)
        return error_message(e, *args, **kwargs)

    async def on_get_data_from_worker(*args: Any, **kwargs: Any) -> Any:
        seen.requests.append(kwargs)
        return await get_data_from_worker(*args, **{**kwargs, "who": f"{kwargs['who']}#drift"})

    wraps.entry(scheduler.stream_handlers, "update-graph", on_update_graph)
    wraps.attribute(scheduler, "_task_to_msg", on_task_to_msg)
    wraps.attribute(distributed.worker, "error_message", on_error_message)
    wraps.attribute(distributed.worker, "get_data_from_worker", on_get_data_from_worker)
    for worker in workers:
        _observe_worker(seen, worker, wraps)


def _observe_worker(seen: Seen, worker: Worker, wraps: Wraps) -> None:
    execute, finalize, get_data = worker.execute, worker._finalize_metrics, worker.handlers["get_data"]

    async def on_execute(key: Hashable, *, stimulus_id: str) -> Any:
        ts = worker.state.tasks[key]
        ledger = context_meter._callbacks.get()["async-instruction"].__self__  # type: ignore[attr-defined]
        seen.executed[key] = (dict(ts.annotations or {}), ts.run_id, ledger)
        _context.set("carried")
        return await execute(key, stimulus_id=stimulus_id)

    def on_finalize(stim: Any, ledger: Any, span_id: str | None = None) -> None:
        key = getattr(stim, "key", "gather-dep")
        ts = worker.state.tasks.get(key)
        seen.finalized[key] = (stim, ledger, ts.state if ts else "gone")
        finalize(stim, ledger, span_id)

    async def on_get_data(comm: Any, keys: Any, who: str | None = None, **kwargs: Any) -> Any:
        seen.requests.append({"asked": who, "keys": list(keys)})
        return await get_data(comm, keys=keys, who=(who or "").partition("#")[0], **kwargs)

    async def metric(worker: Worker) -> str:
        return "1.2.3"

    wraps.attribute(worker, "execute", on_execute)
    wraps.attribute(worker, "_finalize_metrics", on_finalize)
    wraps.entry(worker.handlers, "get_data", on_get_data)
    worker.metrics["drift"] = metric


async def _until(condition: Callable[[], object], again: Callable[[], Any] | None = None) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition() and time.monotonic() < deadline:
        if again is not None:
            await again()
        await asyncio.sleep(0.01)


async def watch() -> Seen:
    """Run one of each on a cluster in this process and note what passes the seam."""
    seen, wraps = Seen(), Wraps()
    async with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, asynchronous=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        scheduler = cluster.scheduler
        workers = list(cluster.workers.values())
        scheduler.add_plugin(_Hooks(seen, scheduler), name=_Hooks.name)
        _observe(seen, scheduler, workers, wraps)
        try:
            await _work(seen, client, scheduler, workers)
        finally:
            wraps.undo()
    return seen


async def _work(seen: Seen, client: Client, scheduler: Scheduler, workers: list[Worker]) -> None:
    here, there = workers
    with dask.annotate(drift=[b"annotated"]):
        thread = client.submit(_thread, key="thread", workers=[here.address])
    seen.results["thread"] = await thread
    seen.threads = dict(here.threads)
    seen.results["coroutine"] = await client.submit(_coroutine, key="coroutine", workers=[here.address])
    with span("outer"), span("inner"):
        await client.submit(_sum, [], key="tagged", workers=[here.address])
    await client.submit(_sum, [thread], key="moved", workers=[there.address])
    await client.submit(_fail, key="failed", workers=[here.address]).exception()
    await _blocked(seen, client, scheduler, here)
    here.log_event("drift", {"said": 1})
    await _until(lambda: any(topic == "drift" for topic, _ in seen.events))
    await _until(lambda: any(key[0] == "gather-dep" for key in there.digests_total))
    seen.digests = [*here.digests_total, *there.digests_total]
    seen.worker = {
        "address": here.address,
        "delay": here.scheduler_delay,
        "actors": "actor_execute" in here.handlers and hasattr(here.executors["actor"], "submit"),
    }


async def _blocked(seen: Seen, client: Client, scheduler: Scheduler, worker: Worker) -> None:
    """A task that runs until it was seen to."""
    gate = threading.Event()
    _gates[worker.address] = gate
    blocked = client.submit(_wait_at, worker.address, key="blocked", workers=[worker.address])
    try:
        ws = scheduler.workers[worker.address]
        await _until(lambda: worker.active_threads)
        seen.active = dict(worker.active_threads)
        # A heartbeat of before may have said what ran then.
        await _until(lambda: "blocked" in {ts.key for ts in ws.executing}, worker.heartbeat)
        seen.executing = {ts.key: seconds for ts, seconds in ws.executing.items()}
        seen.metric = ws.metrics.get("drift")
    finally:
        gate.set()
    await blocked


#: The workers are in this process: a task finds its gate here.
_gates: dict[str, threading.Event] = {}


def _wait_at(address: str) -> bool:
    return _gates[address].wait(DEADLINE)
