"""What dask-otel relies on in distributed, fact by fact, each with the function of ours to change when it no longer holds.

Rules
-----
1. A fact is looked at in the installed distributed, without dask-otel: what fails here is distributed's change.
2. A fact that can be read off the code is static; the others come from one run of a cluster in this process (`drift_run.watch`).
3. What breaks a fact is told in one sentence: where to change what, what was expected, what is there.
"""

from __future__ import annotations

import importlib
import inspect
import re
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import distributed
from distributed.metrics import DelayedMetricsLedger, context_meter

from dask_otel.seam.run import Posts
from tests.unit.drift_run import Seen

SCHEDULER, WORKER, CLIENT = "seam/scheduler.py SchedulerSeam", "seam/worker.py WorkerSeam", "seam/client.py"
TIME, HANDLERS = "seam/scheduler_time.py SchedulerTimeSeam", "seam/handlers.py HandlerSeam"
LOOP_PARTS = "seam/loop_parts.py"
WORKER_TIME = "seam/worker_time.py WorkerTimeSeam"
STATE, WORKER_STATE = "seam/scheduler_state.py SchedulerStateSeam", "seam/worker_state.py WorkerStateSeam"
TRANSFERS, ACTORS, ERRORS = "seam/transfers.py TransferSeam", "seam/actors.py", "seam/errors.py"


class Drift(AssertionError):
    """A fact that no longer holds."""

    def __init__(self, seam: str, expects: str, found: object) -> None:
        super().__init__(
            f"dask_otel/{seam} expects {expects}; distributed {distributed.__version__} has {found}. "
            f"Change it there, then the fact in tests/unit/drift.py."
        )


class Fact(NamedTuple):
    """``holds`` gives true, or what it is instead; given what was seen in the run, if it is a dynamic one."""

    seam: str
    expects: str
    holds: Callable[..., object]

    def check(self, *seen: object) -> None:
        try:
            found = self.holds(*seen)
        except Exception as fault:
            found = f"{type(fault).__name__}: {fault}"
        if found is not True:
            raise Drift(self.seam, self.expects, "something else" if found is False else found)


# -- signatures ---------------------------------------------------------------------------------------------------


class Signature(NamedTuple):
    """The parameters of a function of distributed.

    ``(a, *, b)`` are all that there are; ``(a, …)`` is how they begin; ``{a, b}`` are among them, taken by keyword.
    """

    seam: str
    function: str
    parameters: str

    def check(self) -> None:
        expects = f"{self.function}{self.parameters}"
        try:
            found = inspect.signature(resolve(self.function))
        except Exception as fault:
            raise Drift(self.seam, expects, f"{type(fault).__name__}: {fault}") from None
        if not _fits(found, self.parameters):
            raise Drift(self.seam, expects, f"{self.function}{_bare(found)}")


def resolve(path: str) -> Any:
    """The object at ``module:dotted.name``."""
    module, _, dotted = path.partition(":")
    found = importlib.import_module(module)
    for name in dotted.split("."):
        found = getattr(found, name)
    return found


def _bare(signature: inspect.Signature) -> str:
    empty = inspect.Parameter.empty
    parameters = [p.replace(annotation=empty, default=empty) for p in signature.parameters.values()]
    return str(inspect.Signature(parameters))


def _fits(signature: inspect.Signature, expected: str) -> bool:
    if expected.startswith("{"):
        return set(expected.strip("{}").split(", ")) <= signature.parameters.keys()
    if expected.endswith("…)"):
        return _bare(signature).startswith(expected[:-2].rstrip(", "))
    return _bare(signature) == expected


