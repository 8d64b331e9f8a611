"""What the spans of a run add up to is what Dask's own digests say: one number, two places.

Every test runs a workload and compares, for each prefix, activity and unit, the amounts on the task spans, the
amounts on the group spans and the workers' ``digests_total``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.distributed import Worker
from distributed import Reschedule, wait
from distributed.metrics import context_meter

from dask_otel import names
from dask_otel.intervals import text
from dask_otel.tree import Received
from tests.cluster.conftest import MakeTraced
from tests.cluster.support import Once, Traced, attributes

Amounts = dict[tuple[str, str, str], float]


def on_spans(spans: list[Received], operation: str) -> Amounts:
    totals: Amounts = defaultdict(float)
    for received in spans:
        found = attributes(received)
        if found.get(names.OPERATION) != operation:
            continue
        for key, value in found.items():
            if key.startswith(names.ACTIVITY_AMOUNT):
                label, _, unit = key.removeprefix(names.ACTIVITY_AMOUNT).rpartition(".")
                totals[found[names.TASK_PREFIX], label, unit] += value
    return dict(totals)


def in_digests(traced: Traced) -> Amounts:
    def digests(dask_worker: Worker) -> list[tuple[Any, float]]:
        return [(key, value) for key, value in dask_worker.digests_total.items() if key[0] == "execute"]

    totals: Amounts = defaultdict(float)
    for pairs in traced.client.run(digests).values():
        for (_, _, prefix, label, unit), value in pairs:
            totals[prefix, text(label), unit] += value
    return dict(totals)


def assert_sums_agree(traced: Traced) -> Amounts:
    expected = pytest.approx(in_digests(traced), rel=1e-9, abs=1e-9)
    spans = traced.spans()
    shown = on_spans(spans, names.OP_TASK)
    assert shown == expected
    assert on_spans(spans, names.OP_GROUP) == expected
    assert_attempts_last_for_their_amounts(spans)
    return shown


def assert_attempts_last_for_their_amounts(spans: list[Received]) -> None:
    """Activities and ``other`` of an attempt are the time that the state machine saw: its span's length."""
    for received in spans:
        found = attributes(received)
        if found.get(names.OPERATION) == names.OP_TASK:
            seconds = sum(
                value
                for key, value in found.items()
                if key.startswith(names.ACTIVITY_AMOUNT) and key.endswith(".seconds")
            )
            assert (received.span.end - received.span.start) / 1e9 == pytest.approx(seconds, abs=2e-6)


def metered(x: int) -> int:
    with context_meter.meter("outer"):
        with context_meter.meter(("inner", x % 2)):
            total = sum(range(20_000))
        context_meter.digest_metric("rows", 100, "count")
        context_meter.digest_metric("rows", 800, "bytes")
        context_meter.digest_metric("widgets", 2.5, "apples")
    return total


async def coroutine(x: int) -> int:
    with context_meter.meter("awaited"):
        await asyncio.sleep(0.01)
    return x


def test_of_the_users_own_contexts_labels_and_units(traced: Traced) -> None:
    wait(traced.client.map(metered, range(10)))
    shown = assert_sums_agree(traced)
    assert shown["metered", "widgets", "apples"] == 25
    assert shown["metered", "rows", "bytes"] == 8000
    assert {label for _, label, unit in shown if unit == "seconds"} == {
        "thread-cpu",
        "thread-noncpu",
        "executor",
        "other",
        "outer",
        "inner.0",
        "inner.1",
    }


def test_of_async_tasks(traced: Traced) -> None:
    wait(traced.client.map(coroutine, range(10)))
    shown = assert_sums_agree(traced)
    assert {label for _, label, _ in shown} == {"thread-noncpu", "awaited", "other"}


def test_of_tasks_that_fail_are_retried_and_reschedule_themselves(traced: Traced, tmp_path: Path) -> None:
    (tmp_path / "failing").mkdir()
    (tmp_path / "rescheduling").mkdir()
    futures = [
        traced.client.submit(Once(tmp_path / "failing", times=2), 1, retries=3),
        traced.client.submit(Once(tmp_path / "rescheduling", error=Reschedule), 2),
        traced.client.submit(divide, 1, 0),
    ]
    wait(futures)
    shown = assert_sums_agree(traced)
    assert shown["divide", "failed", "seconds"] > 0
    assert shown["once", "cancelled", "seconds"] > 0
    assert shown["divide", "rows", "bytes"] == 8


def divide(a: int, b: int) -> float:
    context_meter.digest_metric("rows", 8, "bytes")
    return a / b


def test_of_an_array_whose_chunks_move_between_workers(traced: Traced) -> None:
    x = da.random.random((400, 400), chunks=(100, 100))
    with dask.config.set({"array.rechunk.method": "p2p"}):
        y = (x + x.T).rechunk((400, 50)).sum()
    assert y.compute() > 0
    assert_sums_agree(traced)


def make(x: int) -> np.ndarray:
    return np.full(1_000_000, x, dtype="u1")


def size(x: np.ndarray) -> int:
    return len(x)


def test_of_results_that_are_spilled_when_they_are_stored_and_read_back(
    traced_cluster_of: MakeTraced,
) -> None:
    config = {"distributed.worker.memory.target": 0.01, "distributed.worker.memory.spill": False}
    with dask.config.set(config), traced_cluster_of(n_workers=1, memory_limit="300 MiB") as traced:
        made = traced.client.map(make, range(12))
        wait(made)
        assert traced.client.gather(traced.client.map(size, made)) == [1_000_000] * 12
        shown = assert_sums_agree(traced)
    assert shown["make", "disk-write", "seconds"] > 0
    assert shown["size", "disk-read", "bytes"] > 1_000_000
