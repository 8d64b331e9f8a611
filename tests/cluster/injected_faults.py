"""Whatever of dask-otel fails, computations do not: every function of the seam and of the shells is made to, in turn."""

from __future__ import annotations

import gc
import importlib
import logging
import pkgutil
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import dask
import distributed.preloading
import distributed.worker
import distributed.worker_state_machine
import pytest
from distributed import Actor, Client, LocalCluster, Scheduler, Worker
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import dask_otel
import dask_otel.seam
from dask_otel import about_us, guard, process
from dask_otel.instruments import FAULTS, HOOK
from dask_otel.receiver import Receiver
from dask_otel.scheduler import schedulers
from tests.cluster.metering import samples, totals
from tests.cluster.support import receiving, wait_until
from tests.injection import failing, targets_of

#: What asks another server, which may be gone or busy: it is asked again.
ASKING = {
    "seam.last_said",
    "seam.arrival.reduced",
    "scheduler.SchedulerOtel.__init__",
    "scheduler.SchedulerTelemetry.silent",
    "holders.Holders.telemetry",
    "seam.worker._running",
    "seam.client.scheduler_version",
    "seam.worker.WorkerSeam.scheduler_says",
}
#: What puts back what was wrapped or lets go of what is held: where it fails it stays until it is called again.
UNDOING = re.compile(r"\b_?(un\w+|forget\w*|release|remove|take_off|leave|close|stop|end|restore|let_go)$")
#: Seconds after which something hangs.
DEADLINE = 30


#: What stands in for a function of Dask's: it has a ``try`` around everything that it calls of ours, and is as good as the
#: original's first line itself.
WRAPPERS = {
    "seam.actors._Handler.__call__",
    "seam.actors._Caller.actor_execute",
    "seam.client._Guarded.__enter__",
    "seam.client._Guarded.__exit__",
    "seam.client._within",
    "seam.client._awaited",
    "seam.handlers.HandlerSeam._drive",
    "seam.handlers.HandlerSeam._sends",
    "seam.handlers.HandlerSeam._run",
    "seam.handlers.HandlerSeam._each",
    "seam.lag.LagTimer._look",
    "seam.run.Posts.append",
    "seam.worker._Tee.finalize",
    "scheduler.SchedulerTelemetry._check",
    "scheduler.SchedulerOtel.start",
    "scheduler.SchedulerOtel.update_graph",
    "scheduler.SchedulerOtel.transition",
    "scheduler.SchedulerOtel.log_event",
    "scheduler.SchedulerOtel.close",
    "worker.WorkerTelemetry._learn_cluster",
    "client.ClientTelemetry._ask_scheduler",
    "client.ClientTelemetry._complaining",
    "seam.transfers._Gather.fault",
    "seam.transfers._Gather.follow",
    "seam.Wraps.also",  # A list's append.
    "seam._below",
    "seam.streams.Reading.fault",
    "seam.gc_pauses._Collector._called",  # The interpreter's: it neither stops nor is ours to log from.
    "seam.streams._Read.__call__",
    "seam.streams._Messages.__iter__",
    "seam.loop_parts.LoopPartsSeam._turn",
    "seam.loop_parts.LoopPartsSeam.ended",
    "seam.loop_parts.LoopPartsSeam.begins",
    "seam.loop_parts._WatchedQueue.popleft",
}
MODULES = [
    # What `remote` fails at is told to whoever calls `enable` and `disable`.
    *(
        f"dask_otel.seam.{found.name}"
        for found in pkgutil.iter_modules(dask_otel.seam.__path__)
        if found.name != "remote"
    ),
    "dask_otel.seam",
    "dask_otel.scheduler",
    "dask_otel.scheduler_metrics",
    "dask_otel.worker",
    "dask_otel.worker_data",
    "dask_otel.worker_metrics",
    "dask_otel.worker_sums",
    "dask_otel.client",
    "dask_otel.holders",
    "dask_otel.health",
    "dask_otel.overhead",
    "dask_otel.meter",
    "dask_otel.about_us",
    "dask_otel.outlet",
]
TARGETS = {
    target.label: target
    for name in MODULES
    for target in targets_of(importlib.import_module(name))
    if target.label not in WRAPPERS
}