SIGNATURES = [
    Signature(f"{CLIENT} _wrap_submission", "distributed:Client._graph_to_futures", "(self, …)"),
    Signature(f"{CLIENT} _CALLS", "distributed:Client.get", "{sync, asynchronous}"),
    Signature(f"{CLIENT} _CALLS", "distributed:Client.compute", "{sync}"),
    Signature(f"{CLIENT} _CALLS", "distributed:Client.persist", "(self, …)"),
    Signature(f"{CLIENT} _CALLS", "distributed:Client.map", "(self, …)"),
    Signature(f"{CLIENT} _CALLS", "distributed:Client.gather", "(self, …)"),
    Signature(f"{SCHEDULER}._wrap_task_to_msg", "distributed:Scheduler._task_to_msg", "(self, ts)"),
    Signature(
        f"{SCHEDULER}._wrap_remove_worker",
        "distributed:Scheduler.remove_worker",
        "(self, address, *, stimulus_id, expected, close)",
    ),
    Signature(
        f"{SCHEDULER}._wrap_update_graph",
        "distributed:Scheduler.update_graph",
        "{client, annotations, stimulus_id}",
    ),
    Signature(
        f"{SCHEDULER}._wrap_task_erred",
        "distributed:Scheduler.handle_task_erred",
        "(self, key, stimulus_id, **msg)",
    ),
    Signature(
        f"{SCHEDULER}._wrap_task_erred", "distributed:Scheduler.stimulus_task_erred", "{key, run_id, kwargs}"
    ),
    Signature(
        f"{TIME}._wrap_check_idle_saturated",
        "distributed:Scheduler.check_idle_saturated",
        "(self, ws, occ)",
    ),
    Signature(
        f"{TIME}._wrap_status_change",
        "distributed:Scheduler.handle_worker_status_change",
        "(self, status, worker, stimulus_id)",
    ),
    Signature(
        f"{TIME}._wrap_remove_worker",
        "distributed:Scheduler.remove_worker",
        "(self, address, *, …)",
    ),
    Signature(
        f"{LOOP_PARTS} LoopPartsSeam._wrap_transitions",
        "distributed:Scheduler._transitions",
        "(self, recommendations, client_msgs, worker_msgs, stimulus_id)",
    ),
    Signature(f"{TIME}._leaves", "distributed:Scheduler.coerce_address", "(self, addr, …)"),
    Signature(f"{STATE}.install", "distributed:Scheduler._clear_task_state", "(self)"),
    Signature(f"{STATE}._forget_semaphore", "distributed.semaphore:SemaphoreExtension.close", "(self, name)"),
    Signature(f"{STATE}._desired", "distributed:Scheduler.adaptive_target", "(self, target_duration)"),
    Signature(
        f"{WORKER_STATE}._tasks",
        "distributed.worker_state_machine:TaskCounter.current_count",
        "(self, by_prefix)",
    ),
    Signature(f"{SCHEDULER}.event", "distributed.broker:Broker.truncate", "(self, topic)"),
    Signature(f"{SCHEDULER}.install", "distributed:Scheduler.log_event", "(self, topic, msg)"),
    Signature(f"{WORKER}.tell_scheduler", "distributed:Worker.log_event", "(self, topic, msg)"),
    Signature(f"{WORKER}.scheduler_says", "distributed:Scheduler.get_events", "{topic}"),
    Signature(f"{WORKER}._wrap_execute", "distributed:Worker.execute", "(self, key, *, stimulus_id)"),
    Signature(
        f"{WORKER}._wrap_finalize", "distributed:Worker._finalize_metrics", "(self, stim, ledger, span_id)"
    ),
    Signature(f"{WORKER_TIME}._wrap_handle_stimulus", "distributed:Worker.handle_stimulus", "(self, *stims)"),
    Signature(f"{WORKER_TIME}._wrap_get_metrics", "distributed:Worker.get_metrics", "(self)"),
    Signature(
        "seam/worker.py _Tee.finalize", "distributed.metrics:DelayedMetricsLedger.finalize", "{coarse_time}"
    ),
    Signature(
        f"{TRANSFERS}._wrap_gather_dep",
        "distributed:Worker.gather_dep",
        "(self, worker, to_gather, total_nbytes, …)",
    ),
    Signature(f"{TRANSFERS}._wrap_get_data", "distributed:Worker.get_data", "(self, comm, keys, who, …)"),
    Signature("seam/transfers.py _Requests", "distributed.worker:get_data_from_worker", "{who}"),
    Signature(
        f"{TRANSFERS}._wrap_spill",
        "distributed.worker_memory:WorkerMemoryManager._spill",
        "(self, worker, memory)",
    ),
    Signature(
        f"{ACTORS} _Handler", "distributed:Worker.actor_execute", "(self, actor, function, args, kwargs)"
    ),
    Signature(f"{TRANSFERS}._wrap_gather", "distributed:Worker.gather", "(self, who_has)"),
    Signature(
        "seam/preloads.py Preloads.install", "distributed.preloading:process_preloads", "(dask_server, …)"
    ),
    Signature(f"{ERRORS} install", "distributed.worker:error_message", "(e, …)"),
    Signature(
        "scheduler.py SchedulerOtel.transition",
        "distributed.diagnostics.plugin:SchedulerPlugin.transition",
        "(self, key, start, finish, *args, stimulus_id, **kwargs)",
    ),
    Signature(
        "scheduler.py SchedulerOtel.update_graph",
        "distributed.diagnostics.plugin:SchedulerPlugin.update_graph",
        "{scheduler, client, stimulus_id, kwargs}",
    ),
    Signature(
        "scheduler.py SchedulerOtel.log_event",
        "distributed.diagnostics.plugin:SchedulerPlugin.log_event",
        "(self, topic, msg)",
    ),
    Signature(
        "scheduler.py SchedulerOtel.add_worker",
        "distributed.diagnostics.plugin:SchedulerPlugin.add_worker",
        "(self, scheduler, worker)",
    ),
    Signature(
        "scheduler.py SchedulerOtel.remove_worker",
        "distributed.diagnostics.plugin:SchedulerPlugin.remove_worker",
        "{scheduler, worker, kwargs}",
    ),
    Signature(
        "scheduler.py SchedulerOtel.restart",
        "distributed.diagnostics.plugin:SchedulerPlugin.restart",
        "(self, scheduler)",
    ),
    Signature(
        "turning_on.py WorkerOtel.transition",
        "distributed.diagnostics.plugin:WorkerPlugin.transition",
        "(self, key, start, finish, **kwargs)",
    ),
    Signature(
        "seam/remote.py add_to_scheduler",
        "distributed:Client._register_scheduler_plugin",
        "(self, plugin, name, idempotent)",
    ),
    Signature(
        "seam/remote.py add_to_workers",
        "distributed:Client._register_worker_plugin",
        "(self, plugin, name, idempotent)",
    ),
    Signature(
        "seam/remote.py remove_from_workers",
        "distributed:Client._unregister_worker_plugin",
        "(self, name, …)",
    ),
    Signature(
        "seam/remote.py on_scheduler",
        "distributed:Client._run_on_scheduler",
        "(self, function, *args, wait, **kwargs)",
    ),
    Signature("seam/remote.py on_workers", "distributed:Client._run", "(self, function, …)"),
]


# -- what can be read off the code --------------------------------------------------------------------------------


def _has(path: str, *names: str) -> Callable[[], object]:
    """Whether a class has these attributes, slots and fields counted."""

    def holds() -> object:
        cls = resolve(path)
        there = set(dir(cls)) | set(getattr(cls, "__annotations__", {}))
        if hasattr(cls, "__dataclass_fields__"):
            there |= {f.name for f in fields(cls)}
        missing = [name for name in names if name not in there]
        return not missing or f"no {path}.{', .'.join(missing)}"

    return holds


