"""P2P: the phases of a shuffle and of a rechunk, their bytes, what goes on in the background; a worker lost in between."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_otel
from dask_otel import endings, names
from dask_otel.tree import Received
from tests.cluster.conftest import MakeTraced
from tests.cluster.metering import assert_all_is_told_and_counted, samples, totals, wasted_on_spans
from tests.cluster.support import DEADLINE, Traced, attributes, named, tasks, wait_until
from tests.cluster.test_failures import Gate, addresses, computed, gate, itself, kill, links, one
from tests.cluster.test_sums import assert_sums_agree, on_spans

__all__ = ["gate"]

#: How labels of P2P begin in the amounts of tasks.
P2P = "p2p-"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine makes no worker late: totals are whole or the test fails."""
    monkeypatch.setattr(endings, "PATIENCE", 20.0)


def table(n: int, gate: Gate | None = None) -> pd.DataFrame:
    if gate is not None:
        gate.pass_through()
    return pd.DataFrame({"k": np.arange(40) % 8, "n": n})


def size(part: pd.DataFrame) -> pd.Series:
    return pd.Series([len(part)])


def shuffled(*gates: Gate | None) -> Any:
    """A DataFrame of a partition for each, shuffled by P2P."""
    with dask.config.set({"dataframe.convert-string": False}):
        frame = dd.from_map(table, list(range(len(gates))), list(gates), meta=table(0))
        parts = frame.shuffle("k", shuffle_method="p2p", npartitions=len(gates))
        return parts.map_partitions(size, meta=pd.Series([0]))


def rechunked() -> Any:
    return da.ones((60, 60), chunks=(60, 6)).rechunk((6, 60), method="p2p").sum()


def metered(traced: Traced) -> dict[tuple[str, str], dict[str, float]]:
    """What workers export of P2P, by unit and by where it was metered: ``tasks``, ``foreground``, ``background-…``."""
    found: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for unit, name in (("seconds", "dask.worker.activity.time"), ("bytes", "dask.worker.activity.size")):
        counted = totals(samples(traced.receiver), name, "dask.metering.context", "dask.activity.name")
        for (context, activity), value in counted.items():
            if context == "p2p":
                where, _, label = activity.partition(".")
                found[unit, where][label] += value
            elif context == "execute" and activity.startswith(P2P):
                found[unit, "tasks"][activity.removeprefix(P2P)] += value
    return {key: dict(values) for key, values in found.items()}


def attempts(spans: list[Received]) -> list[Received]:
    return [r for r in spans if attributes(r)[names.OPERATION] == names.OP_TASK]


def bytes_on_spans(spans: list[Received]) -> dict[str, float]:
    """Bytes of P2P on task spans, by label."""
    found: defaultdict[str, float] = defaultdict(float)
    for (_, label, unit), value in on_spans(spans, names.OP_TASK).items():
        if unit == "bytes" and label.startswith(P2P):
            found[label.removeprefix(P2P)] += value
    return dict(found)


def test_a_shuffle_and_a_rechunk_tell_their_phases_and_bytes_once_and_background_work_apart(
    traced: Traced,
) -> None:
    """Scenario 18."""
    assert rechunked().compute() == 3600
    assert shuffled(None, None, None, None).compute().sum() == 160

    assert_sums_agree(traced)
    rechunk, shuffle = computed(traced)
    for trace, ends in (
        (rechunk, ("transfer", "barrier", "sum")),
        (shuffle, ("transfer", "barrier", "p2pshuffle")),
    ):
        groups = [r.span.name for r in trace if attributes(r)[names.OPERATION] == names.OP_GROUP]
        for end in ends:
            assert [name for name in groups if name.endswith(f"{end} group")], (end, groups)
        computation = one(trace, names.COMPUTATION)
        assert attributes(computation)[names.COMPUTATION_STATE] == names.FINISHED
    spans = traced.spans()
    transfers = [r for r in attempts(spans) if r.span.name.endswith("transfer")]
    partitioned = named(spans, "p2p-shard-partition-noncpu")
    assert 0 < len(partitioned) <= len(transfers)
    assert named(spans, "p2p-get-output-noncpu")
    # What goes on in the background is of no task.
    assert not [r.span.name for r in spans if r.span.name.startswith("background")]

    found = metered(traced)
    assert set(found) == {
        *((unit, where) for unit in ("seconds", "bytes") for where in ("tasks", "foreground")),
        *((unit, f"background-{what}") for unit in ("seconds", "bytes") for what in ("comms", "disk")),
    }
    # Dask meters what tasks do in both contexts: there is one number, and it is the spans'.
    assert found["bytes", "foreground"] == found["bytes", "tasks"] == bytes_on_spans(spans)
    assert all(value > 0 for values in found.values() for value in values.values())
    assert_all_is_told_and_counted(traced)


