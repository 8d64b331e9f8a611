"""A real cluster whose telemetry comes to a receiver in this process."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, Scheduler, Worker
from distributed.utils import get_mp_context

import dask_otel
from dask_otel import names, process
from dask_otel.receiver import Receiver
from dask_otel.scheduler import schedulers
from dask_otel.tree import Received, outline
from dask_otel.turning_on import workers

#: A deadline (s) that is only reached when something is broken.
DEADLINE = 60
#: Workers of a LocalCluster are forked by a server of forks that has imported distributed: a quarter of the CPU of `spawn`.
FORKED = {"distributed.worker.multiprocessing-method": "forkserver"}


class Traced:
    """A client of a cluster that is traced."""

    def __init__(self, client: Client, cluster: LocalCluster | None, receiver: Receiver) -> None:
        self.client = client
        self.cluster = cluster
        self.receiver = receiver
        #: How many spans had come when `forget` was called.
        self.forgotten = 0

    def forget(self) -> None:
        """From now on only what comes after: for tests that share a cluster."""
        assert dask_otel.flush(self.client, DEADLINE)
        self.forgotten = len(self.receiver.spans())

    def spans(self) -> list[Received]:
        """Everything that was sent, once all servers have sent what they have."""
        assert dask_otel.flush(self.client, DEADLINE)
        return self.receiver.spans()[self.forgotten :]

    def traces(self) -> dict[bytes, list[Received]]:
        """The same by trace id, oldest trace first."""
        found: dict[bytes, list[Received]] = {}
        for received in sorted(self.spans(), key=lambda r: r.span.start):
            found.setdefault(received.span.trace_id, []).append(received)
        return found

    def trace(self) -> list[Received]:
        """The spans of the only trace that has a computation (spills and moved replicas are traces of their own)."""
        traces = [t for t in self.traces().values() if any(r.span.name == names.COMPUTATION for r in t)]
        assert len(traces) == 1, "\n\n".join(map(outline, traces))
        return traces[0]

    def outline(self) -> str:
        """The structure of the only trace, transfers left out: where data goes is Dask's choice."""
        return outline(without_transfers(self.trace()))


def without_transfers(spans: list[Received]) -> list[Received]:
    """The spans without those of transfers."""
    return [r for r in spans if attributes(r).get(names.OPERATION) != names.OP_TRANSFER]


def attributes(received: Received) -> dict[str, Any]:
    """All attributes of a span."""
    return dict(received.span.common + received.span.attributes)


def named(spans: list[Received], name: str) -> list[Received]:
    """The spans of one name, in the order of their starts."""
    return sorted((r for r in spans if r.span.name == name), key=lambda r: r.span.start)


def tasks(spans: list[Received], prefix: str) -> list[Received]:
    """The attempts of the tasks of a prefix, in the order of their starts."""
    return [r for r in named(spans, prefix) if attributes(r).get(names.OPERATION) == names.OP_TASK]


@contextmanager
def traced_cluster(
    receiver: Receiver, *, n_workers: int = 2, threads: int = 1, forked: bool = True, **kwargs: Any
) -> Iterator[Traced]:
    """A LocalCluster of processes under nannies, dask-otel enabled by its client.

    A test of how a process begins, or of what it prints (forked ones print where the first of them did), has them spawned.
    """
    kwargs = {"processes": True, "dashboard_address": ":0", "silence_logs": logging.CRITICAL, **kwargs}
    if forked and kwargs["processes"]:
        start_server_of_forks()
        kwargs["env"] = {**os.environ, **kwargs.get("env", {})}  # What they inherit is the server's.
    with (
        dask.config.set(FORKED if forked else {}),
        LocalCluster(n_workers=n_workers, threads_per_worker=threads, **kwargs) as cluster,
        Client(cluster) as client,
    ):
        dask_otel.enable(client)
        yield Traced(client, cluster, receiver)
        dask_otel.disable(client)


@cache
def start_server_of_forks() -> None:
    """Once in this process, no variable that a test has set in its environment."""
    with pytest.MonkeyPatch.context() as environment, dask.config.set(FORKED):
        unset(environment)
        get_mp_context()  # It is to import what distributed names here.
        forkserver.ensure_running()


class Once:
    """Fails the first ``times`` times that it is called for a key, in whatever process.

    Examples: ``client.submit(once, 3, retries=2)``.
    """

    def __init__(
        self, folder: Path, times: int = 1, error: Callable[[], BaseException] = lambda: ValueError("boom")
    ):
        self.folder = str(folder)
        self.times = times
        self.error = error
        self.__name__ = "once"

    def __call__(self, x: Any) -> Any:
        for n in range(self.times):
            try:
                (Path(self.folder) / f"{n}").touch(exist_ok=False)
            except FileExistsError:
                continue
            raise self.error()
        return x


def unset(environment: pytest.MonkeyPatch) -> None:
    """Take away every variable of OpenTelemetry's or ours."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "DASK_OTEL__", "TRACEPARENT", "TRACESTATE", "BAGGAGE")):
            environment.delenv(name)


@contextmanager
def clean(environment: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of OpenTelemetry's or ours, but those that a test sets; no pipeline of this process is left over."""
    unset(environment)
    before = set(process._pipelines)
    try:
        yield
    finally:
        close_pipelines(before)


@contextmanager
def receiving(environment: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """An OTLP receiver, and the environment that makes this process and its children send to it."""
    with Receiver() as receiver, clean(environment):
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield receiver


def close_pipelines(but: Collection[object] = ()) -> None:
    """Let go of this process's pipelines, so that the next test starts its own; those of a shared cluster stay."""
    for key in [key for key in process._pipelines if key not in but]:
        process._pipelines.pop(key).close(1.5)


def wait_for(path: Path) -> None:
    """Block, in a task, until a test has made a file."""
    deadline = time.monotonic() + DEADLINE
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.005)


def wait_until(condition: Callable[[], object]) -> None:
    """Block until a condition holds."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come to hold"
        time.sleep(0.01)


def assert_nothing_open(traced: Traced) -> None:
    """The scheduler and its workers have told all that they knew of; what is left is histories, which are bounded."""
    assert dask_otel.flush(traced.client, DEADLINE)
    deadline = time.monotonic() + DEADLINE
    while left := _open(traced.client):  # A worker's last messages may still be on their way.
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def _open(client: Client) -> dict[str, dict[str, str]]:
    found = {"scheduler": client.run_on_scheduler(_open_on_scheduler), **client.run(_open_on_worker)}
    return {server: held for server, held in found.items() if held}


def _open_on_scheduler(dask_scheduler: Scheduler) -> dict[str, str]:
    telemetry = schedulers.telemetry(dask_scheduler)
    assert telemetry is not None
    model = vars(telemetry.model)
    held = {name: model[name] for name in model if isinstance(model[name], (dict, set, list, tuple))}
    del held["tellers"]
    held |= {"_chains": model["_chains"]._open, "_lost": telemetry._lost}
    return {name: repr(value) for name, value in held.items() if value}


def _open_on_worker(dask_worker: Worker) -> dict[str, str]:
    telemetry = workers.telemetry(dask_worker)
    assert telemetry is not None
    seam = telemetry.seam
    held = {
        "runs": seam._runs,
        "waiting": seam._waiting,
        "ready": seam._ready,
        "sums": telemetry.sums.waiting,
    }
    return {name: repr(value) for name, value in held.items() if value}