def _says(module: str, *texts: str) -> Callable[[], object]:
    """Whether the module's source has these texts."""

    def holds() -> object:
        source = inspect.getsource(importlib.import_module(module))
        missing = [text for text in texts if text not in source]
        return not missing or f"no {missing} in {module}"

    return holds


def _default(path: str, parameter: str, value: object) -> Callable[[], object]:
    def holds() -> object:
        found = inspect.signature(resolve(path)).parameters[parameter].default
        return found is value or f"{parameter}={found!r}"

    return holds


def _states(path: str, expected: set[str]) -> Callable[[], object]:
    def holds() -> object:
        found = set(resolve(path).__args__)
        return found == expected or f"{sorted(found ^ expected)} more or less"

    return holds


def _uses(path: str, name: str) -> Callable[[], object]:
    """Whether a function finds ``name`` among its module's globals when it is called."""

    def holds() -> object:
        return name in inspect.unwrap(resolve(path)).__code__.co_names or f"{path}, which does not call it"

    return holds


def _ledger_is_in_the_context() -> object:
    ledger = DelayedMetricsLedger()
    with ledger.record(key="async-instruction"):
        return context_meter._callbacks.get()["async-instruction"].__self__ is ledger  # type: ignore[attr-defined]


def _ledger_appends_to_its_list() -> object:
    ledger, posts = DelayedMetricsLedger(), []
    ledger.metrics, ledger.transfer = posts, None  # type: ignore[attr-defined]
    with ledger.record(key="async-instruction"):
        context_meter.digest_metric("rows", 3, "count")
    return posts == [("rows", 3, "count")] or f"{posts}"


def _open_contexts_are_counted() -> object:
    posts = Posts()
    with context_meter.add_callback(lambda *post: posts.append(post)):  # type: ignore[arg-type]
        with context_meter.meter("outer"), context_meter.meter("inner"):
            pass
        context_meter.digest_metric("after", 1, "count")
    inner, outer, after = posts.depths
    return inner > outer == after or f"{list(posts.depths)}"


def _ledger_starts_now() -> object:
    return abs(DelayedMetricsLedger().start - time.perf_counter()) < 60 or "another clock"


def _ledger_ends_with_the_rest() -> object:
    found = [label for label, _, _ in DelayedMetricsLedger().finalize()]
    failed = [label for label, _, _ in DelayedMetricsLedger().finalize("failed")]
    return (found, failed) == (["other"], ["failed"]) or f"{found}, {failed}"


def _takes_an_attribute() -> object:
    exception = resolve("distributed.core:error_message")(ValueError("meant"))["exception"]
    exception.of_ours = True
    return bool(exception.of_ours)


def _checks_for_idleness() -> object:
    """Whether whatever changes which tasks a worker has calls `check_idle_saturated` afterwards."""
    changes = re.compile(r"\.(?:add_to_processing|remove_from_processing|add_to_long_running)\(")
    modules = (resolve(f"distributed.{name}") for name in ("scheduler:Scheduler", "stealing:WorkStealing"))
    changing = [
        function
        for cls in modules
        for function in {**vars(cls.__base__), **vars(cls)}.values()
        if inspect.isfunction(function) and changes.search(inspect.getsource(function))
    ]
    silent = [f.__qualname__ for f in changing if "check_idle_saturated(" not in inspect.getsource(f)]
    return (len(changing) == 4 and not silent) or f"{[f.__qualname__ for f in changing]}, silent: {silent}"


def _statuses_change_in_two_places() -> object:
    source = inspect.getsource(importlib.import_module("distributed.scheduler"))
    found = re.findall(r"\bws\.(?:status|nthreads) [-+]?= .*", source)
    expected = [
        "ws.status = Status.closed",
        "ws.status = Status[status] if isinstance(status, str) else status",
    ]
    return found == expected or f"{found}"


def _is_removed_at_once() -> object:
    before, _, _ = inspect.getsource(resolve("distributed:Scheduler.remove_worker")).partition("await ")
    return "ws.status = Status.closed" in before or "something that is awaited before"


def _in_order(path: str, *texts: str, at_once: bool = False) -> Callable[[], object]:
    """Whether a function's source has these texts one after the other, ``at_once`` before anything is awaited."""

    def holds() -> object:
        source = inspect.getsource(resolve(path))
        if at_once:
            source, _, _ = source.partition("await ")
        found = [source.find(text) for text in texts]
        return (found == sorted(found) and found[0] >= 0) or f"these texts in {path} at {found}"

    return holds


def _amounts_are_put_aside_at_once() -> object:
    anew = "self.digests_total_since_heartbeat = defaultdict(int)"
    before, _, _ = inspect.getsource(resolve("distributed:Worker.get_metrics")).partition("await ")
    modules = (importlib.import_module(f"distributed.{name}") for name in ("core", "worker"))
    found = sum(inspect.getsource(module).count(anew) for module in modules)
    return (anew in before and found == 2) or f"{found} of them, or something that is awaited before"


def _changed_in(name: str, *functions: str) -> Callable[[], object]:
    """Whether these are the functions of a worker's state that put tasks into one of its sets or take them out."""

    def holds() -> object:
        cls = resolve("distributed.worker_state_machine:WorkerState")
        changes = (f"self.{name}.{call}(" for call in ("add", "discard", "remove", "clear", "pop", "update"))
        texts = (f"self.{name} =", *changes)
        found = {
            function
            for function, value in vars(cls).items()
            if inspect.isfunction(value) and any(text in inspect.getsource(value) for text in texts)
        }
        return found == {"__init__", *functions} or f"{sorted(found)}"

    return holds


def _sets_are_kept() -> object:
    source = inspect.getsource(resolve("distributed.worker_state_machine:WorkerState"))
    sets = ("executing", "long_running", "waiting", "ready", "constrained")
    found = {name: source.count(f"self.{name} = ") for name in sets}
    return set(found.values()) == {1} or f"{found}"


