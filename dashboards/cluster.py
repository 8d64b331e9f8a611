"""The dashboard *Cluster*: where thread-seconds and memory go, what moves, what fails."""

from __future__ import annotations

from dashboards import cluster_data
from dashboards.promql import share
from dashboards.records import (
    A_SECOND,
    BYTES_A_SECOND,
    CHOSEN,
    CLUSTER,
    CLUSTER_VARIABLE,
    NUMBER,
    SECONDS,
    SHARE,
    STACK,
    STAT,
    WORKER_VARIABLE,
    Board,
    Query,
    Row,
    by,
    legend,
    one,
    panel,
)
from dask_otel import instruments as i
from dask_otel import names

_ACTIVITY = (i.METERING_CONTEXT, names.ACTIVITY_NAME)

#: The rate of all states' thread-seconds is the number of threads, also where workers come and go.
UTILISATION = share(CHOSEN.rate(i.COMPUTE_SECONDS), CHOSEN.rate(i.THREAD_SECONDS))
UTILISATION_BY_WORKER = share(
    CHOSEN.rate(i.COMPUTE_SECONDS, [names.WORKER_NAME]), CHOSEN.rate(i.THREAD_SECONDS, [names.WORKER_NAME])
)
#: Idle threads for which the scheduler has no reason: messages and results that are on their way.
LATENCY = (
    f"clamp_min({CLUSTER.rate(i.THREAD_SECONDS, only={i.THREAD_STATE: names.IDLE})} - "
    f"{CLUSTER.rate(i.IDLE_SECONDS)}, 0)"
)


def board() -> Board:
    """All of it."""
    return Board(
        "dask-cluster",
        "Dask / Cluster",
        "Is the cluster busy, and with what? Why are threads idle? Does memory suffice? What is lost?",
        (CLUSTER_VARIABLE, WORKER_VARIABLE),
        (
            _now(),
            _threads(),
            _activities(),
            cluster_data.memory(),
            cluster_data.transfers(),
            cluster_data.failures(),
            _workers(),
        ),
    )


def _now() -> Row:
    unsuccessful = {names.OUTCOME: f"!{names.SUCCESS}"}
    return Row(
        "Now",
        (
            panel(
                "Utilisation",
                "Share of the threads' time in which tasks held a slot. Low while work waits: see *Why threads are idle*.",
                SHARE,
                Query(UTILISATION, "utilisation"),
                kind=STAT,
                width=4,
                at_most=1.0,
            ),
            panel(
                "Threads",
                "Threads that tasks run in, of the chosen workers.",
                NUMBER,
                one(CHOSEN, i.WORKER_THREADS, "threads"),
                kind=STAT,
                width=4,
            ),
            panel(
                "Running tasks",
                "Tasks that hold a slot at this moment.",
                NUMBER,
                one(CHOSEN, i.WORKER_TASKS, "running", {i.TASK_STATE: names.EXECUTING}),
                kind=STAT,
                width=4,
            ),
            panel(
                "Computations",
                "Computations that are not settled. Each is one trace.",
                NUMBER,
                one(CLUSTER, i.ACTIVE_COMPUTATIONS, "active"),
                kind=STAT,
                width=4,
            ),
            panel(
                "Memory used",
                "Of the limits of the chosen workers. By Dask's defaults results are spilled from 60 % on, a worker pauses at 80 % and is "
                "killed at 95 %.",
                SHARE,
                Query(cluster_data.MEMORY_USED, "of the limits"),
                kind=STAT,
                width=4,
                at_most=1.0,
            ),
            panel(
                "Attempts not successful",
                "In the time shown. See *Failures and waste*.",
                NUMBER,
                Query(CLUSTER.over("$__range").increase(i.TASK_ATTEMPTS, only=unsuccessful), "attempts"),
                kind=STAT,
                width=4,
            ),
        ),
    )


def _threads() -> Row:
    return Row(
        "Threads: busy, or idle why",
        (
            panel(
                "Utilisation by worker",
                "Share of a worker's thread-seconds in which tasks held a slot, running tasks included. Workers far apart: partitions "
                "of uneven size, or data that ties tasks to a worker.",
                SHARE,
                Query(UTILISATION_BY_WORKER, legend(names.WORKER_NAME)),
                at_most=1.0,
            ),
            panel(
                "What threads do",
                "Threads by state; together they are all threads. `paused`: memory is short. `constrained`: tasks wait for a resource. "
                "`gather-dep`: tasks wait for data of other workers. `idle`: there is nothing to run here.",
                NUMBER,
                by(CHOSEN, i.THREAD_SECONDS, i.THREAD_STATE),
                kind=STACK,
            ),
            panel(
                "Why threads are idle",
                "Idle threads of the cluster. `no-client-work`: nobody asks for anything. `graph-update`: the scheduler takes in a "
                "graph; make it smaller. `not-enough-parallelism`: fewer tasks than threads. `imbalance`: tasks wait elsewhere. "
                "`no-worker`: no worker may run what waits. `latency`: what the workers' idle time shows beyond that, messages that are "
                "on their way; make tasks longer, and see the dashboard *Scheduler*.",
                NUMBER,
                by(CLUSTER, i.IDLE_SECONDS, i.IDLE_REASON),
                Query(LATENCY, "latency"),
                kind=STACK,
            ),
        ),
    )


