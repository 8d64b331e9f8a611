from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import pytest
from dask_otel.receiver import Receiver

from tests.cluster.support import Traced, close_pipelines, traced_cluster


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No variable of OpenTelemetry's or ours, but those that a test sets."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "DASK_OTEL__", "TRACEPARENT", "TRACESTATE", "BAGGAGE")):
            monkeypatch.delenv(name)
    yield monkeypatch
    close_pipelines()


@pytest.fixture
def receiver(clean_environment: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """An OTLP receiver, and the environment that makes this process and its children send to it."""
    with Receiver() as receiver:
        clean_environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        clean_environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield receiver
        close_pipelines()


class MakeTraced(Protocol):
    def __call__(self, *, n_workers: int = 2, threads: int = 1, **kwargs: Any) -> AbstractContextManager[Traced]: ...


@pytest.fixture
def traced_cluster_of(receiver: Receiver) -> MakeTraced:
    """Make clusters: ``with traced_cluster_of(n_workers=2) as traced: …``."""
    return partial(traced_cluster, receiver)


@pytest.fixture
def traced(traced_cluster_of: MakeTraced) -> Iterator[Traced]:
    """A cluster of two workers with a thread each."""
    with traced_cluster_of() as traced:
        yield traced
