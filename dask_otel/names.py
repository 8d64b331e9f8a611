"""Every name that dask-otel emits: the contract with people who build dashboards and alerts on it.

Rules
-----
1. A name is spelled here and nowhere else in the package (metrics: `instruments`); the reference page is generated from
   these modules.
2. Standard library only.
3. A name that has been released is never given another meaning.

Sources: OpenTelemetry's semantic conventions for whatever they name (``error.type``, ``thread.id``, ``code.*``,
``server.*``, ``service.*``, ``exception.*``); Dask's own words for the rest.
"""

from __future__ import annotations

from typing import NamedTuple


class Attribute(NamedTuple):
    """One attribute's key, as the reference page shows it."""

    key: str
    type: str
    on: str
    brief: str


#: In the order of the reference page.
ATTRIBUTES: list[Attribute] = []


def _attribute(key: str, type: str, on: str, brief: str) -> str:
    ATTRIBUTES.append(Attribute(key, type, on, brief))
    return key


SCOPE = "dask_otel"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"

# -- span names that are not a prefix, a tag or a label ----------------------------------------------------------
COMPUTE, PERSIST, MAP, GATHER = "dask.compute", "dask.persist", "dask.map", "dask.gather"
COMPUTATION = "dask.computation"
GRAPH_UPDATE = "dask.graph.update"
GRAPH_MATERIALIZE, GRAPH_ORDER, GRAPH_INIT = "dask.graph.materialize", "dask.graph.order", "dask.graph.init"
GATHER_DEP, GET_DATA = "gather-dep", "get-data"
SPILL = "dask.spill"
ACTIVITY_COMPUTE = "compute"
#: What a name becomes when its process has given out `MAX_SPAN_NAMES` different ones of its kind.
OVERFLOW_TASK, OVERFLOW_TAG, OVERFLOW_ACTIVITY = "task", "tag", "activity"
MAX_SPAN_NAMES = 200

# -- values of dask.operation ------------------------------------------------------------------------------------
OP_COMPUTE, OP_PERSIST, OP_MAP, OP_GATHER = "compute", "persist", "map", "gather"
OP_TAG, OP_COMPUTATION, OP_GRAPH, OP_GROUP = "tag", "computation", "graph", "group"
OP_TASK, OP_ACTIVITY, OP_TRANSFER, OP_SPILL, OP_ACTOR = "task", "activity", "transfer", "spill", "actor"

# -- values of dask.task.outcome and of dask.transfer.outcome ----------------------------------------------------
SUCCESS, FAILED, CANCELLED = "success", "failed", "cancelled"
RESCHEDULED, DISCARDED, LOST = "rescheduled", "discarded", "lost"
TASK_OUTCOMES = (SUCCESS, FAILED, CANCELLED, RESCHEDULED, DISCARDED, LOST)
BUSY, MISSING = "busy", "missing"
TRANSFER_OUTCOMES = (SUCCESS, BUSY, MISSING, FAILED, CANCELLED)

# -- values of dask.thread.state, GATHER_DEP among them ------------------------------------------------------------
EXECUTING, PAUSED, CONSTRAINED, IDLE = "executing", "paused", "constrained", "idle"
THREAD_STATES = (EXECUTING, PAUSED, CONSTRAINED, GATHER_DEP, IDLE)

# -- values of error.type that are not an exception's class ------------------------------------------------------
WORKER_LOST, KILLED_WORKER, OVER_MEMORY_LIMIT = "worker_lost", "killed_worker", "memory_limit"
#: OpenTelemetry's value for an error of a class that is not known.
OTHER_ERROR = "_OTHER"

# -- values of dask.computation.state ----------------------------------------------------------------------------
RUNNING, FINISHED, RESTARTED, CLOSED = "running", "finished", "restarted", "closed"

# -- attributes of every span of ours ----------------------------------------------------------------------------
_EVERY = "every span"
OPERATION = _attribute(
    "dask.operation",
    "string",
    _EVERY,
    "`compute`, `persist`, `map`, `gather`, `tag`, `computation`, `graph`, `group`, `task`, `activity`, "
    "`transfer`, `spill` or `actor`.",
)
CLOCK_OFFSET = _attribute(
    "dask.clock.offset",
    "double (s)",
    "every span of a worker",
    "The worker's clock minus the scheduler's; left out up to 1 ms.",
)

