"""The scheduler's trace model: which computation, tag and group a task belongs to, and when each has ended.

Rules
-----
1. Standard library only; no clock, no random, no distributed: moments (s since the epoch) and ids are handed in.
2. A task is counted while it is active (waiting, queued, no-worker, processing). A computation is settled when none
   of its tasks is active and none of its graphs is still being worked in; it is told when its groups are.
3. A group is told when the sums of every attempt that is known to have ended have come, or a second later.
4. What is told is forgotten: nothing here grows with the number of computations that were.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

from dask_otel import names, rollup
from dask_otel.carried import Carried, Decision
from dask_otel.parents import OFF, Parent, attempt_span_id, pack
from dask_otel.records import CLIENT, INTERNAL, PRODUCER, RANDOM, SAMPLED, Link, Span
from dask_otel.rollup import Computation, Graph, Group, Tag

#: How long (s) a group waits for its workers' sums.
PATIENCE = 1.0
#: Groups whose computation is remembered, so that a result computed again can point at it.
MAX_HISTORY = 1_000


class Flight(NamedTuple):
    """One dispatch of a task: to which worker, the scheduler's number of it, when (s)."""

    address: str
    run_id: int
    time: float


class Activated(NamedTuple):
    """A task that has become active.

    ``tags`` are names and ids of Dask's spans, outermost first; ``dependents`` gives the keys of the tasks that
    need it; ``run_id`` is that of its last dispatch.
    """

    key: Hashable
    stimulus_id: str
    prefix: str
    group: str
    tags: tuple[tuple[str, ...], tuple[str, ...]]
    dependents: Iterable[Hashable]
    run_id: int


