"""Utilisation as the real Prometheus computes it: one for a slot that is held, whatever the interval, with no spikes."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from distributed import Client, LocalCluster

import dask_otel

from .asking import over, raw, until

#: Seconds between exports, which with OTLP is what a scrape is.
INTERVALS = 0.5, 2.0
#: Tasks one after the other, and how long each holds its slot (s).
TASKS, SECONDS = 4, 4.0
#: Threads of the worker; each is held.
THREADS = 2
#: A timestamp has milliseconds, and a busy machine is late between the clock and the count.
ROUNDING = 0.02
#: What a task may hold its slot for beside its code (s): before it, and until its result is stored, on a busy machine.
AROUND = 1.0

#: When a task's code has begun and ended (s since the epoch).
Held = tuple[float, float]


def held(x: int) -> Held:
    start = time.time()
    time.sleep(SECONDS)
    return start, time.time()


@contextmanager
def exporting(environment: pytest.MonkeyPatch, interval: float) -> Iterator[Client]:
    environment.setenv("OTEL_METRIC_EXPORT_INTERVAL", str(int(interval * 1000)))
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=THREADS, dashboard_address=":0", silence_logs=logging.CRITICAL
        ) as cluster,
        Client(cluster) as client,
    ):
        dask_otel.enable(client)
        yield client


def test_utilisation_is_that_of_the_slots_held_with_any_interval(
    environment: pytest.MonkeyPatch, prometheus: str
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{prometheus}/api/v1/otlp/v1/metrics")
    with ExitStack() as clusters:
        clients = [clusters.enter_context(exporting(environment, interval)) for interval in INTERVALS]
        running = [client.map(held, range(TASKS * THREADS), pure=False) for client in clients]
        ran = [client.gather(work) for client, work in zip(clients, running, strict=True)]
        assert all(dask_otel.flush(client, 30) for client in clients)
        for client, interval, tasks in zip(clients, INTERVALS, ran, strict=True):
            cluster_id = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.id)
            of = f'{{dask_cluster_id="{cluster_id}", dask_task_prefix="held"}}'
            samples = assert_total_is_what_was_held(prometheus, of, interval, tasks)
            assert_utilisation(prometheus, of, interval, tasks, samples)
            assert_nothing_runs_any_more(prometheus, of, interval)


def assert_total_is_what_was_held(
    prometheus: str, of: str, interval: float, tasks: list[Held]
) -> list[float]:
    """From one sample to the next, and all in all; returns when the samples were taken."""
    end = max(ended for _, ended in tasks)
    (total,) = until(
        lambda: raw(prometheus, f"dask_worker_compute_time_seconds_total{of}"),
        lambda found: bool(found) and found[0][-1].time > end + 2 * interval,
    )
    assert len(total) >= 0.7 * TASKS * SECONDS / interval, "an export was missing"
    for before, after in itertools.pairwise(total):
        passed, rose = after.time - before.time, after.value - before.value
        expected = overlap(tasks, before.time, after.time)
        assert expected - ROUNDING * passed - 0.05 <= rose <= expected + ROUNDING * passed + THREADS * AROUND
        assert rose <= THREADS * (passed + ROUNDING)
    seconds = sum(ended - started for started, ended in tasks)
    assert seconds - 0.01 <= total[-1].value <= seconds + len(tasks) * AROUND
    return [one.time for one in total]


def overlap(tasks: list[Held], start: float, end: float) -> float:
    """Seconds of tasks between two moments."""
    return sum(max(0.0, min(ended, end) - max(started, start)) for started, ended in tasks)


def assert_utilisation(
    prometheus: str, of: str, interval: float, tasks: list[Held], samples: list[float]
) -> None:
    window = 4 * interval
    start, end = min(started for started, _ in tasks), max(ended for _, ended in tasks)
    query = f"sum(rate(dask_worker_compute_time_seconds_total{of}[{int(window * 1000)}ms])) / {THREADS}"
    # After the end too: what `rate` makes of the last samples is less than one, if with steps.
    (found,) = over(prometheus, query, start, end + window, interval / 4)
    assert max(one.value for one in found) <= 1 + ROUNDING
    steady = [one for one in found if start + window + interval < one.time < end - interval]
    assert len(steady) > 5
    for one in steady:
        # What `rate` makes of a window with a late export, on a busy machine, is its own guess.
        inside = [at for at in samples if one.time - window <= at <= one.time]
        moments = [one.time - window, *inside, one.time]
        if any(after - before > 1.05 * interval for before, after in itertools.pairwise(moments)):
            continue
        # From one task to the next a slot is free for as long as the scheduler takes; samples are half a window apart or more.
        free = window - overlap(tasks, one.time - window, one.time) / THREADS
        assert one.value >= 1 - ROUNDING - 2 * free / window


def assert_nothing_runs_any_more(prometheus: str, of: str, interval: float) -> None:
    (executing,) = raw(prometheus, f"dask_worker_executing_time_seconds{of}")
    assert executing[-1].value == 0
    most = max(one.value for one in executing)
    assert THREADS * (SECONDS - interval) * 0.9 <= most <= THREADS * (SECONDS + AROUND)
