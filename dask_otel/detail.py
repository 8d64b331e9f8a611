"""In how much detail tasks are told: decided for a graph when it arrives, for a task when it is dispatched.

Rules
-----
1. Standard library only; no clock; random numbers are handed in.
2. What is forced is told as it is forced, whatever the budget; it uses it nevertheless.
3. A task is told in any case, or may turn out to be worth it, which its worker knows when it has ended. Nobody is told to be
   above a span that is not sent.
4. What is done for each dispatch costs the same, however many tasks and groups there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from dask_otel.parents import ACTIVITY, OFF, Keep
from dask_otel.records import Span
from dask_otel.rollup import Computation, Group
from dask_otel.settings import TraceBudget
from dask_otel.sums import RELATIVE_ERROR, total_on_wire
from dask_otel.trace_budget import GRAPHS, PHASES, SPANS_OF_A_TASK, Ledger, Ledgers, Plan, plan

#: What a worker may tell of one kind is so much more than its part of all: failures and stragglers come in lumps.
LUMPS = 2.0
#: Tasks of a computation after which it is known what one comes to.
KNOWN = 8


class Details:
    """The plans of one scheduler's graphs.

    Parameters
    ----------
    forced
        `parents.GROUP`, `TASK` or `ACTIVITY` where the detail of all graphs is given; ``None`` where it is chosen.
    draw
        Gives random numbers from 0 to 1, 1 excluded.
    """

    def __init__(self, budget: TraceBudget, forced: int | None, draw: Callable[[], float]) -> None:
        self.forced = forced
        self._ledgers = Ledgers(budget)
        self._draw = draw
        #: What a task with its activities comes to, by what was told lately.
        self._spans_of_a_task = SPANS_OF_A_TASK

    def use(self, budget: TraceBudget, forced: int | None) -> None:
        """Go on by other settings, with the traces that begin from now on."""
        self.forced = forced
        self._ledgers.budget = budget

    def ledger(self, trace_id: bytes, detail: int) -> Ledger:
        """That of a trace, or one that nobody else has where nothing is sent."""
        return self._ledgers.of(trace_id) if detail > OFF else Ledger(self._ledgers.budget)

    def begin(self, computation: Computation) -> None:
        """It has a span; how what no graph brings is told."""
        computation.ledger.use(1)
        if self.forced is not None and computation.detail > OFF:
            computation.plan = Plan(self.forced, forced=True)
            computation.follow(computation.plan)

    def plan(
        self,
        computation: Computation,
        sizes: Callable[[], Mapping[str, int]],
        forced: int | None = None,
        workers: int = 1,
    ) -> Plan:
        """How a graph is told with so many tasks in each group; ``forced`` is what the user asked for it."""
        forced = self.forced if forced is None else forced
        if computation.detail == OFF:
            return computation.plan
        if forced is not None:
            made = Plan(forced, forced=True)
        else:
            made = plan(computation.ledger, sizes(), self._spans_of_a_task)
            each = LUMPS / max(1, workers)
            keep = Keep(made.detail, math.ceil(made.failed * each), math.ceil(made.slow * each))
            made = made._replace(keep=keep)
        computation.follow(made)
        return made

    def certain(self, group: Group, again: bool) -> bool:
        """Whether a task that is dispatched now is told in any case; ``again`` says that it is not its first attempt."""
        made = group.plan
        if made.forced:
            return True
        computation = group.computation
        ledger = computation.ledger
        if ledger.full:
            group.keeps(None)
            return False
        share = group.share * computation.scale
        if share >= 1.0 or self._draw() < share:
            return True
        if again and ledger.retried < made.retried:
            ledger.retried += 1
            return True
        return False

    def recorded(self, group: Group, wire: list[object]) -> None:
        """A worker has told of attempts of a group."""
        spans, told = int(total_on_wire(wire, "spans")), int(total_on_wire(wire, "emitted"))
        computation = group.computation
        computation.use(spans, int(total_on_wire(wire, "bytes")))
        if group.plan.detail == ACTIVITY and told:
            computation.told_tasks += told
            computation.told_spans += spans
            self._spans_of_a_task += min(1.0, told / 100) * (spans / told - self._spans_of_a_task)
            if computation.told_tasks >= KNOWN:
                computation.scale = self._scale(computation)
        if group.keep is not None and group.sums.attempts >= group.next_look:
            group.next_look = 2 * group.sums.attempts
            group.keeps(group.keep._replace(slower=self._slow(group)))

    def _scale(self, computation: Computation) -> float:
        """By how much fewer of the tasks to come are told: they must find room with as many spans as they turn out to have."""
        if not computation.planned_of:
            return 1.0
        to_come = computation.pending * computation.planned_tasks / computation.planned_of
        needed = to_come * computation.told_spans / computation.told_tasks
        room = computation.planned + computation.ledger.left
        return min(1.0, room / needed) if needed else 1.0

    def _slow(self, group: Group) -> float:
        """Seconds that few of a group's attempts are going to exceed, by those that have ended."""
        expected = group.sums.attempts + group.pending
        few = max(1.0, group.plan.slow / max(1, len(group.plan.shares)))
        # The longest is slow, whatever the sketch says of it.
        return group.sums.quantile(1 - few / expected) * (1 - RELATIVE_ERROR) if few < expected else 0.0

    def loses(self, group: Group) -> bool:
        """Whether an attempt that died with its worker is told."""
        computation, made = group.computation, group.plan
        ledger = computation.ledger
        if computation.detail == OFF:
            return False
        if not made.forced and (ledger.full or (made.shares and ledger.lost >= made.lost)):
            return False
        ledger.lost += 1
        ledger.use(1)
        return True

    def of_graph(self, computation: Computation, spans: Iterable[Span], forced: bool) -> list[Span]:
        """Which of a graph's spans are told: the first graph's of a computation in any case, then fewer."""
        ledger = computation.ledger
        told = list(spans)
        if computation.submitted and not forced:
            if ledger.graphs >= PHASES * ledger.total:
                del told[1:]
            if ledger.graphs >= GRAPHS * ledger.total or not ledger.room:
                told.clear()
        computation.submitted += 1
        ledger.graphs += len(told)
        ledger.use(len(told))
        return told
