"""The scheduler's trace model: events in, a tree of strings out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from textwrap import dedent

import pytest

from dask_otel import names, parents
from dask_otel.carried import Carried, Decision
from dask_otel.computations import MAX_HISTORY, Activated, Computations
from dask_otel.endings import LINGER, PATIENCE
from dask_otel.records import ERROR, Span
from dask_otel.sums import Sums
from dask_otel.tree import outline

CLIENT_SPAN = Carried(b"t" * 16, b"c" * 8, 1)
W1, W2 = "tcp://w1:1", "tcp://w2:1"
#: How the attributes of a computation begin that say what became of its tasks.
TOTALS = ("dask.computation.state", "dask.computation.tasks", "dask.computation.outcomes.")


class Scheduler:
    """Plays a scheduler: a clock that tests turn, ids that are counted, spans that are kept."""

    def __init__(self, detail: int = parents.ACTIVITY, sampled: bool = True) -> None:
        self.now = 1000.0
        #: Seconds that its process has stood still for garbage collections.
        self.paused = 5.0
        self.emitted: list[Span] = []
        self._ids = count(1)
        self._run_ids = count(1)
        self._runs: dict[str, int] = {}
        self.model = Computations(
            emit=self.emitted.append,
            emit_lost=lambda address, span: self.emitted.append(span),
            new_trace_id=lambda: next(self._ids).to_bytes(16, "big"),
            new_span_id=lambda: next(self._ids).to_bytes(8, "big"),
            sample=lambda trace_id, kind: Decision(sampled),
            detail=detail,
            max_age=600.0,
            paused=lambda: self.paused,
        )

    def submit(
        self,
        *keys: str,
        client: str = "alice",
        carried: Carried | None = CLIENT_SPAN,
        tags: tuple[str, ...] = (),
        stimulus: str = "graph",
    ) -> None:
        """A graph arrives, its tasks become active."""
        graph = self.model.receive(stimulus, client, carried, names.OP_COMPUTE, self.now)
        self.model.create(stimulus)
        for key in keys:
            self.activate(key, stimulus, tags)
        self.model.finish(graph, self.now)

    def activate(
        self,
        key: str,
        stimulus: str = "other",
        tags: tuple[str, ...] = (),
        dependents: tuple[str, ...] = (),
        dependencies: tuple[str, ...] = (),
        asked: bool = False,
    ) -> None:
        task = self.task(key, stimulus, tags, dependents, dependencies, asked)
        self.model.activate(task, lambda: self.now)

    def task(
        self,
        key: str,
        stimulus: str = "other",
        tags: tuple[str, ...] = (),
        dependents: tuple[str, ...] = (),
        dependencies: tuple[str, ...] = (),
        asked: bool = False,
    ) -> Activated:
        prefix, group, run_id = key.split("-")[0], key.rsplit("-", 1)[0], self._runs.get(key)
        return Activated(key, stimulus, prefix, group, (tags, tags), dependents, dependencies, run_id, asked)

    def block(self, key: str) -> None:
        """Another task that this one needs has failed."""
        self.model.deactivate(key, "waiting", "released", lambda: self.now)
        self.model.block(self.task(key), lambda: self.now)

    def dispatch(self, key: str, address: str = W1) -> parents.Handed | None:
        self._runs[key] = next(self._run_ids)
        packed = self.model.dispatch(key, self._runs[key], address, self.now, peers=False)
        return parents.unpack(packed)

    def end(self, key: str, finish: str = "memory", ran: bool = True) -> None:
        """The task's dispatch ends; ``ran`` says that it came to an attempt for sure."""
        group, flight = self.model.deactivate(key, "processing", finish, lambda: self.now)
        assert group is not None
        assert flight is not None
        self.model.ended(key, group, flight, finish, ran)

    def tell(self, handed: parents.Handed | None, outcome: str = "", **counts: int) -> bool:
        """A worker's sums come: an attempt of one second with this outcome, if one is given."""
        assert handed is not None
        sums = Sums()
        if outcome:
            sums.add(outcome, 1.0, ())
        for name, n in counts.items():
            setattr(sums, name, n)
        return self.model.add(handed.parent.group_id, sums.to_wire())

    def run(self, key: str, address: str = W1) -> None:
        self.dispatch(key, address)
        self.end(key)

    def lose(self, key: str, finish: str = "released") -> None:
        """The task's worker is lost while it runs."""
        group, flight = self.model.deactivate(key, "processing", finish, lambda: self.now)
        assert group is not None
        assert flight is not None
        self.model.lose(
            key,
            group,
            flight,
            self.now - 1,
            self.now,
            assumed=False,
            failed=finish == "erred",
            worker=(flight.address, "w"),
        )

    def tick(self, seconds: float = 0.0) -> float | None:
        self.now += seconds
        return self.model.check(self.now)

    def outline(self) -> str:
        return outline([s for s in self.emitted if not s.name.startswith("dask.graph.")])

    def span(self, name: str) -> Span:
        (found,) = (s for s in self.emitted if s.name == name)
        return found

    def attributes(self, name: str) -> dict[str, object]:
        span = self.span(name)
        return dict(span.common + span.attributes)

    @property
    def computations(self) -> list[Span]:
        return [s for s in self.emitted if s.name == names.COMPUTATION]


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


