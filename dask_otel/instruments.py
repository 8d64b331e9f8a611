"""Every metric that dask-otel exports: its name, kind, unit, who has it, the keys of its attributes.

Rules
-----
1. A metric's name, and a key that only metrics have, is spelled here and nowhere else in the package; the reference
   page is generated from this module.
2. Standard library only.
3. A name that has been released is never given another meaning; none of them, as Prometheus translates it, is a name of
   Dask's own endpoints.
4. Attributes are of low cardinality: never a key, never a span's id. A server is told by its resource.
"""

from __future__ import annotations

from typing import NamedTuple

from dask_otel.names import ACTIVITY_NAME, ERROR_TYPE, OUTCOME, SPAN_NAME, TASK_PREFIX, TRANSFER_OUTCOME

COUNTER, UP_DOWN_COUNTER, GAUGE, HISTOGRAM = "counter", "up-down counter", "gauge", "histogram"


class Instrument(NamedTuple):
    """A metric. ``on`` are the roles that have it, ``boundaries`` those of a histogram's buckets, upper ones included.

    ``optional`` are further attributes, that are there only where the user asks for them.
    """

    name: str
    kind: str
    unit: str
    on: tuple[str, ...]
    attributes: tuple[str, ...]
    brief: str
    boundaries: tuple[float, ...] = ()
    optional: tuple[str, ...] = ()


#: In the order of the reference page.
INSTRUMENTS: list[Instrument] = []


def _instrument(
    name: str,
    kind: str,
    unit: str,
    on: tuple[str, ...],
    attributes: tuple[str, ...],
    brief: str,
    boundaries: tuple[float, ...] = (),
    optional: tuple[str, ...] = (),
) -> Instrument:
    INSTRUMENTS.append(Instrument(name, kind, unit, on, attributes, brief, boundaries, optional))
    return INSTRUMENTS[-1]


# -- keys that only metrics have -----------------------------------------------------------------------------------
METERING_CONTEXT = "dask.metering.context"
UNIT = "dask.unit"
THREAD_STATE = "dask.thread.state"
IDLE_REASON = "dask.idle.reason"
DASK_OP = "dask.op"
TASK_STATE = "dask.task.state"
WORKER_STATE = "dask.worker.state"
MEMORY_TYPE = "dask.memory.type"
TRANSFER_DIRECTION = "dask.transfer.direction"
WASTE_REASON = "dask.waste.reason"
GRAPH_PHASE = "dask.graph.phase"
LOOP_PART = "dask.loop.part"
GC_GENERATION = "cpython.gc.generation"
#: Keys whose values are whole numbers, by OpenTelemetry's conventions; all others are text.
NUMBERS = frozenset({GC_GENERATION})
SEMAPHORE_NAME = "dask.semaphore.name"
COST_MULTIPLIER = "dask.stealing.cost_multiplier"
FATE = "dask.otel.fate"
HOOK = "dask.otel.hook"
COMPONENT_TYPE = "otel.component.type"
COMPONENT_NAME = "otel.component.name"
#: The one attribute of what exceeds a server's budget of series.
OVERFLOW = "otel.metric.overflow"

# -- values of dask.transfer.direction, dask.waste.reason, dask.graph.phase ------------------------------------------
INCOMING, OUTGOING = "incoming", "outgoing"
#: LOST, FAILED and CANCELLED of the outcomes among them.
WASTE_RECOMPUTED = "recomputed"
MATERIALIZE, ORDER, INIT = "materialize", "order", "init"
#: Values of dask.otel.fate.
ROLLED_UP, SAMPLED_OUT, FATE_UNKNOWN = "rolled_up", "sampled_out", "unknown"

# -- values of dask.loop.part ----------------------------------------------------------------------------------------
READ, WRITE, CONNECTION, TRANSITION = "read", "write", "connection", "transition"
PERIODIC, TORNADO, ASYNCIO, REST = "periodic", "tornado", "asyncio", "rest"

