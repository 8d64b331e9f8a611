"""The rows of the dashboard *Cluster* on memory, transfers and failures."""

from __future__ import annotations

from dashboards.promql import share, share_of_all
from dashboards.records import (
    A_SECOND,
    BYTES,
    BYTES_A_SECOND,
    CHOSEN,
    CLUSTER,
    NUMBER,
    SECONDS,
    SHARE,
    STACK,
    Query,
    Row,
    by,
    legend,
    one,
    panel,
    quantiles,
)
from dask_otel import instruments as i
from dask_otel import names

#: What is in the processes, that is.
IN_MEMORY = {i.MEMORY_TYPE: "!spilled"}
MEMORY_USED = share(CHOSEN.now(i.WORKER_MEMORY, only=IN_MEMORY), CHOSEN.now(i.WORKER_MEMORY_LIMIT))
MEMORY_BY_WORKER = share(
    CHOSEN.now(i.WORKER_MEMORY, [names.WORKER_NAME], IN_MEMORY),
    CHOSEN.now(i.WORKER_MEMORY_LIMIT, [names.WORKER_NAME]),
)
_UNSUCCESSFUL = {names.OUTCOME: f"!{names.SUCCESS}"}
_BAD = {names.OUTCOME: f"{names.FAILED}|{names.LOST}"}
SHARE_BAD = share_of_all(CLUSTER.rate(i.TASK_ATTEMPTS, [names.OUTCOME], _BAD), CLUSTER.rate(i.TASK_ATTEMPTS))


def memory() -> Row:
    """Memory and spilling."""
    return Row(
        "Memory and spilling",
        (
            panel(
                "Memory by type",
                "Of the chosen workers. `managed`: results that Dask keeps. `unmanaged`: the rest of the processes: tasks at work, "
                "libraries, leaks. `spilled` is on disk.",
                BYTES,
                by(CHOSEN, i.WORKER_MEMORY, i.MEMORY_TYPE),
                one(CHOSEN, i.WORKER_MEMORY_LIMIT, "limit"),
            ),
            panel(
                "Memory by worker, of its limit",
                "By Dask's defaults results are spilled from 60 % on, the worker pauses at 80 % and is killed at 95 %. Smaller "
                "partitions, fewer threads a worker, or more memory help.",
                SHARE,
                Query(MEMORY_BY_WORKER, legend(names.WORKER_NAME)),
                at_most=1.0,
            ),
            panel(
                "Results by prefix",
                "What the cluster keeps, without replicas, until the last task of a group is forgotten; the fifteen largest prefixes. What nobody "
                "needs is held by `persist` and futures.",
                BYTES,
                by(CLUSTER, i.SCHEDULER_MEMORY, names.TASK_PREFIX, top=15),
                kind=STACK,
            ),
            panel(
                "Spilled and read back",
                "Bytes to and from disk. Steady reading is data that does not fit: more memory, or smaller partitions.",
                BYTES_A_SECOND,
                by(CHOSEN, i.SPILL_BYTES, names.ACTIVITY_NAME),
            ),
            panel(
                "Time for spilling",
                "Threads and event loops that it keeps busy. A worker that writes answers nobody: local SSDs help.",
                NUMBER,
                by(CHOSEN, i.SPILL_SECONDS, names.ACTIVITY_NAME),
                kind=STACK,
            ),
            panel(
                "Keys spilled and read back",
                "Keys to and from disk. Many small ones cost more than few large ones.",
                A_SECOND,
                by(CHOSEN, i.SPILL_OPERATIONS, names.ACTIVITY_NAME),
            ),
        ),
    )


def transfers() -> Row:
    """Transfers between workers."""
    way, good = i.TRANSFER_DIRECTION, {names.TRANSFER_OUTCOME: names.SUCCESS}
    return Row(
        "Transfers between workers",
        (
            panel(
                "Bytes sent",
                "Data that workers send to each other, open and failed transfers included.",
                BYTES_A_SECOND,
                by(CHOSEN, i.TRANSFER_IO, way),
            ),
            panel(
                "Durations",
                "Median and 99th percentile of transfers that brought data; dots are single ones and lead to their traces. Long for "
                "their size: the sender's event loop is held up, or the network is full.",
                SECONDS,
                *quantiles(CHOSEN, i.TRANSFER_SECONDS, way, only=good, exemplars=True),
            ),
            panel(
                "By outcome",
                "`busy`: the sender serves too many others and is asked again. `missing`: it no longer had the data. `failed`: the "
                "connection broke.",
                A_SECOND,
                by(CHOSEN, i.TRANSFER_SECONDS, way, names.TRANSFER_OUTCOME),
                kind=STACK,
            ),
            panel(
                "Sizes",
                "Median and 99th percentile. Very small ones: tasks are too small.",
                BYTES,
                *quantiles(CHOSEN, i.TRANSFER_BYTES, way, only=good),
            ),
            panel(
                "Bandwidth",
                "Median of single transfers. Less than the network gives: many small transfers, or busy event loops.",
                BYTES_A_SECOND,
                *quantiles(CHOSEN, i.TRANSFER_BANDWIDTH, way, of=(0.5,)),
            ),
            panel(
                "Begun",
                "Transfers begun a second, as Dask counts them.",
                A_SECOND,
                by(CHOSEN, i.TRANSFERS, way),
            ),
            panel(
                "Open now",
                "Transfers that are under way. Where a worker serves as many as it may, others are told `busy`.",
                NUMBER,
                by(CHOSEN, i.ACTIVE_TRANSFERS, way),
                width=12,
            ),
            panel(
                "Bytes open now",
                "Bytes of the transfers that are under way.",
                BYTES,
                by(CHOSEN, i.ACTIVE_TRANSFER_BYTES, way),
                width=12,
            ),
        ),
    )


def failures() -> Row:
    """Failures and waste."""
    return Row(
        "Failures and waste",
        (
            panel(
                "Attempts by outcome",
                "Attempts that ended. `lost`: the worker died. `discarded`, `cancelled`: nobody wanted the result. The traces have them by "
                "the attribute `dask.task.outcome`.",
                A_SECOND,
                by(CLUSTER, i.TASK_ATTEMPTS, names.OUTCOME),
                kind=STACK,
            ),
            panel(
                "Share that failed or was lost",
                "Of all attempts that ended.",
                SHARE,
                Query(SHARE_BAD, legend(names.OUTCOME)),
                at_most=1.0,
            ),
            panel(
                "Not successful, by prefix",
                "The ten prefixes with the most attempts that did not succeed.",
                A_SECOND,
                by(CLUSTER, i.TASK_ATTEMPTS, names.TASK_PREFIX, names.OUTCOME, only=_UNSUCCESSFUL, top=10),
            ),
            panel(
                "Wasted by reason",
                "Threads kept busy for nothing: results that nobody had, or that were computed again since they were lost. Workers that "
                "die for memory are the usual reason.",
                NUMBER,
                by(CLUSTER, i.WASTED_SECONDS, i.WASTE_REASON),
                kind=STACK,
            ),
            panel(
                "Wasted by prefix",
                "The ten prefixes that waste most.",
                NUMBER,
                by(CLUSTER, i.WASTED_SECONDS, names.TASK_PREFIX, top=10),
                kind=STACK,
            ),
            panel(
                "On a worker that was lost",
                "Times that a task was on a worker when it died. One that is found there too often "
                "(`distributed.scheduler.allowed-failures`) is given up: `killed_worker`.",
                A_SECOND,
                by(CLUSTER, i.TASKS_SUSPICIOUS, names.TASK_PREFIX, top=10),
            ),
        ),
    )
