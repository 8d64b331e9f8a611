"""What arrives of graphs of any size: within the budget, readable, and whole in its totals."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import dask
import pytest
from distributed import Client, wait
from opentelemetry import trace

from dask_otel import names
from dask_otel.receiver import Receiver
from dask_otel.tree import Received
from tests.cluster.support import DEADLINE, Traced, attributes, receiving, traced_cluster

#: Tasks of the graph that is too large for every run of the tests: a quarter of an hour on two cores.
LARGE = 200_000
BUDGET = 10_000, 4_000_000
FAILURES = 7
FATES = ("emitted", "rolled_up", "dropped")


def work(i: int, n: int) -> int:
    """Fails a few times, takes long once, has a span of its own here and there."""
    if i % 50 == 1:
        with trace.get_tracer("mine").start_as_current_span("mine"):
            pass
    if n >= 1_000 and i == n // 2:
        time.sleep(1.0)
    if n >= 1_000 and i % (n // FAILURES) == 3:
        raise ValueError(i)
    return i


def count(results: list[int]) -> int:
    return len(results)


class Arrived(NamedTuple):
    """What came of one graph."""

    spans: list[Received]
    size: int

    def of(self, operation: str) -> list[Received]:
        return [r for r in self.spans if attributes(r).get(names.OPERATION) == operation]

    def one(self, operation: str) -> dict[str, Any]:
        (found,) = self.of(operation)
        return attributes(found)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Traced]:
    with pytest.MonkeyPatch.context() as environment, receiving(environment) as receiver:
        environment.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        environment.setenv("OTEL_METRICS_EXPORTER", "none")
        # Sums that come late on a busy machine would not be in the totals.
        environment.setattr("dask_otel.endings.PATIENCE", DEADLINE)
        with traced_cluster(receiver, n_workers=2, threads=2) as traced:
            yield traced


def run(traced: Traced, n: int) -> Arrived:
    """A graph of ``n`` tasks, of which only totals are kept."""
    traced.forget()
    before = _bytes(traced.receiver)
    leaves = [dask.delayed(work, pure=False)(i, n) for i in range(n)]
    futures = traced.client.compute(leaves)
    wait(futures)
    del futures, leaves
    spans = traced.spans()
    return Arrived(spans, _bytes(traced.receiver) - before)


def _bytes(receiver: Receiver) -> int:
    return sum(len(request.body) for request in receiver.requests())


def activities(client: Client) -> dict[tuple[str, str], float]:
    """What Dask's digests have of the tasks of `work`, by activity and unit, on all workers."""
    totals: Counter[tuple[str, str]] = Counter()
    for digests in client.run(lambda dask_worker: dict(dask_worker.digests_total)).values():
        for key, value in digests.items():
            if isinstance(key, tuple) and key[0] == "execute" and key[2] == "work":
                totals[key[3], key[4]] += value
    return dict(totals)