_WORKER, _SCHEDULER, _BOTH = ("worker",), ("scheduler",), ("scheduler", "worker")
_BY_ACTIVITY = (METERING_CONTEXT, TASK_PREFIX, ACTIVITY_NAME)
_TASK_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 900.0, 3600.0),
)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PAUSES = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_BYTES = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10)

# -- the worker: what its thread-seconds are spent on ------------------------------------------------------------------
ACTIVITY_SECONDS = _instrument(
    "dask.worker.activity.time", COUNTER, "s", _WORKER, _BY_ACTIVITY, "Seconds metered by Dask and by you."
)
ACTIVITY_BYTES = _instrument(
    "dask.worker.activity.size", COUNTER, "By", _WORKER, _BY_ACTIVITY, "Bytes metered."
)
ACTIVITY_OPERATIONS = _instrument(
    "dask.worker.activity.operations", COUNTER, "{operation}", _WORKER, _BY_ACTIVITY, "Counts metered."
)
ACTIVITY_AMOUNT_OF = _instrument(
    "dask.worker.activity.amount",
    COUNTER,
    "1",
    _WORKER,
    (*_BY_ACTIVITY, UNIT),
    "What your code meters in a unit of its own.",
)
COMPUTE_SECONDS = _instrument(
    "dask.worker.compute.time",
    COUNTER,
    "s",
    _WORKER,
    (TASK_PREFIX,),
    "Seconds that tasks have held a slot, running tasks included up to now.",
)
EXECUTING_SECONDS = _instrument(
    "dask.worker.executing.time",
    UP_DOWN_COUNTER,
    "s",
    _WORKER,
    (TASK_PREFIX,),
    "Seconds since the start of the tasks that are running now.",
)
THREAD_SECONDS = _instrument(
    "dask.worker.thread.time",
    COUNTER,
    "s",
    _WORKER,
    (THREAD_STATE,),
    "Thread-seconds by state: `executing`, `paused`, `constrained`, `gather-dep`, `idle`; their sum is threads × uptime.",
)
SECEDED_SECONDS = _instrument(
    "dask.worker.seceded.time",
    COUNTER,
    "s",
    _WORKER,
    (TASK_PREFIX,),
    "Seconds of tasks since they have seceded.",
)

# -- tasks and transfers -----------------------------------------------------------------------------------------------
TASK_DURATION = _instrument(
    "dask.task.duration",
    HISTOGRAM,
    "s",
    _WORKER,
    (TASK_PREFIX, OUTCOME, ERROR_TYPE),
    "Of each attempt that its worker saw end, from its start until its result is stored: its span's, sampled or not.",
    _TASK_SECONDS,
    optional=(SPAN_NAME,),
)
TASK_ATTEMPTS = _instrument(
    "dask.task.attempts",
    COUNTER,
    "{attempt}",
    _SCHEDULER,
    (TASK_PREFIX, OUTCOME),
    "Attempts that have ended, of computations that are not sampled too; those that a worker had not told when it was killed "
    "(0.25 s of them at most) are missing.",
    optional=(SPAN_NAME,),
)
WASTED_SECONDS = _instrument(
    "dask.task.wasted.time",
    COUNTER,
    "s",
    _SCHEDULER,
    (TASK_PREFIX, WASTE_REASON),
    "Seconds of attempts whose result nobody had, and of those that computed a lost result again: `lost`, "
    "`recomputed`, `failed`, `cancelled` (as in Dask's own metering also those that are `rescheduled` or `discarded`).",
)
TRANSFER_SECONDS = _instrument(
    "dask.transfer.duration",
    HISTOGRAM,
    "s",
    _WORKER,
    (TRANSFER_DIRECTION, TRANSFER_OUTCOME),
    "Of each transfer: `incoming` (gather-dep, replicate, rebalance), `outgoing` (get-data: to workers, scheduler, clients).",
    _SECONDS,
)
TRANSFER_BYTES = _instrument(
    "dask.transfer.size",
    HISTOGRAM,
    "By",
    _WORKER,
    (TRANSFER_DIRECTION, TRANSFER_OUTCOME),
    "Bytes of each transfer, as Dask counts them; left out where none came.",
    _BYTES,
)
TRANSFER_BANDWIDTH = _instrument(
    "dask.transfer.bandwidth",
    HISTOGRAM,
    "By/s",
    _WORKER,
    (TRANSFER_DIRECTION,),
    "Size by duration of each transfer that succeeded.",
    (1e5, 1e6, 1e7, 3e7, 1e8, 3e8, 1e9, 3e9, 1e10),
)

