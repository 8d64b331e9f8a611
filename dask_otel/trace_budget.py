"""How much of a trace is sent, and what of a graph that is larger than that.

Rules
-----
1. Standard library only; no clock, no random.
2. A budget is a trace's: all computations of one trace draw on it, one after the other or at once. What is recorded is
   counted as workers tell it; what is planned and not recorded yet is set aside until then.
3. A graph is told in as much detail as fits: whole tasks with their activities, else tasks, else whole tasks of a share of
   each group. Small groups are shown first: the share of a large one is what they leave.
4. Where tasks turn out to have more spans than was thought, the share of what is still to come falls. Where the budget is
   used up, no task of that trace is told any more.
5. Those that failed, that were tried again, that were lost and that took the longest have parts of the budget of their own,
   which nothing else uses up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from dask_otel.parents import ACTIVITY, GROUP, TASK, Keep
from dask_otel.settings import TraceBudget

#: Traces whose use is remembered.
MAX_TRACES = 1_000
#: Spans of a task with its activities and transfers, and bytes of one, until something better is known.
SPANS_OF_A_TASK = 5.0
BYTES_OF_A_SPAN = 300.0
#: Spans of a task without activities: its transfers come with it.
SPANS_OF_A_BARE_TASK = 2.0
#: Parts of what a trace has left, for a graph that is too large for it; the rest is for those that come after it.
SAMPLED, SLOW, FAILED, RETRIED, LOST = 0.5, 0.12, 0.1, 0.04, 0.04
#: The part of the whole that is for nothing but tasks that turn out to be worth it: the last of a loop that submits, too.
RESERVED = 0.15
#: Parts of the whole for the spans of graphs, with and without their phases: a loop that submits has very many.
PHASES, GRAPHS = 0.1, 0.2


class Ledger:
    """What one trace has used of its budget; spans, and bytes in the spans that they come to.

    Examples
    --------
    >>> ledger = Ledger(TraceBudget(spans=100, size=60_000))
    >>> ledger.use(10)
    >>> ledger.left, ledger.full
    (90.0, False)
    >>> ledger.use(10, 57_000)
    >>> ledger.left, ledger.full
    (0.0, True)
    """

    __slots__ = ("_budget", "bytes", "full", "graphs", "lost", "planned", "retried", "spans")

    def __init__(self, budget: TraceBudget) -> None:
        self._budget = budget
        self.spans = self.bytes = 0
        #: Spans that are set aside.
        self.planned = 0.0
        #: Spans of graphs, and attempts that were lost or tried again and are told.
        self.graphs = self.lost = self.retried = 0
        self.full = False

    @property
    def total(self) -> float:
        """Spans that the whole budget comes to."""
        return min(self._budget.spans, self._budget.size / self._span)

    @property
    def left(self) -> float:
        """Spans that nobody has used and none are set aside for."""
        left = min(self._budget.spans - self.spans, (self._budget.size - self.bytes) / self._span)
        return max(0.0, left - self.planned)

    @property
    def room(self) -> float:
        """Those of them that are not for tasks that turn out to be worth it."""
        return max(0.0, self.left - RESERVED * self.total)

    @property
    def _span(self) -> float:
        """Bytes of a span, by those that were recorded: a few say little."""
        return (self.bytes + 100 * BYTES_OF_A_SPAN) / (self.spans + 100)

    def use(self, spans: int, size: int = 0) -> None:
        """They were recorded; ``size`` is theirs in bytes, if it is known."""
        self.spans += spans
        self.bytes += size or int(spans * BYTES_OF_A_SPAN)
        self.full = self.spans >= self._budget.spans or self.bytes >= self._budget.size


class Ledgers:
    """Those of the traces that were used last.

    Examples
    --------
    >>> ledgers = Ledgers(TraceBudget(), limit=1)
    >>> ledgers.of(b"a") is ledgers.of(b"a"), len(ledgers)
    (True, 1)
    """

    def __init__(self, budget: TraceBudget, limit: int | None = None) -> None:
        self.budget = budget
        self._limit = limit or MAX_TRACES
        self._ledgers: OrderedDict[bytes, Ledger] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ledgers)

    def of(self, trace_id: bytes) -> Ledger:
        """A trace's, which begins anew where it was forgotten."""
        found = self._ledgers.get(trace_id)
        if found is None:
            found = self._ledgers[trace_id] = Ledger(self.budget)
            if len(self._ledgers) > self._limit:
                self._ledgers.popitem(last=False)
        else:
            self._ledgers.move_to_end(trace_id)
        return found


class Plan(NamedTuple):
    """How the tasks of one graph are told.

    Attributes
    ----------
    detail
        That of the tasks that are told.
    shares
        The fraction of them by group; of groups that are not there all are told.
    spans, spans_of_a_task
        How many spans of tasks are set aside, and how many are thought to be one's.
    tasks
        How many there are.
    slow, failed, retried, lost
        Tasks of these kinds that may be told beside the shares.
    keep
        Which of those that are not in the shares are told.
    forced
        Whether all are told, whatever the budget.
    """

    detail: int
    shares: Mapping[str, float] = {}
    spans: float = 0.0
    spans_of_a_task: float = 1.0
    slow: int = 0
    failed: int = 0
    retried: int = 0
    lost: int = 0
    tasks: int = 0
    keep: Keep | None = None
    forced: bool = False

    @property
    def level(self) -> int:
        """The detail that all of the graph has."""
        return GROUP if self.shares else self.detail


def plan(ledger: Ledger, sizes: Mapping[str, int], spans_of_a_task: float) -> Plan:
    """What is told of a graph with so many tasks in each group.

    Examples
    --------
    >>> ledger = Ledger(TraceBudget(spans=1_000, size=1_000_000))
    >>> plan(ledger, {"load": 100}, 5.0).detail == ACTIVITY
    True
    >>> plan(ledger, {"load": 400}, 5.0).detail == TASK
    True
    >>> large = plan(ledger, {"load": 20_000, "sum": 10}, 5.0)
    >>> large.detail == ACTIVITY, large.level == GROUP, large.shares
    (True, True, {'load': 0.0045, 'sum': 1.0})
    >>> large.slow, large.failed, large.retried, large.lost
    (24, 20, 8, 8)
    """
    left, tasks = ledger.left, sum(sizes.values())
    whole = left / spans_of_a_task
    slow, failed, retried, lost = (int(whole * part) for part in (SLOW, FAILED, RETRIED, LOST))
    made = Plan(ACTIVITY, {}, 0, spans_of_a_task, slow, failed, retried, lost, tasks)
    room = ledger.room
    if tasks * spans_of_a_task <= room:
        return made._replace(spans=tasks * spans_of_a_task)
    if tasks * SPANS_OF_A_BARE_TASK <= room:
        return made._replace(
            detail=TASK, spans=tasks * SPANS_OF_A_BARE_TASK, spans_of_a_task=SPANS_OF_A_BARE_TASK
        )
    sample = min(room, left * SAMPLED) / spans_of_a_task
    return made._replace(shares=_shares(sizes, sample), spans=min(sample, tasks) * spans_of_a_task)


def _shares(sizes: Mapping[str, int], tasks: float) -> dict[str, float]:
    """The fraction of each group for which all of them have so many tasks: as equal as their sizes allow."""
    shares: dict[str, float] = {}
    for groups_left, (name, size) in zip(
        range(len(sizes), 0, -1), sorted(sizes.items(), key=lambda item: item[1])
    ):
        shown = min(float(size), tasks / groups_left)
        tasks -= shown
        shares[name] = shown / size if size else 1.0
    return dict(sorted(shares.items()))