class Telling:
    """What was said and counted of faults."""

    def __init__(self) -> None:
        #: By whose guard and hook.
        self.counted: list[tuple[guard.Guard, str]] = []
        self.records: list[logging.LogRecord] = []

    @property
    def text(self) -> str:
        """All that the log has, tracebacks too."""
        return "\n".join(map(logging.Formatter().format, self.records))


class Shared:
    """A cluster in this process, until a test has broken it, and the receiver that it sends to."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self._made: ExitStack | None = None

    def get(self) -> tuple[Client, LocalCluster]:
        if self._made is None:
            self._made = ExitStack()
            enter = self._made.enter_context
            enter(dask.config.set({"distributed.scheduler.work-stealing": False}))
            self._cluster = enter(
                LocalCluster(
                    n_workers=2,
                    threads_per_worker=1,
                    processes=False,
                    dashboard_address=":0",
                    silence_logs=logging.CRITICAL,
                )
            )
            self._client = Client(self._cluster)
            self._made.callback(self._client.close, timeout=3)
        return self._client, self._cluster

    def broken(self) -> None:
        """The next test gets another one; what is broken may hang when it is closed."""
        made, self._made = self._made, None
        if made is not None:
            made.callback(dask_otel.disable, self._client)
            closing = threading.Thread(target=made.close, daemon=True)
            closing.start()
            closing.join(5)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Shared]:
    with pytest.MonkeyPatch.context() as environment, receiving(environment) as receiver:
        shared = Shared(receiver)
        yield shared
        shared.close()


@pytest.fixture
def cluster(shared_cluster: Shared, request: pytest.FixtureRequest) -> Iterator[tuple[Client, LocalCluster]]:
    failed = request.session.testsfailed
    yield shared_cluster.get()
    if request.session.testsfailed != failed:
        shared_cluster.broken()


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Telling]:
    """Faults are swallowed as in use; two switch a hook off."""
    told = Telling()
    monkeypatch.setattr(guard, "os", SimpleNamespace(environ={}))
    monkeypatch.setattr(guard, "LIMIT", 2)
    monkeypatch.setattr(about_us, "_duty", about_us.Duty())
    monkeypatch.setattr(dask_otel.cluster, "PATIENCE", 0.05)
    fault = guard.Guard.fault

    def spied(self: guard.Guard, hook: str) -> None:
        told.counted.append((self, hook))
        fault(self, hook)

    monkeypatch.setattr(guard.Guard, "fault", spied)
    handler = logging.Handler()
    handler.emit = told.records.append  # type: ignore[method-assign]
    logger = logging.getLogger("dask_otel")
    logger.addHandler(handler)
    guard.PROCESS.faults.clear()
    guard.PROCESS.off.clear()
    guard.PROCESS._latest.clear()
    process._said.clear()
    yield told
    logger.removeHandler(handler)


def inc(x: int) -> int:
    return x + 1


tried: list[int] = []


def flaky(x: int) -> int:
    tried.append(x)
    if tried.count(x) == 1:
        raise ValueError(x)
    return x


started, go = threading.Event(), threading.Event()


def waits() -> None:
    started.set()
    go.wait(DEADLINE)


async def spill(dask_worker: Worker) -> None:
    """As the memory monitor does."""
    manager: Any = dask_worker.memory_manager
    await manager._spill(dask_worker, 1 << 60)


#: Whoever calls an actor.
CALLER = NonRecordingSpan(SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(1)))


class Counter:
    def __init__(self) -> None:
        self.n = 0

    def add(self, by: int) -> int:
        self.n += by
        return self.n


def compute(client: Any) -> list[Any]:
    """Tasks, of which one fails, one is tried again, one cancelled; a transfer, a replica, an actor's method, spilling."""
    tried.clear()
    started.clear()
    go.clear()
    cancelled = client.submit(waits, pure=False)
    assert started.wait(DEADLINE)
    cancelled.cancel()
    runs = [worker.state.tasks for worker in client.cluster.workers.values()]
    wait_until(lambda: not any(ts.state == "executing" for tasks in runs for ts in tasks.values()))
    go.set()
    one, other = [worker.address for worker in client.cluster.workers.values()]
    here = client.submit(inc, 1, workers=[one], pure=False)
    there = client.submit(inc, 2, workers=[other], pure=False)
    both = client.submit(lambda a, b: a + b, here, there, workers=[one], pure=False)
    again = client.submit(flaky, 4, retries=2, pure=False)
    client.replicate([here], workers=[one, other])
    actor = client.submit(Counter, actor=True, pure=False).result(DEADLINE)
    with use_span(CALLER):
        result = [both.result(DEADLINE), again.result(DEADLINE), actor.add(5).result(DEADLINE)]
    client.run(spill)
    result += client.gather(client.map(inc, range(3), pure=False))
    with pytest.raises(ZeroDivisionError):
        client.submit(lambda: 1 / 0, pure=False).result(DEADLINE)
    result += dask.compute(dask.delayed(inc)(6), scheduler=client)
    return result