# -- the worker: what its Prometheus endpoint shows too ----------------------------------------------------------------
WORKER_TASKS = _instrument(
    "dask.worker.task.count",
    UP_DOWN_COUNTER,
    "{task}",
    _WORKER,
    (TASK_STATE,),
    "Tasks that the worker knows, by Dask's state; of those in memory, spilled ones are `disk`.",
)
WORKER_MEMORY = _instrument(
    "dask.worker.memory.usage",
    UP_DOWN_COUNTER,
    "By",
    _WORKER,
    (MEMORY_TYPE,),
    "Memory of the process, `managed` (Dask's keys) and `unmanaged`; `spilled` is on disk.",
)
WORKER_MEMORY_LIMIT = _instrument(
    "dask.worker.memory.limit",
    UP_DOWN_COUNTER,
    "By",
    _WORKER,
    (),
    "The worker's memory limit, if it has one.",
)
WORKER_THREADS = _instrument(
    "dask.worker.thread.count", UP_DOWN_COUNTER, "{thread}", _WORKER, (), "Threads that tasks run in."
)
WORKER_LATENCY = _instrument(
    "dask.worker.scheduler.latency",
    GAUGE,
    "s",
    _WORKER,
    (),
    "Of the connection to the scheduler, as the worker measures it.",
)
ACTIVE_TRANSFERS = _instrument(
    "dask.worker.transfer.active",
    UP_DOWN_COUNTER,
    "{transfer}",
    _WORKER,
    (TRANSFER_DIRECTION,),
    "Transfers that are open.",
)
ACTIVE_TRANSFER_BYTES = _instrument(
    "dask.worker.transfer.active_size",
    UP_DOWN_COUNTER,
    "By",
    _WORKER,
    (TRANSFER_DIRECTION,),
    "Bytes of transfers that are open.",
)
TRANSFERS = _instrument(
    "dask.worker.transfer.operations",
    COUNTER,
    "{transfer}",
    _WORKER,
    (TRANSFER_DIRECTION,),
    "Transfers that were begun, as Dask counts them.",
)
TRANSFER_IO = _instrument(
    "dask.worker.transfer.io",
    COUNTER,
    "By",
    _WORKER,
    (TRANSFER_DIRECTION,),
    "Bytes of `outgoing` transfers, open and failed ones included, as Dask counts them; it has no such total of incoming ones.",
)
SPILL_SECONDS = _instrument(
    "dask.worker.spill.activity.time",
    COUNTER,
    "s",
    _WORKER,
    (ACTIVITY_NAME,),
    "Seconds of spilling and reading back, by what was done.",
)
SPILL_BYTES = _instrument(
    "dask.worker.spill.size",
    COUNTER,
    "By",
    _WORKER,
    (ACTIVITY_NAME,),
    "Bytes written to disk and read back; `memory-read` is what was still in memory.",
)
SPILL_OPERATIONS = _instrument(
    "dask.worker.spill.operations",
    COUNTER,
    "{operation}",
    _WORKER,
    (ACTIVITY_NAME,),
    "Keys written to disk and read back.",
)

