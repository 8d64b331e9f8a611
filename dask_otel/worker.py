"""The worker's shell: what the seam sees becomes records and sums, no more.

Rules
-----
1. A hook reads, decides and emits; meaning lives in the models.
2. Sums go to the scheduler in pieces, `FLUSH_AFTER` seconds after the first that is new, once for many tasks.
3. What is live is made where it runs: the plugin pickles with settings only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, cast

from opentelemetry.context import Context

from dask_otel import actors, current, names, process, submission, transfers
from dask_otel.attempts import Attempt, Failure, Origin, failure_from_text, origin
from dask_otel.client import TaskClients
from dask_otel.guard import Guard
from dask_otel.intervals import Amounts
from dask_otel.outlet import Outlet
from dask_otel.parents import GROUP, OFF, TASK, Handed, Parent, attempt_span_id, unpack
from dask_otel.seam import client as client_seam
from dask_otel.seam.run import Ended, Run
from dask_otel.seam.transfers import Transfer
from dask_otel.seam.worker import WorkerSeam
from dask_otel.settings import Settings
from dask_otel.sums import Sums
from dask_otel.version import __version__
from dask_otel.worker_metrics import WorkerMetrics

if TYPE_CHECKING:
    from distributed import Worker

logger = logging.getLogger("dask_otel")

#: Seconds that sums wait for more of their kind.
FLUSH_AFTER = 0.25
#: Groups that are remembered between two flushes at least; more are forgotten when nothing of them waits.
MAX_PLACES = 1_000

_EMPTY = Context()


class Place:
    """One group's attempts on this worker."""

    __slots__ = ("ended", "handed", "origin", "parent", "sums", "waiting")

    def __init__(self, handed: Handed, made: Origin) -> None:
        self.handed = handed
        self.parent = handed.parent
        self.origin = made
        self.sums = Sums()
        #: Attempts that are to be added to the sums: many at once are cheaper than one by one.
        self.ended: list[tuple[str, float, Amounts, int | None]] = []
        #: Whether its sums wait to be sent.
        self.waiting = False


class Traced:
    """What is kept with a run: its place, what came with it, its ids, the span that its code writes on."""

    __slots__ = ("handed", "place", "span", "span_id")

    def __init__(self, place: Place, handed: Handed, span_id: bytes, span: current.TaskSpan | None) -> None:
        self.place = place
        self.handed = handed
        self.span_id = span_id
        self.span = span


