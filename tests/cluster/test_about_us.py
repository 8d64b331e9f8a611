"""What is told of dask-otel itself: once by a process, however many servers it has, and never less than before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import dask
import pytest

import dask_otel
from dask_otel import instruments, process
from dask_otel.export.pipeline import Pipeline
from tests.cluster.conftest import MakeTraced
from tests.cluster.metering import Sample, last, samples
from tests.cluster.support import DEADLINE, Traced, wait_until

SPANS = instruments.SPANS_EXPORTED.name


@pytest.fixture
def one_process(traced_cluster_of: MakeTraced) -> Iterator[Traced]:
    """A scheduler and two workers in this process."""
    with traced_cluster_of(processes=False) as traced:
        yield traced


def exported(found: list[Sample]) -> dict[str, float]:
    """Spans by the instance that tells of them."""
    told: defaultdict[str, float] = defaultdict(float)
    for (instance, name, _), one in last(found).items():
        if name == SPANS:
            told[instance] += one.value
    return dict(told)


def sent_here() -> int:
    """Spans that this process has sent."""
    (pipeline,) = [one for one in process.components() if isinstance(one, Pipeline)]
    return pipeline.counts.exported


def test_a_process_of_several_servers_tells_each_span_once_and_goes_on_without_the_first(
    one_process: Traced,
) -> None:
    client, receiver = one_process.client, one_process.receiver

    def add_up() -> bool:
        assert dask_otel.flush(client, DEADLINE)
        return sum(exported(samples(receiver)).values()) == sent_here()

    assert client.submit(sum, [1, 2], key="sum-1").result() == 3
    wait_until(add_up)
    (first,) = exported(samples(receiver))
    (address,) = [
        address
        for address, instance in client.run(lambda dask_worker: dask_worker.id).items()
        if instance == first
    ]
    client.retire_workers([address])
    wait_until(lambda: address not in client.scheduler_info(n_workers=-1)["workers"])
    assert client.submit(sum, [1, 3], key="sum-2").result() == 4
    wait_until(add_up)
    assert len(exported(samples(receiver))) == 2
    assert never_less(samples(receiver))


def never_less(found: list[Sample]) -> bool:
    """Whether no total has fallen."""
    before: dict[object, float] = {}
    for one in found:
        key = one.instance, one.name, one.attributes
        if one.monotonic and one.value < before.get(key, 0):
            return False
        before[key] = one.value
    return True


@pytest.mark.parametrize("fate", [instruments.ROLLED_UP, instruments.SAMPLED_OUT])
def test_attempts_that_have_no_span_of_their_own_are_told(
    traced_cluster_of: MakeTraced, monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    if fate == instruments.SAMPLED_OUT:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    with dask.config.set({"otel.traces.detail": "group"}), traced_cluster_of() as traced:
        client = traced.client
        assert client.gather(client.map(abs, range(5), key=[f"abs-{n}" for n in range(5)])) == list(range(5))

        def told() -> dict[frozenset[tuple[str, str]], float]:
            assert dask_otel.flush(client, DEADLINE)
            found = last(samples(traced.receiver)).items()
            name = instruments.SPANS_BY_FATE.name
            return {attributes: one.value for (_, of, attributes), one in found if of == name}

        wait_until(lambda: told() == {frozenset({(instruments.FATE, fate)}): 5})