# -- the scheduler: why threads are idle, what its loop does -----------------------------------------------------------
IDLE_SECONDS = _instrument(
    "dask.scheduler.idle.time",
    COUNTER,
    "s",
    _SCHEDULER,
    (IDLE_REASON,),
    "Thread-seconds without a task: `no-client-work`, `graph-update`, `not-enough-parallelism`, `imbalance`, `no-worker`.",
)
HANDLER_SECONDS = _instrument(
    "dask.scheduler.handler.time",
    COUNTER,
    "s",
    _SCHEDULER,
    (DASK_OP,),
    "Seconds of the event loop by message handler, exclusive of one another, with `idle` and `other`.",
)
OTHER_SECONDS = _instrument(
    "dask.scheduler.other.time",
    COUNTER,
    "s",
    _SCHEDULER,
    (LOOP_PART,),
    "What `other` of `dask.scheduler.handler.time` is made of, estimated from some 20 rounds of the loop a second; all of "
    "it is `other`. `read`: sockets; `write`: messages serialized and written; `connection`: messages read and handed to their "
    "handlers where no handler has them, and replies; `transition`: tasks, outside handlers; `periodic`: timers; "
    "`tornado`, `asyncio`: their own; `rest`: all else.",
)
GRAPH_UPDATE_SECONDS = _instrument(
    "dask.scheduler.graph.update.duration",
    HISTOGRAM,
    "s",
    _SCHEDULER,
    (GRAPH_PHASE,),
    "Of each submitted graph, by phase: `materialize`, `order`, `init`; one that failed has none.",
    (*_SECONDS, 300.0),
)
ACTIVE_COMPUTATIONS = _instrument(
    "dask.scheduler.computation.active",
    UP_DOWN_COUNTER,
    "{computation}",
    _SCHEDULER,
    (),
    "Computations that are not settled.",
)

