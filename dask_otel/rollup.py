"""Computations, graphs, tags and groups while they are open.

Rules
-----
1. Standard library only; no clock, no random.
2. A span's parent is known from the moment that its id is handed to anybody, and is sent.
3. What is not known is left out.
"""

from __future__ import annotations

from collections import defaultdict

from dask_otel.carried import Carried
from dask_otel.history import Runs
from dask_otel.parents import GROUP, OFF, Keep, Parent, pack
from dask_otel.records import (
    CLIENT,
    CONSUMER,
    INTERNAL,
    IS_REMOTE_KNOWN,
    PRODUCER,
    SERVER,
    Attributes,
    Link,
)
from dask_otel.sums import Sums
from dask_otel.trace_budget import Ledger, Plan

#: Attempts of a group after which one can be called slow.
FEW = 32


def kind_below(kind: int) -> int:
    """The kind of a computation's span below the client's span of this kind."""
    return {CLIENT: SERVER, PRODUCER: CONSUMER}.get(kind, INTERNAL)


class Computation:
    """What one client submitted under one parent context, until its last task is settled."""

    def __init__(
        self,
        parent: Parent,
        *,
        parent_id: bytes,
        kind: int,
        client: str,
        start: float,
        pair: tuple[str, Carried | None],
        ledger: Ledger,
        links: tuple[Link, ...] = (),
        attributes: Attributes = (),
        counted: bool = False,
    ) -> None:
        self.parent = parent
        self.parent_id = parent_id
        self.kind = kind
        self.client = client
        self.start = self.end = start
        self.pair = pair
        self.ledger = ledger
        #: How what no graph has brought is told.
        self.plan = Plan(parent.detail, forced=parent.detail == OFF)
        #: The least detail of a graph of it, and how many spans are set aside for it.
        self.shown = parent.detail
        self.planned = 0.0
        #: How many tasks they are for, and of how many.
        self.planned_tasks = 0.0
        self.planned_of = 0
        #: Its graphs; tasks that were told with their activities, and the spans that they came to.
        self.submitted = self.told_tasks = self.told_spans = 0
        #: What the shares of its tasks are multiplied with, now that it is known what a task comes to.
        self.scale = 1.0
        self.links = links
        self.attributes = attributes
        self.dask_id = ""
        #: File and line of the calling code, where Dask captured it.
        self.code: tuple[str, int] | None = None
        self.pending = self.graphs = self.tasks = self.erred = self.cancelled = 0
        #: Whether a client restarted the cluster while tasks of it were active.
        self.restarted = False
        self.groups: dict[tuple[str, str], Group] = {}
        self.tags: dict[str, Tag] = {}
        self.prefixes: dict[str, None] = {}
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.wasted = 0.0
        #: Seconds of garbage collections on the scheduler before it began and until it was last settled, on workers.
        self.paused_before = self.paused_until = self.paused_there = 0.0
        self.emitted = self.dropped = self.rolled_up = 0
        #: Whether workers tell how its attempts ended.
        self.told = counted or parent.detail > OFF
        #: Whether anything travels with its tasks.
        self.travels = self.told or bool(parent.trace_id or parent.baggage)

    @property
    def span_id(self) -> bytes:
        return self.parent.computation_id

    @property
    def detail(self) -> int:
        return self.parent.detail

    @property
    def settled(self) -> bool:
        """Whether none of its tasks is active and none of its graphs being worked in."""
        return not self.pending and not self.graphs

    @property
    def paused(self) -> float:
        """Seconds of garbage collections, on the scheduler and on workers, that stopped it."""
        return self.paused_until - self.paused_before + self.paused_there

    @property
    def link(self) -> Link | None:
        """A link to this computation, if its span is sent."""
        if self.detail == OFF:
            return None
        return Link(self.parent.trace_id, self.span_id, self.parent.flags | IS_REMOTE_KNOWN)

    def above(self, group_id: bytes, peers: bool, detail: int, keep: Keep | None) -> Parent:
        """What a group's tasks must know; where nothing of ours is sent: the context that came, as it came."""
        parent = self.parent
        if parent.detail > OFF:
            return parent._replace(group_id=group_id, peers=peers, detail=detail, keep=keep)
        return parent._replace(
            trace_id=parent.trace_id or bytes(16),
            group_id=self.parent_id or parent.computation_id,
            computation_id=group_id,
            peers=peers,
            counted=self.told,
        )

    def follow(self, plan: Plan) -> None:
        """A graph of it is told so."""
        self.shown = min(self.shown, plan.level)
        self.planned += plan.spans
        self.planned_tasks += plan.spans / plan.spans_of_a_task
        self.planned_of += plan.tasks
        self.ledger.planned += plan.spans

    def use(self, spans: int, size: int) -> None:
        """Spans of its tasks were recorded: they are set aside no more."""
        self.ledger.use(spans, size)
        self.release(min(spans, self.planned))

    def release(self, spans: float) -> None:
        """What was set aside is free again."""
        self.planned -= spans
        self.ledger.planned -= spans

    def take(self, group: Group) -> None:
        """Add a told group's totals."""
        self.end = max(self.end, group.end)
        for outcome, n in group.outcomes().items():
            self.outcomes[outcome] += n
        self.wasted += group.sums.wasted
        self.paused_there += group.sums.paused
        self.emitted += group.sums.emitted
        self.dropped += group.sums.dropped
        self.rolled_up += max(0, group.sums.attempts - group.sums.emitted - group.sums.dropped)


