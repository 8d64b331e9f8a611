"""The dashboard *Task prefix*: everything about the tasks of one prefix, and their traces."""

from __future__ import annotations

from dashboards.promql import share
from dashboards.records import (
    A_SECOND,
    BYTES,
    BYTES_A_SECOND,
    CLUSTER,
    CLUSTER_VARIABLE,
    HEAT,
    NUMBER,
    OF_PREFIX,
    PREFIX_VARIABLE,
    SECONDS,
    SERVICE_VARIABLE,
    SHARE,
    STACK,
    STAT,
    TRACES,
    Board,
    Query,
    Row,
    by,
    one,
    panel,
    quantiles,
)
from dask_otel import instruments as i
from dask_otel import names

_RANGE = OF_PREFIX.over("$__range")
#: Of all attempts in the time shown.
MEAN_DURATION = share(
    _RANGE.increase(i.TASK_DURATION, suffix="_sum"), _RANGE.increase(i.TASK_DURATION, suffix="_count")
)
OF_THREADS = share(OF_PREFIX.rate(i.COMPUTE_SECONDS), CLUSTER.rate(i.THREAD_SECONDS))
BUCKETS = OF_PREFIX.buckets(i.TASK_DURATION)


def board() -> Board:
    """All of it."""
    return Board(
        "dask-prefix",
        "Dask / Task prefix",
        "How long do its tasks take, what do they do, what fails, and which traces have them?",
        (CLUSTER_VARIABLE, PREFIX_VARIABLE, SERVICE_VARIABLE),
        (_now(), _durations(), _activities(), _states()),
    )


def _now() -> Row:
    return Row(
        "In the time shown",
        (
            panel(
                "Attempts",
                "That ended on workers.",
                NUMBER,
                Query(_RANGE.increase(i.TASK_DURATION, suffix="_count"), "attempts"),
                kind=STAT,
                width=6,
            ),
            panel(
                "Mean duration",
                "Of an attempt. Below 100 ms Dask's own work for a task begins to matter: make tasks larger.",
                SECONDS,
                Query(MEAN_DURATION, "mean"),
                kind=STAT,
                width=6,
            ),
            panel(
                "Thread time",
                "Seconds that its tasks have held a slot, running ones included.",
                SECONDS,
                Query(_RANGE.increase(i.COMPUTE_SECONDS), "held"),
                kind=STAT,
                width=6,
            ),
            panel(
                "Share of the threads",
                "Of the cluster's thread-seconds.",
                SHARE,
                Query(OF_THREADS, "of all threads"),
                kind=STAT,
                width=6,
                at_most=1.0,
            ),
        ),
    )


def _durations() -> Row:
    return Row(
        "Durations and traces",
        (
            panel(
                "Durations",
                "Of attempts, from the start until the result is stored. Each dot is one attempt; its link opens the trace. p99 far above the "
                "median: uneven partitions, or tasks that wait for something.",
                SECONDS,
                *quantiles(OF_PREFIX, i.TASK_DURATION, of=(0.5, 0.9, 0.99), exemplars=True),
                width=12,
            ),
            panel(
                "Distribution",
                "Attempts a second by their duration. Two bands: two kinds of work under one name.",
                SECONDS,
                Query(BUCKETS, "{{le}}"),
                kind=HEAT,
                width=12,
            ),
            panel(
                "Traces",
                "Traces in the time shown that have a task of this prefix. Those of prefixes rolled up into their group are not found by name: "
                "search for `<prefix> group`.",
                SECONDS,
                kind=TRACES,
                width=24,
            ),
        ),
    )


def _activities() -> Row:
    return Row(
        "What its tasks do",
        (
            panel(
                "Activities",
                "Threads by what tasks did, once they have ended. Much `thread-noncpu`: waiting for disks, networks, locks or the interpreter.",
                NUMBER,
                by(OF_PREFIX, i.ACTIVITY_SECONDS, names.ACTIVITY_NAME),
                kind=STACK,
            ),
            panel(
                "Bytes by activity",
                "What its tasks read, wrote and unpacked.",
                BYTES_A_SECOND,
                by(OF_PREFIX, i.ACTIVITY_BYTES, names.ACTIVITY_NAME),
            ),
            panel(
                "Operations, and your own units",
                "Counts that Dask meters, and what your code meters by `context_meter.digest_metric`.",
                A_SECOND,
                by(OF_PREFIX, i.ACTIVITY_OPERATIONS, names.ACTIVITY_NAME),
                by(OF_PREFIX, i.ACTIVITY_AMOUNT_OF, names.ACTIVITY_NAME, i.UNIT),
            ),
            panel(
                "Threads held",
                "Slots that its tasks hold, by worker, running tasks included.",
                NUMBER,
                by(OF_PREFIX, i.COMPUTE_SECONDS, names.WORKER_NAME),
                kind=STACK,
            ),
            panel(
                "Running for how long",
                "Seconds since the start of its tasks that run now, by worker. One that rises and never falls hangs.",
                SECONDS,
                by(OF_PREFIX, i.EXECUTING_SECONDS, names.WORKER_NAME),
            ),
            panel(
                "Seceded, and as the scheduler knows it",
                "Threads of tasks that have seceded; of tasks that have finished, the time spent computing and fetching dependencies.",
                NUMBER,
                one(OF_PREFIX, i.SECEDED_SECONDS, "seceded"),
                one(OF_PREFIX, i.TASK_COMPUTE_SECONDS, "compute"),
                one(OF_PREFIX, i.TASK_TRANSFER_SECONDS, "fetch dependencies"),
            ),
        ),
    )


def _states() -> Row:
    return Row(
        "Attempts, waste, memory",
        (
            panel(
                "Attempts by outcome",
                "As the scheduler counts them: those lost with their worker too.",
                A_SECOND,
                by(OF_PREFIX, i.TASK_ATTEMPTS, names.OUTCOME),
                kind=STACK,
                width=6,
            ),
            panel(
                "By outcome and error",
                "Attempts that workers saw end, by the exception's class.",
                A_SECOND,
                by(OF_PREFIX, i.TASK_DURATION, names.OUTCOME, names.ERROR_TYPE),
                kind=STACK,
                width=6,
            ),
            panel(
                "Wasted by reason",
                "Threads kept busy for results that nobody had, or that were lost and computed again.",
                NUMBER,
                by(OF_PREFIX, i.WASTED_SECONDS, i.WASTE_REASON),
                kind=STACK,
                width=6,
            ),
            panel(
                "Results kept",
                "Bytes of its results in the cluster, replicas not counted.",
                BYTES,
                one(OF_PREFIX, i.SCHEDULER_MEMORY, "results"),
                width=6,
            ),
            panel(
                "Transitions",
                "Times a second that one of its tasks came into a state on the scheduler. `released` again and again: results are lost or "
                "recomputed.",
                A_SECOND,
                by(OF_PREFIX, i.TASK_TRANSITIONS, i.TASK_STATE),
                width=12,
            ),
            panel(
                "On a worker that was lost",
                "Times a second that one of its tasks was on a worker that died.",
                A_SECOND,
                one(OF_PREFIX, i.TASKS_SUSPICIOUS, "suspicious"),
                width=12,
            ),
        ),
    )