# -- the scheduler: what its Prometheus endpoint shows too ---------------------------------------------------------------
CLIENTS = _instrument(
    "dask.scheduler.client.count", UP_DOWN_COUNTER, "{client}", _SCHEDULER, (), "Clients that are connected."
)
CLIENTS_ADDED = _instrument(
    "dask.scheduler.client.added",
    COUNTER,
    "{connection}",
    _SCHEDULER,
    (),
    "Connections of clients that were made.",
)
CLIENTS_REMOVED = _instrument(
    "dask.scheduler.client.removed",
    COUNTER,
    "{connection}",
    _SCHEDULER,
    (),
    "Connections of clients that have ended.",
)
WORKERS = _instrument(
    "dask.scheduler.worker.count",
    UP_DOWN_COUNTER,
    "{worker}",
    _SCHEDULER,
    (WORKER_STATE,),
    "Workers by state: `idle`, `partially_saturated`, `saturated`, `paused`, `retiring`.",
)
WORKERS_DESIRED = _instrument(
    "dask.scheduler.worker.desired",
    GAUGE,
    "{worker}",
    _SCHEDULER,
    (),
    "Workers that the work at hand asks for.",
)
WORKERS_ADDED = _instrument(
    "dask.scheduler.worker.added", COUNTER, "{worker}", _SCHEDULER, (), "Workers that came."
)
WORKERS_REMOVED = _instrument(
    "dask.scheduler.worker.removed", COUNTER, "{worker}", _SCHEDULER, (), "Workers that left or were lost."
)
SCHEDULER_TASKS = _instrument(
    "dask.scheduler.task.count",
    UP_DOWN_COUNTER,
    "{task}",
    _SCHEDULER,
    (TASK_STATE,),
    "Tasks that the scheduler knows, by Dask's state.",
)
TASKS_FORGOTTEN = _instrument(
    "dask.scheduler.task.forgotten", COUNTER, "{task}", _SCHEDULER, (), "Tasks that were forgotten."
)
TASKS_SUSPICIOUS = _instrument(
    "dask.scheduler.task.suspicious",
    COUNTER,
    "{event}",
    _SCHEDULER,
    (TASK_PREFIX,),
    "Times that a task was on a worker that was lost.",
)
TASK_TRANSITIONS = _instrument(
    "dask.scheduler.task.transitions",
    COUNTER,
    "{transition}",
    _SCHEDULER,
    (TASK_PREFIX, TASK_STATE),
    "Times that a task came into a state.",
)
TASK_GROUPS = _instrument(
    "dask.scheduler.task.group.count",
    UP_DOWN_COUNTER,
    "{group}",
    _SCHEDULER,
    (),
    "Task groups that the scheduler knows.",
)
TASK_COMPUTE_SECONDS = _instrument(
    "dask.scheduler.task.compute.time",
    COUNTER,
    "s",
    _SCHEDULER,
    (TASK_PREFIX,),
    "Seconds of computing, of tasks that have finished.",
)
TASK_TRANSFER_SECONDS = _instrument(
    "dask.scheduler.task.transfer.time",
    COUNTER,
    "s",
    _SCHEDULER,
    (TASK_PREFIX,),
    "Seconds of fetching what tasks depend on, of tasks that have finished.",
)
SCHEDULER_MEMORY = _instrument(
    "dask.scheduler.memory.usage",
    UP_DOWN_COUNTER,
    "By",
    _SCHEDULER,
    (TASK_PREFIX,),
    "Bytes of results, replicas not counted; as Dask counts them, until the last task of their group is forgotten.",
)
STEALING_REQUESTS = _instrument(
    "dask.scheduler.stealing.requests",
    COUNTER,
    "{request}",
    _SCHEDULER,
    (COST_MULTIPLIER,),
    "Requests to steal, by cost multiplier.",
)
STEALING_COST = _instrument(
    "dask.scheduler.stealing.cost",
    COUNTER,
    "1",
    _SCHEDULER,
    (COST_MULTIPLIER,),
    "Cost of the requests to steal, by cost multiplier.",
)
LEASE_LIMIT = _instrument(
    "dask.scheduler.semaphore.limit",
    UP_DOWN_COUNTER,
    "{lease}",
    _SCHEDULER,
    (SEMAPHORE_NAME,),
    "Leases that a semaphore allows.",
)
LEASES = _instrument(
    "dask.scheduler.semaphore.active",
    UP_DOWN_COUNTER,
    "{lease}",
    _SCHEDULER,
    (SEMAPHORE_NAME,),
    "Leases that are held.",
)
LEASES_PENDING = _instrument(
    "dask.scheduler.semaphore.pending",
    UP_DOWN_COUNTER,
    "{lease}",
    _SCHEDULER,
    (SEMAPHORE_NAME,),
    "Leases that are waited for.",
)
LEASES_ACQUIRED = _instrument(
    "dask.scheduler.semaphore.acquired",
    COUNTER,
    "{lease}",
    _SCHEDULER,
    (SEMAPHORE_NAME,),
    "Leases that were given.",
)
LEASES_RELEASED = _instrument(
    "dask.scheduler.semaphore.released",
    COUNTER,
    "{lease}",
    _SCHEDULER,
    (SEMAPHORE_NAME,),
    "Leases that were given back.",
)
LEASE_WAIT = _instrument(
    "dask.scheduler.semaphore.wait",
    GAUGE,
    "s",
    _SCHEDULER,
    (SEMAPHORE_NAME,),
    "Moving average of the time until a lease was given, on the scheduler's side.",
)