@pytest.mark.parametrize(
    ("n", "level"),
    [
        (1, "activity"),
        (1_000, "activity"),
        pytest.param(20_000, "group", marks=pytest.mark.timeout(600)),
        pytest.param(
            LARGE,
            "group",
            marks=[
                pytest.mark.timeout(3_600),
                pytest.mark.skipif(
                    not os.environ.get("DASK_OTEL_TEST_LARGE"),
                    reason="takes long: set DASK_OTEL_TEST_LARGE=1",
                ),
            ],
        ),
    ],
)
def test_a_graph_arrives_within_its_budget_and_whole_in_its_totals(
    cluster: Traced, n: int, level: str
) -> None:
    before = activities(cluster.client)
    arrived = run(cluster, n)
    computation, group, tasks = arrived.one("computation"), arrived.one("group"), arrived.of("task")
    failures = FAILURES if n >= 1_000 else 0
    failures += n >= 1_000 and n % FAILURES > 3
    assert computation[names.TRACE_DETAIL] == level

    # Within the budget, everything that was counted as sent is there, and nothing was lost.
    ours = [r for r in arrived.spans if names.OPERATION in attributes(r)]
    assert len(ours) <= BUDGET[0]
    assert arrived.size <= BUDGET[1]
    told = {name: computation[f"dask.trace.spans.{name}"] for name in FATES}
    assert told == {"emitted": len(tasks), "rolled_up": n - len(tasks), "dropped": 0}
    assert len(tasks) == n if level == "activity" else len(tasks) >= 500
    by_id = {r.span.span_id: r for r in arrived.spans}
    assert len(by_id) == len(arrived.spans)
    assert [r for r in arrived.spans if r.span.parent_id and r.span.parent_id not in by_id] == []

    # What failed, and what took the longest.
    outcomes = Counter(attributes(r)[names.OUTCOME] for r in tasks)
    assert outcomes == Counter({names.SUCCESS: len(tasks) - failures, names.FAILED: failures})
    longest = max((r.span.end - r.span.start) / 1e9 for r in tasks)
    assert longest == pytest.approx(group["dask.task.duration.max"], abs=1e-5)
    # A sample of the rest, from the first to the last.
    if n >= 1_000:
        starts = sorted(r.span.start for r in tasks)
        width = starts[-1] - starts[0] + 1
        assert {4 * (start - starts[0]) // width for start in starts} == {0, 1, 2, 3}

    # Each of them whole: every amount that is on it has its span below it.
    below: dict[bytes, set[str]] = {}
    for activity in arrived.of("activity"):
        above = by_id[activity.span.parent_id]
        while attributes(above)[names.OPERATION] == "activity":
            above = by_id[above.span.parent_id]
        below.setdefault(above.span.span_id, set()).add(attributes(activity)[names.ACTIVITY_NAME])
    for task in tasks:
        if attributes(task)[names.OUTCOME] == names.SUCCESS:
            amounts = {key.split(".")[3] for key in attributes(task) if key.startswith("dask.task.activity.")}
            shown = {"compute" if name.startswith("thread-") else name for name in amounts - {"other"}}
            assert below.get(task.span.span_id, set()) == shown

    # The user's own spans are below what was sent.
    mine = [r for r in arrived.spans if r.span.name == "mine"]
    assert len(mine) == (n + 48) // 50
    assert {attributes(by_id[r.span.parent_id])[names.OPERATION] for r in mine} <= {"task", "group"}

    # The group's totals are exact.
    assert group["dask.group.outcomes.success"] == n - failures
    assert group.get("dask.group.outcomes.failed", 0) == failures
    after = activities(cluster.client)
    metered = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
    shown = {
        tuple(key.removeprefix("dask.task.activity.").rsplit(".", 1)): value
        for key, value in group.items()
        if key.startswith("dask.task.activity.")
    }
    assert shown == pytest.approx(metered, rel=1e-9, abs=1e-9)


def test_an_annotation_forces_the_detail_of_what_is_submitted_under_it(cluster: Traced) -> None:
    shown: dict[str, Counter[str]] = {}
    for detail in ("group", "task", "activity"):
        cluster.forget()
        with dask.annotate(otel_detail=detail):
            cluster.client.compute([dask.delayed(count, pure=False)([i]) for i in range(3)], sync=True)
        spans = cluster.spans()
        shown[detail] = Counter(str(attributes(r).get(names.OPERATION)) for r in spans)
        (computation,) = (r for r in spans if r.span.name == names.COMPUTATION)
        assert attributes(computation)[names.TRACE_DETAIL] == detail
    above = Counter({"compute": 1, "graph": 4, "computation": 1, "group": 1})
    assert shown["group"] == above
    assert shown["task"] == above + Counter(task=3)
    assert shown["activity"] - Counter(activity=100) == above + Counter(task=3)
    assert shown["activity"]["activity"] >= 3


def test_an_annotation_when_the_graph_is_built_counts_too_and_no_task_keeps_it(cluster: Traced) -> None:
    cluster.forget()
    with dask.annotate(otel_detail="group"):
        built = [dask.delayed(count, pure=False)([i]) for i in range(3)]
    cluster.client.compute(built, sync=True)
    operations = {str(attributes(r).get(names.OPERATION)) for r in cluster.spans()}
    assert operations == {"compute", "graph", "computation", "group"}


def test_a_trace_of_many_computations_has_one_budget(cluster: Traced) -> None:
    """Ten computations below one span of the user's, one after the other."""
    above = trace.SpanContext(int("ab" * 16, 16), int("cd" * 8, 16), True, trace.TraceFlags(1))
    cluster.forget()
    with trace.use_span(trace.NonRecordingSpan(above)):
        for _ in range(10):
            cluster.client.compute([dask.delayed(count, pure=False)([i]) for i in range(1_000)], sync=True)
    spans = cluster.spans()
    ours = [r for r in spans if names.OPERATION in attributes(r)]
    assert {r.span.trace_id.hex() for r in ours} == {"ab" * 16}
    assert len(ours) <= BUDGET[0] + 10 * 7
    levels = [attributes(r)[names.TRACE_DETAIL] for r in spans if r.span.name == names.COMPUTATION]
    assert len(levels) == 10
    assert (levels[0], levels[-1]) == ("activity", "group")
    computations = [attributes(r) for r in spans if r.span.name == names.COMPUTATION]
    totals = {name: sum(c[f"dask.trace.spans.{name}"] for c in computations) for name in FATES}
    sent = sum(attributes(r).get(names.OPERATION) == "task" for r in spans)
    assert totals == {"emitted": sent, "rolled_up": 10_000 - sent, "dropped": 0}


def test_a_detail_that_there_is_not_is_said_and_left_out(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with traced_cluster(receiver, n_workers=1, processes=False, silence_logs=False) as traced:
        caplog.set_level(logging.WARNING, "dask_otel")  # The other cluster silences all.
        with dask.annotate(otel_detail="tasks"):
            traced.client.compute([dask.delayed(count, pure=False)([i]) for i in range(3)], sync=True)
        (computation,) = (r for r in traced.spans() if r.span.name == names.COMPUTATION)
    assert attributes(computation)[names.TRACE_DETAIL] == "activity"
    said = {record.getMessage() for record in caplog.records if "otel_detail" in record.getMessage()}
    assert said == {
        "The annotation otel_detail is 'tasks', which is not auto, activity, task or group; it is left out."
    }
