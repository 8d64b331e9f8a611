"""The scheduler's shell: the seam's calls go to the trace model, the model's spans to the outlet.

Rules
-----
1. A hook reads, decides and emits; meaning lives in `computations`.
2. What has ended is told after the tick in which it did.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_otel import names, process, submission
from dask_otel.carried import Decision
from dask_otel.computations import Activated, Computations
from dask_otel.deaths import Deaths
from dask_otel.detail import Details
from dask_otel.guard import PROCESS, Guard
from dask_otel.holders import BY_CLIENT, BY_PRELOAD, Holders
from dask_otel.outlet import Outlet
from dask_otel.parents import ACTIVITY, DETAILS, OFF
from dask_otel.records import Span
from dask_otel.rollup import Graph
from dask_otel.scheduler_metrics import SchedulerMetrics
from dask_otel.seam.scheduler import ACTIVE, Arrived, Deaf, SchedulerSeam, Submission
from dask_otel.settings import Settings
from dask_otel.variables import quoted
from dask_otel.version import __version__

if TYPE_CHECKING:
    from distributed import Scheduler

#: What a computation's spans are made of: without one of them some would stay open for ever, or tell what is not so.
_HOOKS = "update_graph", "transition", "log_event", "_task_to_msg", "task-erred", "check", "workers"
#: Seconds that a worker has to say that it runs dask-otel, from the end of the first task that says it does not.
GRACE = 1.0
#: Seconds that a nanny has to say why it ended its worker, after that is gone: its word comes by a connection of its own.
LAST_WORD = 1.0


class SchedulerTelemetry:
    """dask-otel on one scheduler."""

    def __init__(self, scheduler: Scheduler, settings: Settings) -> None:
        self.settings = settings
        self.guard = Guard("the scheduler")
        self._loop = asyncio.get_running_loop()
        self.outlet = Outlet(settings, "scheduler", scheduler.id, lambda: {names.CLUSTER_ID: scheduler.id})
        self.seam: SchedulerSeam = SchedulerSeam(scheduler, self, self.guard)
        self.deaths = Deaths(self.outlet.emit)
        self.model = Computations(
            emit=self.outlet.emit,
            emit_lost=self._attempt_lost,
            new_trace_id=process.new_trace_id,
            new_span_id=process.new_span_id,
            sample=self._sample,
            detail=OFF,
            details=Details(settings.budget, DETAILS.get(settings.detail), random.Random().random),
            max_age=settings.max_age,
            paused=self.seam.paused,
        )
        self.metrics = SchedulerMetrics(
            scheduler,
            self.outlet,
            self.guard,
            active=lambda: len(self.model.unsettled),
            totals=self.model.totals,
            unsent=lambda: (self.model.rolled_up, self.model.sampled_out),
        )
        self.guard.part(
            "computations that it runs have no spans, nor have their tasks, and their attempts are not counted",
            lambda: self._loop.call_soon_threadsafe(self._stop_tracing),
            *_HOOKS,
            after=self._tidy_soon,
        )
        self.metrics.overhead.watch(self.seam, "transition", "event")
        self.metrics.overhead.watch(self, "dispatched")
        self._checking = False
        self._next_check: asyncio.TimerHandle | None = None
        self._tidying: asyncio.TimerHandle | None = None
        self._first = True
        self._instrumented: dict[str, str] = {}
        self.model.tellers = self._instrumented
        self._said_silent = False
        self._workers = set(scheduler.workers)
        self._lost: dict[str, dict[Hashable, float | None]] = {}
        self._peers = False
        for address in self._workers:
            self._worker_runs(address, self.seam.version(address))

    def use(self, settings: Settings) -> None:
        """Go on by other settings, from the next graph on."""
        self.settings = settings
        self.metrics.meter.stop()
        self.outlet.use(settings)
        self.metrics.meter.start()
        self.model.max_age = settings.max_age
        self.model.details.use(settings.budget, DETAILS.get(settings.detail))
        self._first = True

    def _start(self) -> None:
        """The first graph: whoever sets a provider has had the time to."""
        self._first = False
        self.model.detail = ACTIVITY if self.outlet.sending else OFF
        self.outlet.explain(loud=True)

    def _sample(self, trace_id: bytes, kind: int) -> Decision:
        decision = self.outlet.decide(trace_id, names.COMPUTATION, kind)
        return Decision(decision.sampled, decision.attributes, decision.trace_state)

    # -- graphs -------------------------------------------------------------------------------------------------
    def graph_received(self, received: Submission) -> Graph:
        if self._first:
            self._start()
        carried, operation = submission.unpack(received.annotation)
        graph = self.model.receive(received.stimulus_id, received.client, carried, operation, time.time())
        graph.computation.code = graph.computation.code or received.code
        graph.forced = _asked(received.detail)
        return graph

    def graph_created(self, arrived: Arrived) -> None:
        if self._first:
            self._start()
        stimulus_id, client, computation_id, sizes, asked = arrived
        self.model.create(stimulus_id, computation_id, client, time.time(), sizes, _asked(asked))

    def graph_measured(self, stimulus_id: str, metrics: dict[str, float], failed: bool) -> None:
        self.model.measure(stimulus_id, metrics, names.OTHER_ERROR if failed else None)

    def graph_finished(self, graph: object) -> None:
        assert isinstance(graph, Graph)
        self.model.finish(graph, time.time())
        if self.metrics.meter.on:
            self.metrics.graphs.add(graph.metrics)
        self._check_soon()

    # -- tasks --------------------------------------------------------------------------------------------------
    def task_activated(self, activated: Activated) -> None:
        self.model.activate(activated, time.time)

    def task_deactivated(self, key: Hashable, start: str, finish: str, retried: bool) -> None:
        group, flight = self.model.deactivate(key, start, finish, time.time)
        if group is not None and flight is not None:
            if not self.seam.alive(flight.address):
                self._lose(key, group, flight, finish)
            else:
                self.model.ended(key, group, flight, finish, ran=retried or finish != "released")
                if (
                    flight.address not in self._instrumented
                    and not self._said_silent
                    and self.model.detail > OFF
                ):
                    self._said_silent = True
                    self._loop.call_later(GRACE, self._say_silent)
        if self.model.touched:
            self._check_soon()

    def _lose(self, key: Hashable, group: Any, flight: Any, finish: str) -> None:
        """A task was at a worker that is lost: if it had started, its attempt is told here."""
        now = time.time()
        started = self._lost.get(flight.address)
        if started is None:
            sent = {key: flight.time, **{k: f.time for k, f in self.model.flights(flight.address)}}
            started = self._lost[flight.address] = self.seam.started(flight.address, sent)
        if key not in started:
            self.model.lost_unstarted(key, group, flight, failed=finish == "erred")
            return
        since = started[key]
        self.model.lose(
            key,
            group,
            flight,
            since if since is not None else flight.time,
            now,
            assumed=since is None,
            failed=finish == "erred",
            retired=self.seam.retired(flight.address),
            worker=(flight.address, self.seam.worker_name(flight.address)),
        )

    def _attempt_lost(self, address: str, span: Span) -> None:
        if self.seam.has_nanny(address):
            self.deaths.lost(address, span)
        else:
            self.outlet.emit(span)

    def task_blocked(self, task: Activated) -> None:
        self.model.block(task, time.time)
        self._check_soon()

    def dispatched(self, key: Hashable, run_id: int, address: str) -> object:
        return self.model.dispatch(key, run_id, address, time.time(), self._peers)

    # -- workers ------------------------------------------------------------------------------------------------
    def worker_told(self, address: str, message: dict[str, Any]) -> None:
        """A worker sent sums, or says that it runs dask-otel."""
        if "hello" in message:
            self._worker_runs(address, message["hello"])
        groups = message.get("groups", ())
        # A worker of another version may not name prefixes.
        for (group_id, sums), prefix in zip(groups, message.get("prefixes") or [""] * len(groups)):
            self.model.add(group_id, sums, prefix)
        if self.model.touched:
            self._check_soon()

    def worker_over_limit(self, address: str) -> None:
        """A nanny ends its worker at its memory limit."""
        self.deaths.over_limit(address, alive=self.seam.alive(address))

    def worker_added(self, address: str) -> None:
        self.seam.worker_added(address)
        self._workers.add(address)
        self._worker_runs(address, self.seam.version(address))

    def worker_removed(self, address: str) -> None:
        self.seam.worker_removed(address)
        self._workers.discard(address)
        self._instrumented.pop(address, None)
        self._lost.pop(address, None)
        self._loop.call_later(LAST_WORD, self.deaths.conclude, address)
        self._count_peers()

    def _worker_runs(self, address: str, version: object) -> None:
        """A worker runs this version of dask-otel; ``None`` if it does not, or no longer."""
        if version is None:
            self._instrumented.pop(address, None)
        else:
            self._instrumented[address] = str(version)
            if version != __version__:
                process.say_once(
                    "Workers run dask-otel %s, the scheduler %s: what only one of them knows is not told. "
                    "Install the same everywhere, like pip install dask-otel==%s.",
                    version,
                    __version__,
                    __version__,
                    level=logging.WARNING,
                )
        self._count_peers()

    def _say_silent(self) -> None:
        """Say once that tasks run where dask-otel does not."""
        silent = [] if isinstance(self.seam, Deaf) else sorted(self.silent)
        self._said_silent = bool(silent)
        if silent:
            process.say_once(
                "%d of %d workers do not run dask-otel (%s): their tasks are counted and have no spans. Start workers "
                "with --preload dask_otel, or call dask_otel.enable(client).",
                len(silent),
                len(self._workers),
                ", ".join(silent[:3]) + (", …" if len(silent) > 3 else ""),
                level=logging.WARNING,
            )

    def _count_peers(self) -> None:
        self._peers = bool(self._workers) and self._workers <= self._instrumented.keys()

    @property
    def reporting(self) -> set[str]:
        """Workers that run dask-otel."""
        return self._workers & self._instrumented.keys()

    @property
    def silent(self) -> set[str]:
        """Workers that do not run dask-otel, as far as is known."""
        return self._workers - self._instrumented.keys()

    # -- ends ---------------------------------------------------------------------------------------------------
    def _check_soon(self) -> None:
        if not self._checking:
            self._checking = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        self._checking = False
        try:
            self._check_in(self.model.check(time.time()))
        except Exception:
            self.guard.fault("check")

    def _check_in(self, seconds: float | None) -> None:
        pending = self._next_check
        if seconds is None or (pending is not None and pending.when() <= self._loop.time() + seconds):
            return
        if pending is not None:
            pending.cancel()
        self._next_check = self._loop.call_later(seconds + 0.01, self._check_again)

    def _check_again(self) -> None:
        self._next_check = None
        self._check_soon()

    async def settled(self, timeout: float) -> bool:
        """Wait until nothing waits for what workers and nannies say; whether that was so in time."""
        deadline = time.monotonic() + timeout
        while (waiting := self.model.ending or bool(self.deaths)) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return not waiting

    def restarted(self) -> None:
        """A client has restarted the cluster: no task is left."""
        self.model.restart(time.time())
        self._check_soon()

    def stop(self) -> None:
        """Tell all that is open: the scheduler closes, or reports no more."""
        if self._next_check is not None:
            self._next_check.cancel()
            self._next_check = None
        self.deaths.conclude_all()
        self.model.stop(time.time())

    def _tidy_soon(self) -> None:
        if self._tidying is None:
            self._tidying = self._loop.call_later(GRACE, self._tidy)

    def _tidy(self) -> None:
        """After a fault: what it may have left open is told once there is nothing to be run, and let go of."""
        self._tidying = None
        if isinstance(self.seam, Deaf):
            return
        if self.seam.busy():
            self._tidy_soon()
            return
        self.guard.each("tidy", self.stop)
        self.model.forget()

    def _stop_tracing(self) -> None:
        """Make no more spans, nor keep what they would be made of; metrics go on."""
        seam = self.seam
        self.seam = Deaf(seam)
        self.guard.each("off", seam.release, self.stop)
        # Where that failed too, nobody would let go of what is open.
        self.model.forget()
        self._lost.clear()

    def close(self) -> None:
        """Report no more."""
        if self._tidying is not None:
            self._tidying.cancel()
        self.guard.each("close", self.stop, self.metrics.meter.stop, self.seam.uninstall)


def _asked(annotation: object) -> int | None:
    """The detail that a user's annotation asks for; ``None`` where it asks for none that there is, which is said."""
    if annotation is None or annotation == "auto":
        return None
    try:
        return DETAILS[str(annotation).strip().lower()]
    except KeyError:
        process.say_once(
            "The annotation otel_detail is %s, which is not auto, activity, task or group; it is left out.",
            quoted(annotation),
            level=logging.WARNING,
        )
        return None


