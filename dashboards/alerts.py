"""Prometheus' alert rules: what is asked, from what on it is told, and what to do."""

from __future__ import annotations

import json
from typing import NamedTuple

from dashboards.promql import Scope, label, metric, share
from dask_otel import instruments as i
from dask_otel import names
from dask_otel.instruments import Instrument

CRITICAL, WARNING, INFO = "critical", "warning", "info"

#: Each cluster for itself, over five minutes.
EACH = Scope(window="5m", always=(names.CLUSTER_ID,))
_LONG = EACH.over("15m")
SCHEDULER = EACH.where(names.ROLE, "=", "scheduler")
_THREADS = EACH.rate(i.THREAD_SECONDS)
_WORKER = (names.SERVICE_INSTANCE_ID, names.WORKER_NAME)


class Alert(NamedTuple):
    """A rule: it is told while ``expr`` is ``beyond`` for as long as ``lasting`` says; ``keep`` after it has ended."""

    name: str
    expr: str
    beyond: str
    lasting: str
    severity: str
    summary: str
    description: str
    action: str
    keep: str = ""


def _silence() -> str:
    """Seconds since each scheduler's last value.

    A server that closes in order ends its values that may fall, so that they are gone at once; of one that was killed the
    last value is seen for five minutes more (Prometheus' lookback).
    """
    return f"time() - max by ({label(names.CLUSTER_ID)}) (timestamp({metric(i.ACTIVE_COMPUTATIONS)}))"


def _lost(what: str, instrument: Instrument) -> str:
    lost = _LONG.increase(instrument, [names.SERVICE_NAME], {names.ERROR_TYPE: ".+"})
    return f'label_replace({lost}, "lost", "{what}", "", "")'