RESULT = [5, 4, 5, 1, 2, 3, 7]


def as_it_is(client: Client, cluster: LocalCluster) -> dict[str, Any]:
    """What is wrapped where dask-otel is on."""
    scheduler: Scheduler = cluster.scheduler
    found: dict[str, Any] = {
        "loop": (
            vars(scheduler.loop.asyncio_loop._selector).copy(),
            type(scheduler.loop.asyncio_loop._ready),
        ),
        "gc": list(gc.callbacks),
        "client": vars(Client).copy(),
        "actor": Actor._worker_rpc,
        "errors": (distributed.worker.error_message, distributed.worker_state_machine.error_message),
        "get_data": distributed.worker.get_data_from_worker,
    }
    for server in (scheduler, *cluster.workers.values()):
        assert isinstance(server, (Scheduler, Worker))
        handlers = {op: one for op, one in server.handlers.items() if op != "actor_execute"}
        wrapped = [
            name for name, one in vars(server).items() if "dask_otel" in getattr(one, "__module__", "")
        ]
        found[server.id] = handlers, server.stream_handlers.copy(), wrapped, list(server.plugins)
    return found


@pytest.mark.parametrize("label", TARGETS)
def test_a_function_that_fails_costs_no_computation(
    cluster: tuple[Client, LocalCluster], telling: Telling, label: str
) -> None:
    client = cluster[0]
    before = as_it_is(*cluster)
    with failing(TARGETS[label]) as bomb:
        dask_otel.enable(client)
        assert compute(client) == RESULT
        dask_otel.disable(client)
    went_off = bool(bomb.calls)
    if UNDOING.search(label):
        bomb.make_up()
    assert as_it_is(*cluster) == before
    if went_off and label not in ASKING:
        assert f"Injected: {label}" in telling.text
        assert telling.counted
    in_full = [record for record in telling.records if record.exc_info]
    assert len(in_full) == len(set(telling.counted)), telling.text