# -- both --------------------------------------------------------------------------------------------------------------
LOOP_LAG = _instrument(
    "dask.event_loop.lag",
    HISTOGRAM,
    "s",
    _BOTH,
    (),
    "How late the event loop called a timer, ten times a second: as long as something blocks the loop. Up to 1 ms of it is the loop's own resolution.",
    _PAUSES,
)
LOOP_TICKS = _instrument(
    "dask.event_loop.ticks", COUNTER, "{tick}", _BOTH, (), "Ticks of the event loop that Dask has counted."
)
LOOP_TICK_MAX = _instrument(
    "dask.event_loop.tick.max",
    GAUGE,
    "s",
    _BOTH,
    (),
    "Longest time between two of those ticks since the last export.",
)
GC_PAUSE = _instrument(
    "dask.gc.pause",
    HISTOGRAM,
    "s",
    _BOTH,
    (GC_GENERATION,),
    "Of each garbage collection in the server's process, all of whose threads it stops; servers that share a process tell "
    "of the same.",
    _PAUSES,
)
GIL_SECONDS = _instrument(
    "dask.gil.contention.time",
    COUNTER,
    "s",
    _BOTH,
    (),
    "Seconds that threads waited for the interpreter, where Dask measures it (`gilknocker`).",
)
MONITOR_TIME = _instrument(
    "dask.monitor.last_time",
    GAUGE,
    "s",
    _SCHEDULER,
    (),
    "When Dask's system monitor was last updated, since the epoch.",
)

# -- about dask-otel itself ----------------------------------------------------------------------------------------------
_COMPONENT = (COMPONENT_TYPE, COMPONENT_NAME)
SPANS_PROCESSED = _instrument(
    "otel.sdk.processor.span.processed",
    COUNTER,
    "{span}",
    _BOTH,
    (*_COMPONENT, ERROR_TYPE),
    "Spans that left the queue to be sent; with `error.type=queue_full` those for which there was no room in it.",
)
SPANS_QUEUED = _instrument(
    "otel.sdk.processor.span.queue.size",
    UP_DOWN_COUNTER,
    "{span}",
    _BOTH,
    _COMPONENT,
    "Spans that wait to be sent.",
)
QUEUE_CAPACITY = _instrument(
    "otel.sdk.processor.span.queue.capacity",
    UP_DOWN_COUNTER,
    "{span}",
    _BOTH,
    _COMPONENT,
    "Spans that can wait at most.",
)
SPANS_EXPORTED = _instrument(
    "otel.sdk.exporter.span.exported",
    COUNTER,
    "{span}",
    _BOTH,
    (*_COMPONENT, ERROR_TYPE),
    "Spans whose export has ended; with `error.type` those that did not arrive: `rejected`, `unreachable`, `unknown` (sent, no answer), `closed`, `invalid`.",
)
POINTS_EXPORTED = _instrument(
    "otel.sdk.exporter.metric_data_point.exported",
    COUNTER,
    "{data_point}",
    _BOTH,
    (*_COMPONENT, ERROR_TYPE),
    "Points whose export has ended; with `error.type` those that did not arrive: as for spans, and `queue_full`.",
)
SPANS_BY_FATE = _instrument(
    "dask.otel.spans",
    COUNTER,
    "{span}",
    _BOTH,
    (FATE,),
    "Spans that were not sent on purpose, or of which nobody knows: `rolled_up` and `sampled_out` count attempts; `unknown` were sent and had no answer.",
)
FAULTS = _instrument(
    "dask.otel.faults",
    COUNTER,
    "{fault}",
    _BOTH,
    (HOOK,),
    "Faults of dask-otel's own code that were caught, by the hook that they came from. One that fails ten times within an hour is switched off, which the log says.",
)
PREFIXES_FOLDED = _instrument(
    "dask.otel.prefixes.folded",
    COUNTER,
    "{prefix}",
    _BOTH,
    (),
    "Task prefixes that have no series of their own.",
)
OVERHEAD_SECONDS = _instrument(
    "dask.otel.overhead.time",
    COUNTER,
    "s",
    _BOTH,
    (),
    "Seconds that dask-otel takes of its process: of its hooks for tasks, timed in a fiftieth of the time, and of its threads.",
)
