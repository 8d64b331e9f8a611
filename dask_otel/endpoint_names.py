"""What Dask's Prometheus endpoints show, and under which names dask-otel gives it.

Rules
-----
1. Standard library only.
2. Every name of Dask's own on an endpoint is here, or in `FOREIGN` with the reason why it is not.
3. The page of the reference is generated from this module, and the test that scrapes real endpoints compares by it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dask_otel import instruments as of
from dask_otel.instruments import COUNTER, GAUGE, INCOMING, OUTGOING, Instrument
from dask_otel.names import ACTIVITY_NAME, TASK_PREFIX

#: How Dask's number and ours compare.
EQUAL, MOVES, MORE, SUM, DISTRIBUTION = (
    "equal",
    "equal at one moment",
    "ours is never less",
    "its sum rises by the same",
    "a quantile of it",
)


class Shown(NamedTuple):
    """One name on an endpoint, as it is scraped.

    ``labels`` says which attribute each of its labels is, ``attributes`` what of ours is this name and not another.
    """

    name: str
    role: str
    instrument: Instrument
    labels: tuple[tuple[str, str], ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    comparison: str = EQUAL
    note: str = ""


_SPILL = (("activity", ACTIVITY_NAME),)
_PREFIX = (("task_prefix_name", TASK_PREFIX),)
_SEMAPHORE = (("name", of.SEMAPHORE_NAME),)
_MULTIPLIER = (("cost_multiplier", of.COST_MULTIPLIER),)
_IN, _OUT = ((of.TRANSFER_DIRECTION, INCOMING),), ((of.TRANSFER_DIRECTION, OUTGOING),)
_CRICK = "With `crick` only; named a median, Dask's is the maximum (it asks for quantile 50, not 0.5)."
_RESTART = "Dask's begins at 0 again at `Client.restart`."
_TICK = "Dask's is the time since the last tick: its search for the longest one finds nothing."

SHOWN = (
    # -- scheduler --------------------------------------------------------------------------------------------------
    Shown("dask_scheduler_clients", "scheduler", of.CLIENTS),
    Shown("dask_scheduler_client_connections_added_total", "scheduler", of.CLIENTS_ADDED),
    Shown("dask_scheduler_client_connections_removed_total", "scheduler", of.CLIENTS_REMOVED),
    Shown("dask_scheduler_desired_workers", "scheduler", of.WORKERS_DESIRED),
    Shown("dask_scheduler_workers", "scheduler", of.WORKERS, (("state", of.WORKER_STATE),)),
    Shown("dask_scheduler_workers_added_total", "scheduler", of.WORKERS_ADDED),
    Shown("dask_scheduler_workers_removed_total", "scheduler", of.WORKERS_REMOVED),
    Shown("dask_scheduler_tasks", "scheduler", of.SCHEDULER_TASKS, (("state", of.TASK_STATE),)),
    Shown("dask_scheduler_tasks_suspicious_total", "scheduler", of.TASKS_SUSPICIOUS, _PREFIX, note=_RESTART),
    Shown(
        "dask_scheduler_tasks_forgotten_total",
        "scheduler",
        of.TASKS_FORGOTTEN,
        comparison=MORE,
        note="Dask's falls whenever the last task of a group is forgotten.",
    ),
    Shown("dask_scheduler_task_groups", "scheduler", of.TASK_GROUPS),
    Shown(
        "dask_scheduler_tasks_compute_seconds_total",
        "scheduler",
        of.TASK_COMPUTE_SECONDS,
        _PREFIX,
        note=_RESTART,
    ),
    Shown(
        "dask_scheduler_tasks_transfer_seconds_total",
        "scheduler",
        of.TASK_TRANSFER_SECONDS,
        _PREFIX,
        note=_RESTART,
    ),
    Shown("dask_scheduler_tasks_output_bytes", "scheduler", of.SCHEDULER_MEMORY, _PREFIX),
    Shown(
        "dask_scheduler_prefix_state_totals_total",
        "scheduler",
        of.TASK_TRANSITIONS,
        (*_PREFIX, ("state", of.TASK_STATE)),
        note=_RESTART,
    ),
    Shown(
        "dask_scheduler_last_time_total",
        "scheduler",
        of.MONITOR_TIME,
        comparison=MOVES,
        note="Dask's counts from any moment (the machine's monotonic clock), ours from 1970.",
    ),
    Shown("dask_stealing_request_count_total", "scheduler", of.STEALING_REQUESTS, _MULTIPLIER),
    Shown("dask_stealing_request_cost_total", "scheduler", of.STEALING_COST, _MULTIPLIER),
    Shown("dask_semaphore_max_leases", "scheduler", of.LEASE_LIMIT, _SEMAPHORE),
    Shown("dask_semaphore_active_leases", "scheduler", of.LEASES, _SEMAPHORE),
    Shown("dask_semaphore_pending_leases", "scheduler", of.LEASES_PENDING, _SEMAPHORE),
    Shown("dask_semaphore_acquire_total", "scheduler", of.LEASES_ACQUIRED, _SEMAPHORE),
    Shown("dask_semaphore_release_total", "scheduler", of.LEASES_RELEASED, _SEMAPHORE),
    Shown("dask_semaphore_average_pending_lease_time_s", "scheduler", of.LEASE_WAIT, _SEMAPHORE),
    # -- worker -----------------------------------------------------------------------------------------------------
    Shown("dask_worker_tasks", "worker", of.WORKER_TASKS, (("state", of.TASK_STATE),)),
    Shown("dask_worker_threads", "worker", of.WORKER_THREADS),
    Shown("dask_worker_latency_seconds", "worker", of.WORKER_LATENCY, comparison=MOVES),
    Shown(
        "dask_worker_memory_bytes", "worker", of.WORKER_MEMORY, (("type", of.MEMORY_TYPE),), comparison=MOVES
    ),
    Shown("dask_worker_transfer_incoming_bytes", "worker", of.ACTIVE_TRANSFER_BYTES, attributes=_IN),
    Shown("dask_worker_transfer_incoming_count", "worker", of.ACTIVE_TRANSFERS, attributes=_IN),
    Shown(
        "dask_worker_concurrent_fetch_requests",
        "worker",
        of.ACTIVE_TRANSFERS,
        attributes=_IN,
        note="Older versions of Dask have it.",
    ),
    Shown("dask_worker_transfer_incoming_count_total", "worker", of.TRANSFERS, attributes=_IN),
    Shown("dask_worker_transfer_outgoing_bytes", "worker", of.ACTIVE_TRANSFER_BYTES, attributes=_OUT),
    Shown("dask_worker_transfer_outgoing_count", "worker", of.ACTIVE_TRANSFERS, attributes=_OUT),
    Shown("dask_worker_transfer_outgoing_bytes_total", "worker", of.TRANSFER_IO, attributes=_OUT),
    Shown("dask_worker_transfer_outgoing_count_total", "worker", of.TRANSFERS, attributes=_OUT),
    Shown("dask_worker_spill_bytes_total", "worker", of.SPILL_BYTES, _SPILL),
    Shown("dask_worker_spill_count_total", "worker", of.SPILL_OPERATIONS, _SPILL),
    Shown("dask_worker_spill_time_seconds_total", "worker", of.SPILL_SECONDS, _SPILL),
    Shown(
        "dask_worker_tick_duration_median_seconds",
        "worker",
        of.LOOP_LAG,
        comparison=DISTRIBUTION,
        note=f"{_CRICK} A tick's duration is the loop's lag and the interval between ticks.",
    ),
    Shown(
        "dask_worker_task_duration_median_seconds",
        "worker",
        of.TASK_DURATION,
        comparison=DISTRIBUTION,
        note=_CRICK,
    ),
    Shown(
        "dask_worker_transfer_bandwidth_median_bytes",
        "worker",
        of.TRANSFER_BANDWIDTH,
        comparison=DISTRIBUTION,
        note=_CRICK,
    ),
    # -- both -------------------------------------------------------------------------------------------------------
    *(
        shown
        for role in ("scheduler", "worker")
        for shown in (
            Shown(
                f"dask_{role}_gil_contention_seconds_total",
                role,
                of.GIL_SECONDS,
                comparison=MOVES,
                note="With `gilknocker` only.",
            ),
            Shown(
                f"dask_{role}_gc_collection_seconds_total",
                role,
                of.GC_PAUSE,
                attributes=((of.GC_GENERATION, "2"),),
                comparison=SUM,
                note="Dask's are collections of the oldest generation, and begin before dask-otel does.",
            ),
            Shown(f"dask_{role}_tick_count_total", role, of.LOOP_TICKS, comparison=MOVES),
            Shown(
                f"dask_{role}_tick_duration_maximum_seconds",
                role,
                of.LOOP_TICK_MAX,
                comparison=MORE,
                note=_TICK,
            ),
        )
    ),
)

#: Beginnings of names on the endpoints that are none of Dask's.
FOREIGN = {
    "python_": "of `prometheus_client` itself, about the interpreter: `opentelemetry-instrumentation-system-metrics` has the "
    "like; garbage collection is `dask.gc.pause`",
    "process_": "of `prometheus_client` itself, about the process: `opentelemetry-instrumentation-system-metrics` has the like",
}

_UNITS = {"s": "seconds", "By": "bytes", "1": ""}
_PER = {"s": "second", "By": "byte"}


def prometheus_name(instrument: Instrument) -> str:
    """A metric's name as Prometheus translates it, without ``_bucket``, ``_sum``, ``_count`` of histograms.

    By the specification: what is no letter, digit or underscore becomes an underscore, and several one; then the unit
    in words unless the name has it (a unit in braces is none, By/s is bytes_per_second); ``_total`` last for a
    counter, ``_ratio`` for a gauge of unit 1.

    Examples
    --------
    >>> from dask_otel.instruments import ACTIVITY_SECONDS, TRANSFER_BANDWIDTH, WORKERS
    >>> prometheus_name(ACTIVITY_SECONDS), prometheus_name(TRANSFER_BANDWIDTH), prometheus_name(WORKERS)
    ('dask_worker_activity_time_seconds_total', 'dask_transfer_bandwidth_bytes_per_second', 'dask_scheduler_worker_count')
    """
    words = [word for word in re.split(r"[^a-zA-Z0-9]+", instrument.name) if word]
    unit, _, per = re.sub(r"\{[^}]*\}", "", instrument.unit).partition("/")
    if (suffix := _UNITS.get(unit, unit)) and suffix not in words:
        words.append(suffix)
    if per:
        words += ["per", _PER.get(per, per)]
    last = {COUNTER: "total", GAUGE: "ratio" if instrument.unit == "1" else ""}.get(instrument.kind, "")
    return "_".join([*(word for word in words if word != last), *([last] if last else [])])
