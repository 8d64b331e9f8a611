"""The worker's shell for data: transfers from both ends and spilling become spans and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from dask_otel import names, process, transfers
from dask_otel.durations import Kept
from dask_otel.instruments import INCOMING, OUTGOING
from dask_otel.outlet import Outlet
from dask_otel.parents import GROUP, OFF, TASK, Parent, unpack
from dask_otel.records import CLIENT, INTERNAL
from dask_otel.seam.transfers import Transfer
from dask_otel.worker_metrics import WorkerMetrics

#: Runs whose transfers wait for them to end.
MAX_HELD = 1_000


class Standing(Protocol):
    """What is known of the worker's tracing."""

    @property
    def tracing(self) -> bool:
        """Whether spans are sent; asked for at the earliest when the worker has something to do."""

    @property
    def peers(self) -> bool:
        """Whether every worker runs dask-otel, by the scheduler's last word."""

    def used(self, parent: Parent, spans: int) -> None:
        """Beside its tasks so many spans were recorded for a group, by others too."""


class WorkerData:
    """Transfers and spilling of one worker; ``clock_offset`` gives its clock minus the scheduler's (s)."""

    def __init__(
        self,
        standing: Standing,
        outlet: Outlet,
        metrics: WorkerMetrics,
        clock_offset: Callable[[], float],
    ) -> None:
        self._standing = standing
        self._outlet = outlet
        self._metrics = metrics
        self._clock_offset = clock_offset
        #: Transfers for tasks that may be told, by the run.
        self._held: dict[int, list[tuple[transfers.TransferContext, Transfer]]] = {}

    @property
    def measuring(self) -> bool:
        """Whether every transfer is to be told, traced or not."""
        return self._metrics.meter.on

    def transfer_started(self, transfer: Transfer, waiting: Iterator[tuple[object, int]], alone: bool) -> str:
        """Find the computation that waits the most urgently."""
        transfer.followed = self._metrics.meter.on
        if not self._standing.tracing:
            return ""
        handed = [(unpack(annotation), run_id) for annotation, run_id in waiting]
        traced = [(found.parent, run_id) for found, run_id in handed if found and found.parent.detail >= TASK]
        context = transfers.context_of_transfer(traced, alone, process.new_span_id, self._new_root)
        if context is None:
            context = self._uncertain([(found.parent, run_id) for found, run_id in handed if found])
        if context is None:
            return ""
        transfer.followed, transfer.listener = True, context
        return context.fragment

    def _uncertain(self, waiting: list[tuple[Parent, int]]) -> transfers.TransferContext | None:
        """Where it belongs if the most urgent task is told that need not be; whoever sends is not asked to tell it."""
        for parent, run_id in waiting:
            if parent.keep is not None:
                told = parent._replace(detail=parent.keep.detail, keep=None, peers=False)
                context = transfers.context_of_transfer(
                    [(told, run_id)], False, process.new_span_id, self._new_root
                )
                return context and context._replace(owner=run_id)
        return None

    def _new_root(self, name: str = names.GATHER_DEP, kind: int = CLIENT) -> transfers.Root | None:
        trace_id = process.new_trace_id()
        decision = self._outlet.decide(trace_id, name, kind)
        if not decision.sampled:
            return None
        flags = 1 | process.FLAGS
        parent = Parent(trace_id, b"", b"", flags, GROUP, self._standing.peers, decision.trace_state)
        return transfers.Root(parent, decision.attributes)

    def transfer_ended(self, transfer: Transfer) -> None:
        """Tell it."""
        context: transfers.TransferContext | None = transfer.listener
        kept = None
        if context is not None and context.owner is not None:
            if len(self._held) >= MAX_HELD:
                del self._held[next(iter(self._held))]
            self._held.setdefault(context.owner, []).append((context, transfer))
        elif context is not None:
            kept = self._tell(context, transfer)
        seconds = transfer.end - transfer.start
        self._metrics.transferred(INCOMING, transfer.outcome, seconds, transfer.size, kept)

    def _tell(self, context: transfers.TransferContext, transfer: Transfer) -> Kept | None:
        span = transfers.gather_dep_span(context, transfer, self._clock_offset())
        self._standing.used(context.parent, 2 if context.fragment else 1)
        return Kept(span.trace_id, span.span_id, transfer.end) if self._outlet.emit(span) else None

    def settle(self, run_id: int, told: bool) -> None:
        """A run has ended whose task needed not be told: what it waited for is told with it, or not."""
        for context, transfer in self._held.pop(run_id, ()):
            if told:
                self._tell(context, transfer)

    def sent(
        self, fragment: str, keys: int, size: int | None, start: float, end: float, outcome: str
    ) -> None:
        """Tell the sending side of a transfer, a span only where another worker traces it."""
        kept = None
        if fragment and self._standing.tracing:
            span = transfers.get_data_span(
                fragment, process.new_span_id(), keys, size, start, end, outcome, self._clock_offset()
            )
            if span is not None and self._outlet.emit(span):
                kept = Kept(span.trace_id, span.span_id, end)
        self._metrics.transferred(OUTGOING, outcome, end - start, size, kept)

    def spilled(
        self, start: float, end: float, size: int, count: int, annotations: list[tuple[object, int]]
    ) -> None:
        """Tell an episode of spilling that was long enough to be felt."""
        if end - start < transfers.SHORTEST_SPILL or not self._standing.tracing:
            return
        root = self._new_root(names.SPILL, INTERNAL)
        if root is None:
            return
        handed = [unpack(annotation) for annotation, _ in annotations]
        running = [found.parent for found in handed if found is not None and found.parent.detail > OFF]
        span_id = process.new_span_id()
        self._outlet.emit(
            transfers.spill_span(root, span_id, running, start, end, size, count, self._clock_offset())
        )
