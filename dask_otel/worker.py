"""The worker's shell: what the seam sees becomes records and sums, no more.

Rules
-----
1. A hook reads, decides and emits; meaning lives in the models.
2. What is live is made where it runs: the plugin pickles with settings only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, cast

from opentelemetry.context import Context

from dask_otel import actors, current, names, process, submission
from dask_otel.attempts import Attempt, Failure, Origin, failure_from_text, origin
from dask_otel.client import TaskClients
from dask_otel.durations import Kept
from dask_otel.guard import Guard
from dask_otel.intervals import Amounts
from dask_otel.keeping import Keeper
from dask_otel.outlet import Outlet
from dask_otel.parents import OFF, TASK, Handed, Keep, Parent, attempt_span_id
from dask_otel.seam import client as client_seam
from dask_otel.seam.run import Ended, Run
from dask_otel.seam.worker import Deaf, WorkerSeam
from dask_otel.settings import Settings
from dask_otel.version import __version__
from dask_otel.worker_data import WorkerData
from dask_otel.worker_metrics import WorkerMetrics
from dask_otel.worker_sums import Place, Places

if TYPE_CHECKING:
    from distributed import Worker

logger = logging.getLogger("dask_otel")

_EMPTY = Context()
#: What attempts and transfers are told by. An attempt is told whole or not at all: without one of them what is told of it
#: would not be so, or what is kept of it stay.
_HOOKS = (
    *("execute", "_finalize_metrics", "transition", "gc", "flush_sums", "actor_execute", "_graph_to_futures"),
    *("gather_dep", "gather", "get_data", "_spill"),
)


class Traced:
    """What is kept with a run: its place, what came with it, its ids, the span that its code writes on.

    There is no place where nothing came with it.
    """

    __slots__ = ("handed", "place", "span", "span_id")

    def __init__(
        self,
        place: Place | None = None,
        handed: Handed | None = None,
        span_id: bytes = b"",
        span: current.TaskSpan | None = None,
    ) -> None:
        self.place = place
        self.handed = handed
        self.span_id = span_id
        self.span = span


_UNTRACED = Traced()


class WorkerTelemetry:
    """dask-otel on one worker; ``asked_here`` says whether by whoever started its process."""

    def __init__(self, worker: Worker, settings: Settings, *, own_process: bool, asked_here: bool) -> None:
        self.settings = settings
        self._asked_here = asked_here
        self.guard = Guard(f"worker {worker.address}")
        self._loop = asyncio.get_running_loop()
        self._cluster_id: str | None = None
        self._asking: asyncio.Task[None] | None = None
        self.outlet = Outlet(
            settings, "worker", worker.id, lambda: {names.CLUSTER_ID: self._cluster_id, **_resource(worker)}
        )
        self.metrics = WorkerMetrics(worker, self.outlet, self.guard)
        self.data = WorkerData(self, self.outlet, self.metrics, lambda: self.seam.clock_offset())
        self.seam: WorkerSeam = WorkerSeam(worker, self, self.data, self.guard)
        self.guard.part(
            "its tasks and transfers have no spans and are not in the histograms of durations",
            lambda: self._loop.call_soon_threadsafe(self._stop_tracing),
            *_HOOKS,
        )
        self.metrics.overhead.watch(self.seam, "_begin", "_end", "transition")
        self.sums = Places(self._origin, self.seam.tell_scheduler, self.guard)
        self._address = worker.address
        self._name = str(worker.name)
        self._own_process = own_process
        self._first = True
        self._said_missing = False
        #: Whether every worker runs dask-otel, by the scheduler's last word.
        self.peers = False
        self.sending = False
        self._task_clients = TaskClients(settings, self.guard)

    def start(self) -> None:
        """Report from now on."""
        try:
            self._begin()
        except BaseException:
            self.stop()
            raise

    def _begin(self) -> None:
        if self._own_process:
            process.deliver_at_sigterm()
        client_seam.listen_everywhere(self._task_clients)
        self.seam.install()
        self.outlet.settled = False
        self.metrics.meter.start()
        self.seam.tell_scheduler({"hello": __version__})
        self._asking = self._loop.create_task(self._learn_cluster())

    def stop(self) -> None:
        """Report no more; what was recorded is still to be sent."""
        self.guard.each(
            "close",
            self._cancel_the_rest,
            self.sums.flush,
            self.metrics.meter.stop,
            self._let_go,
            self.outlet.close,
        )

    def _cancel_the_rest(self) -> None:
        """What runs on after the worker has closed ends now, for us."""
        for run in self.seam.left_behind():
            self.run_ended(run, Ended(names.CANCELLED, max(run.start, time.time()), ()))

    def _let_go(self) -> None:
        self.guard.each(
            "close",
            self.seam.uninstall,
            lambda: self.seam.tell_scheduler({"hello": None}),
            lambda: client_seam.forget_everywhere(self._task_clients),
        )

    def _stop_tracing(self) -> None:
        """Tell no more of tasks and transfers; the scheduler counts their attempts as those of a worker without us."""
        self.guard.each("off", self.sums.flush, self._let_go)
        self.seam = Deaf(self.seam)

    def use(self, settings: Settings) -> None:
        """Go on by other settings, from the next task on."""
        self.settings = self._task_clients.settings = settings
        self.metrics.meter.stop()
        self.outlet.use(settings)
        self.metrics.meter.start()
        self._first = True

    @property
    def measuring(self) -> bool:
        """Whether all tasks and transfers are counted, traced or not."""
        return self.metrics.meter.on

    @property
    def tracing(self) -> bool:
        """Whether spans are sent, now that there is something to do."""
        if self._first:
            self._start()
        return self.sending

    def used(self, parent: Parent, spans: int) -> None:
        """Transfers of a group's tasks use its trace's budget."""
        if parent.computation_id:
            self.sums.use(parent, spans)

    # -- tasks ------------------------------------------------------------------------------------------------
    def passing(self, annotation: object) -> Context | None:
        """The context of a task of which nothing is wanted, where that is known without more ado."""
        place = self.sums.known(annotation)
        if place is None or not place.silent or self._first or self.metrics.meter.on:
            return None
        self.peers = place.parent.peers
        return place.context

    def run_started(self, run: Run, annotation: object) -> Context | None:
        """Find the task's context; remember what its end needs."""
        if self._first:
            self._start()
        place, handed = self.sums.find(annotation, run.key)
        if place is None or handed is None:
            if self.metrics.meter.on:
                run.listener = _UNTRACED
            return None
        parent = place.parent
        self.peers = parent.peers
        if parent.detail == OFF:
            if parent.counted or self.metrics.meter.on:
                run.listener = Traced(place, handed)
            return place.context
        if not (self.sending or self._said_missing):
            # Others send: what this worker knows is missing from their traces.
            self._said_missing = True
            self.outlet.explain(loud=True)
        if parent.detail < TASK or not self.sending:
            run.listener = Traced(place, handed)
            run.itemized = self.sending and place.keeper is not None
            return place.context
        span_id = attempt_span_id(parent.computation_id, run.run_id)
        context, span = current.context_of(parent, span_id)
        run.listener, run.itemized = Traced(place, handed, span_id, span), True
        return context

    def _start(self) -> None:
        """The first task: whoever sets a provider has had the time to."""
        self._first = False
        if self._own_process:
            self.outlet.set_global_provider()
        self.sending = self.outlet.sending
        self.outlet.explain(loud=self._asked_here)
        if self._cluster_id is None:  # It had no dask-otel when this worker came.
            self._asking = self._loop.create_task(self._learn_cluster())

    async def _learn_cluster(self) -> None:
        """Whose cluster this is, which the resource says from then on."""
        try:
            self._cluster_id = (await self.seam.scheduler_says()).get("id")
        except Exception as fault:  # The scheduler is not there yet, or no longer
            logger.debug("The scheduler was not asked: %s", fault)
        finally:
            self.outlet.settled = True
        if self._cluster_id is not None:
            self.guard.each("resource", self.outlet.refresh)

    def untraced(self) -> None:
        """A task came without a context: is the scheduler without us?"""
        if self._first:
            self._start()
        if self.sending:
            self._loop.create_task(self._ask_scheduler())

    async def _ask_scheduler(self) -> None:
        try:
            if not await self.seam.scheduler_says():
                process.say_once(
                    "The scheduler at %s does not run dask-otel: tasks have no spans. Start it with --preload dask_otel, "
                    "or call dask_otel.enable(client).",
                    self.seam.scheduler_address,
                    level=logging.WARNING,
                )
        except Exception as fault:  # The scheduler is gone, or does not answer
            logger.debug("The scheduler was not asked: %s", fault)

    def _origin(self, parent: Parent, key: Hashable) -> Origin:
        seam = self.seam
        return origin(parent, seam.prefix(key), seam.group_name(key), self._address, self._name)

    def run_ended(self, run: Run, ended: Ended) -> None:
        """Add to the sums, record the attempt, count it."""
        traced: Traced = run.listener
        place = traced.place
        seconds, failure = ended.end - run.start, _failure(ended, traced.span)
        kept = None
        if place is not None and place.parent.tells:
            kept = self._sum_up(run, ended, traced, place, failure)
        if self.metrics.meter.on:
            prefix = place.origin.prefix if place is not None else self.seam.prefix(run.key)
            tags = self.seam.tags(run) if self.metrics.span_names else ()
            error_type = failure.type if failure else ""
            self.metrics.attempted(prefix, ended.outcome, seconds, error_type, kept, tags)

    def _sum_up(
        self, run: Run, ended: Ended, traced: Traced, place: Place, failure: Failure | None
    ) -> Kept | None:
        """Add an attempt to the sums, record it; its span, if that is on its way."""
        assert traced.handed is not None
        kept = None
        amounts = Amounts.of(ended.amounts) if place.parent.detail > OFF else None
        place.add(ended, ended.end - run.start, amounts, traced.handed.cause)
        sums = place.sums
        if run.cancelled:
            sums.going -= 1
        if place.keeper is not None and place.parent.keep is not None and run.itemized:
            self._choose(place.keeper, place.parent.keep, run, ended, traced)
        if amounts is not None and traced.span_id:
            attempt = self._attempt(run, ended, traced, amounts, failure)
            spans = attempt.weight
            sums.spans += spans
            sums.bytes += attempt.bytes(spans)
            if self.outlet.emit(attempt):
                sums.emitted += 1
                kept = Kept(place.parent.trace_id, traced.span_id, ended.end)
            else:
                sums.dropped += 1
        self.sums.flush_soon(place)
        return kept

    def _choose(self, keeper: Keeper, keep: Keep, run: Run, ended: Ended, traced: Traced) -> None:
        """Whether an attempt is told that needed not be when it began."""
        told = keeper.keeps(keep, ended.outcome, ended.end - run.start)
        if told and traced.place is not None:
            traced.span_id = attempt_span_id(traced.place.parent.computation_id, run.run_id)
        self.data.settle(run.run_id, told)

    def run_cancelled(self, run: Run) -> None:
        """Tell the scheduler that it goes on."""
        place: Place | None = run.listener.place
        if place is not None and place.parent.tells:
            place.sums.going += 1
            self.sums.flush_soon(place)

    def never_ran(self, key: Hashable, annotation: object) -> None:
        """Tell the scheduler that a task which it sent here came to no attempt."""
        place, _ = self.sums.find(annotation, key)
        if place is not None and place.parent.tells:
            place.sums.unstarted += 1
            self.sums.flush_soon(place)

    def paused(self, runs: Iterable[Run], seconds: float) -> None:
        """Add to the sums, once for each computation that was stopped."""
        places = [run.listener.place for run in runs]
        stopped = {place.parent.computation_id: place for place in places if place is not None}
        for place in stopped.values():
            if place.parent.tells:
                place.sums.paused += seconds
                self.sums.flush_soon(place)

    def _attempt(
        self, run: Run, ended: Ended, traced: Traced, amounts: Amounts, failure: Failure | None
    ) -> Attempt:
        place, span, posts, handed = traced.place, traced.span, run.posts, traced.handed
        assert place is not None
        assert handed is not None
        waiting, ready = run.waiting, run.ready
        return Attempt(
            place.origin,
            run.key,
            traced.span_id,
            handed.attempt,
            handed.previous,
            handed.cause,
            run.start,
            ended.end,
            ended.outcome,
            amounts,
            # A ledger that is closed coarsely drops the seconds; else it adds the rest and no more.
            None if len(posts) + 1 == len(amounts.labels) else Amounts.of(posts),
            tuple(posts.moments),
            run.shift,
            ended.compute,
            ended.size,
            ended.type,
            ready - waiting if ready is not None and waiting is not None else None,
            max(0.0, run.start - ready) if ready is not None else None,
            max(0.0, ended.end - run.seceded) if run.seceded is not None else None,
            ended.thread,
            self.seam.clock_offset(),
            failure,
            span.end_task() if span is not None else None,
            bytes(posts.depths),
        )

    # -- actors -----------------------------------------------------------------------------------------------
    def method_called(self, annotation: object, prefix: str, method: str) -> tuple[Context, object] | None:
        """Begin the span of a method call below its caller's."""
        if self._first:
            self._start()
        carried, _ = submission.unpack(annotation)
        if carried is None:
            return None
        call = actors.begin(carried, process.new_span_id(), prefix, method, time.time())
        if not (self.sending and call.parent.detail):
            return current.group_context(call.parent), None
        context, span = current.context_of(call.parent, call.span_id)
        return context, (call, span)

    def method_returned(self, call: object, error: BaseException | None) -> None:
        """End it."""
        if call is None:
            return
        begun, span = cast("tuple[actors.Call, current.TaskSpan]", call)
        failure = current.failure_of(error) if error is not None else None
        worker = (self._address, self._name)
        self.outlet.emit(
            actors.span(begun, time.time(), failure, span.end_task(), worker, self.seam.clock_offset())
        )


def _failure(ended: Ended, span: current.TaskSpan | None) -> Failure | None:
    if ended.outcome != names.FAILED:
        return None
    seen = (span.failure if span is not None else None) or ended.failure
    if seen is not None and (seen.message or seen.stacktrace):
        return seen
    told = failure_from_text(ended.exception_text or "", ended.traceback_text)
    return told._replace(type=seen.type) if seen is not None else told


def _resource(worker: Worker) -> dict[str, Any]:
    return {
        names.WORKER_NAME: str(worker.name),
        names.WORKER_ADDRESS: worker.address,
    }