def _activities() -> Row:
    execute, others = {i.METERING_CONTEXT: "execute"}, {i.METERING_CONTEXT: "!execute"}
    return Row(
        "Where thread-seconds go",
        (
            panel(
                "By task prefix",
                "Threads that tasks hold, running tasks included; the fifteen busiest prefixes. The dashboard *Task prefix* tells more of one.",
                NUMBER,
                by(CHOSEN, i.COMPUTE_SECONDS, names.TASK_PREFIX, top=15),
                kind=STACK,
            ),
            panel(
                "By activity of tasks",
                "What tasks did, once they have ended. Much `thread-noncpu`: waiting for disks, networks, locks or the interpreter. "
                "Much `deserialize` or `disk-read`: memory is short, or data moves much.",
                NUMBER,
                by(CHOSEN, i.ACTIVITY_SECONDS, names.ACTIVITY_NAME, only=execute),
                kind=STACK,
            ),
            panel(
                "Outside of tasks",
                "Transfers (`gather-dep`, `get-data`), spilling by the memory monitor, and shuffles (`p2p`), which overlap with tasks.",
                NUMBER,
                by(CHOSEN, i.ACTIVITY_SECONDS, *_ACTIVITY, only=others),
                kind=STACK,
            ),
            panel(
                "Running for how long",
                "Seconds since the start of the tasks that run now, summed by prefix. A line that rises and never falls is a task that "
                "hangs: `client.call_stack()` shows where.",
                SECONDS,
                by(CHOSEN, i.EXECUTING_SECONDS, names.TASK_PREFIX, top=15),
            ),
            panel(
                "Bytes by activity",
                "What was read, written, compressed, sent.",
                BYTES_A_SECOND,
                by(CHOSEN, i.ACTIVITY_BYTES, *_ACTIVITY),
            ),
            panel(
                "Operations by activity, and your own units",
                "Counts that Dask meters, and what your code meters by `context_meter.digest_metric`.",
                A_SECOND,
                by(CHOSEN, i.ACTIVITY_OPERATIONS, *_ACTIVITY),
                by(CHOSEN, i.ACTIVITY_AMOUNT_OF, names.ACTIVITY_NAME, i.UNIT),
            ),
            panel(
                "Seceded tasks",
                "Tasks that gave their slot back (`secede()`, `worker_client`) and go on beside: they are not in the utilisation.",
                NUMBER,
                by(CHOSEN, i.SECEDED_SECONDS, names.TASK_PREFIX),
                width=12,
            ),
            panel(
                "Computing and fetching, as the scheduler knows it",
                "Of tasks that have finished: threads that computed, and time spent fetching what they depend on.",
                NUMBER,
                one(CLUSTER, i.TASK_COMPUTE_SECONDS, "compute"),
                one(CLUSTER, i.TASK_TRANSFER_SECONDS, "fetch dependencies"),
                width=12,
            ),
        ),
    )


def _workers() -> Row:
    worker = [names.WORKER_NAME]
    # The scheduler has these too.
    workers = CHOSEN.where(names.ROLE, "=", "worker")
    return Row(
        "Workers",
        (
            panel(
                "Tasks by state",
                "Tasks that the chosen workers know. Many `ready`: more than threads. Many `waiting`, `fetch`, `flight`: data is on its way.",
                NUMBER,
                by(CHOSEN, i.WORKER_TASKS, i.TASK_STATE),
                kind=STACK,
                width=6,
            ),
            panel(
                "Event-loop lag (p99)",
                "How late a worker's event loop was. It answers nobody meanwhile: tasks that hold the interpreter's lock, spilling, or "
                "large messages. Above some seconds transfers and heartbeats fail.",
                SECONDS,
                Query(workers.quantile(0.99, i.LOOP_LAG, worker), legend(*worker)),
                width=6,
            ),
            panel(
                "Stopped by garbage collection",
                "Share of the time in which the collector stopped the process. Much: many small Python objects; let them go, or "
                "`gc.freeze()` what stays.",
                SHARE,
                Query(workers.rate(i.GC_PAUSE, worker, suffix="_sum"), legend(*worker)),
                width=6,
            ),
            panel(
                "Latency to the scheduler",
                "Of each worker's connection, as it measures it. It is on the way of every task: keep the scheduler near, and its loop free.",
                SECONDS,
                Query(CHOSEN.now(i.WORKER_LATENCY, worker, how="max"), legend(*worker)),
                width=6,
            ),
        ),
    )
