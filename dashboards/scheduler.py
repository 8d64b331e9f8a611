"""The dashboard *Scheduler*: what its event loop does, what it knows, and whether dask-otel is well."""

from __future__ import annotations

from dashboards import telemetry
from dashboards.promql import share
from dashboards.records import (
    A_SECOND,
    CLUSTER,
    CLUSTER_VARIABLE,
    NUMBER,
    SECONDS,
    SHARE,
    STACK,
    STAT,
    Board,
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

SCHEDULER = CLUSTER.where(names.ROLE, "=", "scheduler")
_AT_WORK = {i.DASK_OP: f"!{names.LOOP_IDLE}"}
LOOP_BUSY = share(SCHEDULER.rate(i.HANDLER_SECONDS, only=_AT_WORK), SCHEDULER.rate(i.HANDLER_SECONDS))
_GRAPHS = SCHEDULER.rate(i.GRAPH_UPDATE_SECONDS, [i.GRAPH_PHASE], suffix="_sum")


def board() -> Board:
    """All of it."""
    return Board(
        "dask-scheduler",
        "Dask / Scheduler",
        "Is the scheduler the bottleneck, and what keeps it busy? Does all telemetry arrive?",
        (CLUSTER_VARIABLE,),
        (_now(), _loop(), _graphs(), _workers(), _stealing(), telemetry.row()),
    )


def _now() -> Row:
    return Row(
        "Now",
        (
            panel(
                "Event loop busy",
                "Share of the loop's time that is not idle. Above 80 % the scheduler is the bottleneck: fewer, larger tasks.",
                SHARE,
                Query(LOOP_BUSY, "busy"),
                kind=STAT,
                width=4,
                at_most=1.0,
            ),
            panel(
                "Lag (p99)",
                "How late the event loop was.",
                SECONDS,
                *quantiles(SCHEDULER, i.LOOP_LAG, of=(0.99,)),
                kind=STAT,
                width=4,
            ),
            panel(
                "Longest tick",
                "Longest time that the loop was held up since the last export.",
                SECONDS,
                Query(SCHEDULER.now(i.LOOP_TICK_MAX, how="max"), "longest"),
                kind=STAT,
                width=4,
            ),
            panel(
                "Tasks",
                "Tasks that the scheduler knows. Above some hundred thousand its memory and speed suffer.",
                NUMBER,
                one(SCHEDULER, i.SCHEDULER_TASKS, "tasks"),
                kind=STAT,
                width=4,
            ),
            panel(
                "Clients",
                "Clients that are connected.",
                NUMBER,
                one(SCHEDULER, i.CLIENTS, "clients"),
                kind=STAT,
                width=4,
            ),
            panel(
                "Workers",
                "Workers, whatever they do.",
                NUMBER,
                one(SCHEDULER, i.WORKERS, "workers"),
                kind=STAT,
                width=4,
            ),
        ),
    )


def _loop() -> Row:
    return Row(
        "Event loop",
        (
            panel(
                "Loop time by handler",
                "Seconds a second, without `idle`; all and `idle` sum to one. `other`: reading, writing and the loop's own work. "
                "`task-finished` high: many small tasks. `update-graph` high: large graphs.",
                NUMBER,
                by(SCHEDULER, i.HANDLER_SECONDS, i.DASK_OP, only=_AT_WORK, top=15),
                kind=STACK,
            ),
            panel(
                "What `other` is made of",
                "Estimated from samples. `write` high: much is told to workers and clients. `read` high: large messages, and many.",
                NUMBER,
                by(SCHEDULER, i.OTHER_SECONDS, i.LOOP_PART),
                kind=STACK,
            ),
            panel(
                "Lag",
                "How late the loop was, measured ten times a second. Every task's messages wait as long.",
                SECONDS,
                *quantiles(SCHEDULER, i.LOOP_LAG, of=(0.5, 0.9, 0.99)),
            ),
            panel(
                "Longest tick",
                "Longest time between two ticks since the export before. Seconds: one handler held the loop; see its time above.",
                SECONDS,
                Query(SCHEDULER.now(i.LOOP_TICK_MAX, how="max"), "longest"),
                width=6,
            ),
            panel(
                "Ticks",
                "Ticks a second. Fewer than fifty (Dask's default of 20 ms): the loop is late.",
                A_SECOND,
                one(SCHEDULER, i.LOOP_TICKS, "ticks"),
                width=6,
            ),
            panel(
                "Garbage collection pauses (p99)",
                "By generation. Long pauses of generation 2: many objects, which is many tasks.",
                SECONDS,
                *quantiles(SCHEDULER, i.GC_PAUSE, i.GC_GENERATION, of=(0.99,)),
                width=6,
            ),
            panel(
                "Stopped by garbage collection",
                "Share of the time.",
                SHARE,
                Query(SCHEDULER.rate(i.GC_PAUSE, [i.GC_GENERATION], suffix="_sum"), legend(i.GC_GENERATION)),
                kind=STACK,
                width=6,
            ),
        ),
    )


def _graphs() -> Row:
    return Row(
        "Graphs and tasks",
        (
            panel(
                "Graph updates (p99)",
                "Of each submitted graph, by phase. `materialize` and `order` run in a thread, `init` on the loop. Long: smaller graphs, "
                "larger partitions, fewer layers.",
                SECONDS,
                *quantiles(SCHEDULER, i.GRAPH_UPDATE_SECONDS, i.GRAPH_PHASE, of=(0.99,)),
            ),
            panel(
                "Time for graph updates",
                "Seconds a second, by phase.",
                NUMBER,
                Query(_GRAPHS, legend(i.GRAPH_PHASE)),
                kind=STACK,
            ),
            panel(
                "Computations",
                "That are not settled.",
                NUMBER,
                one(SCHEDULER, i.ACTIVE_COMPUTATIONS, "active"),
            ),
            panel(
                "Tasks by state",
                "`queued`: more root tasks than threads, as it should be. `no-worker`: no worker may run them. `memory`: results that are kept.",
                NUMBER,
                by(SCHEDULER, i.SCHEDULER_TASKS, i.TASK_STATE),
                kind=STACK,
            ),
            panel(
                "Transitions",
                "Times a second that a task came into a state: the scheduler's throughput.",
                A_SECOND,
                by(SCHEDULER, i.TASK_TRANSITIONS, i.TASK_STATE),
                kind=STACK,
            ),
            panel(
                "Groups, and tasks forgotten",
                "Groups that are known (many: keys without a common prefix), and tasks a second that nobody needs any more.",
                NUMBER,
                one(SCHEDULER, i.TASK_GROUPS, "groups"),
                one(SCHEDULER, i.TASKS_FORGOTTEN, "forgotten a second"),
            ),
        ),
    )


def _workers() -> Row:
    return Row(
        "Workers and clients",
        (
            panel(
                "Workers by state, and desired",
                "`desired` is what the work at hand asks for: adaptive scaling follows it. `paused`: memory is short.",
                NUMBER,
                by(SCHEDULER, i.WORKERS, i.WORKER_STATE),
                one(SCHEDULER, i.WORKERS_DESIRED, "desired"),
            ),
            panel(
                "Workers that came and left",
                "A second. Both high: workers die and are started again; see *On a worker that was lost*.",
                A_SECOND,
                one(SCHEDULER, i.WORKERS_ADDED, "came"),
                one(SCHEDULER, i.WORKERS_REMOVED, "left"),
            ),
            panel(
                "Clients",
                "Connected, and connections made and ended a second.",
                NUMBER,
                one(SCHEDULER, i.CLIENTS, "connected"),
                one(SCHEDULER, i.CLIENTS_ADDED, "made a second"),
                one(SCHEDULER, i.CLIENTS_REMOVED, "ended a second"),
            ),
        ),
    )


def _stealing() -> Row:
    return Row(
        "Stealing and semaphores",
        (
            panel(
                "Requests to steal",
                "By cost multiplier: what moving a task costs by what it gains. Many dear ones: tasks are short and their data large.",
                A_SECOND,
                by(SCHEDULER, i.STEALING_REQUESTS, i.COST_MULTIPLIER),
                kind=STACK,
                width=6,
            ),
            panel(
                "Cost of stealing",
                "Of the requests, a second.",
                NUMBER,
                by(SCHEDULER, i.STEALING_COST, i.COST_MULTIPLIER),
                kind=STACK,
                width=6,
            ),
            panel(
                "Semaphores",
                "Leases by semaphore: allowed, held, waited for. Many waited for: tasks hold threads and do nothing.",
                NUMBER,
                by(SCHEDULER, i.LEASE_LIMIT, i.SEMAPHORE_NAME)._replace(
                    legend=legend(i.SEMAPHORE_NAME) + " allowed"
                ),
                by(SCHEDULER, i.LEASES, i.SEMAPHORE_NAME)._replace(legend=legend(i.SEMAPHORE_NAME) + " held"),
                by(SCHEDULER, i.LEASES_PENDING, i.SEMAPHORE_NAME)._replace(
                    legend=legend(i.SEMAPHORE_NAME) + " waited for"
                ),
                width=6,
            ),
            panel(
                "Leases given, given back, waited for",
                "Given and given back a second; the wait is the scheduler's moving average, in seconds.",
                NUMBER,
                one(SCHEDULER, i.LEASES_ACQUIRED, "given"),
                one(SCHEDULER, i.LEASES_RELEASED, "given back"),
                by(SCHEDULER, i.LEASE_WAIT, i.SEMAPHORE_NAME)._replace(
                    legend=legend(i.SEMAPHORE_NAME) + " wait (s)"
                ),
                width=6,
            ),
        ),
    )
