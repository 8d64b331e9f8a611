"""The garbage collections that stopped a computation: the scheduler's while it was active, its workers' as they tell."""

from __future__ import annotations

import pytest

from dask_otel import names
from dask_otel.distributions import Histograms
from dask_otel.graph_phases import GraphPhases
from dask_otel.instruments import GRAPH_UPDATE_SECONDS
from dask_otel.records import Span
from dask_otel.sums import Sums
from tests.unit.test_computations import W1, Scheduler


def gc_times(scheduler: Scheduler) -> list[object]:
    """Of each computation that was told, in their order."""
    return [dict(span.attributes)[names.GC_TIME] for span in computations(scheduler)]


def computations(scheduler: Scheduler) -> list[Span]:
    return [span for span in scheduler.emitted if span.name == names.COMPUTATION]


def test_pauses_from_its_beginning_until_its_last_task_is_settled_are_the_computations() -> None:
    scheduler = Scheduler()
    scheduler.model.tellers = {W1}
    scheduler.paused += 64
    scheduler.submit("inc-1", "inc-2")
    scheduler.paused += 1
    handed = scheduler.dispatch("inc-1")
    scheduler.end("inc-1")
    scheduler.paused += 2
    scheduler.dispatch("inc-2")
    scheduler.end("inc-2")
    # It is settled, and waits for its workers' sums.
    scheduler.paused += 4
    scheduler.tick()
    assert gc_times(scheduler) == []
    scheduler.tell(handed, names.SUCCESS)
    scheduler.paused += 8
    scheduler.tell(handed, names.SUCCESS)
    scheduler.tick()
    assert gc_times(scheduler) == [3.0]


def test_a_pause_is_of_every_computation_that_was_active() -> None:
    scheduler = Scheduler()
    scheduler.submit("inc-1", client="alice", stimulus="a")
    scheduler.paused += 1
    scheduler.submit("add-1", client="bob", stimulus="b")
    scheduler.paused += 2
    scheduler.run("inc-1")
    scheduler.paused += 4
    scheduler.run("add-1")
    scheduler.tick()
    assert set(gc_times(scheduler)) == {3.0, 6.0}


def test_what_workers_tell_of_its_groups_is_added() -> None:
    scheduler = Scheduler()
    scheduler.model.tellers = {W1}
    scheduler.submit("inc-1", "add-1")
    inc, add = scheduler.dispatch("inc-1"), scheduler.dispatch("add-1")
    scheduler.tell(inc, paused=0.25)
    scheduler.tell(inc, names.SUCCESS, paused=0.5)
    scheduler.tell(add, names.SUCCESS, paused=1)
    scheduler.end("inc-1")
    scheduler.paused += 2
    scheduler.end("add-1")
    scheduler.tick()
    assert gc_times(scheduler) == [3.75]


def test_a_graph_without_tasks_has_the_pauses_of_its_update() -> None:
    scheduler = Scheduler()
    graph = scheduler.model.receive("graph", "alice", None, names.OP_COMPUTE, scheduler.now)
    scheduler.paused += 0.5
    scheduler.model.finish(graph, scheduler.now)
    scheduler.paused += 1
    scheduler.tick()
    assert gc_times(scheduler) == [0.5]


def test_what_is_open_when_the_scheduler_stops_has_the_pauses_up_to_then() -> None:
    scheduler = Scheduler()
    scheduler.submit("inc-1")
    scheduler.paused += 0.5
    scheduler.model.stop(scheduler.now)
    assert gc_times(scheduler) == [0.5]


def test_where_there_was_no_pause_a_byte_travels_and_older_versions_tell_none() -> None:
    sums = Sums()
    assert sums.to_wire()[-1] == 0
    assert type(sums.to_wire()[-1]) is int
    sums.merge(Sums().to_wire()[:-1])
    assert sums.paused == 0


# -- the phases of a graph's update -----------------------------------------------------------------------------------

METRICS = {
    "start_timestamp_seconds": 1000.0,
    "materialization_duration_seconds": 0.002,
    "ordering_duration_seconds": -0.03,
    "state_initialization_duration_seconds": -0.4,
    "duration_seconds": 0.432,
}


def test_a_graphs_phases_are_the_same_numbers_on_spans_and_in_the_metric() -> None:
    scheduler = Scheduler()
    graph = scheduler.model.receive("graph", "alice", None, names.OP_COMPUTE, scheduler.now)
    scheduler.model.measure("graph", METRICS, None)
    scheduler.model.finish(graph, scheduler.now)
    _, *spans = (span for span in scheduler.emitted if span.name.startswith(names.GRAPH_UPDATE[:-7]))
    found = GraphPhases(Histograms())
    found.add(graph.metrics)
    instrument, points = found.measured().instrument, found.measured().points
    assert instrument is GRAPH_UPDATE_SECONDS
    assert {span.name.rpartition(".")[2]: (span.end - span.start) / 1e9 for span in spans} == {
        point.attributes[0][1]: pytest.approx(point.value.sum, abs=1e-6)  # type: ignore[union-attr]
        for point in points
    }
    assert [(point.attributes, point.value.sum, point.value.total) for point in points] == [  # type: ignore[union-attr]
        ((("dask.graph.phase", "materialize"),), 0.002, 1),
        ((("dask.graph.phase", "order"),), 0.03, 1),
        ((("dask.graph.phase", "init"),), 0.4, 1),
    ]


def test_a_graph_that_failed_has_no_phases() -> None:
    found = GraphPhases(Histograms())
    found.add({"tasks": 3})
    assert found.measured().points == []
    found.add(METRICS)
    assert len(found.measured().points) == 3
