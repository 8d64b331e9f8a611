"""What a worker shows on its Prometheus endpoint, as points.

Rules
-----
1. Reads only, on the event loop, at an export.
2. What a worker does not have (a spill buffer, a memory limit, `gilknocker`) is left out.
3. A part that fails is told to the guard, and the others are given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dask_otel import instruments
from dask_otel.guard import Guard
from dask_otel.instruments import INCOMING, OUTGOING
from dask_otel.seam.server_state import Part, ServerState
from dask_otel.series import Measured, keyed, measured

if TYPE_CHECKING:
    from distributed import Worker

#: Dask's state of a task whose result is there, and what the endpoint calls it where the result is on disk.
_MEMORY, _DISK = "memory", "disk"
_SPILLED = {
    "seconds": instruments.SPILL_SECONDS,
    "bytes": instruments.SPILL_BYTES,
    "count": instruments.SPILL_OPERATIONS,
}


class WorkerStateSeam(ServerState):
    """Reads what one worker has."""

    def __init__(self, worker: Worker, guard: Guard) -> None:
        super().__init__(worker, guard)
        self._worker = worker
        self._states: set[str] = set()

    def _parts(self) -> Sequence[Part]:
        return (self._tasks, self._memory, self._connection, self._transfers, self._spill)

    def _tasks(self) -> Iterator[Measured]:
        worker = self._worker
        counts: defaultdict[str, int] = defaultdict(int, dict.fromkeys(self._states, 0))
        counts.update(worker.state.task_counter.current_count(by_prefix=False))
        spilled = len(getattr(worker.data, "slow", ()))
        if spilled:
            counts[_DISK] = spilled
            counts[_MEMORY] = max(0, counts[_MEMORY] - spilled)
        # A state that is empty has been told: it is 0 from then on.
        self._states |= counts.keys()
        yield measured(instruments.WORKER_TASKS, keyed(counts))

    def _memory(self) -> Iterator[Measured]:
        worker = self._worker
        in_memory, on_disk = getattr(worker.data, "spilled_total", (0, 0))
        process = worker.monitor.get_process_memory()
        managed = min(process, worker.state.nbytes - in_memory)
        usage = {"managed": managed, "unmanaged": process - managed, "spilled": on_disk}
        yield measured(instruments.WORKER_MEMORY, keyed(usage))
        limit = worker.memory_manager.memory_limit
        if limit:
            yield measured(instruments.WORKER_MEMORY_LIMIT, {(): int(limit)})

    def _connection(self) -> Iterator[Measured]:
        worker = self._worker
        yield measured(instruments.WORKER_THREADS, {(): worker.state.nthreads})
        yield measured(instruments.WORKER_LATENCY, {(): float(worker.latency)})

    def _transfers(self) -> Iterator[Measured]:
        worker, state = self._worker, self._worker.state
        for instrument, incoming, outgoing in (
            (instruments.ACTIVE_TRANSFERS, state.transfer_incoming_count, worker.transfer_outgoing_count),
            (
                instruments.ACTIVE_TRANSFER_BYTES,
                state.transfer_incoming_bytes,
                worker.transfer_outgoing_bytes,
            ),
            (
                instruments.TRANSFERS,
                state.transfer_incoming_count_total,
                worker.transfer_outgoing_count_total,
            ),
        ):
            yield measured(instrument, {(INCOMING,): incoming, (OUTGOING,): outgoing})
        # Dask has no such total of what comes in.
        yield measured(instruments.TRANSFER_IO, {(OUTGOING,): worker.transfer_outgoing_bytes_total})

    def _spill(self) -> Iterator[Measured]:
        metered = dict(getattr(self._worker.data, "cumulative_metrics", {}))
        for unit, instrument in _SPILLED.items():
            yield measured(
                instrument, keyed({label: value for (label, of), value in metered.items() if of == unit})
            )
