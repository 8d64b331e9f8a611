"""Distributed is still what the seam takes it for; where it is not, the message says what to change.

The facts are in `drift`, the run that some of them are looked up in is in `drift_run`. After an update of distributed
these tests fail before anything stranger does.
"""

from __future__ import annotations

import asyncio
import dataclasses

import distributed.metrics
import pytest
from distributed import Worker

from tests.unit import drift, drift_run
from tests.unit.drift import DYNAMIC, SIGNATURES, STATIC, Drift, Fact, Seen, Signature


@pytest.fixture(scope="module")
def seen() -> Seen:
    return asyncio.run(drift_run.watch())


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: s.function.partition(":")[2])
def test_functions_of_distributed_have_the_parameters_that_we_know(signature: Signature) -> None:
    signature.check()


@pytest.mark.parametrize("fact", STATIC, ids=lambda f: f.expects)
def test_distributed_is_written_as_we_know_it(fact: Fact) -> None:
    fact.check()


@pytest.mark.parametrize("fact", DYNAMIC, ids=lambda f: f.expects)
def test_distributed_does_what_we_know(fact: Fact, seen: Seen) -> None:
    fact.check(seen)


# -- the messages -------------------------------------------------------------------------------------------------


def _message_of(place: str) -> str:
    """What the signature of a function of distributed complains of."""
    broken = next(s for s in SIGNATURES if s.function == place)
    with pytest.raises(Drift) as told:
        broken.check()
    return str(told.value)


def test_a_parameter_that_is_new_is_told_with_the_wrapper_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    async def execute(self: object, key: object, *, stimulus_id: str, deadline: float) -> None: ...

    monkeypatch.setattr(Worker, "execute", execute)
    assert _message_of("distributed:Worker.execute") == (
        "dask_otel/seam/worker.py WorkerSeam._wrap_execute expects distributed:Worker.execute(self, key, *, "
        "stimulus_id); distributed "
        + distributed.__version__
        + " has distributed:Worker.execute(self, key, *, "
        "stimulus_id, deadline). Change it there, then the fact in tests/unit/drift.py."
    )


def test_a_function_that_is_gone_is_told_with_the_wrapper_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(distributed.Client, "_graph_to_futures")
    message = _message_of("distributed:Client._graph_to_futures")
    assert message.startswith("dask_otel/seam/client.py _wrap_submission expects ")
    assert "AttributeError" in message


def test_a_ledger_that_is_another_is_told_with_the_function_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Renamed:
        def __init__(self) -> None:
            self.started = 0.0

    monkeypatch.setattr(drift, "DelayedMetricsLedger", Renamed)
    broken = []
    for fact in STATIC:
        try:
            fact.check()
        except Drift as told:
            broken.append(str(told).partition(" expects ")[0])
    assert broken == [
        "dask_otel/seam/worker.py WorkerSeam._measure",
        "dask_otel/seam/run.py Posts",
        "dask_otel/seam/worker.py WorkerSeam._measure",
        "dask_otel/seam/transfers.py TransferSeam.close",
    ]


def test_a_context_that_is_lost_on_the_way_to_the_task_is_told(seen: Seen) -> None:
    lost = dataclasses.replace(seen, results={**seen.results, "thread": ("lost", 1)})
    fact = next(f for f in DYNAMIC if f.expects.startswith("a task's thread to run in the context"))
    with pytest.raises(
        Drift, match=r"^dask_otel/seam/worker.py WorkerSeam._wrap_execute expects .* has \('lost', 1\)"
    ):
        fact.check(lost)


def test_every_place_to_change_is_there() -> None:
    """The messages send people to functions that exist."""
    places = {fact.seam for fact in (*STATIC, *DYNAMIC)} | {signature.seam for signature in SIGNATURES}
    assert [place for place in sorted(places) if not _exists(place)] == []


def _exists(place: str) -> bool:
    file, _, name = place.partition(" ")
    module = f"dask_otel.{file.removesuffix('.py').replace('/', '.')}"
    try:
        drift.resolve(f"{module}:{name}")
    except AttributeError:
        return False
    return True