class Computations:
    """All computations of one scheduler that are not told yet.

    Parameters
    ----------
    emit:
        Gets each span as it ends.
    new_trace_id, new_span_id:
        Give ids of 16 and 8 bytes.
    sample:
        Decides at the root of a trace, from its id and the computation's kind.
    detail:
        `parents.GROUP`, `TASK` or `ACTIVITY`; `OFF` passes contexts on and tells nothing.
    max_age:
        Seconds after which a computation is joined no more.
    """

    def __init__(
        self,
        *,
        emit: Callable[[Span], None],
        new_trace_id: Callable[[], bytes],
        new_span_id: Callable[[], bytes],
        sample: Callable[[bytes, int], Decision],
        detail: int,
        max_age: float,
    ) -> None:
        self._emit = emit
        self._new_trace_id = new_trace_id
        self._new_span_id = new_span_id
        self._sample = sample
        self.detail = detail
        self._max_age = max_age
        self._joinable: dict[tuple[str, Carried | None], Computation] = {}
        self._current: tuple[str, Computation] | None = None
        self._graphs: dict[str, Graph] = {}
        self._active: dict[Hashable, Group] = {}
        self._limbo: dict[Hashable, Group] = {}
        self._from_memory: set[Hashable] = set()
        self._flights: dict[Hashable, Flight] = {}
        self._attempts: dict[Hashable, tuple[int, bytes, str]] = {}
        self._touched: set[Computation] = set()
        self._open: dict[bytes, Group] = {}
        self._history: OrderedDict[str, tuple[bytes, bytes, int]] = OrderedDict()
        self.unsettled: set[Computation] = set()

    # -- graphs -----------------------------------------------------------------------------------------------
    def receive(self, stimulus_id: str, client: str, carried: Carried | None, operation: str, now: float) -> Graph:
        """A graph has arrived from ``client`` under the context ``carried``."""
        computation = self._join(client, carried, operation, now)
        computation.graphs += 1
        graph = Graph(computation, self._new_span_id(), stimulus_id, now)
        self._graphs[stimulus_id] = graph
        return graph

    def create(self, stimulus_id: str, dask_id: str = "", client: str = "", now: float = 0.0) -> None:
        """The graph's tasks exist; the transitions that follow with its stimulus are its own."""
        graph = self._graphs.get(stimulus_id)
        computation = graph.computation if graph else self._join(client, None, "", now)
        computation.dask_id = computation.dask_id or dask_id
        self._current = (stimulus_id, computation)

    def measure(self, stimulus_id: str, metrics: dict[str, float], error_type: str | None) -> None:
        """Dask's own measures of the graph's update have come, or that it failed."""
        if graph := self._graphs.get(stimulus_id):
            graph.metrics, graph.error_type = metrics, error_type

    def finish(self, graph: Graph, now: float) -> None:
        """The graph's handler has returned."""
        self._graphs.pop(graph.stimulus_id, None)
        computation = graph.computation
        computation.graphs -= 1
        graph.end = now
        computation.end = max(computation.end, now)
        self._touched.add(computation)
        if computation.detail > OFF:
            for span in rollup.graph_spans(graph, self._new_span_id):
                self._emit(span)

    def _join(self, client: str, carried: Carried | None, operation: str, now: float) -> Computation:
        pair = (client, carried)
        found = self._joinable.get(pair)
        if found is not None and now - found.start <= self._max_age:
            return found
        link = found.link if found is not None else None
        computation = self._begin(client, carried, operation, now, (link,) if link else ())
        self._joinable[pair] = computation
        return computation

    def _begin(
        self, client: str, carried: Carried | None, operation: str, now: float, links: tuple[Link, ...] = ()
    ) -> Computation:
        kind = {names.OP_COMPUTE: CLIENT, names.OP_GATHER: CLIENT, "": INTERNAL}.get(operation, PRODUCER)
        trace_id, parent_id, flags, trace_state, baggage = carried or Carried(b"", b"", 0, "", "")
        detail, attributes = self.detail, ()
        if not trace_id and detail > OFF:
            trace_id = self._new_trace_id()
            sampled, attributes, trace_state = self._sample(trace_id, rollup.kind_below(kind))
            flags = (SAMPLED if sampled else 0) | RANDOM
        if not flags & SAMPLED:
            detail = OFF
        computation = Computation(
            Parent(trace_id, parent_id, self._new_span_id(), flags, detail, False, trace_state, baggage),
            parent_id=parent_id,
            kind=rollup.kind_below(kind),
            client=client,
            start=now,
            links=links,
            attributes=attributes,
            pair=(client, carried),
        )
        self.unsettled.add(computation)
        return computation

    # -- tasks ------------------------------------------------------------------------------------------------
    def activate(self, task: Activated, now: Callable[[], float]) -> None:
        """A task must run, or run again."""
        key = task.key
        again = self._limbo.pop(key, None)
        current = self._current
        if current is not None and current[0] == task.stimulus_id:
            computation = current[1]
        elif again is not None:
            computation = again.computation
        else:
            computation = self._owner(task, now)
        place = again if again is not None and again.computation is computation and not again.told else None
        if place is None:
            place = self._group(computation, task, now)
        if again is None:
            computation.tasks += 1
        if key in self._from_memory:
            self._from_memory.discard(key)
            previous = attempt_span_id(computation.span_id, task.run_id) if task.run_id > 0 else b""
            self._attempts[key] = (1, previous, names.RECOMPUTED)
        self._active[key] = place
        place.pending += 1
        computation.pending += 1

    def _owner(self, task: Activated, now: Callable[[], float]) -> Computation:
        """Whose a task is that nobody submitted: it runs again, for a task that needs it or for a client."""
        for dependent in task.dependents:
            found = self._active.get(dependent) or self._limbo.get(dependent)
            if found is not None:
                return found.computation
        old = self._history.get(task.group)
        return self._begin("", None, "", now(), (Link(*old),) if old else ())

    def _group(self, computation: Computation, task: Activated, now: Callable[[], float]) -> Group:
        tag_names, tag_ids = task.tags
        place = (tag_ids[-1] if tag_ids else "", task.group)
        found = computation.groups.get(place)
        if found is None:
            moment = now()
            tag = self._tag(computation, tag_names, tag_ids, moment) if tag_ids else None
            found = Group(computation, tag, task.prefix, task.group, self._new_span_id(), moment)
            computation.groups[place] = found
            computation.prefixes[task.prefix] = None
            self._open[found.span_id] = found
        return found

    def _tag(
        self, computation: Computation, tag_names: tuple[str, ...], ids: tuple[str, ...], now: float
    ) -> Tag:
        tag = computation.tags.get(ids[-1])
        if tag is None:
            above = self._tag(computation, tag_names[:-1], ids[:-1], now) if len(ids) > 1 else None
            tag = Tag(computation, above, tag_names, ids[-1], self._new_span_id(), now)
            computation.tags[ids[-1]] = tag
        return tag

    def deactivate(
        self, key: Hashable, start: str, finish: str, now: Callable[[], float]
    ) -> tuple[Group | None, Flight | None]:
        """A task is in memory, erred, released or forgotten.

        Returns its group and the dispatch that ended with it, if there was one.
        """
        group = self._active.pop(key, None)
        if group is None:
            return None, None
        computation = group.computation
        group.pending -= 1
        computation.pending -= 1
        if finish == "released":
            self._limbo[key] = group
        elif finish == "erred":
            computation.erred += 1
            if start != "processing":
                group.upstream_failed += 1
        if not group.pending:
            group.end = now()
            self._touched.add(computation)
        return group, self._flights.pop(key, None)

    def ended(self, key: Hashable, group: Group, flight: Flight, finish: str, told: bool) -> None:
        """The attempt of ``flight`` has ended; ``told`` says whether its worker will tell of it."""
        if told:
            group.expected += 1
        else:
            group.own[names.SUCCESS if finish == "memory" else names.FAILED] += 1
        if finish == "released":
            self._attempted(key, group, flight)
        else:
            self._attempts.pop(key, None)

    def _attempted(self, key: Hashable, group: Group, flight: Flight) -> None:
        count = self._attempts[key][0] if key in self._attempts else 0
        self._attempts[key] = (count + 1, attempt_span_id(group.computation.span_id, flight.run_id), "")

    def forget_result(self, key: Hashable) -> None:
        """A result that was in memory is there no more; if its task runs again in this tick, that is why."""
        self._from_memory.add(key)

    # -- attempts ---------------------------------------------------------------------------------------------
    def dispatch(self, key: Hashable, run_id: int, address: str, now: float, peers: bool) -> bytes | list[object] | None:
        """A task is sent to a worker; what is returned travels with it."""
        group = self._active.get(key)
        if group is None:
            return None
        self._flights[key] = Flight(address, run_id, now)
        computation = group.computation
        if computation.detail == OFF:
            return computation.packed
        if key in self._attempts:
            count, previous, cause = self._attempts[key]
            return pack(group.parent(peers), count + 1, previous, cause)
        return group.packed(peers)

    def flights(self, address: str) -> Iterator[tuple[Hashable, Flight]]:
        """What is at a worker: keys and their dispatches."""
        return ((key, flight) for key, flight in self._flights.items() if flight.address == address)

    def lose(
        self,
        key: Hashable,
        group: Group,
        flight: Flight,
        start: float,
        now: float,
        *,
        assumed: bool,
        error_type: str,
        worker: tuple[str, str],
    ) -> None:
        """The attempt of ``flight`` ended with its worker ``(address, name)``."""
        count, previous, _ = self._attempts.get(key, (0, b"", ""))
        group.own[names.LOST] += 1
        group.own_seconds[names.LOST] += max(0.0, now - start)
        group.computation.emitted += 1
        self._attempted(key, group, flight)
        if group.computation.detail > OFF:
            span_id = self._attempts[key][1]
            self._emit(
                rollup.lost_span(
                    group, str(key), span_id, count + 1, previous, start, now, assumed, error_type, worker
                )
            )

    def add(self, span_id: bytes, wire: list[object]) -> bool:
        """Sums of a group have come from a worker; ``False`` if it was told already."""
        group = self._open.get(span_id)
        if group is None:
            return False
        group.sums.merge(wire)
        if not group.pending:
            self._touched.add(group.computation)
        return True

    # -- ends -------------------------------------------------------------------------------------------------
    @property
    def touched(self) -> bool:
        """Whether `check` has something to look at."""
        return bool(self._touched or self._limbo or self._from_memory)

    @property
    def ending(self) -> bool:
        """Whether a computation is settled and not told."""
        return any(not computation.pending and not computation.graphs for computation in self.unsettled)

    def check(self, now: float) -> bool:
        """Tell what has ended; to be called after the tick in which something did.

        Returns whether sums are still waited for: call `check` again within `PATIENCE`.
        """
        self._limbo.clear()
        self._from_memory.clear()
        waiting = False
        for computation in list(self._touched):
            if self._tell(computation, now):
                waiting = True
            else:
                self._touched.discard(computation)
        return waiting

    def _tell(self, computation: Computation, now: float) -> bool:
        waiting = False
        for place, group in list(computation.groups.items()):
            if group.pending:
                continue
            if group.complete or now - group.end >= PATIENCE or computation.detail == OFF:
                del computation.groups[place]
                self._tell_group(group)
            else:
                waiting = True
        if not computation.pending and not computation.graphs:
            if self._joinable.get(computation.pair) is computation:
                del self._joinable[computation.pair]
            if not computation.groups:
                self._tell_computation(computation, names.FINISHED)
        return waiting

    def _tell_group(self, group: Group) -> None:
        group.told = True
        self._open.pop(group.span_id, None)
        computation = group.computation
        computation.take(group)
        computation.end = max(computation.end, group.end)
        self._history[group.name] = (computation.parent.trace_id, computation.span_id, computation.parent.flags)
        self._history.move_to_end(group.name)
        if len(self._history) > MAX_HISTORY:
            self._history.popitem(last=False)
        if computation.detail > OFF:
            self._emit(rollup.group_span(group))

    def _tell_computation(self, computation: Computation, state: str) -> None:
        if computation not in self.unsettled:
            return
        self.unsettled.discard(computation)
        if computation.detail == OFF:
            return
        for tag in reversed(computation.tags.values()):
            self._emit(rollup.tag_span(tag))
        self._emit(rollup.computation_span(computation, state))

    def stop(self, now: float, state: str) -> None:
        """Tell everything that is open: the scheduler restarts or closes."""
        self._active.clear()
        self._limbo.clear()
        self._flights.clear()
        self._attempts.clear()
        self._joinable.clear()
        self._current = None
        for computation in list(self.unsettled):
            for group in list(computation.groups.values()):
                if group.pending:
                    group.end = now
                self._tell_group(group)
            computation.groups.clear()
            computation.pending = 0
            computation.end = max(computation.end, now) if computation.end == computation.start else computation.end
            if computation.graphs == 0 or state == names.CLOSED:
                self._tell_computation(computation, state)