# -- computation -------------------------------------------------------------------------------------------------
_COMPUTATION = "computation"
COMPUTATION_ID = _attribute(
    "dask.computation.id", "string", "computation, graph update", "Dask's own id of it."
)
COMPUTATION_STATE = _attribute(
    "dask.computation.state",
    "string",
    "computation, graph update",
    "`running`, `finished`, `failed`, `cancelled`, `restarted` or `closed`.",
)
CLIENT_ID = _attribute(
    "dask.client.id", "string", "computation, graph update", "The client that submitted it."
)
COMPUTATION_TASKS = _attribute("dask.computation.tasks", "int", _COMPUTATION, "Tasks that had to run.")
COMPUTATION_PREFIXES = _attribute(
    "dask.computation.prefixes", "string[]", _COMPUTATION, "Prefixes of those tasks."
)
COMPUTATION_OUTCOMES = _attribute(
    "dask.computation.outcomes.<outcome>", "int", _COMPUTATION, "Attempts by outcome, each where it is not 0."
).removesuffix("<outcome>")
WASTED_TIME = _attribute(
    "dask.computation.wasted_time",
    "double (s)",
    _COMPUTATION,
    "Time of attempts whose result nobody had (failed, cancelled, rescheduled, discarded, lost), and of those that "
    "computed a lost result again.",
)
GC_TIME = _attribute(
    "dask.computation.gc_time",
    "double (s)",
    _COMPUTATION,
    "Garbage collection that stopped it: on the scheduler, from its beginning to its end; in each worker, while one of "
    "its tasks ran there, once for all that did.",
)
COMPUTATION_GRAPHS = _attribute(
    "dask.computation.graphs", "int", _COMPUTATION, "Graphs that were submitted to it."
)
TRACE_DETAIL = _attribute(
    "dask.trace.detail",
    "string",
    _COMPUTATION,
    "What of it has spans of its own: each `activity`, each `task`, or each `group` with some of its tasks.",
)
SPANS_EMITTED = _attribute("dask.trace.spans.emitted", "int", _COMPUTATION, "Task spans that were recorded.")
SPANS_ROLLED_UP = _attribute(
    "dask.trace.spans.rolled_up", "int", _COMPUTATION, "Attempts that are told by their group's span only."
)
SPANS_DROPPED = _attribute(
    "dask.trace.spans.dropped", "int", _COMPUTATION, "Task spans that did not fit into a worker's queue."
)
CODE_FILE = _attribute(
    "code.file.path",
    "string",
    _COMPUTATION,
    "File of the calling code, where Dask captured it (`computations.nframes`).",
)
CODE_LINE = _attribute("code.line.number", "int", _COMPUTATION, "Line of the call in it.")

# -- graph update ------------------------------------------------------------------------------------------------
_GRAPH = "graph update"
GRAPH_TASKS = _attribute("dask.graph.tasks", "int", _GRAPH, "Tasks in the graph.")
GRAPH_NEW_TASKS = _attribute("dask.graph.new_tasks", "int", _GRAPH, "Tasks that the scheduler did not know.")
GRAPH_COLLISIONS = _attribute(
    "dask.graph.key_collisions", "int", _GRAPH, "Known keys that came with another task behind them."
)
GRAPH_STIMULUS = _attribute("dask.graph.stimulus_id", "string", _GRAPH, "The scheduler's stimulus id.")

# -- group and task ----------------------------------------------------------------------------------------------
TASK_GROUP = _attribute("dask.task.group", "string", "group, task", "Name of the task group.")
TASK_PREFIX = _attribute(
    "dask.task.prefix", "string", "group, task, activity, actor", "Prefix of the task's key."
)
GROUP_OUTCOMES = _attribute(
    "dask.group.outcomes.<outcome>", "int", "group", "Attempts by outcome, each where it is not 0."
).removesuffix("<outcome>")
GROUP_UPSTREAM_FAILED = _attribute(
    "dask.group.upstream_failed", "int", "group", "Tasks that never ran since one they depend on failed."
)
GROUP_INCOMPLETE = _attribute(
    "dask.group.incomplete", "boolean", "group", "A worker's sums never came: totals are lower bounds."
)
DURATION = _attribute(
    "dask.task.duration.<sum|min|max|p50|p90|p99>",
    "double (s)",
    "group",
    "Over every attempt, shown or not. Quantiles within 1 %.",
).removesuffix("<sum|min|max|p50|p90|p99>")
RESULT_SIZE = _attribute(
    "dask.task.result.size", "int (By)", "task, group", "Of the result; on a group the sum."
)
RESULT_TYPE = _attribute("dask.task.result.type", "string", "task", "Class of the result.")
ACTIVITY_AMOUNT = _attribute(
    "dask.task.activity.<label>.<unit>",
    "double, int",
    "task, group",
    "What Dask metered, exclusive of what was metered inside; labels and units as Dask has them.",
).removesuffix("<label>.<unit>")
TASK_KEY = _attribute("dask.task.key", "string", "task", "The key as text, at most 256 characters.")
TASK_KEY_TRUNCATED = _attribute("dask.task.key_truncated", "boolean", "task", "The key was longer.")
ATTEMPT = _attribute("dask.task.attempt", "int", "task", "1 for the first.")
OUTCOME = _attribute("dask.task.outcome", "string", "task", ", ".join(f"`{o}`" for o in TASK_OUTCOMES) + ".")
STARTED = _attribute(
    "dask.task.started", "string", "task", "`assumed`: the scheduler can only infer that it had."
)
CAUSE = _attribute(
    "dask.task.cause",
    "string",
    "task",
    "Why it ran though its result had been there: `recomputed`, since it was lost.",
)
RECOMPUTED = "recomputed"
ASSUMED = "assumed"
WAIT_DEPENDENCIES = _attribute(
    "dask.task.wait.dependencies", "double (s)", "task", "On the worker, until its dependencies were there."
)
WAIT_SLOT = _attribute(
    "dask.task.wait.slot", "double (s)", "task", "On the worker, ready, until a slot was free."
)
SECEDED_TIME = _attribute("dask.task.seceded_time", "double (s)", "task", "From `secede()` until the end.")
WORKER_ADDRESS = _attribute(
    "dask.worker.address", "string", "task, actor, resource", "Address of the worker."
)
WORKER_NAME = _attribute("dask.worker.name", "string", "task, actor, resource", "Name of the worker.")
THREAD_ID = _attribute("thread.id", "int", "task", "Thread that ran it; left out for async tasks.")
ERROR_TYPE = _attribute(
    "error.type",
    "string",
    "task, actor, transfer, graph update",
    "The exception's class, or `worker_lost`, `killed_worker`, `memory_limit`.",
)