class SchedulerOtel(SchedulerPlugin):
    """The scheduler's plugin; made with the settings of whoever registers it, used where the scheduler has none."""

    idempotent = True
    leaving = False

    def __init__(self, settings: Settings | None = None, by_client: bool = False) -> None:
        self.settings = settings
        self.by_client = by_client
        self.name = BY_CLIENT if by_client else BY_PRELOAD
        self.telemetry: SchedulerTelemetry | None = None
        self._scheduler: Scheduler | None = None

    async def start(self, scheduler: Scheduler) -> None:
        """Report, unless a plugin of ours does already. Distributed starts what a preload has added once more."""
        self._scheduler = scheduler
        try:
            schedulers.join(scheduler, self, self._report)
        except Exception:
            Guard("the scheduler").fault("start")

    def _report(self, settings: Settings) -> SchedulerTelemetry:
        assert self._scheduler is not None
        telemetry = SchedulerTelemetry(self._scheduler, settings)
        try:
            telemetry.seam.install()
            telemetry.metrics.meter.start()
        except BaseException:
            telemetry.close()
            raise
        return telemetry

    def __reduce__(self) -> tuple[type[SchedulerOtel], tuple[Settings | None, bool]]:
        return SchedulerOtel, (self.settings, self.by_client)

    def update_graph(
        self,
        scheduler: Scheduler,
        *,
        client: str,
        stimulus_id: str,
        tasks: list[Hashable],
        annotations: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        telemetry = self.telemetry
        if telemetry is not None:
            try:
                telemetry.seam.graph_created(client, stimulus_id, tasks, annotations)
            except Exception:
                telemetry.guard.fault("update_graph")

    def transition(
        self, key: Hashable, start: str, finish: str, *args: Any, stimulus_id: str, **kwargs: Any
    ) -> None:
        if start in ACTIVE:
            if finish in ACTIVE:
                return
        elif finish not in ACTIVE and finish != "erred":
            return
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
        telemetry = self.telemetry
        if telemetry is not None:
            telemetry.guard.each("workers", lambda: telemetry.worker_added(worker))

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        telemetry = self.telemetry
        if telemetry is not None:
            telemetry.guard.each("workers", lambda: telemetry.worker_removed(worker))

    def restart(self, scheduler: Scheduler) -> None:
        telemetry = self.telemetry
        if telemetry is not None:
            telemetry.guard.each("workers", telemetry.restarted)

    async def close(self) -> None:
        telemetry = self.telemetry
        try:
            telemetry = schedulers.leave(self._scheduler, self) if self._scheduler is not None else None
        except Exception:
            PROCESS.fault("close")
        if telemetry is not None:
            try:
                telemetry.guard.each("close", telemetry.close)
            finally:
                await process.farewell()


#: The schedulers of this process that report.
schedulers: Holders[SchedulerTelemetry] = Holders()