#: By the function that fails what it switches off, and where.
SWITCHED_OFF = {
    "seam.scheduler.SchedulerSeam.transition": ("transition", "the scheduler"),
    "seam.scheduler.SchedulerSeam.graph_created": ("update_graph", "the scheduler"),
    "scheduler.SchedulerTelemetry.graph_received": ("update_graph", "the scheduler"),
    "scheduler.SchedulerTelemetry.task_deactivated": ("transition", "the scheduler"),
    "scheduler.SchedulerTelemetry.dispatched": ("_task_to_msg", "the scheduler"),
    "scheduler.SchedulerTelemetry.worker_told": ("log_event", "the scheduler"),
    "scheduler.SchedulerTelemetry._check_in": ("check", "the scheduler"),
    "handler_time.HandlerTime.enter": ("handler_time", "the scheduler"),
    "seam.loop_parts.LoopPartsSeam._look": ("loop_parts", "the scheduler"),
    "seam.worker.WorkerSeam.transition": ("transition", "worker"),
    "seam.worker.WorkerSeam._begin": ("execute", "worker"),
    "seam.worker.WorkerSeam._end": ("_finalize_metrics", "worker"),
    "seam.transfers.TransferSeam._begin": ("gather_dep", "worker"),
    "worker_data.WorkerData.sent": ("get_data", "worker"),
    "worker_sums.Place.take": ("flush_sums", "worker"),
    "seam.worker_time.WorkerTimeSeam._change": ("handle_stimulus", "worker"),
    "client.ClientTelemetry.submission": ("_graph_to_futures", "client"),
    "seam.errors._note": ("error_message", "this process"),
}
FAILING = {**TARGETS, **{target.label: target for target in targets_of(dask_otel.handler_time)}}
#: What goes on while a hook is switched off that is none of its own.
STILL_CALLED = {"scheduler.SchedulerTelemetry._check_in"}


def held(scheduler: Scheduler) -> dict[str, Any]:
    """What is open on the scheduler."""
    telemetry = schedulers.telemetry(scheduler)
    assert telemetry is not None
    model = vars(telemetry.model)
    kept = {
        name: model[name] for name in ("_active", "_limbo", "_graphs", "_blocked", "unsettled", "_joinable")
    }
    return {name: value for name, value in kept.items() if value}


@pytest.mark.parametrize("label", SWITCHED_OFF)
def test_a_hook_that_fails_again_and_again_is_switched_off(
    shared_cluster: Shared, cluster: tuple[Client, LocalCluster], telling: Telling, label: str
) -> None:
    client, (hook, server) = cluster[0], SWITCHED_OFF[label]
    with failing(FAILING[label]) as bomb:
        dask_otel.enable(client)
        wait_until(
            lambda: (
                compute(client) == RESULT and f"switched off its hook {hook!r} on {server}" in telling.text
            )
        )
        calls = wait_until_still(lambda: len(bomb.calls))
        assert compute(client) == RESULT
        wait_until(lambda: not held(cluster[1].scheduler))
        assert len(bomb.calls) == calls or label in STILL_CALLED
    said = [record for record in telling.records if "switched off" in record.getMessage()]
    assert len({record.args for record in said}) == len(said)
    before = len(shared_cluster.receiver.spans())
    dask_otel.disable(client)
    faults = totals(samples(shared_cluster.receiver), FAULTS.name, HOOK)
    assert faults.get((hook,), 0) >= guard.LIMIT or server == "client"  # Which exports no metrics.
    dask_otel.enable(client)
    assert compute(client) == RESULT
    assert dask_otel.flush(client, DEADLINE)
    names = {received.span.name for received in shared_cluster.receiver.spans()[before:]}
    assert names >= {"dask.computation", "inc", "inc group", "dask.graph.update", "dask.compute"}
    dask_otel.disable(client)


def wait_until_still(value: Callable[[], int]) -> int:
    """What it is once it does not change any more for some rounds of the event loops."""
    before, same = value(), 0
    while same < 10:
        time.sleep(0.01)
        now = value()
        before, same = now, same + 1 if now == before else 0
    return before


@pytest.mark.parametrize("label", [label for label in SWITCHED_OFF if label.startswith("scheduler.")])
def test_a_single_fault_leaves_no_computation_open(
    cluster: tuple[Client, LocalCluster], telling: Telling, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    monkeypatch.setattr(dask_otel.scheduler, "GRACE", 0.05)
    client = cluster[0]
    dask_otel.enable(client)
    first = client.submit(inc, 1, pure=False)
    assert first.result(DEADLINE) == 2
    with failing(TARGETS[label], times=1) as bomb:
        assert compute(client) == RESULT
        wait_until(lambda: len(bomb.calls) == 1)
    assert "switched off" not in telling.text
    wait_until(lambda: not held(cluster[1].scheduler))
    dask_otel.disable(client)
