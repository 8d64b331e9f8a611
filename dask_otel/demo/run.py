"""The demo from start to end: a cluster, the work, the delivery, what is printed.

Rules
-----
1. The trace goes to stdout; progress and what went wrong to stderr.
2. What is printed without an endpoint came over OTLP from every process, like anybody's.
"""

# distributed's classes are typed in part only.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import io
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import click
import dask.config
from distributed import Client, LocalCluster

import dask_otel
from dask_otel import config, names
from dask_otel.demo import endpoints, texts
from dask_otel.demo.endpoints import Target
from dask_otel.demo.progress import Progress
from dask_otel.demo.root import Root
from dask_otel.demo.workload import PARTS
from dask_otel.receiver import Receiver
from dask_otel.tree import Received

__all__ = ["Size", "demo"]


class Size(NamedTuple):
    """Of the cluster: worker processes, and threads of each."""

    workers: int = 2
    threads: int = 2


class Work(NamedTuple):
    """What was done: the trace it is in, and whether every process delivered its part."""

    root: Root
    delivered: bool


def demo(target: Target | None, size: Size, timeout: float) -> int:
    """Run it, print what came out, return the exit code."""
    # An exporter tells of a failure in several lines; here it is told in one sentence.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the tree's branches, where stdout is not Unicode
    return _send(target, size, timeout) if target else _show(size, timeout)


def _show(size: Size, timeout: float) -> int:
    with Receiver() as receiver, dask.config.set(otel={}):
        if removed := endpoints.isolate(receiver.endpoint):
            click.echo(texts.set_aside(removed), err=True)
        root, delivered = _work(size, Target(receiver.endpoint), timeout)
        spans, complete = _arrived(receiver, root, timeout)
    click.echo(texts.shown(spans, root.trace_id, _width()))
    if delivered and complete:
        return 0
    click.echo(texts.incomplete(timeout), err=True)
    return 1


def _send(target: Target, size: Size, timeout: float) -> int:
    endpoints.direct(target)
    root, delivered = _work(size, target, timeout)
    if not root.sampled:
        click.echo(texts.not_sampled(os.environ.get("OTEL_TRACES_SAMPLER", "")), err=True)
        return 1
    if not delivered:
        click.echo(texts.not_delivered(target), err=True)
        return 1
    click.echo(texts.sent(target, root.trace_id, config.load().traces_url))
    return 0


def _work(size: Size, target: Target, timeout: float) -> Work:
    progress = Progress(len(PARTS) + 2, sys.stderr)
    with _cluster(size, progress) as client:
        root = Root()
        with root.open():
            for what, part in PARTS:
                with progress.step(what):
                    part(client)
        with progress.step("waiting for the telemetry"):
            return Work(root, deliver(client, root, target, timeout))


@contextmanager
def _cluster(size: Size, progress: Progress) -> Iterator[Client]:
    with progress.step(f"starting {size.workers} workers with {size.threads} threads each"):
        cluster = LocalCluster(
            n_workers=size.workers,
            threads_per_worker=size.threads,
            processes=True,
            # No dashboard, and a port that is free: 8787 may be another cluster's.
            dashboard_address=":0",
            scheduler_kwargs={"dashboard": False},
            # One of the tasks fails on purpose, and P2P logs what it does as warnings.
            silence_logs=logging.CRITICAL,
        )
    with cluster, Client(cluster) as client:
        dask_otel.enable(client)
        yield client


def deliver(client: Client, root: Root, target: Target, timeout: float) -> bool:
    """Send all that is pending, in every process; whether it arrived."""
    everywhere = dask_otel.flush(client, timeout)
    return root.send(target.protocol, timeout) and everywhere


def _arrived(receiver: Receiver, root: Root, timeout: float) -> tuple[Sequence[Received], bool]:
    """What came, as soon as it is of every role and nothing that others refer to is missing."""

    def complete(spans: list[Received]) -> bool:
        ids = {item.span.span_id for item in spans}
        roles = {item.resource.get(names.ROLE) for item in spans}
        parents = {item.span.parent_id for item in spans if item.span.parent_id}
        return {root.span_id, *parents} <= ids and {"client", "scheduler", "worker"} <= roles

    try:
        return receiver.wait(complete, timeout), True
    except TimeoutError:
        return receiver.spans(), False


def _width() -> int:
    return min(max(shutil.get_terminal_size((100, 24)).columns, 80), 120)