def _members_are_kept() -> object:
    heap = resolve("distributed.collections:HeapSet")(key=id)
    members = heap._data
    heap.add(_members_are_kept)
    added = members == {_members_are_kept}
    heap.clear()
    return (added and heap._data is members and not members) or f"{members}"


def _changed_with_states() -> object:
    """Whether what the totals of a prefix are made of changes where one of its tasks comes into a state, and nowhere else."""
    changes = (".set_nbytes(", ".group.add_duration(", ".prefix.suspicious +=")
    cls = resolve("distributed:Scheduler")
    found = {
        name
        for owner in cls.__mro__
        for name, value in vars(owner).items()
        if inspect.isfunction(value) and any(text in inspect.getsource(value) for text in changes)
    }
    return found == {"_transition_processing_memory", "update_data", "remove_worker"} or f"{sorted(found)}"


def _ends_are_counted() -> object:
    source = inspect.getsource(resolve("distributed.worker_state_machine:WorkerState._execute_done_common"))
    return "self.executed_count += 1" in source


STATIC = [
    Fact(
        f"{WORKER_TIME}._wrap_handle_stimulus",
        "these of a worker's state",
        _has(
            "distributed.worker_state_machine:WorkerState",
            *("executing", "long_running", "executed_count"),
            *("nthreads", "running", "ready", "constrained", "waiting"),
        ),
    ),
    Fact(
        f"{WORKER_TIME}._wrap_handle_stimulus",
        "every end of a task to be in executed_count",
        _ends_are_counted,
    ),
    Fact(
        f"{WORKER_TIME}._wrap_handle_stimulus",
        "executing to be changed by the starts, ends and secessions of tasks",
        _changed_in(
            "executing",
            *("_ensure_computing", "_execute_done_common", "_purge_state"),
            *("_transition_cancelled_or_resumed_long_running", "_transition_executing_long_running"),
        ),
    ),
    Fact(
        f"{WORKER_TIME}._wrap_handle_stimulus",
        "long_running to be changed by the ends and secessions of tasks",
        _changed_in(
            "long_running",
            *("_execute_done_common", "_purge_state"),
            *("_transition_cancelled_or_resumed_long_running", "_transition_executing_long_running"),
        ),
    ),
    Fact(
        f"{WORKER_TIME}._wrap_handle_stimulus",
        "a worker's state to keep these sets for good",
        _sets_are_kept,
    ),
    Fact(
        "seam/__init__.py members",
        "a HeapSet to keep its members in a set of its own",
        _members_are_kept,
    ),
    Fact(
        f"{WORKER_TIME}._change",
        "the prefix of a worker's task",
        _has("distributed.worker_state_machine:TaskState", "prefix"),
    ),
    Fact(
        "seam/worker_time.py _fine",
        "the contexts that have a span's id in their keys",
        lambda: (
            resolve("distributed.spans:CONTEXTS_WITH_SPAN_ID") == ("execute", "p2p")
            or resolve("distributed.spans:CONTEXTS_WITH_SPAN_ID")
        ),
    ),
    Fact(
        "seam/worker_time.py _activity",
        "keys (execute, span, prefix, label, unit) and (gather-dep, label, unit)",
        _says(
            "distributed.worker_state_machine",
            *('("execute", span_id, key_split(stim.key))', '("gather-dep",)', "(*activity, label, unit)"),
        ),
    ),
    Fact(
        "seam/worker_time.py _activity",
        "keys (get-data, *label, unit)",
        _says("distributed.core", "(digest_tag, *label, unit)"),
    ),
    Fact(
        "seam/worker_time.py _activity",
        "keys (memory-monitor, *label, unit)",
        _says("distributed.worker_memory", '("memory-monitor", *label, unit)'),
    ),
    Fact(
        "seam/worker_time.py _activity",
        "keys (p2p, span, where, *label, unit)",
        _says("distributed.shuffle._core", '("p2p", self.span_id, where, *label, unit)'),
    ),
    Fact(
        f"{WORKER_TIME}._absorb",
        "what is digested to be in the totals and in those since the last heartbeat",
        _says(
            "distributed.core",
            "self.digests_total[name] += value",
            "self.digests_total_since_heartbeat[name] += value",
        ),
    ),
    Fact(
        f"{WORKER_TIME}._absorb",
        "a heartbeat, and nobody else, to put the amounts since the last aside before it awaits anything",
        _amounts_are_put_aside_at_once,
    ),
    Fact(
        f"{WORKER_TIME}._absorb",
        "a shuffle to post to the worker's digest_metric",
        _says("distributed.shuffle._shuffle", "digest_metric=plugin.worker.digest_metric"),
    ),
    Fact(
        f"{CLIENT} _wrap_call",
        "Client.get to wait by default",
        _default("distributed:Client.get", "sync", True),
    ),
    Fact(
        f"{CLIENT} _wrap_call",
        "Client.compute not to wait by default",
        _default("distributed:Client.compute", "sync", False),
    ),
    Fact(
        f"{SCHEDULER}.started",
        "these attributes of a worker's state",
        _has(
            "distributed.scheduler:WorkerState",
            "metrics",
            "executing",
            "long_running",
            "last_seen",
            "nthreads",
            "name",
            "address",
        ),
    ),
    Fact(
        f"{SCHEDULER}._wrap_remove_worker",
        "a worker that retires to be removed as expected, and what it processes to be released before anything is awaited",
        _in_order(
            "distributed:Scheduler._track_retire_worker", "self.remove_worker(", "ws.address, expected=True"
        ),
    ),
    Fact(
        f"{SCHEDULER}.has_nanny",
        "the address of a worker's nanny",
        _has("distributed.scheduler:WorkerState", "nanny"),
    ),
    Fact(
        "seam/scheduler.py _OVER_LIMIT",
        "a nanny to say under this topic that it ends its worker at its memory limit",
        _says(
            "distributed.worker_memory",
            '"worker": nanny.worker_address,',
            'nanny.log_event("worker-restart-memory", event)',
        ),
    ),
    Fact(
        f"{SCHEDULER}._activated",
        "these attributes of a task's state",
        _has(
            "distributed.scheduler:TaskState",
            *(
                "key",
                "annotations",
                "run_id",
                "processing_on",
                "group",
                "prefix",
                "dependencies",
                "dependents",
                "priority",
            ),
            "exception_blame",
        ),
    ),
    Fact(
        "seam/scheduler.py ACTIVE",
        "these states of a task",
        _states(
            "distributed.scheduler:TaskStateState",
            {"released", "waiting", "no-worker", "queued", "processing", "memory", "erred", "forgotten"},
        ),
    ),
    Fact(
        "seam/scheduler.py _RETRIED",
        "these beginnings of stimuli",
        _says(
            "distributed.worker",
            *('f"task-erred-', 'f"execute-unknown-error-', 'f"reschedule-'),
        ),
    ),
    Fact(
        "seam/scheduler.py _ASKED",
        "this beginning of a stimulus",
        _says("distributed.scheduler", 'f"stimulus-retry-'),
    ),
    Fact(
        "scheduler.py SchedulerTelemetry.restarted",
        "a restart to release all keys before plugins are told, and workers to go after that",
        _in_order(
            "distributed:Scheduler.restart",
            *("self.client_releases_keys(", "self._clear_task_state()", "plugin.restart(self)"),
            at_once=True,
        ),
    ),
    Fact(
        f"{WORKER}.left_behind",
        "a worker that closes to cancel what it executes before its plugins go, threads going on",
        _in_order(
            "distributed:Worker.close",
            *("self.status = Status.closing", "await BaseWorker.close(", "self.plugin_remove(name)"),
        ),
    ),
    Fact(
        f"{TIME}._turn",
        "these attributes of a worker's state",
        _has("distributed.scheduler:WorkerState", *("nthreads", "processing", "long_running", "status")),
    ),
    Fact(
        f"{TIME}._turn",
        "what is queued and what no worker may run",
        _has("distributed.scheduler:SchedulerState", "queued", "unrunnable"),
    ),
    Fact(
        f"{TIME}._turn",
        "a counter of transitions",
        _says("distributed.scheduler", "self.transition_counter += 1"),
    ),
    Fact(
        f"{TIME}._turn",
        "a counter of graphs that are being updated",
        _says("distributed.scheduler", "self._active_graph_updates += 1", "self._active_graph_updates -= 1"),
    ),
    Fact(
        f"{TIME}._wrap_check_idle_saturated",
        "check_idle_saturated to be called by the four functions that change a worker's tasks",
        _checks_for_idleness,
    ),
    Fact(
        f"{TIME}._wrap_status_change",
        "a worker's status to change in two functions, its threads never",
        _statuses_change_in_two_places,
    ),
    Fact(
        f"{TIME}._wrap_remove_worker",
        "a worker to be out before anything is awaited",
        _is_removed_at_once,
    ),
    Fact(
        "seam/scheduler_state.py _read",
        "these attributes of a prefix",
        _has(
            "distributed.scheduler:TaskPrefix",
            *("name", "suspicious", "state_counts", "nbytes_total", "states", "_all_durations_us"),
        ),
    ),
    Fact(
        f"{STATE}._changed",
        "a prefix to count each time that a task comes into a state",
        _says("distributed.scheduler", "pf.state_counts[value] += 1"),
    ),
    Fact(
        f"{STATE}._changed",
        "sizes, durations and suspicions of a prefix to change where its tasks come into states",
        _changed_with_states,
    ),
    Fact(
        f"{STATE}._forget_prefixes",
        "a restart to clear prefixes, and nothing else to take one away",
        _says("distributed.scheduler", "self.task_prefixes,", "self._clear_task_state()"),
    ),
    Fact(
        f"{STATE}._clients",
        "these totals of a scheduler",
        _has(
            "distributed:Scheduler",
            *("_client_connections_added_total", "_client_connections_removed_total"),
            *("_workers_added_total", "_workers_removed_total"),
        ),
    ),
    Fact(
        f"{STATE}._workers",
        "the sets of workers",
        _has("distributed.scheduler:SchedulerState", "idle", "saturated", "running", "workers"),
    ),
    Fact(
        f"{STATE}._read_semaphores",
        "these numbers of semaphores, and this operation",
        _says(
            "distributed.semaphore",
            *('"acquire_total": defaultdict(int)', '"release_total": defaultdict(int)'),
            *('"average_pending_lease_time": defaultdict(float)', '"pending": defaultdict(int)'),
            *("self.max_leases = dict()", "self.leases = defaultdict(dict)", '"semaphore_close": self.close'),
        ),
    ),
    Fact(
        f"{STATE}._stealing",
        "these numbers of work stealing",
        _says(
            "distributed.stealing",
            *('"request_count_total": defaultdict(int)', '"request_cost_total": defaultdict(int)'),
        ),
    ),
    Fact(
        f"{WORKER_STATE}._transfers",
        "these numbers of a worker's state",
        _has(
            "distributed.worker_state_machine:WorkerState",
            *("transfer_incoming_bytes", "transfer_incoming_count", "transfer_incoming_count_total"),
            *("nbytes", "nthreads", "task_counter"),
        ),
    ),
    Fact(
        f"{WORKER_STATE}._transfers",
        "these numbers of a worker",
        _has(
            "distributed:Worker",
            *("transfer_outgoing_bytes", "transfer_outgoing_bytes_total"),
            *("transfer_outgoing_count", "transfer_outgoing_count_total", "latency"),
        ),
    ),
    Fact(
        f"{WORKER_STATE}._spill",
        "these numbers of a spill buffer",
        _has("distributed.spill:SpillBuffer", "cumulative_metrics", "spilled_total"),
    ),
    Fact(
        "seam/ticks.py TickSeam.install",
        "a callback that measures ticks",
        _says("distributed.core", 'self.periodic_callbacks["tick"] = PeriodicCallback('),
    ),
    Fact(
        "seam/ticks.py TickSeam._wrap_tick",
        "a tick to be the time since the last one",
        _says("distributed.core", "tick_duration = now - self._last_tick", "self._last_tick = now"),
    ),
    Fact(
        "seam/ticks.py TickSeam._wrap_tick",
        "tornado to look the callback up each time",
        _says("tornado.ioloop", "val = self.callback()"),
    ),
    Fact(
        "seam/server_state.py ServerState._monitor",
        "these of a system monitor",
        _says("distributed.system_monitor", "self.last_time = monotonic()", "self.last_time = now_mono"),
    ),
    Fact(
        "seam/server_state.py ServerState._gil",
        "these of a system monitor",
        _has(
            "distributed.system_monitor:SystemMonitor",
            *("monitor_gil_contention", "cumulative_gil_contention", "get_process_memory"),
        ),
    ),
    Fact(
        f"{HANDLERS}.install",
        "handlers to be looked up for each message",
        _says("distributed.core", "handler = self.handlers[op]", "handler = self.stream_handlers[op]"),
    ),
    Fact(
        f"{HANDLERS}._wrap_handler",
        "what a handler returns to be awaited if it is a coroutine",
        _says("distributed.core", "if inspect.iscoroutine(result):"),
    ),
    Fact(
        f"{HANDLERS}._operation",
        "a stream's handler to be awaited if it is a coroutine function",
        _says("distributed.core", "if iscoroutinefunction(handler):"),
    ),
    Fact(
        f"{HANDLERS}._each",
        "a stream's reader to go through the messages of one read, and to handle each before it takes the next",
        _says(
            "distributed.core", "msgs = await comm.read()", "for msg in msgs:", "handler(**merge(extra, msg))"
        ),
    ),
    Fact(
        "seam/streams.py _Messages",
        "what was read to be a list or a tuple, or one message",
        _says("distributed.core", "if not isinstance(msgs, (tuple, list)):"),
    ),
    Fact(
        "seam/streams.py streams_of",
        "the open connections of streams in these, each with its comm",
        _says("distributed.scheduler", "self.stream_comms[address] = ", "self.client_comms[client] = "),
    ),
    Fact(
        f"{HANDLERS}._wrap_handle_stream",
        "read loops to begin with the server's handle_stream",
        _says("distributed.scheduler", "await self.handle_stream(comm=comm, extra="),
    ),
    Fact(
        f"{HANDLERS}._wrap_select",
        "asyncio to look its selector's select up each time",
        _says("asyncio.base_events", "event_list = self._selector.select(timeout)"),
    ),
    Fact(
        f"{LOOP_PARTS} _Queue",
        "asyncio to look its queue of callbacks up each time, and to take them out one by one",
        _says(
            "asyncio.base_events",
            "ntodo = len(self._ready)",
            "handle = self._ready.popleft()",
            "self._ready.append(handle)",
        ),
    ),
    Fact(
        f"{LOOP_PARTS} LoopPartsSeam.begins",
        "these attributes of what asyncio calls",
        _has("asyncio:Handle", "_callback", "_args"),
    ),
    Fact(
        f"{LOOP_PARTS} _part",
        "tornado to handle a socket's events by this method, reads and writes apart",
        _says(
            "tornado.platform.asyncio",
            "add_reader(fd, self._handle_events, fd, IOLoop.READ)",
            "add_writer(fd, self._handle_events, fd, IOLoop.WRITE)",
        ),
    ),
    Fact(
        f"{LOOP_PARTS} _part",
        "tornado to call functions by this method",
        _says("tornado.platform.asyncio", "self._run_callback, functools.partial(callback, *args, **kwargs)"),
    ),
    Fact(
        f"{LOOP_PARTS} _part_of_coroutine",
        "these coroutines of connections and timers",
        lambda: (
            (
                resolve("distributed.core:Server._handle_comm").__qualname__,
                resolve("tornado.ioloop:PeriodicCallback._run").__qualname__,
                resolve("distributed.comm.tcp:TCP.write").__qualname__,
            )
            == ("Server._handle_comm", "PeriodicCallback._run", "TCP.write")
        ),
    ),
    Fact(
        f"{LOOP_PARTS} LoopPartsSeam._wrap_transitions",
        "all transitions to go through this method",
        _says(
            "distributed.scheduler",
            "self._transitions(recommendations, client_msgs, worker_msgs, stimulus_id)",
        ),
    ),
    Fact(
        "seam/worker.py _CLOSING",
        "these beginnings of stimuli",
        _says("distributed.worker", 'f"worker-closing-', 'f"cancelled-by-worker-close-'),
    ),
    Fact(
        f"{WORKER}._freed",
        "these states of a worker's task",
        _states(
            "distributed.worker_state_machine:TaskStateState",
            {"cancelled", "constrained", "error", "executing", "fetch", "flight", "forgotten", "long-running"}
            | {"memory", "missing", "ready", "released", "rescheduled", "resumed", "waiting"},
        ),
    ),
    Fact(
        f"{WORKER}._begin",
        "these attributes of a worker's task",
        _has(
            "distributed.worker_state_machine:TaskState",
            *(
                "key",
                "annotations",
                "run_id",
                "state",
                "previous",
                "run_spec",
                "priority",
                "dependents",
                "nbytes",
            ),
            *("exception_text", "traceback_text", "get_nbytes"),
        ),
    ),
    Fact(
        f"{WORKER}.executing",
        "the tasks that run",
        _has("distributed.worker_state_machine:WorkerState", "all_running_tasks"),
    ),
    Fact(
        f"{WORKER}._end",
        "these fields of a success",
        _has("distributed.worker_state_machine:ExecuteSuccessEvent", "start", "stop", "nbytes", "type"),
    ),
    Fact(
        f"{WORKER}._end",
        "these fields of a failure",
        _has(
            "distributed.worker_state_machine:ExecuteFailureEvent",
            "start",
            "stop",
            "exception",
            "exception_text",
            "traceback_text",
        ),
    ),
    Fact(
        "seam/worker.py _outcome",
        "the stimulus of a task that reschedules itself",
        _has("distributed.worker_state_machine:RescheduleEvent", "key", "stimulus_id"),
    ),
    Fact(
        f"{TRANSFERS}.close",
        "the data of a transfer that succeeded",
        _has("distributed.worker_state_machine:GatherDepSuccessEvent", "data"),
    ),
    Fact(
        f"{TRANSFERS}._wrap_get_data",
        "a request for data that is refused to be answered by a dictionary, others by none",
        _says("distributed.worker", 'return {"status": "busy"}', "return Status.dont_reply"),
    ),
    Fact(
        f"{TRANSFERS}._size",
        "actors to be asked for like data",
        _says("distributed.worker", "if k in self.state.actors:"),
    ),
    Fact(
        "seam/transfers.py _OUTCOMES",
        "these labels of transfers that did not",
        _says(
            "distributed.worker_state_machine",
            '"cancelled" if stim.data else "missing"',
            '"busy"',
            '= "failed"',
        ),
    ),
    Fact(
        "seam/transfers.py _Requests",
        "gather_dep to look get_data_from_worker up in its module",
        _uses("distributed:Worker.gather_dep", "get_data_from_worker"),
    ),
    Fact(
        f"{TRANSFERS}._wrap_spill",
        "what spilling writes to be metered as disk-write",
        _says(
            "distributed.spill",
            'digest_metric("disk-write", 1, "count")',
            '"disk-write", pickled_size, "bytes"',
        ),
    ),
    Fact(
        f"{WORKER}._measure",
        "the ledger of an asynchronous instruction in its context",
        _ledger_is_in_the_context,
    ),
    Fact("seam/run.py Posts", "a ledger to append posts to its list `metrics`", _ledger_appends_to_its_list),
    Fact(
        "seam/run.py Posts",
        "an open metering context to have a callback of its own",
        _open_contexts_are_counted,
    ),
    Fact(f"{WORKER}._measure", "a ledger's `start` to be of time.perf_counter", _ledger_starts_now),
    Fact(
        f"{TRANSFERS}.close",
        "a ledger to give `other`, or its coarse label, last",
        _ledger_ends_with_the_rest,
    ),
    Fact(
        f"{ACTORS} install_callers",
        "Actor._worker_rpc to be a property",
        lambda: isinstance(resolve("distributed:Actor._worker_rpc"), property),
    ),
    Fact(
        f"{ERRORS} install",
        "the worker's state machine to look error_message up in its module",
        _says("distributed.worker_state_machine", "= error_message("),
    ),
    Fact(
        f"{ERRORS} _note_on",
        "what error_message gives under `exception` to take an attribute",
        _takes_an_attribute,
    ),
    Fact(
        "seam/preloads.py Preloads.install",
        "preloads of a manager in its list `_preloads`",
        _says("distributed.preloading", "for preload in self._preloads"),
    ),
    Fact(
        f"{WORKER}.scheduler_says",
        "the scheduler's operation `events`",
        _says("distributed.scheduler", '"events": self.get_events'),
    ),
    Fact(f"{CLIENT} running", "the clients of this process", _has("distributed:Client", "_instances")),
    Fact(
        f"{CLIENT} of_worker",
        "the client that a worker makes for its tasks to be told by its id",
        _says("distributed.worker", 'name="worker"'),
    ),
    Fact(
        f"{CLIENT} cluster_id",
        "the scheduler's identity",
        _says("distributed.client", "self._scheduler_identity"),
    ),
]


