"""A graph that is too large for its trace, through the real Collector, as the real Jaeger opens it.

With ``DASK_OTEL_TEST_LARGE=1`` it is one of 200,000 tasks with everything on, and the budget is the default.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter

import dask
import pytest
from distributed import Client, LocalCluster
from opentelemetry import trace as otel_trace
from opentelemetry.sdk.trace import TracerProvider

import dask_otel
from dask_otel import names

from .jaeger import Span, wait_for_trace

LARGE = bool(os.environ.get("DASK_OTEL_TEST_LARGE"))
TASKS, BUDGET = (200_000, 10_000) if LARGE else (4_000, 2_000)


def work(i: int) -> int:
    if i == TASKS // 2:
        time.sleep(1.0)
    return i


def total(xs: list[int]) -> int:
    return sum(xs)


@pytest.mark.timeout(3_600 if LARGE else 300)
def test_jaeger_opens_the_trace_of_a_large_graph_and_its_totals_are_dasks(
    collector_http: str, jaeger_api: str, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector_http)
    with (
        dask.config.set({"otel.traces.budget.spans": BUDGET}),
        LocalCluster(
            2, threads_per_worker=2, dashboard_address=":0", silence_logs=logging.CRITICAL
        ) as cluster,
        Client(cluster) as client,
    ):
        dask_otel.enable(client)
        with TracerProvider().get_tracer("mine").start_as_current_span("request") as request:
            trace_id = request.get_span_context().trace_id
            leaves = [dask.delayed(work, pure=False)(i) for i in range(TASKS)]
            parts = [dask.delayed(total)(leaves[i : i + 500]) for i in range(0, TASKS, 500)]
            assert client.compute(dask.delayed(total)(parts), sync=True) == sum(range(TASKS))
        digests = metered(client)
        assert dask_otel.flush(client, 60)
        begun = time.perf_counter()
        spans = wait_for_trace(jaeger_api, trace_id, whole)
        opened = time.perf_counter() - begun
    by_operation = Counter(str(s.tags.get(names.OPERATION)) for s in spans)
    print(f"\n{TASKS} tasks: Jaeger has {dict(by_operation)}, opened in {opened:.1f} s")
    assert len(spans) <= BUDGET
    # The request's own span is not sent: it is the test's.
    assert {s.parent_id for s in spans} - {s.span_id for s in spans} == {request_id(request)}
    (computation,) = (s for s in spans if s.name == names.COMPUTATION)
    told = {
        fate: computation.tags[f"dask.trace.spans.{fate}"] for fate in ("emitted", "rolled_up", "dropped")
    }
    tasks = TASKS + TASKS // 500 + 1
    sent = by_operation["task"]
    assert (computation.tags[names.TRACE_DETAIL], told) == (
        "group",
        {"emitted": sent, "rolled_up": tasks - sent, "dropped": 0},
    )
    groups = {s.tags[names.TASK_PREFIX]: s.tags for s in spans if s.tags.get(names.OPERATION) == "group"}
    assert {prefix: tags["dask.group.outcomes.success"] for prefix, tags in groups.items()} == {
        "work": TASKS,
        "total": TASKS // 500 + 1,
    }
    amounts = {
        (prefix, *key.removeprefix(names.ACTIVITY_AMOUNT).rsplit(".", 1)): value
        for prefix, tags in groups.items()
        for key, value in tags.items()
        if key.startswith(names.ACTIVITY_AMOUNT)
    }
    for key in sorted(digests):
        print(f"{' '.join(key):<32} Dask {digests[key]:<14.6g} spans (Jaeger) {amounts.get(key, 0):<14.6g}")
    assert amounts == pytest.approx(digests, rel=1e-9)
    longest = max(s.duration for s in spans if s.tags.get(names.OPERATION) == "task")
    assert longest / 1e6 == pytest.approx(groups["work"]["dask.task.duration.max"], abs=1e-5)


def metered(client: Client) -> dict[tuple[str, str, str], float]:
    """What Dask's digests have of tasks, by prefix, activity and unit, on all workers."""
    totals: Counter[tuple[str, str, str]] = Counter()
    for digests in client.run(lambda dask_worker: dict(dask_worker.digests_total)).values():
        for key, value in digests.items():
            if isinstance(key, tuple) and key[0] == "execute":
                totals[key[-3], key[-2], key[-1]] += value
    return dict(totals)


def whole(spans: list[Span]) -> bool:
    """Whether the computation's span has come, and as many tasks as it says."""
    said = [s.tags["dask.trace.spans.emitted"] for s in spans if s.name == names.COMPUTATION]
    return said == [sum(s.tags.get(names.OPERATION) == "task" for s in spans)]


def request_id(span: otel_trace.Span) -> str:
    return f"{span.get_span_context().span_id:016x}"
