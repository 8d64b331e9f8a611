"""The scheduler's trace model: which computation, tag and group a task belongs to.

Rules
-----
1. Standard library only; no clock, no random, no distributed: moments (s since the epoch) and ids are handed in.
2. A task is counted while it is active (waiting, queued, no-worker, processing); what has ended is told by
   `endings`.
3. What is told is forgotten: nothing here grows with the number of computations that were.
4. A task costs what its key and one `Flight` in a dictionary do, at most 150 bytes: hence no second dictionary of tasks.
5. Of a computation that is neither traced nor counted nothing is kept but whose its tasks are, and where they were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple, final

from dask_otel import names, rollup, summary
from dask_otel.attempt_totals import AttemptTotals
from dask_otel.carried import Carried, Decision
from dask_otel.chains import Chains, Past
from dask_otel.detail import Details
from dask_otel.endings import Endings
from dask_otel.history import History, Runs
from dask_otel.parents import OFF, Parent, attempt_span_id, pack
from dask_otel.records import CLIENT, INTERNAL, PRODUCER, RANDOM, SAMPLED, Attributes, Link, Span
from dask_otel.rollup import Computation, Graph, Group, Tag
from dask_otel.settings import TraceBudget
from dask_otel.trace_budget import Plan

#: Groups, and tasks that failed or needed several attempts, that are remembered, so that a task which runs again
#: long after can point at its last attempt.
MAX_HISTORY = 1_000


@final
class Flight:
    """One dispatch of a group's task: to which worker, the scheduler's number of it, when (s)."""

    __slots__ = ("address", "group", "run_id", "time")

    def __init__(self, group: Group, address: str, run_id: int, time: float) -> None:
        self.group = group
        self.address = address
        self.run_id = run_id
        self.time = time


class Activated(NamedTuple):
    """A task that has become active.

    ``tags`` are names and ids of Dask's spans, outermost first; ``dependents`` and ``dependencies`` give the keys of
    the tasks that need it and that it needs; ``run_id`` is that of its last dispatch, ``None`` if there was none;
    ``asked`` says that a client wants it tried again after it failed.
    """

    key: Hashable
    stimulus_id: str
    prefix: str
    group: str
    tags: tuple[tuple[str, ...], tuple[str, ...]]
    dependents: Iterable[Hashable]
    dependencies: Iterable[Hashable]
    run_id: int | None
    asked: bool


class Computations:
    """All computations of one scheduler that are not told yet.

    Parameters
    ----------
    emit:
        Gets each span as it ends.
    emit_lost:
        Gets the span of each attempt that died with its worker, beside that worker's address.
    new_trace_id, new_span_id:
        Give ids of 16 and 8 bytes.
    sample:
        Decides at the root of a trace, from its id and the computation's kind.
    detail:
        `parents.GROUP`, `TASK` or `ACTIVITY`; `OFF` passes contexts on and tells nothing.
    details:
        Says how much of a graph is told; as much as ``detail`` where nobody does.
    max_age:
        Seconds after which a computation is joined no more.
    paused:
        Gives the seconds that the process has stood still for garbage collections up to now.
    """

    def __init__(
        self,
        *,
        emit: Callable[[Span], object],
        emit_lost: Callable[[str, Span], object],
        new_trace_id: Callable[[], bytes],
        new_span_id: Callable[[], bytes],
        sample: Callable[[bytes, int], Decision],
        detail: int,
        max_age: float,
        paused: Callable[[], float] = lambda: 0.0,
        details: Details | None = None,
    ) -> None:
        self._emit = emit
        self._emit_lost = emit_lost
        self._new_trace_id = new_trace_id
        self._new_span_id = new_span_id
        self._sample = sample
        self.detail = detail
        self.max_age = max_age
        self._paused = paused
        self.details = details or Details(TraceBudget(), detail, lambda: 0.0)
        self._joinable: dict[tuple[str, Carried | None], Computation] = {}
        self._current: tuple[str, Computation, Plan] | None = None
        self._graphs: dict[str, Graph] = {}
        #: By key a task's group, or its flight while it is at a worker.
        self._active: dict[Hashable, Group | Flight] = {}
        #: How many there were at most since `_active` was made.
        self._peak = 0
        self._limbo: dict[Hashable, Group] = {}
        self._blocked: set[Hashable] = set()
        self._chains = Chains(MAX_HISTORY)
        #: Attempts of all computations, for metrics.
        self.totals = AttemptTotals()
        self._endings = Endings(emit, self._part, self.totals)
        self._rerun_stimulus = ""
        self._reruns: dict[bytes, Computation] = {}
        self._history = History(MAX_HISTORY)
        #: What is not told yet, by its span's id.
        self.unsettled = self._endings.unsettled
        #: Addresses of the workers that tell of their attempts.
        self.tellers: Collection[str] = ()
        #: Attempts of traces that are not sampled.
        self.sampled_out = 0

    @property
    def rolled_up(self) -> int:
        """Attempts of traced computations that are told by their groups only; those of groups that are told."""
        return self._endings.rolled_up

    # -- graphs -----------------------------------------------------------------------------------------------
    def receive(
        self, stimulus_id: str, client: str, carried: Carried | None, operation: str, now: float
    ) -> Graph:
        """A graph has arrived from ``client`` under the context ``carried``."""
        computation = self._join(client, carried, operation, now)
        computation.graphs += 1
        graph = Graph(computation, self._new_span_id(), stimulus_id, now)
        self._graphs[stimulus_id] = graph
        return graph

    def create(
        self,
        stimulus_id: str,
        dask_id: str = "",
        client: str = "",
        now: float = 0.0,
        sizes: Callable[[], Mapping[str, int]] = dict,
        forced: int | None = None,
    ) -> None:
        """The graph's tasks exist, ``sizes`` of them by group; the transitions that follow with its stimulus are its own.

        ``forced`` is the detail that an annotation of some of its tasks asks for, if the graph's own does not.
        """
        graph = self._graphs.get(stimulus_id)
        computation = graph.computation if graph else self._join(client, None, "", now)
        computation.dask_id = computation.dask_id or dask_id
        if graph is not None:
            graph.forced = forced = forced if graph.forced is None else graph.forced
        plan = self.details.plan(computation, sizes, forced, len(self.tellers))
        self._current = (stimulus_id, computation, plan)

    def measure(self, stimulus_id: str, metrics: dict[str, float], error_type: str | None) -> None:
        """Dask's own measures of the graph's update have come, or that it failed."""
        if graph := self._graphs.get(stimulus_id):
            graph.metrics, graph.error_type = metrics, error_type

    def finish(self, graph: Graph, now: float) -> None:
        """The graph's handler has returned."""
        self._graphs.pop(graph.stimulus_id, None)
        if self._current is not None and self._current[0] == graph.stimulus_id:
            self._current = None
        computation = graph.computation
        computation.graphs -= 1
        graph.end = now
        computation.end = max(computation.end, now)
        computation.paused_until = self._paused()
        self._endings.touch(computation)
        if computation.detail > OFF:
            forced = self.details.forced is not None or graph.forced is not None
            spans = summary.graph_spans(graph, self._new_span_id)
            for span in self.details.of_graph(computation, spans, forced):
                self._emit(span)

    def _join(self, client: str, carried: Carried | None, operation: str, now: float) -> Computation:
        pair = (client, carried)
        found = self._joinable.get(pair)
        if found is not None and now - found.start <= self.max_age:
            return found
        link = found.link if found is not None else None
        computation = self._begin(client, carried, operation, now, (link,) if link else ())
        self._joinable[pair] = computation
        return computation

    def _begin(
        self,
        client: str,
        carried: Carried | None,
        operation: str,
        now: float,
        links: tuple[Link, ...] = (),
        sampled: bool = True,
    ) -> Computation:
        kind = {names.OP_COMPUTE: CLIENT, names.OP_GATHER: CLIENT, "": INTERNAL}.get(operation, PRODUCER)
        trace_id, parent_id, flags, trace_state, baggage = carried or Carried(b"", b"", 0, "", "")
        detail = self.detail
        attributes: Attributes = ()
        if not trace_id and detail > OFF and sampled:
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
            ledger=self.details.ledger(trace_id, detail),
            counted=self.totals.on,
        )
        computation.paused_before = computation.paused_until = self._paused()
        self.details.begin(computation)
        self.unsettled[computation.span_id] = computation
        return computation

    # -- tasks ------------------------------------------------------------------------------------------------
    def activate(self, task: Activated, now: Callable[[], float]) -> None:
        """A task must run, or run again."""
        key = task.key
        again = self._limbo.pop(key, None)
        current = self._current
        if current is not None and current[0] == task.stimulus_id:
            computation = current[1]
            known = again is not None and again.computation is computation
        elif again is not None:
            computation, known = again.computation, True
        else:
            computation, known = self._rerun(task, now)
        if again is not None and not known:
            self._give_up(key, again)
        place = (
            again if again is not None and known and not again.told else self._group(computation, task, now)
        )
        if current is not None and computation is current[1] and place.plan is not current[2]:
            place.follow(current[2])
        computation.tasks += not known
        self._active[key] = place
        if not place.pending:
            self._endings.resume(place)
        place.pending += 1
        computation.pending += 1

    def _rerun(self, task: Activated, now: Callable[[], float]) -> tuple[Computation, bool]:
        """Whose a task is that no graph brought: its result was lost, or a client wants it tried again.

        Returns the computation, and whether it has counted the task already.
        """
        old = self._history.find(task.group, task.run_id)
        computation = self._owner(task, old, now)
        known = old is not None and old.span_id == computation.span_id
        if task.run_id is not None and computation.told:
            self._continue(task, task.run_id, old)
        return computation, known

    def _owner(self, task: Activated, old: Runs | None, now: Callable[[], float]) -> Computation:
        needed_by = self._first_active(task.dependents)
        if needed_by is not None:
            return needed_by
        if old is not None and not task.asked and old.span_id in self.unsettled:
            return self.unsettled[old.span_id]
        if task.run_id is None:
            needs = self._first_active(task.dependencies)
            if needs is not None:
                return needs
        if self._rerun_stimulus != task.stimulus_id:
            self._rerun_stimulus = task.stimulus_id
            self._reruns.clear()
        place = old.span_id if old is not None else b""
        if place not in self._reruns:
            self._reruns[place] = self._begin_again(old, now())
        return self._reruns[place]

    def _begin_again(self, old: Runs | None, now: float) -> Computation:
        """A computation of what ran in another that is told; it is not sent where that one was not."""
        if old is None:
            return self._begin("", None, "", now)
        links = (old.link,) if old.link is not None else ()
        return self._begin(old.client, None, "", now, links, sampled=bool(links))

    def _first_active(self, keys: Iterable[Hashable]) -> Computation | None:
        for key in keys:
            found = self._active.get(key) or self._limbo.get(key)
            if found is not None:
                return (found.group if type(found) is Flight else found).computation
        return None

    def _continue(self, task: Activated, run_id: int, old: Runs | None) -> None:
        """The next attempt of a task is not its first, whoever has it run."""
        cause = "" if task.asked else names.RECOMPUTED
        if self._chains.resume(task.key, run_id, cause) or not cause:
            return
        link = old.link if old is not None else None
        previous = link.trace_id + attempt_span_id(link.span_id, run_id) if link is not None else b""
        self._chains.begin(task.key, Past(1, previous, cause))

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
            self._endings.open(found)
            computation.ledger.use(1)
        return found

    def _tag(
        self, computation: Computation, tag_names: tuple[str, ...], ids: tuple[str, ...], now: float
    ) -> Tag:
        tag = computation.tags.get(ids[-1])
        if tag is None:
            above = self._tag(computation, tag_names[:-1], ids[:-1], now) if len(ids) > 1 else None
            tag = Tag(computation, above, tag_names, ids[-1], self._new_span_id(), now)
            computation.tags[ids[-1]] = tag
            computation.ledger.use(1)
        return tag

    def deactivate(
        self, key: Hashable, start: str, finish: str, now: Callable[[], float]
    ) -> tuple[Group | None, Flight | None]:
        """A task is in memory, erred, released or forgotten.

        Returns its group and the dispatch that ended with it, if there was one.
        """
        found = self._active.pop(key, None)
        if found is None:
            return None, None
        group, flight = (found.group, found) if type(found) is Flight else (found, None)
        computation = group.computation
        group.pending -= 1
        computation.pending -= 1
        if finish == "released":
            self._limbo[key] = group
        elif finish == "erred":
            computation.erred += 1
        if not group.pending:
            computation.paused_until = self._paused()
            self._endings.idle(group, now())
        return group, flight

    def block(self, task: Activated, now: Callable[[], float]) -> None:
        """A task that was just released, or came with a graph, will not run: one that it needs has failed."""
        if task.key in self._blocked:
            return
        group = self._limbo.pop(task.key, None)
        if group is None:
            if self._current is None or self._current[0] != task.stimulus_id:
                return
            group = self._group(self._current[1], task, now)
            group.computation.tasks += 1
        self._blocked.add(task.key)
        self._chains.forget(task.key)
        group.upstream_failed += 1
        group.computation.erred += 1
        self._endings.touch(group.computation)

    def ended(self, key: Hashable, group: Group, flight: Flight, finish: str, ran: bool) -> None:
        """The dispatch ``flight`` is over at a worker that is alive; ``ran`` says that it surely came to an attempt."""
        if not group.computation.told:
            return
        told = flight.address in self.tellers
        if group.computation.detail == OFF and self.detail > OFF and (ran or finish != "released"):
            self.sampled_out += 1
        if told:
            group.expected += 1
        elif ran:
            outcome = names.SUCCESS if finish == "memory" else names.FAILED
            group.own[outcome] += 1
            self.totals.untold(group.prefix, outcome, group.tags)
        if finish == "released":
            if ran:
                self._attempted(key, group, flight, told)
        elif told and (finish == "erred" or key in self._chains):
            self._attempted(key, group, flight)
            self._chains.end(key, flight.run_id, group.computation.parent.trace_id)
        else:
            self._chains.forget(key)

    def _attempted(self, key: Hashable, group: Group, flight: Flight, told: bool = True) -> None:
        shown = told and group.computation.detail > OFF
        self._chains.attempted(
            key, attempt_span_id(group.computation.span_id, flight.run_id) if shown else b""
        )

    def _give_up(self, key: Hashable, group: Group) -> None:
        """A task was released before it had a result, and is not needed any more."""
        group.computation.cancelled += 1
        self._chains.forget(key)

    # -- attempts ---------------------------------------------------------------------------------------------
    def dispatch(
        self, key: Hashable, run_id: int, address: str, now: float, peers: bool
    ) -> bytes | list[object] | None:
        """A task is sent to a worker; what is returned travels with it."""
        found = self._active.get(key)
        if found is None:
            return None
        if type(found) is Flight:
            group = found.group
            if found.address in self.tellers:
                group.expected += 1  # Stolen: its worker says that it never ran.
        else:
            group = found
        self._active[key] = Flight(group, address, run_id, now)
        computation = group.computation
        if group.runs is None:
            group.start = now
            link, client = computation.link, computation.client
            group.runs = self._history.begin(Runs(group.name, run_id, client, computation.span_id, link))
        group.runs.last = run_id
        if not computation.travels:
            return None
        past = self._chains.past(key)
        certain = self.details.certain(group, past is not None)
        if past is None:
            return group.packed(peers, certain)
        attempts, previous, cause = past
        if previous[:-8] == computation.parent.trace_id:
            previous = previous[-8:]
        return pack(group.parent(peers, certain), attempts + 1, previous, cause)

    def flights(self, address: str) -> Iterator[tuple[Hashable, Flight]]:
        """What is at a worker: keys and their dispatches."""
        for key, found in self._active.items():
            if type(found) is Flight and found.address == address:
                yield key, found

    def lose(
        self,
        key: Hashable,
        group: Group,
        flight: Flight,
        start: float,
        now: float,
        *,
        assumed: bool,
        failed: bool,
        retired: bool = False,
        worker: tuple[str, str],
    ) -> None:
        """The attempt of ``flight`` ended with its worker ``(address, name)``, and the task with it if it ``failed``.

        On a worker that was ``retired`` it was not lost: its task runs elsewhere.
        """
        if not group.computation.told:
            return
        error_type = names.KILLED_WORKER if failed else names.WORKER_LOST
        past = self._chains.past(key) or Past()
        # What nobody else can tell is answered here.
        group.expected += 1
        seconds = max(0.0, now - start)
        outcome = names.RESCHEDULED if retired else names.LOST
        group.sums.add(outcome, seconds, ())
        self.totals.lost(group.prefix, seconds, group.tags, outcome)
        told = self.details.loses(group)
        self._attempted(key, group, flight, told)
        if told:
            group.sums.emitted += 1
            span_id = attempt_span_id(group.computation.span_id, flight.run_id)
            span = summary.lost_span(group, str(key), span_id, past, start, now, assumed, error_type, worker)
            if retired:
                self._emit(summary.retired(span))
            else:
                self._emit_lost(worker[0], span)
        if failed:
            self._chains.end(key, flight.run_id, group.computation.parent.trace_id)

    def lost_unstarted(self, key: Hashable, group: Group, flight: Flight, failed: bool) -> None:
        """The dispatch ``flight`` ended with its worker before it began, and the task with it if it ``failed``."""
        if failed and key in self._chains:
            self._chains.end(key, flight.run_id, group.computation.parent.trace_id)

    def add(self, span_id: bytes, wire: list[object], prefix: str = "") -> bool:
        """Sums of a group have come from a worker; ``False`` if it was told already."""
        group = self._endings.add(span_id, wire, prefix)
        if group is not None:
            self.details.recorded(group, wire)
        return group is not None

    # -- ends -------------------------------------------------------------------------------------------------
    @property
    def touched(self) -> bool:
        """Whether `check` has something to look at."""
        return bool(self._endings or self._limbo)

    @property
    def ending(self) -> bool:
        """Whether a computation is settled and not told."""
        return self._endings.ending

    def check(self, now: float) -> float | None:
        """Tell what has ended; to be called after the tick in which something did.

        Returns the seconds after which it is to be called again though nothing else happens.
        """
        for key, group in self._limbo.items():
            self._give_up(key, group)
        self._limbo.clear()
        self._blocked.clear()
        self._reruns.clear()
        self._let_go()
        return self._endings.check(now)

    def _let_go(self) -> None:
        """A dictionary that is emptied stays as large as it was."""
        self._peak = max(self._peak, len(self._active))
        if len(self._active) < self._peak // 4:
            self._active = dict(self._active)
            self._peak = len(self._active)

    def _part(self, computation: Computation) -> None:
        """It is joined no more."""
        if self._joinable.get(computation.pair) is computation:
            del self._joinable[computation.pair]

    def restart(self, now: float) -> None:
        """The scheduler has forgotten all tasks: what is open ends, once its workers have said what became of it."""
        for key in list(self._active):
            group, flight = self.deactivate(key, "processing", "released", lambda: now)
            if group is not None and flight is not None:
                self.ended(key, group, flight, "released", ran=False)
        for group in self._limbo.values():
            group.computation.restarted = True
        self._chains.clear()
        self._joinable.clear()

    def stop(self, now: float) -> None:
        """Tell everything that is open: the scheduler closes."""
        for computation in self.unsettled.values():
            if not computation.settled:
                computation.paused_until = self._paused()
        self._active.clear()
        self._limbo.clear()
        self._chains.clear()
        self._joinable.clear()
        self._current = None
        self._endings.stop(now)

    def forget(self) -> None:
        """Hold nothing of what is open, and tell nothing of it."""
        for held in (self._active, self._limbo, self._blocked, self._joinable, self._graphs, self._reruns):
            held.clear()
        self._chains.clear()
        self._current = None
        self._endings.forget()