# -- what only a run shows ------------------------------------------------------------------------------------------


def _graph_event(seen: Seen) -> dict[str, Any]:
    return next(
        msg for topic, msg in seen.events if topic == "scheduler" and msg.get("action") == "update-graph"
    )


def _phases_add_up(seen: Seen) -> object:
    event = _graph_event(seen)
    metrics = event["metrics"]
    names = ("materialization", "ordering", "state_initialization")
    phases = [abs(metrics[f"{name}_duration_seconds"]) for name in names]
    known = {
        "start_timestamp_seconds",
        "duration_seconds",
        "tasks",
        "new_tasks",
        "key_collisions",
    } <= metrics.keys()
    return (
        known and event["status"] == "OK" and sum(phases) <= metrics["duration_seconds"] + 1e-3
    ) or f"{event}"


def _named(annotation: dict[str, Any]) -> tuple[tuple[str, ...], int]:
    return tuple(annotation["name"]), len(annotation["ids"])


def _graphs_transitions(seen: Seen) -> object:
    """The hook of a graph, then its tasks' transitions with its stimulus."""
    stimulus = seen.hooks[0][2]
    return (
        seen.hooks[1][:4] == ("transition", "thread", "released", "waiting") and seen.hooks[1][4] == stimulus
    )


DYNAMIC = [
    Fact(
        f"{SCHEDULER}._wrap_update_graph",
        "a client's annotations with the graph, as a dictionary",
        lambda seen: list(seen.graphs[0]["annotations"]["drift"]) == [b"annotated"] or seen.graphs[0],
    ),
    Fact(
        f"{SCHEDULER}._wrap_update_graph",
        "the client's id with the graph",
        lambda seen: seen.graphs[0]["client"] == seen.hooks[0][1],
    ),
    Fact(
        f"{SCHEDULER}.graph_created",
        "the hook update_graph first, then the tasks' transitions with its stimulus",
        _graphs_transitions,
    ),
    Fact(f"{SCHEDULER}.graph_created", "the computation's id", lambda seen: seen.computation is not None),
    Fact("summary.py graph_spans", "the phases of an update in its event, their signs aside", _phases_add_up),
    Fact(
        f"{SCHEDULER}.event",
        "the event's stimulus to be the graph's",
        lambda seen: _graph_event(seen)["stimulus_id"] == seen.hooks[0][2],
    ),
    Fact(
        f"{SCHEDULER}._wrap_task_to_msg",
        "what is added to a task's message to reach the worker's annotations",
        lambda seen: seen.executed["thread"][0].get("drift") == b"handed" or seen.executed["thread"],
    ),
    Fact(
        f"{SCHEDULER}._wrap_task_to_msg",
        "what is added to a task's message not to come back to the scheduler's annotations",
        lambda seen: (
            b"handed" not in (seen.annotations["thread"] or {}).values() or seen.annotations["thread"]
        ),
    ),
    Fact(
        f"{SCHEDULER}._activated",
        "annotations of distributed.span on a task",
        lambda seen: (
            _named(seen.annotations["tagged"]["span"]) == (("outer", "inner"), 2)
            or seen.annotations["tagged"]
        ),
    ),
    Fact(
        "seam/scheduler.py _DEFAULT",
        "the span of a task without a tag to be the default one, or none",
        lambda seen: (
            (seen.annotations["thread"] or {}).get("span", {"name": ("default",)})["name"] == ("default",)
            or seen.annotations["thread"]
        ),
    ),
    Fact(
        f"{SCHEDULER}.started",
        "a worker's heartbeat to say what runs, and for how long (s)",
        lambda seen: (
            (list(seen.executing) == ["blocked"] and all(type(v) is float for v in seen.executing.values()))
            or seen.executing
        ),
    ),
    Fact(
        f"{SCHEDULER}.version",
        "metrics of a worker on the scheduler",
        lambda seen: seen.metric == "1.2.3" or seen.metric,
    ),
    Fact(
        f"{SCHEDULER}.event",
        "events of a worker in the hook log_event, with its address",
        lambda seen: (
            [msg for t, msg in seen.events if t == "drift"] == [{"said": 1, "worker": seen.worker["address"]}]
            or seen.events
        ),
    ),
    Fact(
        f"{WORKER}._wrap_execute",
        "a task's thread to run in the context of Worker.execute",
        lambda seen: seen.results["thread"][0] == "carried" or seen.results["thread"],
    ),
    Fact(
        f"{WORKER}._wrap_execute",
        "an async task to run in the context of Worker.execute",
        lambda seen: seen.results["coroutine"] == "carried" or seen.results["coroutine"],
    ),
    Fact(
        f"{WORKER}._begin",
        "the run id of a task's message on the worker",
        lambda seen: seen.executed["thread"][1] == seen.messages["thread"]["run_id"],
    ),
    Fact(
        f"{WORKER}._measure",
        "the ledger of Worker.execute to be that of _finalize_metrics",
        lambda seen: seen.executed["thread"][2] is seen.finalized["thread"][1],
    ),
    Fact(
        "seam/worker.py _outcome",
        "a task's last state when its metrics are finalized",
        lambda seen: (
            (seen.finalized["thread"][2], seen.finalized["failed"][2]) == ("memory", "error")
            or (seen.finalized["thread"][2], seen.finalized["failed"][2])
        ),
    ),
    Fact(
        f"{WORKER}._end",
        "the thread that ran a task",
        lambda seen: seen.threads.get("thread") == seen.results["thread"][1] or seen.threads,
    ),
    Fact(
        f"{WORKER}._cancel",
        "the thread that runs a task",
        lambda seen: list(seen.active.values()) == ["blocked"] or seen.active,
    ),
    Fact(
        f"{WORKER}.clock_offset",
        "the worker's delay (s)",
        lambda seen: type(seen.worker["delay"]) in (int, float),
    ),
    Fact(
        "seam/worker.py _Tee",
        "the digests' keys (execute, span, prefix, label, unit)",
        lambda seen: (
            any(
                len(key) == 5 and key[0] == "execute" and key[2:] == ("thread", "mine", "seconds")
                for key in seen.digests
            )
            or seen.digests
        ),
    ),
    Fact(
        "seam/worker_time.py _fine",
        "the digests' keys to be bare strings or to begin with one of these contexts",
        lambda seen: (
            {key[0] for key in seen.digests if not isinstance(key, str)}
            == {"execute", "gather-dep", "get-data"}
            or seen.digests
        ),
    ),
    Fact(
        f"{TRANSFERS}.close",
        "the digests' keys (gather-dep, label, unit)",
        lambda seen: any(len(key) == 3 and key[0] == "gather-dep" for key in seen.digests) or seen.digests,
    ),
    Fact(
        f"{ERRORS} install",
        "a task's exception to be seen by error_message of the worker module",
        lambda seen: any(type(e) is ValueError for e in seen.errors) or seen.errors,
    ),
    Fact(
        f"{TRANSFERS}._wrap_get_data",
        "what is added to `who` of a request to reach the sender",
        lambda seen: any(str(r.get("asked", "")).endswith("#drift") for r in seen.requests) or seen.requests,
    ),
    Fact(
        f"{ACTORS} install_worker", "the pool and the handler of actors", lambda seen: seen.worker["actors"]
    ),
]
