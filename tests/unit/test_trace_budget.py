"""Which tasks of a graph are told that is larger than its trace's budget."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel import names
from dask_otel.carried import Carried, Decision
from dask_otel.computations import Activated, Computations
from dask_otel.detail import LUMPS, Details
from dask_otel.keeping import FEW, Keepers
from dask_otel.parents import ACTIVITY, GROUP, OFF, TASK, Handed, Keep, unpack
from dask_otel.records import Span
from dask_otel.settings import TraceBudget
from dask_otel.sums import Sums
from dask_otel.trace_budget import (
    FAILED,
    GRAPHS,
    LOST,
    PHASES,
    RETRIED,
    SAMPLED,
    SLOW,
    Ledger,
    Ledgers,
    plan,
)

ALICE = Carried(b"t" * 16, b"c" * 8, 1)
BOB = Carried(b"u" * 16, b"c" * 8, 1)
WORKERS = ("tcp://w1:1", "tcp://w2:1")


class Cluster:
    """Plays a scheduler and its workers: tasks are dispatched, end, and are told as they ask for."""

    def __init__(self, spans: int = 1_000, size: int = 10**9, forced: int | None = None) -> None:
        self.emitted: list[Span] = []
        self._ids = count(1)
        self._runs = count(1)
        self.details = Details(TraceBudget(spans, size), forced, random.Random(1).random)
        self.model = Computations(
            emit=self.emitted.append,
            emit_lost=lambda address, span: self.emitted.append(span),
            new_trace_id=lambda: next(self._ids).to_bytes(16, "big"),
            new_span_id=lambda: next(self._ids).to_bytes(8, "big"),
            sample=lambda trace_id, kind: Decision(True),
            detail=ACTIVITY,
            max_age=600.0,
            details=self.details,
        )
        self.model.tellers = WORKERS

    def submit(
        self,
        group: str,
        tasks: int,
        carried: Carried = ALICE,
        client: str = "alice",
        forced: int | None = None,
    ) -> list[str]:
        """A graph of so many tasks of one group arrives; their keys."""
        stimulus = f"graph-{next(self._runs)}"
        graph = self.model.receive(stimulus, client, carried, names.OP_COMPUTE, 0.0)
        self.model.create(stimulus, sizes=lambda: {group: tasks}, forced=forced)
        keys = [f"{group}-{next(self._ids)}" for _ in range(tasks)]
        for key in keys:
            activated = Activated(key, stimulus, group, group, ((), ()), (), (), None, False)
            self.model.activate(activated, lambda: 0.0)
        self.model.finish(graph, 0.0)
        return keys

    def dispatch(self, key: str) -> Handed:
        handed = unpack(self.model.dispatch(key, next(self._runs), WORKERS[0], 0.0, peers=False))
        assert handed is not None
        return handed

    def end(self, key: str, handed: Handed, spans: int, size: int = 0, seconds: float = 1.0) -> None:
        """Its attempt ends, of which so many spans were recorded."""
        group, flight = self.model.deactivate(key, "processing", "memory", lambda: 0.0)
        assert group is not None
        assert flight is not None
        self.model.ended(key, group, flight, "memory", True)
        sums = Sums()
        sums.add("success", seconds, ())
        sums.spans, sums.bytes, sums.emitted = spans, size, int(spans > 0)
        assert self.model.add(handed.parent.address, sums.to_wire())

    def run(self, keys: list[str], spans: int = 5, size: int = 0) -> Counter[int]:
        """All tasks run, one by one; how many were told at each detail."""
        told: Counter[int] = Counter()
        for key in keys:
            handed = self.dispatch(key)
            detail = handed.parent.detail
            told[detail] += 1
            here = spans if detail == ACTIVITY else int(detail == TASK)
            self.end(key, handed, here, size * here)
        return told

    def told(self) -> list[object]:
        """The detail of each computation that was told, after everything has ended."""
        self.model.check(0.0)
        return [dict(s.attributes)[names.TRACE_DETAIL] for s in self.emitted if s.name == names.COMPUTATION]


# -- plans --------------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.text(max_size=3), st.integers(1, 300_000), min_size=1, max_size=30),
    st.floats(1, 100),
    st.integers(0, 20_000),
)
def test_what_is_planned_fits_and_small_groups_are_whole_before_large_ones(
    sizes: dict[str, int], spans_of_a_task: float, used: int
) -> None:
    ledger = Ledger(TraceBudget())
    ledger.use(used)
    made = plan(ledger, sizes, spans_of_a_task)
    assert made.spans <= ledger.left + 1e-6
    if not made.shares:
        assert made.spans == pytest.approx(sum(sizes.values()) * made.spans_of_a_task)
        return
    shown = {name: share * sizes[name] for name, share in made.shares.items()}
    assert shown.keys() == sizes.keys()
    assert sum(shown.values()) * spans_of_a_task <= min(ledger.left * SAMPLED, ledger.room) + 1e-6
    others = (made.slow, made.failed, made.retried, made.lost)
    assert sum(others) * spans_of_a_task <= ledger.left * (SLOW + FAILED + RETRIED + LOST) + 1e-6
    largest = max(shown.values())
    for name, size in sizes.items():
        assert shown[name] == pytest.approx(min(size, largest)), "as much of each as its size allows"


def test_a_graph_is_told_as_deep_as_it_fits() -> None:
    for tasks, expected in ((100, ACTIVITY), (400, TASK)):
        cluster = Cluster()
        keys = cluster.submit("load", tasks)
        assert cluster.run(keys) == {expected: tasks}
        assert cluster.told() == [{ACTIVITY: "activity", TASK: "task"}[expected]]
    cluster = Cluster()
    told = cluster.run(cluster.submit("load", 20_000))
    assert told[ACTIVITY] + told[GROUP] == 20_000
    assert told[ACTIVITY] == pytest.approx(1_000 * SAMPLED / 5, rel=0.35)
    assert cluster.told() == ["group"]


def test_computations_of_one_trace_share_its_budget_and_others_do_not() -> None:
    cluster = Cluster()
    first = cluster.submit("a", 150)
    second = cluster.submit("b", 40, client="bob")
    other = cluster.submit("c", 150, BOB)
    assert cluster.run(first) == {ACTIVITY: 150}
    assert cluster.run(second) == {TASK: 40}
    assert cluster.run(other) == {ACTIVITY: 150}
    # One after the other, too.
    assert sorted(map(str, cluster.told())) == ["activity", "activity", "task"]
    third = cluster.run(cluster.submit("d", 150))
    assert third[ACTIVITY] < 30
    assert sum(third.values()) == 150


def test_a_loop_that_submits_has_its_last_failures_told_like_its_first() -> None:
    cluster = Cluster()
    details: list[int] = []
    keeps: list[Keep | None] = []
    for _ in range(1_000):
        (key,) = cluster.submit("a", 1)
        handed = cluster.dispatch(key)
        details.append(handed.parent.detail)
        keeps.append(handed.parent.keep)
        cluster.end(key, handed, 5 * (handed.parent.detail == ACTIVITY))
    assert (details[0], details[-1]) == (ACTIVITY, GROUP)
    assert keeps[-1] is not None
    assert keeps[-1].failed >= 2
    assert not cluster.model.unsettled or next(iter(cluster.model.unsettled.values())).ledger.spans < 1_000


def test_what_was_set_aside_and_not_used_is_there_for_the_next() -> None:
    cluster = Cluster()
    assert cluster.run(cluster.submit("a", 150), spans=1) == {ACTIVITY: 150}
    cluster.told()
    assert cluster.run(cluster.submit("b", 150), spans=1) == {ACTIVITY: 150}


def test_tasks_with_more_spans_than_was_thought_are_told_less_often_and_never_beyond_the_budget() -> None:
    cluster = Cluster()
    told = cluster.run(cluster.submit("a", 20_000), spans=50)
    assert 0 < told[ACTIVITY] * 50 < 1_000
    # What a task comes to is known for the next.
    assert cluster.details._spans_of_a_task > 10
    told = cluster.run(cluster.submit("b", 100, BOB), spans=50)
    assert told[TASK] == 100


@pytest.mark.parametrize(("spans", "size"), [(1_000, 10**9), (10**9, 200_000)])
def test_once_the_budget_is_used_up_nothing_is_told(spans: int, size: int) -> None:
    cluster = Cluster(spans, size)
    keys = cluster.submit("a", 100)
    first = cluster.dispatch(keys[0])
    assert first.parent.detail == ACTIVITY
    cluster.end(keys[0], first, 1_000, 200_000)
    second = cluster.dispatch(keys[1])
    assert (second.parent.detail, second.parent.keep) == (GROUP, None)


def test_what_is_forced_is_told_whatever_the_budget() -> None:
    for forced in (GROUP, TASK, ACTIVITY):
        cluster = Cluster(spans=10, forced=forced)
        assert cluster.run(cluster.submit("a", 200)) == {forced: 200}
        cluster = Cluster(spans=10)
        assert cluster.run(cluster.submit("a", 200, forced=forced)) == {forced: 200}
        assert cluster.told() == [{GROUP: "group", TASK: "task", ACTIVITY: "activity"}[forced]]
    cluster = Cluster(forced=GROUP)
    assert cluster.run(cluster.submit("a", 10, forced=ACTIVITY)) == {ACTIVITY: 10}


def test_what_need_not_be_told_is_handed_what_to_keep_and_what_is_slow() -> None:
    cluster = Cluster()
    keys = cluster.submit("a", 20_000)
    seen: list[Keep] = []
    for n, key in enumerate(keys[:5_000]):
        handed = cluster.dispatch(key)
        if handed.parent.keep is not None:
            seen.append(handed.parent.keep)
        cluster.end(key, handed, 5 * (handed.parent.detail == ACTIVITY), seconds=1.0 + n % 100)
    each = LUMPS / len(WORKERS)
    ((detail, failed, slow),) = {keep[:3] for keep in seen}
    assert detail == ACTIVITY
    assert failed == pytest.approx(1_000 * FAILED / 5 * each, abs=1)
    assert slow == pytest.approx(1_000 * SLOW / 5 * each, abs=1)
    assert seen[0].slower == float("inf")
    assert seen[-1].slower == pytest.approx(100, rel=0.03)


def test_a_task_that_is_tried_again_is_told_as_long_as_there_is_room() -> None:
    cluster = Cluster()
    keys = cluster.submit("a", 20_000)
    told = 0
    for key in keys[:100]:
        cluster.dispatch(key)
        group, flight = cluster.model.deactivate(key, "processing", "released", lambda: 0.0)
        assert group is not None
        assert flight is not None
        cluster.model.ended(key, group, flight, "released", True)
        activated = Activated(key, "retry", "a", "a", ((), ()), (), (), flight.run_id, False)
        cluster.model.activate(activated, lambda: 0.0)
        handed = cluster.dispatch(key)
        assert handed.attempt == 2
        told += handed.parent.detail == ACTIVITY
    assert int(1_000 * RETRIED / 5) <= told <= int(1_000 * RETRIED / 5) + 3


def test_attempts_that_were_lost_are_told_as_long_as_there_is_room() -> None:
    cluster = Cluster()
    for key in cluster.submit("a", 20_000)[:100]:
        cluster.dispatch(key)
        group, flight = cluster.model.deactivate(key, "processing", "released", lambda: 0.0)
        assert group is not None
        assert flight is not None
        cluster.model.lose(
            key, group, flight, 0.0, 1.0, assumed=False, failed=False, worker=(WORKERS[0], "w")
        )
    lost = [s for s in cluster.emitted if dict(s.attributes).get(names.OUTCOME) == names.LOST]
    assert int(1_000 * LOST / 5) - 1 <= len(lost) <= int(1_000 * LOST / 5)
    (computation,) = cluster.model.unsettled.values()
    (group,) = computation.groups.values()
    assert (group.sums.attempts, group.sums.emitted) == (100, len(lost))


def test_a_loop_that_submits_uses_no_more_than_its_part_for_the_spans_of_graphs() -> None:
    cluster = Cluster()
    for _ in range(1_000):
        cluster.run(cluster.submit("a", 1))
    updates = [s for s in cluster.emitted if s.name == names.GRAPH_UPDATE]
    assert PHASES * 1_000 < len(updates) <= GRAPHS * 1_000 + 1
    forced = Cluster(forced=TASK)
    for _ in range(1_000):
        forced.run(forced.submit("a", 1))
    assert sum(s.name == names.GRAPH_UPDATE for s in forced.emitted) == 1_000


def test_traces_that_are_over_are_remembered_within_a_bound() -> None:
    ledgers = Ledgers(TraceBudget(), limit=2)
    ledgers.of(b"a").use(7)
    ledgers.of(b"b")
    assert ledgers.of(b"a").spans == 7
    ledgers.of(b"c")
    assert (len(ledgers), ledgers.of(b"a").spans, ledgers.of(b"b").spans) == (2, 7, 0)


def test_where_nothing_is_sent_no_trace_is_remembered() -> None:
    cluster = Cluster()
    assert cluster.details.ledger(b"a", OFF) is not cluster.details.ledger(b"a", OFF)
    assert len(cluster.details._ledgers) == 0


# -- on a worker --------------------------------------------------------------------------------------------------


def test_the_longest_so_far_is_slow_until_the_scheduler_knows_better() -> None:
    keeper, unknown = Keepers().of(b"g"), Keep(ACTIVITY, failed=0, slow=10)
    assert not any(keeper.keeps(unknown, "success", 5.0) for _ in range(FEW))
    assert [keeper.keeps(unknown, "success", s) for s in (4.9, 5.1, 5.05, 6.0)] == [False, True, False, True]
    known = unknown._replace(slower=5.5)
    assert [keeper.keeps(known, "success", s) for s in (5.4, 5.5, 5.6)] == [False, True, True]
    # A task that was dispatched before anybody knew is judged by what is known when it ends.
    assert [keeper.keeps(unknown, "success", s) for s in (7.0, 5.4)] == [True, False]


def test_a_worker_tells_no_more_of_a_computation_than_it_may() -> None:
    keepers, keep = Keepers(), Keep(ACTIVITY, failed=2, slow=1, slower=1.0)
    first, second = keepers.of(b"a"), keepers.of(b"b")
    outcomes = [
        (first, "failed", 0.1),
        (second, "failed", 9.0),
        (first, "failed", 9.0),
        (second, "success", 2.0),
    ]
    assert [k.keeps(keep, outcome, seconds) for k, outcome, seconds in outcomes] == [True, True, False, True]
    assert not first.keeps(keep, "success", 3.0)
    assert first.keeps(keep._replace(slow=2), "cancelled", 3.0)
    assert keepers.of(b"a") is first