class WorkerTelemetry:
    """dask-otel on one worker; ``asked_here`` says whether by whoever started its process."""

    def __init__(self, worker: Worker, settings: Settings, *, own_process: bool, asked_here: bool) -> None:
        self.settings = settings
        self._asked_here = asked_here
        self.guard = Guard(f"worker {worker.address}")
        self._cluster_id: str | None = None
        self._asking: asyncio.Task[None] | None = None
        self.outlet = Outlet(
            settings, "worker", worker.id, lambda: {names.CLUSTER_ID: self._cluster_id, **_resource(worker)}
        )
        self.seam = WorkerSeam(worker, self, self.guard)
        self._address = worker.address
        self._name = str(worker.name)
        self._own_process = own_process
        self._loop = asyncio.get_running_loop()
        self._places: dict[object, Place] = {}
        self._waiting_sums: list[Place] = []
        self._flushing = False
        self._first = True
        self._said_missing = False
        #: Whether every worker runs dask-otel, by the scheduler's last word.
        self._peers = False
        self.sending = False
        self.metrics = WorkerMetrics(worker, self.outlet, self.guard)
        self._task_clients = TaskClients(settings, self.guard)

    def start(self) -> None:
        """Report from now on."""
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
        self.flush_sums()
        self.metrics.meter.stop()
        self.seam.uninstall()
        self.seam.tell_scheduler({"hello": None})
        client_seam.forget_everywhere(self._task_clients)
        self.outlet.close()

    def use(self, settings: Settings) -> None:
        """Go on by other settings, from the next task on."""
        self.settings = self._task_clients.settings = settings
        self.metrics.meter.stop()
        self.outlet.use(settings)
        self.metrics.meter.start()
        self._first = True

    # -- tasks ------------------------------------------------------------------------------------------------
    def run_started(self, run: Run, annotation: object) -> Context | None:
        """Find the task's context; remember what its end needs."""
        if self._first:
            self._start()
        place, handed = self._place(annotation, run.key)
        if place is None or handed is None:
            return None
        parent = place.parent
        self._peers = parent.peers
        if parent.detail == OFF:
            return current.group_context(parent)
        if not (self.sending or self._said_missing):
            # Others send: what this worker knows is missing from their traces.
            self._said_missing = True
            self.outlet.explain(loud=True)
        if parent.detail < TASK or not self.sending:
            run.listener = Traced(place, handed, b"", None)
            return current.group_context(parent)
        span_id = attempt_span_id(parent.computation_id, run.run_id)
        context, span = current.context_of(parent, span_id)
        run.listener = Traced(place, handed, span_id, span)
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
            self.outlet.refresh()

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

    def _place(self, annotation: object, key: Hashable) -> tuple[Place | None, Handed | None]:
        if type(annotation) is bytes:
            place = self._places.get(annotation)
            if place is not None:
                return place, place.handed
        handed = unpack(annotation)
        if handed is None:
            return None, None
        identity: object = annotation if type(annotation) is bytes else handed.parent
        place = self._places.get(identity)
        if place is None:
            place = self._places[identity] = self._new_place(handed, key)
        return place, handed

    def _new_place(self, handed: Handed, key: Hashable) -> Place:
        if len(self._places) >= MAX_PLACES:
            self._places.clear()
        seam = self.seam
        return Place(
            handed, origin(handed.parent, seam.prefix(key), seam.group_name(key), self._address, self._name)
        )

    def run_ended(self, run: Run, ended: Ended) -> None:
        """Add to the sums, record the attempt."""
        traced: Traced = run.listener
        place = traced.place
        sums = place.sums
        seconds = ended.end - run.start
        amounts = Amounts.of(ended.amounts)
        place.ended.append((ended.outcome, seconds, amounts, ended.size))
        if traced.handed.cause and ended.outcome == names.SUCCESS:
            sums.recomputed += seconds
        if run.cancelled:
            sums.going -= 1
        if traced.span is not None:
            if self.outlet.emit(self._attempt(run, ended, traced, amounts)):
                sums.emitted += 1
            else:
                sums.dropped += 1
        self._flush_soon(place)

    def run_cancelled(self, run: Run) -> None:
        """Tell the scheduler that it goes on."""
        place: Place = run.listener.place
        place.sums.going += 1
        self._flush_soon(place)

    def never_ran(self, key: Hashable, annotation: object) -> None:
        """Tell the scheduler that a task which it sent here came to no attempt."""
        place, _ = self._place(annotation, key)
        if place is not None and place.parent.detail > OFF:
            place.sums.unstarted += 1
            self._flush_soon(place)

    def _flush_soon(self, place: Place) -> None:
        if not place.waiting:
            place.waiting = True
            self._waiting_sums.append(place)
            if not self._flushing:
                self._flushing = True
                self._loop.call_later(FLUSH_AFTER, self.flush_sums)

    def _attempt(self, run: Run, ended: Ended, traced: Traced, amounts: Amounts) -> Attempt:
        span, posts, handed = traced.span, run.posts, traced.handed
        assert span is not None
        waiting, ready = run.waiting, run.ready
        return Attempt(
            traced.place.origin,
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
            _failure(ended, span),
            span.end_task(),
            bytes(posts.depths),
        )

    def flush_sums(self) -> None:
        """Tell the scheduler what is new."""
        self._flushing = False
        try:
            waiting, self._waiting_sums = self._waiting_sums, []
            groups = []
            for place in waiting:
                sums, place.sums, place.waiting = place.sums, Sums(), False
                ended, place.ended = place.ended, []
                for outcome, seconds, amounts, size in ended:
                    sums.add(outcome, seconds, amounts.posts, size)
                groups.append([place.parent.group_id, sums.to_wire()])
            if groups:
                self.seam.tell_scheduler({"groups": groups})
        except Exception:
            self.guard.fault("flush_sums")

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

    # -- data -------------------------------------------------------------------------------------------------
    def transfer_started(self, transfer: Transfer, waiting: Iterator[tuple[object, int]], alone: bool) -> str:
        """Find the computation that waits the most urgently."""
        if self._first:
            self._start()
        if not self.sending:
            return ""
        handed = ((unpack(annotation), run_id) for annotation, run_id in waiting)
        traced = [(found.parent, run_id) for found, run_id in handed if found and found.parent.detail > OFF]
        context = transfers.context_of_transfer(traced, alone, process.new_span_id, self._new_root)
        transfer.listener = context
        return context.fragment if context is not None else ""

    def _new_root(self) -> Parent | None:
        trace_id = process.new_trace_id()
        decision = self.outlet.decide(trace_id, names.GATHER_DEP, 3)
        if not decision.sampled:
            return None
        return Parent(trace_id, b"", b"", 1 | process.FLAGS, GROUP, self._peers, decision.trace_state)

    def transfer_ended(self, transfer: Transfer) -> None:
        """Tell it."""
        self.outlet.emit(transfers.gather_dep_span(transfer.listener, transfer, self.seam.clock_offset()))

    def sent(self, fragment: str, keys: int, size: int, start: float, end: float, outcome: str) -> None:
        """Tell the sending side of a transfer that another worker traces."""
        if self._first:
            self._start()
        span = transfers.get_data_span(
            fragment, process.new_span_id(), keys, size, start, end, outcome, self.seam.clock_offset()
        )
        if span is not None and self.sending:
            self.outlet.emit(span)

    def spilled(
        self, start: float, end: float, size: int, count: int, annotations: list[tuple[object, int]]
    ) -> None:
        """Tell an episode of spilling that was long enough to be felt."""
        if end - start < transfers.SHORTEST_SPILL or not self.sending:
            return
        root = self._new_root()
        if root is None:
            return
        running = [found.parent for annotation, _ in annotations if (found := unpack(annotation)) is not None]
        span_id = process.new_span_id()
        self.outlet.emit(
            transfers.spill_span(root, span_id, running, start, end, size, count, self.seam.clock_offset())
        )


def _failure(ended: Ended, span: current.TaskSpan) -> Failure | None:
    if ended.outcome != names.FAILED:
        return None
    return (
        span.failure or ended.failure or failure_from_text(ended.exception_text or "", ended.traceback_text)
    )


def _resource(worker: Worker) -> dict[str, Any]:
    return {
        names.WORKER_NAME: str(worker.name),
        names.WORKER_ADDRESS: worker.address,
    }