# -- activity ----------------------------------------------------------------------------------------------------
ACTIVITY_NAME = _attribute("dask.activity.name", "string", "activity", "Label of the metering context.")
ACTIVITY_SIZE = _attribute(
    "dask.activity.size", "int (By)", "activity", "Bytes metered under the same label."
)
ACTIVITY_COUNT = _attribute("dask.activity.count", "int", "activity", "Count metered under the same label.")
THREAD_CPU_TIME = _attribute(
    "dask.activity.thread_cpu_time", "double (s)", "`compute` activity", "Dask's thread-cpu."
)
THREAD_NONCPU_TIME = _attribute(
    "dask.activity.thread_noncpu_time", "double (s)", "`compute` activity", "Dask's thread-noncpu."
)

# -- transfer and spill ------------------------------------------------------------------------------------------
TRANSFER_KEYS = _attribute(
    "dask.transfer.keys", "int", "transfer, spill", "Keys asked for; of a spill, written."
)
TRANSFER_SIZE = _attribute("dask.transfer.size", "int (By)", "transfer, spill", "Bytes as Dask counts them.")
TRANSFER_OUTCOME = _attribute(
    "dask.transfer.outcome", "string", "transfer", ", ".join(f"`{o}`" for o in TRANSFER_OUTCOMES) + "."
)
SERVER_ADDRESS = _attribute("server.address", "string", "gather-dep", "Host of the sending worker.")
SERVER_PORT = _attribute("server.port", "int", "gather-dep", "Port of the sending worker.")

# -- tag and actor -----------------------------------------------------------------------------------------------
SPAN_ID = _attribute("dask.span.id", "string", "tag", "Dask's id of the span.")
SPAN_NAME = _attribute("dask.span.name", "string[]", "tag", "All tags, outermost first.")
ACTOR_METHOD = _attribute("code.function.name", "string", "actor", "Method that was called.")

# -- exception events, OpenTelemetry's names ---------------------------------------------------------------------
EXCEPTION_EVENT = "exception"
EXCEPTION_TYPE = _attribute("exception.type", "string", "`exception` event", "Class of the exception.")
EXCEPTION_MESSAGE = _attribute("exception.message", "string", "`exception` event", "Its text.")
EXCEPTION_STACKTRACE = _attribute("exception.stacktrace", "string", "`exception` event", "Its traceback.")

# -- resource ----------------------------------------------------------------------------------------------------
_RESOURCE = "resource"
SERVICE_NAME = _attribute(
    "service.name",
    "string",
    _RESOURCE,
    "From the environment; else `dask-scheduler`, `dask-worker`, `dask-client`.",
)
SERVICE_INSTANCE_ID = _attribute("service.instance.id", "string", _RESOURCE, "Id of the server or client.")
ROLE = _attribute("dask.role", "string", _RESOURCE, "`scheduler`, `worker` or `client`.")
DASK_VERSION = _attribute("dask.version", "string", _RESOURCE, "Version of distributed.")
CLUSTER_ID = _attribute("dask.cluster.id", "string", _RESOURCE, "The scheduler's id.")
CLUSTER_NAME = _attribute("dask.cluster.name", "string", _RESOURCE, "`otel.cluster.name`, if set.")
PROCESS_PID = _attribute("process.pid", "int", _RESOURCE, "Process id.")
DISTRO_NAME = _attribute("telemetry.distro.name", "string", _RESOURCE, "`dask-otel`.")
DISTRO_VERSION = _attribute("telemetry.distro.version", "string", _RESOURCE, "Version of dask-otel.")

# -- values of dask.idle.reason ----------------------------------------------------------------------------------
NO_CLIENT_WORK, GRAPH_UPDATING = "no-client-work", "graph-update"
NOT_ENOUGH_PARALLELISM, IMBALANCE, NO_WORKER = "not-enough-parallelism", "imbalance", "no-worker"

# -- values of dask.op that are not a message's operation --------------------------------------------------------
LOOP_IDLE, LOOP_OTHER = "idle", "other"