ALERTS = (
    Alert(
        "DaskSchedulerSilent",
        _silence(),
        "> 150",
        "30s",
        CRITICAL,
        "The scheduler of cluster {{ $labels.dask_cluster_id }} has gone silent",
        "Nothing has come from it for {{ $value | humanizeDuration }}, and it did not say that it closes.",
        "See whether its process lives (out of memory, node gone, network) and whether the Collector is reachable. An export "
        "interval above one minute needs a longer threshold here, and a longer query.lookback-delta.",
        "30m",
    ),
    Alert(
        "DaskWorkersMissing",
        f"{EACH.now(i.WORKERS_DESIRED, how='max')} - {EACH.now(i.WORKERS)}",
        "> 0",
        "15m",
        INFO,
        "Cluster {{ $labels.dask_cluster_id }} has fewer workers than its work asks for",
        "{{ $value }} workers are missing since a quarter of an hour.",
        "If the cluster scales by itself: see why workers do not start (quota, pending pods or jobs, image). If its size is "
        "fixed, the work simply asks for more: add workers, or silence this alert.",
    ),
    Alert(
        "DaskSchedulerLagging",
        SCHEDULER.quantile(0.99, i.LOOP_LAG),
        "> 1",
        "5m",
        WARNING,
        "The scheduler of cluster {{ $labels.dask_cluster_id }} is late",
        "Its event loop is late by {{ $value | humanizeDuration }} (p99): every task waits as long.",
        "The dashboard Scheduler shows which handler takes the time. Usually there are too many small tasks: larger "
        "partitions, fewer layers; then garbage collection, then a graph that is too large.",
    ),
    Alert(
        "DaskWorkerLagging",
        EACH.where(names.ROLE, "=", "worker").quantile(0.99, i.LOOP_LAG, _WORKER),
        "> 5",
        "5m",
        WARNING,
        "Worker {{ $labels.dask_worker_name }} of cluster {{ $labels.dask_cluster_id }} is late",
        "Its event loop is late by {{ $value | humanizeDuration }} (p99): it serves no data and sends no heartbeat meanwhile.",
        "Look for tasks that hold the interpreter's lock, for spilling to a slow disk and for swapping. A worker that is late "
        "for `distributed.scheduler.worker-ttl` (5 minutes) is taken for dead.",
    ),
    Alert(
        "DaskTasksLost",
        share(
            _LONG.increase(i.TASK_ATTEMPTS, only={names.OUTCOME: names.LOST}), _LONG.increase(i.TASK_ATTEMPTS)
        ),
        "> 0.01",
        "5m",
        WARNING,
        "Cluster {{ $labels.dask_cluster_id }} loses tasks",
        "{{ $value | humanizePercentage }} of the attempts of the last quarter of an hour were lost with their worker.",
        "See why workers die: memory (the dashboard Cluster, *Memory by worker*), preemption, the nodes' logs. The traces show "
        "the attempts by `dask.task.outcome=lost`.",
    ),
    Alert(
        "DaskSpilling",
        share(EACH.rate(i.SPILL_SECONDS), _THREADS),
        "> 0.05",
        "10m",
        WARNING,
        "Cluster {{ $labels.dask_cluster_id }} spends its time on spilling",
        "{{ $value | humanizePercentage }} of the threads' time goes to writing results to disk and reading them back.",
        "More memory a thread, smaller partitions, or release what nobody needs (persisted collections, futures held).",
    ),
    Alert(
        "DaskThreadsIdleWhileWorkWaits",
        share(EACH.rate(i.IDLE_SECONDS, only={i.IDLE_REASON: "imbalance|no-worker"}), _THREADS),
        "> 0.25",
        "10m",
        WARNING,
        "Threads of cluster {{ $labels.dask_cluster_id }} are idle while tasks wait",
        "{{ $value | humanizePercentage }} of its threads have nothing to do, though tasks wait.",
        "`imbalance` on the dashboard Cluster: tasks are tied to workers by data, restrictions or resources. `no-worker`: no "
        "worker fulfils what tasks ask for.",
    ),
    Alert(
        "DaskTasksWithoutWorker",
        EACH.now(i.SCHEDULER_TASKS, only={i.TASK_STATE: "no-worker"}),
        "> 0",
        "10m",
        WARNING,
        "No worker of cluster {{ $labels.dask_cluster_id }} may run some of its tasks",
        "{{ $value }} tasks are in the state no-worker: they wait for ever unless such a worker comes.",
        "Compare what the tasks ask for (`resources`, `workers`) with the workers' resources and addresses.",
    ),
    Alert(
        "DaskWorkerMemoryHigh",
        share(
            EACH.now(i.WORKER_MEMORY, _WORKER, {i.MEMORY_TYPE: "!spilled"}),
            EACH.now(i.WORKER_MEMORY_LIMIT, _WORKER),
        ),
        "> 0.85",
        "5m",
        WARNING,
        "Worker {{ $labels.dask_worker_name }} of cluster {{ $labels.dask_cluster_id }} is near its memory limit",
        "It uses {{ $value | humanizePercentage }} of its limit. It has paused, and is killed at 95 %.",
        "Much `unmanaged` memory: a leak, fragmentation, or tasks that need much themselves. Much `managed`: data that does not "
        "fit; smaller partitions, more workers, or a faster disk to spill to.",
    ),
    Alert(
        "DaskTelemetryLost",
        " or ".join(
            (
                _lost("spans that had no room", i.SPANS_PROCESSED),
                _lost("spans", i.SPANS_EXPORTED),
                _lost("points", i.POINTS_EXPORTED),
            )
        ),
        "> 0",
        "0s",
        INFO,
        "dask-otel of {{ $labels.job }} in cluster {{ $labels.dask_cluster_id }} loses telemetry",
        "{{ $value | humanize }} {{ $labels.lost }} were lost in the last quarter of an hour.",
        "The dashboard Scheduler, last row, shows which and why: `queue_full` asks for a larger OTEL_BSP_MAX_QUEUE_SIZE or less "
        "detail (`otel.traces.detail`); others for a look at the logs of that service and of the Collector.",
        "15m",
    ),
)

HEAD = """\
# Written by `python -m dashboards`: change it there. prometheus.yaml loads it; Grafana shows it under *Alerting*.
#
# The thresholds suit an export interval of up to a minute. Where alerts are sent to is a matter of an Alertmanager
# (`alerting:` in prometheus.yaml) or of Grafana.

groups:
  - name: dask-otel
    interval: 30s
    rules:
"""


def text() -> str:
    """The rule file."""
    return HEAD + "\n".join(map(_rule, ALERTS))


def _rule(alert: Alert) -> str:
    keep = f"        keep_firing_for: {alert.keep}\n" if alert.keep else ""
    return (
        f"      - alert: {alert.name}\n"
        f"        expr: |\n          ({alert.expr}) {alert.beyond}\n"
        f"        for: {alert.lasting}\n"
        f"{keep}"
        f"        labels:\n          severity: {alert.severity}\n"
        f"        annotations:\n"
        f"          summary: {json.dumps(alert.summary)}\n"
        f"          description: {json.dumps(alert.description)}\n"
        f"          action: {json.dumps(alert.action)}\n"
    )