def test_a_shuffle_that_a_lost_worker_restarts_has_each_attempt_told_and_counted_once(
    traced_cluster_of: MakeTraced, gate: Gate
) -> None:
    """Scenario 18: its inputs had been transferred, but for one, which keeps a thread."""
    with traced_cluster_of(threads=2) as traced:
        future = traced.client.compute(shuffled(None, None, None, gate))
        gate.wait_for_tasks()
        scheduler = traced.cluster.scheduler  # type: ignore[union-attr]
        wait_until(lambda: transferred(scheduler) == 3)
        (holder,) = {ts.processing_on.address for ts in scheduler.tasks.values() if ts.state == "processing"}
        (victim,) = set(addresses(traced)) - {holder}
        assert dask_otel.flush(traced.client, DEADLINE)  # What it counted would die with it.
        (waiting,) = [ts.key for ts in scheduler.tasks.values() if ts.state == "processing"]
        before = sent(traced, holder, waiting)
        kill(traced, victim)
        # Else it might end unasked for before its worker knows that it is to be run again.
        wait_until(lambda: sent(traced, holder, waiting) != before)
        gate.open()
        assert future.result().sum() == 160

        wait_until(lambda: named(traced.spans(), names.COMPUTATION))
        spans = traced.trace()
        shown = attempts(spans)
        assert len({r.span.span_id for r in spans}) == len(spans)
        assert_chains_are_whole(shown)
        again = [r for r in tasks(spans, "shuffle-transfer") if attributes(r)[names.ATTEMPT] > 1]
        assert len({attributes(r)[names.TASK_KEY] for r in again}) >= 3
        assert {attributes(r).get(names.CAUSE) for r in again} == {names.RECOMPUTED}
        assert not [r for r in spans if names.GROUP_INCOMPLETE in attributes(r)]
        assert on_spans(spans, names.OP_GROUP) == pytest.approx(on_spans(spans, names.OP_TASK), abs=1e-9)

        computation = attributes(one(spans, names.COMPUTATION))
        assert computation[names.COMPUTATION_STATE] == names.FINISHED
        by_outcome = Counter(attributes(r)[names.OUTCOME] for r in shown)
        assert {
            key.removeprefix(names.COMPUTATION_OUTCOMES): n
            for key, n in computation.items()
            if key.startswith(names.COMPUTATION_OUTCOMES)
        } == by_outcome
        assert computation[names.WASTED_TIME] == pytest.approx(sum(wasted_on_spans(shown).values()), abs=1e-4)
        assert bytes_on_spans(spans)["shards"] == metered(traced)["bytes", "foreground"]["shards"]
        assert_all_is_told_and_counted(traced)


def sent(traced: Traced, address: str, key: Any) -> int | None:
    """Which dispatch of a task a worker knows of, if any."""

    def run_id(dask_worker: Any) -> int | None:
        ts = dask_worker.state.tasks.get(key)
        return ts.run_id if ts is not None else None

    found: int | None = traced.client.run(run_id, workers=[address])[address]
    return found


def transferred(scheduler: Any) -> int:
    """How many inputs have been transferred."""
    return len(
        [
            ts
            for ts in scheduler.tasks.values()
            if ts.prefix.name == "shuffle-transfer" and ts.state == "memory"
        ]
    )


def assert_chains_are_whole(shown: list[Received]) -> None:
    """Each task's attempts count up from 1, each linked to the one before; a run that was discarded is nobody's next."""
    by_key: defaultdict[str, list[Received]] = defaultdict(list)
    for r in shown:
        if attributes(r)[names.OUTCOME] != names.DISCARDED:
            by_key[attributes(r)[names.TASK_KEY]].append(r)
    for chain in by_key.values():
        chain.sort(key=lambda r: attributes(r)[names.ATTEMPT])
        assert [attributes(r)[names.ATTEMPT] for r in chain] == list(range(1, len(chain) + 1))
        assert [links(r) for r in chain] == [[], *([itself(r)] for r in chain[:-1])]
