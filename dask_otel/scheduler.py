"""The scheduler's shell: the seam's calls go to the trace model, the model's spans to the outlet.

Rules
-----
1. A hook reads, decides and emits; meaning lives in `computations`.
2. What has ended is told after the tick in which it did.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_otel import config, names, process, submission
from dask_otel.carried import Decision
from dask_otel.computations import PATIENCE, Activated, Computations
from dask_otel.guard import Guard
from dask_otel.parents import DETAILS, OFF
from dask_otel.rollup import Graph
from dask_otel.seam.scheduler import SchedulerSeam, Submission
from dask_otel.settings import Settings

if TYPE_CHECKING:
    from distributed import Scheduler


class SchedulerTelemetry:
    """dask-otel on one scheduler."""

    def __init__(self, scheduler: Scheduler, settings: Settings) -> None:
        self.settings = settings
        self.guard = Guard("the scheduler")
        self.outlet = process.Outlet(
            settings, "scheduler", scheduler.id, lambda: {names.CLUSTER_ID: scheduler.id}
        )
        self.seam = SchedulerSeam(scheduler, self, self.guard)
        self.model = Computations(
            emit=self.outlet.emit,
            new_trace_id=process.new_trace_id,
            new_span_id=process.new_span_id,
            sample=self._sample,
            detail=OFF,
            max_age=settings.max_age,
        )
        self._loop = asyncio.get_running_loop()
        self._checking = False
        self._first = True
        self._instrumented: dict[str, str] = self.seam.running()
        self._workers = set(scheduler.workers)
        self._lost: dict[str, dict[Hashable, float | None]] = {}
        self._peers = False
        self._count_peers()

    def _start(self) -> None:
        """The first graph: whoever sets a provider has had the time to."""
        self._first = False
        if self.outlet.sending:
            self.model.detail = DETAILS[self.settings.detail]
        elif not self.settings.disabled:
            process.say_once(config.explain())

    def _sample(self, trace_id: bytes, kind: int) -> Decision:
        decision = process.decide(self.outlet.sampler, trace_id, names.COMPUTATION, kind)
        return Decision(decision.sampled, decision.attributes, decision.trace_state)

    # -- graphs -------------------------------------------------------------------------------------------------
    def graph_received(self, received: Submission) -> Graph:
        if self._first:
            self._start()
        carried, operation = submission.unpack(received.annotation)
        return self.model.receive(received.stimulus_id, received.client, carried, operation, time.time())

    def graph_created(self, stimulus_id: str, computation_id: str, client: str) -> None:
        if self._first:
            self._start()
        self.model.create(stimulus_id, computation_id, client, time.time())

    def graph_measured(self, stimulus_id: str, metrics: dict[str, float], failed: bool) -> None:
        self.model.measure(stimulus_id, metrics, names.OTHER_ERROR if failed else None)

    def graph_finished(self, graph: object) -> None:
        assert isinstance(graph, Graph)
        self.model.finish(graph, time.time())
        self._check_soon()

    # -- tasks --------------------------------------------------------------------------------------------------
    def task_activated(self, activated: Activated) -> None:
        self.model.activate(activated, time.time)

    def task_deactivated(self, key: Hashable, start: str, finish: str, retried: bool) -> None:
        group, flight = self.model.deactivate(key, start, finish, time.time)
        if group is not None and flight is not None:
            if not self.seam.alive(flight.address):
                self._lose(key, group, flight, finish)
            elif retried or finish in ("memory", "erred"):
                instrumented = flight.address in self._instrumented
                self.model.ended(key, group, flight, finish, told=instrumented)
        if self.model.touched:
            self._check_soon()

    def _lose(self, key: Hashable, group: Any, flight: Any, finish: str) -> None:
        """A task was at a worker that is lost: if it had started, its attempt is told here."""
        now = time.time()
        started = self._lost.get(flight.address)
        if started is None:
            keys = [key, *(k for k, _ in self.model.flights(flight.address))]
            started = self._lost[flight.address] = self.seam.started(flight.address, keys, now)
        if key not in started:
            return
        since = started[key]
        self.model.lose(
            key,
            group,
            flight,
            since if since is not None else flight.time,
            now,
            assumed=since is None,
            error_type=names.KILLED_WORKER if finish == "erred" else names.WORKER_LOST,
            worker=(flight.address, self.seam.worker_name(flight.address)),
        )

    def result_released(self, key: Hashable) -> None:
        self.model.forget_result(key)
        self._check_soon()

    def dispatched(self, key: Hashable, run_id: int, address: str) -> object:
        return self.model.dispatch(key, run_id, address, time.time(), self._peers)

    # -- workers ------------------------------------------------------------------------------------------------
    def worker_told(self, address: str, message: dict[str, Any]) -> None:
        """A worker sent sums, or says that it runs dask-otel."""
        if "hello" in message:
            self._instrumented[address] = str(message["hello"])
            self._count_peers()
        for group_id, sums in message.get("groups", ()):
            self.model.add(group_id, sums)
        if self.model.touched:
            self._check_soon()

    def worker_added(self, address: str) -> None:
        self.seam.worker_added(address)
        self._workers.add(address)
        self._count_peers()

    def worker_removed(self, address: str) -> None:
        self.seam.worker_removed(address)
        self._workers.discard(address)
        self._instrumented.pop(address, None)
        self._lost.pop(address, None)
        self._count_peers()

    def _count_peers(self) -> None:
        self._peers = bool(self._workers) and self._workers <= self._instrumented.keys()

    @property
    def silent(self) -> set[str]:
        """Workers that do not run dask-otel, as far as is known."""
        return self._workers - self._instrumented.keys()

    @property
    def versions(self) -> dict[str, str]:
        """Versions of dask-otel on the workers that run it."""
        return dict(self._instrumented)

    # -- ends ---------------------------------------------------------------------------------------------------
    def _check_soon(self) -> None:
        if not self._checking:
            self._checking = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        self._checking = False
        try:
            if self.model.check(time.time()):
                self._loop.call_later(PATIENCE + 0.01, self._check_soon)
        except Exception:
            self.guard.fault("check")

    async def settled(self, timeout: float) -> bool:
        """Wait until no computation waits for its workers' sums; whether that was so in time."""
        deadline = time.monotonic() + timeout
        while self.model.ending and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return not self.model.ending

    def stop(self, state: str) -> None:
        """Tell all that is open."""
        self.model.stop(time.time(), state)


