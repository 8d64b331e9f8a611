from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import pytest

from dask_otel.receiver import Receiver
from tests.cluster.support import Traced, clean, receiving, traced_cluster


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No variable of OpenTelemetry's or ours, but those that a test sets."""
    with clean(monkeypatch):
        yield monkeypatch


@pytest.fixture
def receiver(clean_environment: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """An OTLP receiver, and the environment that makes this process and its children send to it."""
    with receiving(clean_environment) as receiver:
        yield receiver


class MakeTraced(Protocol):
    def __call__(
        self, *, n_workers: int = 2, threads: int = 1, **kwargs: Any
    ) -> AbstractContextManager[Traced]: ...


@pytest.fixture
def traced_cluster_of(receiver: Receiver) -> MakeTraced:
    """Make clusters: ``with traced_cluster_of(n_workers=2) as traced: …``."""
    return partial(traced_cluster, receiver)


@pytest.fixture
def traced(traced_cluster_of: MakeTraced) -> Iterator[Traced]:
    """A cluster of two workers with a thread each."""
    with traced_cluster_of() as traced:
        yield traced


@pytest.fixture(scope="module")
def cluster_of_module() -> Iterator[Traced]:
    """A cluster of two workers with two threads each, for the tests of a module that leave nothing behind."""
    with (
        pytest.MonkeyPatch.context() as environment,
        receiving(environment) as receiver,
        traced_cluster(receiver, threads=2) as traced,
    ):
        yield traced


@pytest.fixture
def shared(cluster_of_module: Traced) -> Traced:
    """The module's cluster, what tests did before forgotten."""
    cluster_of_module.forget()
    return cluster_of_module