def test_a_computation_holds_its_tags_and_groups(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1", "inc-2", "add-1", tags=("load", "clean"))
    for key in ("inc-1", "inc-2", "add-1"):
        scheduler.run(key)
    scheduler.tick()
    assert scheduler.outline() == dedent("""\
        (parent not received)
          dask.computation
            load
              clean
                add group
                inc group""")


def test_a_computation_ends_with_its_last_task_not_with_its_last_check(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1")
    scheduler.dispatch("inc-1")
    scheduler.now += 5
    scheduler.end("inc-1")
    scheduler.tick(3)
    assert (scheduler.span(names.COMPUTATION).start, scheduler.span(names.COMPUTATION).end) == (
        1000 * 10**9,
        1005 * 10**9,
    )


def test_one_client_and_context_make_one_computation_while_it_is_unsettled(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1", stimulus="first")
    scheduler.submit("inc-2", stimulus="second")
    scheduler.submit("inc-3", stimulus="third", client="bob")
    scheduler.submit("inc-4", stimulus="fourth", carried=CLIENT_SPAN._replace(span_id=b"d" * 8))
    for n in range(1, 5):
        scheduler.run(f"inc-{n}")
    scheduler.tick()
    told = [dict(s.attributes) for s in scheduler.computations]
    assert sorted((a[names.CLIENT_ID], a[names.COMPUTATION_TASKS]) for a in told) == [
        ("alice", 1),
        ("alice", 2),
        ("bob", 1),
    ]
    scheduler.submit("inc-5", stimulus="fifth")
    scheduler.run("inc-5")
    scheduler.tick()
    assert len(scheduler.computations) == 4


def test_a_computation_that_goes_on_for_ever_is_joined_no_more_and_its_successor_links_to_it(
    scheduler: Scheduler,
) -> None:
    scheduler.submit("inc-1", stimulus="first")
    scheduler.now += 601
    scheduler.submit("inc-2", stimulus="second")
    scheduler.run("inc-2")
    scheduler.run("inc-1")
    scheduler.tick()
    first, second = sorted(scheduler.computations, key=lambda s: s.start)
    assert [link.span_id for link in second.links] == [first.span_id]
    assert first.links == ()


def test_keys_that_are_there_already_make_a_computation_without_tasks(scheduler: Scheduler) -> None:
    scheduler.submit()
    scheduler.tick()
    assert scheduler.attributes(names.COMPUTATION)[names.COMPUTATION_TASKS] == 0


def test_a_task_that_waits_again_in_the_same_tick_settles_nothing(scheduler: Scheduler) -> None:
    scheduler.model.tellers = {W1}
    scheduler.submit("inc-1")
    scheduler.dispatch("inc-1")
    scheduler.end("inc-1", "released")
    scheduler.activate("inc-1")
    scheduler.tick()
    assert scheduler.computations == []
    handed = scheduler.dispatch("inc-1")
    assert handed is not None
    assert handed.attempt == 2
    assert handed.previous != b""
    scheduler.end("inc-1")
    scheduler.tell(handed, names.FAILED)
    scheduler.tell(handed, names.SUCCESS)
    scheduler.tick()
    assert scheduler.attributes(names.COMPUTATION)[names.COMPUTATION_TASKS] == 1


def test_an_attempt_that_died_with_its_worker_is_told_and_linked_to(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1")
    scheduler.dispatch("inc-1")
    scheduler.now += 2
    scheduler.lose("inc-1")
    scheduler.activate("inc-1")
    scheduler.tick()
    handed = scheduler.dispatch("inc-1", W2)
    assert handed is not None
    lost = scheduler.span("inc")
    assert (handed.attempt, handed.previous) == (2, lost.span_id)
    assert lost.status == ERROR
    assert scheduler.attributes("inc")[names.OUTCOME] == names.LOST
    scheduler.end("inc-1")
    scheduler.tick()
    told = scheduler.attributes(names.COMPUTATION)
    assert told[names.COMPUTATION_OUTCOMES + names.LOST] == 1
    assert told[names.COMPUTATION_OUTCOMES + names.SUCCESS] == 1
    assert told[names.WASTED_TIME] == 1.0


def test_a_result_computed_again_belongs_to_who_needs_it_and_says_why(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1", "add-1")
    scheduler.run("inc-1")
    scheduler.tick()
    scheduler.activate("inc-1", dependents=("add-1",))
    handed = scheduler.dispatch("inc-1", W2)
    assert handed is not None
    assert (handed.attempt, handed.cause) == (2, names.RECOMPUTED)
    scheduler.end("inc-1")
    scheduler.run("add-1")
    scheduler.tick()
    assert len(scheduler.computations) == 1


def test_a_result_computed_again_for_nobody_is_a_computation_linked_to_the_old(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1")
    scheduler.run("inc-1")
    scheduler.tick()
    scheduler.activate("inc-1")
    scheduler.run("inc-1", W2)
    scheduler.tick()
    old, new = scheduler.computations
    assert [link.span_id for link in new.links] == [old.span_id]
    assert new.trace_id != old.trace_id


def test_a_group_waits_for_its_workers_sums(scheduler: Scheduler) -> None:
    scheduler.model.tellers = {W1}
    scheduler.submit("inc-1")
    handed = scheduler.dispatch("inc-1")
    scheduler.end("inc-1")
    assert scheduler.tick()
    assert scheduler.computations == []
    sums = Sums()
    sums.add(names.SUCCESS, 0.5, [("compute", 0.5, "seconds")], size=8)
    assert handed is not None
    assert scheduler.model.add(handed.parent.group_id, sums.to_wire())
    assert not scheduler.tick()
    told = scheduler.attributes("inc group")
    assert told[names.DURATION + "sum"] == 0.5
    assert told[names.ACTIVITY_AMOUNT + "compute.seconds"] == 0.5
    assert names.GROUP_INCOMPLETE not in told
    assert not scheduler.model.add(handed.parent.group_id, sums.to_wire())


def test_a_group_whose_sums_never_come_says_so_after_a_while(scheduler: Scheduler) -> None:
    scheduler.model.tellers = {W1}
    scheduler.submit("inc-1")
    scheduler.dispatch("inc-1")
    scheduler.end("inc-1")
    assert scheduler.tick()
    assert not scheduler.tick(PATIENCE)
    assert scheduler.attributes("inc group")[names.GROUP_INCOMPLETE] is True
    assert len(scheduler.computations) == 1


def test_tasks_that_come_in_pieces_are_one_group_while_the_computation_goes_on(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1", "long-1", stimulus="first")
    scheduler.run("inc-1")
    assert scheduler.tick() == LINGER
    scheduler.submit("inc-2", stimulus="second")
    assert scheduler.tick(LINGER + 1) is None
    scheduler.run("inc-2")
    assert scheduler.tick() == LINGER
    scheduler.run("long-1")
    assert scheduler.tick() is None
    assert scheduler.outline() == dedent("""\
        (parent not received)
          dask.computation
            inc group
            long group""")
    assert scheduler.attributes("inc group")[names.GROUP_OUTCOMES + names.SUCCESS] == 2


def test_a_group_that_has_long_ended_does_not_wait_for_its_computation(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1", "add-1", "long-1", stimulus="first")
    scheduler.run("inc-1")
    scheduler.now += 1
    scheduler.run("add-1")
    scheduler.tick(LINGER - 1)
    assert [s.name for s in scheduler.emitted if "group" in s.name] == ["inc group"]
    assert scheduler.tick() == 1.0
    assert scheduler.tick(1.0) is None
    assert [s.name for s in scheduler.emitted if "group" in s.name] == ["inc group", "add group"]
    assert scheduler.computations == []


def test_a_task_that_never_ran_since_another_failed_is_counted_apart(scheduler: Scheduler) -> None:
    scheduler.submit("bad-1", "add-1")
    scheduler.dispatch("bad-1")
    scheduler.end("bad-1", "erred")
    scheduler.block("add-1")
    scheduler.model.block(scheduler.task("add-1"), lambda: scheduler.now)
    scheduler.tick()
    assert scheduler.attributes("add group")[names.GROUP_UPSTREAM_FAILED] == 1
    computation = scheduler.span(names.COMPUTATION)
    assert (computation.status, dict(computation.attributes)[names.COMPUTATION_STATE]) == (
        ERROR,
        names.FAILED,
    )


def test_a_task_that_comes_when_what_it_needs_has_failed_is_counted_too(scheduler: Scheduler) -> None:
    graph = scheduler.model.receive("graph", "alice", CLIENT_SPAN, names.OP_COMPUTE, scheduler.now)
    scheduler.model.create("graph")
    scheduler.model.block(scheduler.task("add-1", "graph"), lambda: scheduler.now)
    scheduler.model.finish(graph, scheduler.now)
    scheduler.tick()
    assert scheduler.outline() == dedent("""\
        (parent not received)
          dask.computation [error]
            add group""")
    assert scheduler.attributes("add group")[names.GROUP_UPSTREAM_FAILED] == 1
    told = scheduler.attributes(names.COMPUTATION)
    assert (told[names.COMPUTATION_STATE], told[names.COMPUTATION_TASKS]) == (names.FAILED, 1)
    assert_empty(scheduler.model)


def test_results_that_are_lost_together_are_computed_again_in_one_computation(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1", "inc-2", "add-1")
    for key in ("inc-1", "inc-2", "add-1"):
        scheduler.run(key)
    scheduler.tick()
    for key in ("inc-1", "inc-2", "add-1"):
        scheduler.activate(key, stimulus="remove-worker")
    for key in ("inc-1", "inc-2", "add-1"):
        scheduler.run(key)
    scheduler.tick()
    old, new = scheduler.computations
    assert dict(new.attributes)[names.COMPUTATION_TASKS] == 3
    assert dict(new.attributes)[names.CLIENT_ID] == "alice"
    assert [link.span_id for link in new.links] == [old.span_id]


def test_a_result_computed_again_links_to_the_run_that_gave_it_not_to_a_namesakes(
    scheduler: Scheduler,
) -> None:
    for n in range(3):
        scheduler.submit(f"inc-{n}", stimulus=f"graph-{n}", carried=None)
        scheduler.run(f"inc-{n}")
        scheduler.tick()
    scheduler.activate("inc-1", stimulus="remove-worker")
    handed = scheduler.dispatch("inc-1", W2)
    assert handed is not None
    middle = scheduler.computations[1]
    span_id = parents.attempt_span_id(middle.span_id, 2)
    assert (handed.attempt, handed.previous) == (2, middle.trace_id + span_id)
    assert parents.link_to(handed.parent, handed.previous)[0][:2] == (middle.trace_id, span_id)


def test_a_result_computed_again_while_its_computation_goes_on_stays_there(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1", "add-1")
    scheduler.run("inc-1")
    scheduler.tick()
    scheduler.activate("inc-1", stimulus="remove-worker")
    scheduler.run("inc-1", W2)
    scheduler.run("add-1")
    scheduler.tick()
    assert scheduler.attributes(names.COMPUTATION)[names.COMPUTATION_TASKS] == 2


def test_a_result_computed_again_is_not_sent_where_its_computation_was_not(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1", carried=CLIENT_SPAN._replace(flags=0))
    scheduler.run("inc-1")
    scheduler.tick()
    scheduler.activate("inc-1")
    scheduler.run("inc-1")
    scheduler.tick()
    assert scheduler.emitted == []


def test_a_task_that_a_client_has_tried_again_counts_on_from_the_attempt_that_failed(
    scheduler: Scheduler,
) -> None:
    scheduler.model.tellers = {W1}
    scheduler.submit("bad-1", "add-1")
    for attempt in (1, 2):
        handed = scheduler.dispatch("bad-1")
        assert handed is not None
        assert handed.attempt == attempt
        scheduler.end("bad-1", "released" if attempt == 1 else "erred")
        scheduler.tell(handed, names.FAILED)
        if attempt == 1:
            scheduler.activate("bad-1")
    scheduler.block("add-1")
    scheduler.tick()
    (failed,) = scheduler.computations
    scheduler.activate("bad-1", stimulus="retry", asked=True)
    scheduler.activate("add-1", stimulus="retry", dependencies=("bad-1",), asked=True)
    again = scheduler.dispatch("bad-1")
    assert again is not None
    last = parents.attempt_span_id(failed.span_id, 2)
    assert (again.attempt, again.previous, again.cause) == (3, failed.trace_id + last, "")
    scheduler.end("bad-1")
    scheduler.tell(again, names.SUCCESS)
    above = scheduler.dispatch("add-1")
    scheduler.end("add-1")
    scheduler.tell(above, names.SUCCESS)
    scheduler.tick()
    _, new = scheduler.computations
    told = dict(new.attributes)
    assert (told[names.COMPUTATION_STATE], told[names.COMPUTATION_TASKS]) == (names.FINISHED, 2)
    assert [link.span_id for link in new.links] == [failed.span_id]
    assert_empty(scheduler.model)


def test_a_dispatch_that_came_to_nothing_is_answered_too(scheduler: Scheduler) -> None:
    scheduler.model.tellers = {W1}
    scheduler.submit("inc-1", "inc-2")
    handed = scheduler.dispatch("inc-1")
    scheduler.dispatch("inc-2")
    scheduler.dispatch("inc-2", W2)  # Stolen.
    scheduler.end("inc-1", "released", ran=False)  # Cancelled in the queue.
    scheduler.end("inc-2")
    assert scheduler.tick()
    scheduler.tell(handed, unstarted=1)
    assert scheduler.tick()
    scheduler.tell(handed, unstarted=1)
    assert not scheduler.tick()
    told = scheduler.attributes("inc group")
    assert names.GROUP_INCOMPLETE not in told
    assert told[names.GROUP_OUTCOMES + names.SUCCESS] == 1
    assert scheduler.attributes(names.COMPUTATION)[names.COMPUTATION_STATE] == names.CANCELLED
    assert_empty(scheduler.model)


def test_a_cancelled_run_that_goes_on_is_counted_though_its_time_is_not_known(scheduler: Scheduler) -> None:
    scheduler.model.tellers = {W1}
    scheduler.submit("inc-1")
    handed = scheduler.dispatch("inc-1")
    scheduler.end("inc-1", "released", ran=False)
    scheduler.tell(handed, going=1)
    assert scheduler.tick()
    assert not scheduler.tick(PATIENCE)
    told = scheduler.attributes("inc group")
    assert told[names.GROUP_OUTCOMES + names.CANCELLED] == 1
    assert told[names.GROUP_INCOMPLETE] is True


def test_a_task_that_failed_with_its_workers_leaves_nothing_behind(scheduler: Scheduler) -> None:
    scheduler.submit("bad-1")
    scheduler.dispatch("bad-1")
    scheduler.now += 2
    scheduler.lose("bad-1")
    scheduler.activate("bad-1")
    scheduler.dispatch("bad-1", W2)
    scheduler.now += 2
    scheduler.lose("bad-1", "erred")
    scheduler.tick()
    first, second = (s for s in scheduler.emitted if s.name == "bad")
    assert [dict(s.attributes)[names.ERROR_TYPE] for s in (first, second)] == [
        names.WORKER_LOST,
        names.KILLED_WORKER,
    ]
    assert [link.span_id for link in second.links] == [first.span_id]
    told = scheduler.attributes("bad group")
    assert (told[names.GROUP_OUTCOMES + names.LOST], told[names.DURATION + "sum"]) == (2, 2.0)
    assert names.RESULT_SIZE not in told
    assert_empty(scheduler.model)


def test_a_retried_task_that_is_cancelled_leaves_nothing_behind(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1")
    scheduler.dispatch("inc-1")
    scheduler.end("inc-1", "released")
    scheduler.activate("inc-1")
    scheduler.tick()
    scheduler.dispatch("inc-1")
    scheduler.end("inc-1", "released", ran=False)
    scheduler.tick()
    assert len(scheduler.computations) == 1
    assert_empty(scheduler.model)


@pytest.mark.parametrize("detail", [parents.OFF, parents.ACTIVITY])
def test_a_client_span_that_is_not_sampled_travels_and_nothing_is_told(detail: int) -> None:
    scheduler = Scheduler(detail)
    scheduler.submit("inc-1", carried=CLIENT_SPAN._replace(flags=0, trace_state="v=1", baggage="user=x"))
    handed = scheduler.dispatch("inc-1")
    assert handed is not None
    assert handed.parent.detail == parents.OFF
    assert handed.parent[:2] == (b"t" * 16, b"c" * 8)
    assert (handed.parent.flags, handed.parent.trace_state, handed.parent.baggage) == (0, "v=1", "user=x")
    scheduler.end("inc-1")
    scheduler.tick()
    assert scheduler.emitted == []


def test_nothing_is_kept_of_what_becomes_of_tasks_that_are_neither_traced_nor_counted() -> None:
    """One is retried, one is lost, one fails and is tried again, a result is lost and made again."""
    scheduler = Scheduler(sampled=False)
    keys = ("inc-1", "inc-2", "inc-3", "inc-4")
    scheduler.submit(*keys, carried=None)
    first = [scheduler.dispatch(key) for key in keys]
    scheduler.end("inc-1", "released")
    scheduler.activate("inc-1")
    scheduler.lose("inc-2")
    scheduler.activate("inc-2")
    scheduler.end("inc-3", "erred")
    scheduler.activate("inc-3", "stimulus-retry", asked=True)
    scheduler.end("inc-4")
    scheduler.activate("inc-4", "lost")
    again = [scheduler.dispatch(key, W2) for key in keys]
    for key in keys:
        scheduler.end(key)
    scheduler.tick()
    assert {(handed.parent.detail, handed.attempt) for handed in first + again if handed} == {
        (parents.OFF, 1)
    }
    assert (scheduler.emitted, scheduler.model.sampled_out) == ([], 0)
    assert not scheduler.model.unsettled
    assert_empty(scheduler.model)


def test_the_sampler_is_asked_where_no_client_span_is() -> None:
    scheduler = Scheduler(sampled=False)
    scheduler.submit("inc-1", carried=None)
    handed = scheduler.dispatch("inc-1")
    assert handed is not None
    assert (handed.parent.detail, handed.parent.flags & 1) == (parents.OFF, 0)


def test_no_group_waits_for_sums_longer_than_it_may(scheduler: Scheduler) -> None:
    scheduler.model.tellers = {W1}
    scheduler.submit("inc-1", "add-1")
    for key in ("inc-1", "add-1"):
        scheduler.dispatch(key)
    scheduler.end("inc-1")
    scheduler.tick(0.25 * PATIENCE)
    scheduler.end("add-1")
    assert scheduler.tick() == pytest.approx(0.75 * PATIENCE)
    assert scheduler.tick(0.75 * PATIENCE) == pytest.approx(0.25 * PATIENCE)
    assert scheduler.tick(0.25 * PATIENCE) is None
    assert_empty(scheduler.model)


def test_everything_open_is_told_when_the_scheduler_closes(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1", "add-1", tags=("load",))
    scheduler.dispatch("inc-1")
    scheduler.now += 4
    scheduler.model.stop(scheduler.now)
    assert scheduler.outline() == dedent("""\
        (parent not received)
          dask.computation
            load
              add group
              inc group""")
    assert scheduler.attributes(names.COMPUTATION)[names.COMPUTATION_STATE] == names.CLOSED
    assert scheduler.span(names.COMPUTATION).end == int(scheduler.now * 1e9)
    assert_empty(scheduler.model)


def test_a_restart_ends_what_is_open_once_its_workers_have_said_how_and_nothing_is_joined_to_it(
    scheduler: Scheduler,
) -> None:
    scheduler.model.tellers = {W1}
    scheduler.submit("inc-1", "inc-2", "add-1")
    scheduler.run("inc-1")
    running = scheduler.dispatch("inc-2")
    scheduler.tell(running, names.SUCCESS)
    scheduler.end("inc-2", "released", ran=False)
    scheduler.model.restart(scheduler.now)  # No more is known of add-1.
    scheduler.submit("inc-1", stimulus="again")
    scheduler.run("inc-1", W2)
    scheduler.tick(PATIENCE / 2)
    scheduler.tell(running, names.CANCELLED)
    scheduler.tick()
    told = [dict(s.attributes) for s in scheduler.emitted if s.name == names.COMPUTATION]
    assert [
        {key: value for key, value in attributes.items() if key.startswith(TOTALS)} for attributes in told
    ] == [
        {
            names.COMPUTATION_STATE: names.FINISHED,
            names.COMPUTATION_TASKS: 1,
            names.COMPUTATION_OUTCOMES + names.SUCCESS: 1,
        },
        {
            names.COMPUTATION_STATE: names.RESTARTED,
            names.COMPUTATION_TASKS: 3,
            names.COMPUTATION_OUTCOMES + names.CANCELLED: 1,
            names.COMPUTATION_OUTCOMES + names.SUCCESS: 1,
        },
    ]
    assert_empty(scheduler.model)


def test_a_computation_that_waits_for_sums_only_is_not_restarted(scheduler: Scheduler) -> None:
    scheduler.submit("inc-1")
    scheduler.run("inc-1")
    scheduler.model.restart(scheduler.now)
    scheduler.tick(PATIENCE)
    assert scheduler.attributes(names.COMPUTATION)[names.COMPUTATION_STATE] == names.FINISHED
    assert_empty(scheduler.model)


def many(scheduler: Scheduler, each: Callable[[int], None]) -> None:
    for n in range(2 * MAX_HISTORY):
        each(n)


def test_what_is_told_is_forgotten(scheduler: Scheduler) -> None:
    def one(n: int) -> None:
        scheduler.submit(f"p-{n}-1", f"p-{n}-2", stimulus=f"graph-{n}", carried=None)
        scheduler.dispatch(f"p-{n}-1")
        scheduler.end(f"p-{n}-1", "released")
        scheduler.activate(f"p-{n}-1")
        scheduler.run(f"p-{n}-1")
        scheduler.run(f"p-{n}-2")
        scheduler.tick()

    many(scheduler, one)
    assert_empty(scheduler.model)


def assert_empty(model: Computations) -> None:
    """Nothing is held but the bounded history, and the last graph that was created."""
    for name, held in vars(model).items():
        if name == "_history":
            assert len(held) <= MAX_HISTORY
        elif name == "_chains":
            assert not held
            assert len(held._ended) <= MAX_HISTORY
        elif isinstance(held, (dict, set, list)) and name != "tellers":
            assert not held, name