class SchedulerOtel(SchedulerPlugin):
    """The scheduler's plugin; made with the settings of whoever registers it, used where the scheduler has none."""

    name = "dask-otel"
    idempotent = True

    def __init__(self, settings: Settings | None = None, by_client: bool = False) -> None:
        self.settings = settings
        self.by_client = by_client
        self.telemetry: SchedulerTelemetry | None = None

    async def start(self, scheduler: Scheduler) -> None:
        try:
            self.telemetry = SchedulerTelemetry(scheduler, process.settings_for_server(self.settings))
            self.telemetry.seam.install()
        except Exception:
            Guard("the scheduler").fault("start")

    def __reduce__(self) -> tuple[type[SchedulerOtel], tuple[Settings | None, bool]]:
        return SchedulerOtel, (self.settings, self.by_client)

    def update_graph(self, scheduler: Scheduler, *, client: str, stimulus_id: str, **kwargs: Any) -> None:
        telemetry = self.telemetry
        if telemetry is not None and not telemetry.guard.off("update_graph"):
            try:
                telemetry.seam.graph_created(client, stimulus_id)
            except Exception:
                telemetry.guard.fault("update_graph")

    def transition(self, key: Hashable, start: str, finish: str, *args: Any, stimulus_id: str, **kwargs: Any) -> None:
        telemetry = self.telemetry
        if telemetry is not None:
            try:
                telemetry.seam.transition(key, start, finish, stimulus_id)
            except Exception:
                telemetry.guard.fault("transition")

    def log_event(self, topic: str, msg: Any) -> None:
        telemetry = self.telemetry
        if telemetry is not None:
            try:
                telemetry.seam.event(topic, msg)
            except Exception:
                telemetry.guard.fault("log_event")

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        if self.telemetry is not None:
            self.telemetry.worker_added(worker)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        if self.telemetry is not None:
            self.telemetry.worker_removed(worker)

    def restart(self, scheduler: Scheduler) -> None:
        if self.telemetry is not None:
            self.telemetry.stop(names.RESTARTED)

    async def close(self) -> None:
        telemetry, self.telemetry = self.telemetry, None
        if telemetry is not None:
            telemetry.stop(names.CLOSED)
            telemetry.seam.uninstall()
            await asyncio.to_thread(process.flush, 1.5)

