"""What a scheduler shows on its Prometheus endpoint, as points.

Rules
-----
1. Reads only, on the event loop, at an export; of thousands of prefixes those that have changed.
2. What a scheduler does not have (work stealing, semaphores, `gilknocker`) is left out.
3. Totals never fall where Dask's do: prefixes that a restart clears and semaphores that are closed are read once more
   before, and stay in the totals.
4. A part that fails is told to the guard, and the others are given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from operator import attrgetter, itemgetter, ne
from typing import TYPE_CHECKING, Any

from distributed.core import Status
from distributed.scheduler import ALL_TASK_STATES

from dask_otel import instruments
from dask_otel.folding import Folding
from dask_otel.guard import Guard
from dask_otel.rising import FORGOTTEN, Prefix, PrefixTotals, Rising
from dask_otel.seam import Wraps
from dask_otel.seam.server_state import Part, ServerState
from dask_otel.series import Measured, keyed, measured

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskPrefix

#: Semaphores that have series of their own.
MAX_SEMAPHORES = 50
#: Who is no client.
_NOBODY = "fire-and-forget"
_STATES = sorted(ALL_TASK_STATES)
_counts, _tasks_of = attrgetter("state_counts"), itemgetter(*_STATES)


class SchedulerStateSeam(ServerState):
    """Reads what one scheduler has; ``folding`` is the server's, of prefixes."""

    def __init__(self, scheduler: Scheduler, folding: Folding, guard: Guard) -> None:
        super().__init__(scheduler, guard)
        self._scheduler = scheduler
        self._wraps = Wraps()
        self._totals = PrefixTotals(folding, _STATES)
        #: The prefixes at the last look, and how often their tasks had come into a state.
        self._known: list[TaskPrefix] = []
        self._seen: list[int] = []
        self._semaphores = Folding(MAX_SEMAPHORES, late=0)
        self._acquired, self._released = Rising(), Rising()

    def install(self) -> None:
        super().install()
        scheduler = self._scheduler
        clear = self._wrap_before(scheduler._clear_task_state, self._forget_prefixes)
        self._wraps.attribute(scheduler, "_clear_task_state", clear)
        handlers = scheduler.handlers
        if "semaphore_close" in handlers:
            close = self._wrap_before(handlers["semaphore_close"], self._forget_semaphore)
            self._wraps.entry(handlers, "semaphore_close", close)

    def uninstall(self) -> None:
        try:
            super().uninstall()
        finally:
            self._wraps.undo()

    def _parts(self) -> Sequence[Part]:
        return (
            *(self._clients, self._workers, self._desired, self._tasks, self._by_prefix),
            *(self._stealing, self._leases, self._monitor),
        )

    def _wrap_before(self, original: Callable[..., Any], look: Callable[..., None]) -> Callable[..., Any]:
        """Look at what is about to be cleared."""

        @functools.wraps(original)
        def clear(*args: Any, **kwargs: Any) -> Any:
            try:
                look(*args, **kwargs)
            except Exception:
                self._guard.fault(original.__name__)
            return original(*args, **kwargs)

        return clear

    # -- clients and workers ------------------------------------------------------------------------------------
    def _clients(self) -> Iterator[Measured]:
        scheduler = self._scheduler
        clients = len(scheduler.clients) - (_NOBODY in scheduler.clients)
        yield measured(instruments.CLIENTS, {(): clients})
        yield measured(instruments.CLIENTS_ADDED, {(): scheduler._client_connections_added_total})
        yield measured(instruments.CLIENTS_REMOVED, {(): scheduler._client_connections_removed_total})

    def _workers(self) -> Iterator[Measured]:
        scheduler = self._scheduler
        idle, saturated, running = len(scheduler.idle), len(scheduler.saturated), len(scheduler.running)
        paused = len([ws for ws in scheduler.workers.values() if ws.status is Status.paused])
        states = {
            "idle": idle,
            "partially_saturated": running - idle - saturated,
            "saturated": saturated,
            "paused": paused,
            "retiring": len(scheduler.workers) - paused - running,
        }
        yield measured(instruments.WORKERS, keyed(states))
        yield measured(instruments.WORKERS_ADDED, {(): scheduler._workers_added_total})
        yield measured(instruments.WORKERS_REMOVED, {(): scheduler._workers_removed_total})

    def _desired(self) -> Iterator[Measured]:
        yield measured(instruments.WORKERS_DESIRED, {(): self._scheduler.adaptive_target()})

    # -- tasks --------------------------------------------------------------------------------------------------
    def _tasks(self) -> Iterator[Measured]:
        self._totals.update(map(_read, self._changed()))
        tasks = {state: n for state, n in self._totals.tasks.items() if state != FORGOTTEN}
        yield measured(instruments.SCHEDULER_TASKS, keyed(tasks))
        yield measured(instruments.TASKS_FORGOTTEN, {(): self._totals.forgotten})
        yield measured(instruments.TASK_GROUPS, {(): len(self._scheduler.task_groups)})

    def _by_prefix(self) -> Iterator[Measured]:
        totals = self._totals
        # What is 0 for most prefixes takes no series.
        suspicious = {of: n for of, n in totals.suspicious.items() if n}
        transfer = {of: seconds for of, seconds in totals.transfer.items() if seconds}
        yield measured(instruments.TASKS_SUSPICIOUS, keyed(suspicious))
        yield measured(instruments.TASK_TRANSITIONS, dict(totals.entered.items()))
        yield measured(instruments.TASK_COMPUTE_SECONDS, keyed(totals.compute))
        yield measured(instruments.TASK_TRANSFER_SECONDS, keyed(transfer))
        yield measured(instruments.SCHEDULER_MEMORY, keyed(totals.size))

    def _changed(self) -> list[TaskPrefix]:
        """Prefixes whose tasks have come into a state since the last look: nothing else changes without that."""
        prefixes = list(self._scheduler.task_prefixes.values())
        # All of it in C: 5,000 prefixes take less than a millisecond.
        now = list(map(sum, map(dict.values, map(_counts, prefixes))))
        if prefixes[: len(self._known)] != self._known:  # They were cleared where it was not seen.
            self._totals.forget()
            self._seen = []
        known = len(self._seen)
        changed = list(compress(prefixes, map(ne, now, self._seen))) + prefixes[known:]
        self._known, self._seen = prefixes, now
        return changed

    def _forget_prefixes(self) -> None:
        self._totals.update(map(_read, self._changed()))
        self._totals.forget()
        self._known, self._seen = [], []

    # -- extensions ---------------------------------------------------------------------------------------------
    def _stealing(self) -> Iterator[Measured]:
        stealing = self._scheduler.extensions.get("stealing")
        if stealing is None:
            return
        multipliers = [str(multiplier) for multiplier in stealing.cost_multipliers]
        for instrument, name in (
            (instruments.STEALING_REQUESTS, "request_count_total"),
            (instruments.STEALING_COST, "request_cost_total"),
        ):
            values = stealing.metrics[name]
            yield measured(instrument, {(of,): values.get(i, 0) for i, of in enumerate(multipliers)})

    def _leases(self) -> Iterator[Measured]:
        semaphores = self._scheduler.extensions.get("semaphores")
        if semaphores is None:
            return
        labels = self._read_semaphores()
        limits, pending = semaphores.max_leases, semaphores.metrics["pending"]
        for instrument, values in (
            (instruments.LEASE_LIMIT, limits),
            (instruments.LEASES, {name: len(semaphores.leases.get(name, ())) for name in limits}),
            (instruments.LEASES_PENDING, {name: pending.get(name, 0) for name in limits}),
        ):
            # One that is closed has none.
            sums = dict.fromkeys(self._acquired.totals, 0)
            for name, value in values.items():
                sums[labels[name]] += value
            yield measured(instrument, keyed(sums))
        yield measured(instruments.LEASES_ACQUIRED, keyed(self._acquired.totals))
        yield measured(instruments.LEASES_RELEASED, keyed(self._released.totals))
        waits = semaphores.metrics["average_pending_lease_time"]
        # An average of averages says nothing: of those that share a series there is none.
        own = {name: float(waits.get(name, 0.0)) for name in limits if labels[name] == name}
        yield measured(instruments.LEASE_WAIT, keyed(own))

    def _read_semaphores(self) -> dict[str, str]:
        """Bring the totals up to now; what each semaphore is shown as."""
        semaphores = self._scheduler.extensions["semaphores"]
        names = list(semaphores.max_leases)
        acquired, released = (
            {name: semaphores.metrics[metric].get(name, 0) for name in names}
            for metric in ("acquire_total", "release_total")
        )
        self._semaphores.choose(acquired)
        labels = {name: next(iter(self._semaphores.fold({(name,): 0}, 0)))[0] for name in names}
        self._acquired.update(acquired, labels)
        self._released.update(released, labels)
        return labels

    def _forget_semaphore(self, name: str | None = None, **kwargs: Any) -> None:
        self._read_semaphores()
        for rising in (self._acquired, self._released):
            rising.forget(str(name))


def _read(prefix: TaskPrefix) -> Prefix:
    durations = prefix._all_durations_us
    return Prefix(
        prefix.name,
        prefix.suspicious,
        durations.get("compute", 0),
        durations.get("transfer", 0),
        prefix.nbytes_total,
        _tasks_of(prefix.states),
        prefix.state_counts.copy(),
    )