class Graph:
    """One submitted graph while the scheduler works it in; ``metrics`` are Dask's own measures of that."""

    def __init__(self, computation: Computation, span_id: bytes, stimulus_id: str, start: float) -> None:
        self.computation = computation
        self.span_id = span_id
        self.stimulus_id = stimulus_id
        self.start = self.end = start
        self.metrics: dict[str, float] = {}
        #: The detail that the user asked for.
        self.forced: int | None = None
        self.error_type: str | None = None


class Tag:
    """One of the user's ``distributed.span`` within a computation."""

    def __init__(
        self,
        computation: Computation,
        above: Tag | None,
        tag_names: tuple[str, ...],
        dask_id: str,
        span_id: bytes,
        start: float,
    ) -> None:
        self.computation = computation
        self.above = above
        self.names = tag_names
        self.dask_id = dask_id
        self.span_id = span_id
        self.start = self.end = start


class Group:
    """A task group of a computation and tag: what is pending, what is expected of the workers, what has come."""

    def __init__(
        self, computation: Computation, tag: Tag | None, prefix: str, name: str, span_id: bytes, start: float
    ) -> None:
        self.computation = computation
        self.tag = tag
        self.prefix = prefix
        self.name = name
        self.span_id = span_id
        self.start = self.end = start
        self.pending = self.expected = self.upstream_failed = 0
        #: Outcomes that only the scheduler knows: of tasks at workers without dask-otel, of runs that go on.
        self.own: defaultdict[str, int] = defaultdict(int)
        self.sums = Sums()
        self.runs: Runs | None = None
        self.told = False
        #: How its tasks are told, the fraction of them that are in any case, and which of the others.
        self.plan = computation.plan
        self.share = 1.0
        self.keep: Keep | None = None
        #: Attempts after which it is looked again what is slow.
        self.next_look = FEW
        self._packed: dict[tuple[bool, int], bytes | list[object]] = {}

    @property
    def place(self) -> tuple[str, str]:
        """Where it stands in its computation."""
        return self.tag.dask_id if self.tag else "", self.name

    @property
    def tags(self) -> tuple[str, ...]:
        """Names of the user's spans that it is in, outermost first."""
        return self.tag.names if self.tag is not None else ()

    @property
    def complete(self) -> bool:
        """Whether the workers have answered for every dispatch that is over for the scheduler."""
        return self.sums.answers >= self.expected

    def follow(self, plan: Plan) -> None:
        """Its tasks are told so from now on."""
        self.plan = plan
        self.share = plan.shares.get(self.name, 1.0)
        self.keep = plan.keep
        self._packed.clear()

    def parent(self, peers: bool, certain: bool = True) -> Parent:
        """What a task of this group must know; ``certain`` says whether it is told in any case."""
        detail, keep = (self.plan.detail, None) if certain else (GROUP, self.keep)
        return self.computation.above(self.span_id, peers, detail, keep)

    def packed(self, peers: bool, certain: bool) -> bytes | list[object]:
        """What travels with the first attempt of each of this group's tasks."""
        found = self._packed.get((peers, certain))
        if found is None:
            found = self._packed[peers, certain] = pack(self.parent(peers, certain))
        return found

    def keeps(self, keep: Keep | None) -> None:
        """Which attempts are told that need not be, from now on."""
        if keep != self.keep:
            self.keep = keep
            self._packed.clear()

    def outcomes(self) -> dict[str, int]:
        """Attempts by outcome, the scheduler's own counts included."""
        totals = dict(self.sums.counts)
        for outcome, n in self.own.items():
            totals[outcome] = totals.get(outcome, 0) + n
        return totals
