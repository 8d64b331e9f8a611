"""One point of every instrument for every combination of a few values of its attributes, as OTLP."""

from __future__ import annotations

import itertools
import os
import time
import urllib.request

from dask_otel import instruments as i
from dask_otel import names
from dask_otel.distributions import Distributions, Exemplar
from dask_otel.export.bodies import Scope, Source
from dask_otel.export.metric_bodies import Batch, Series
from dask_otel.instruments import HISTOGRAM, INSTRUMENTS, Instrument
from dask_otel.series import Measured, measured

VALUES: dict[str, tuple[str, ...]] = {
    i.METERING_CONTEXT: ("execute", "gather-dep"),
    names.TASK_PREFIX: ("inc", "add"),
    names.ACTIVITY_NAME: ("compute", "disk-write"),
    i.UNIT: ("rows",),
    i.THREAD_STATE: (names.EXECUTING, names.IDLE),
    names.OUTCOME: (names.SUCCESS, names.FAILED, names.LOST),
    names.ERROR_TYPE: ("", "queue_full"),
    names.TRANSFER_OUTCOME: (names.SUCCESS, names.BUSY),
    i.TRANSFER_DIRECTION: (i.INCOMING, i.OUTGOING),
    i.WASTE_REASON: (names.LOST,),
    i.TASK_STATE: (names.EXECUTING, "no-worker"),
    i.WORKER_STATE: (names.IDLE,),
    i.MEMORY_TYPE: ("managed", "spilled"),
    i.IDLE_REASON: (names.IMBALANCE, names.NO_WORKER),
    i.DASK_OP: (names.LOOP_IDLE, names.LOOP_OTHER),
    i.LOOP_PART: ("read",),
    i.GRAPH_PHASE: (i.ORDER,),
    i.GC_GENERATION: ("2",),
    i.SEMAPHORE_NAME: ("sem",),
    i.COST_MULTIPLIER: ("1",),
    i.FATE: ("rolled_up",),
    i.COMPONENT_TYPE: ("dask_otel",),
    i.COMPONENT_NAME: ("dask_otel/0",),
    i.HOOK: ("execute",),
}


def send(collector: str, cluster: str) -> None:
    """What a scheduler and a worker of this cluster would have counted in half a minute, through the Collector."""
    now = time.time()
    for role in ("scheduler", "worker"):
        instance = f"{role}-of-{cluster}"
        resource = (
            (names.SERVICE_NAME, f"dask-{role}"),
            (names.SERVICE_INSTANCE_ID, instance),
            (names.ROLE, role),
            (names.CLUSTER_ID, cluster),
            *(((names.WORKER_NAME, "0"),) if role == "worker" else ()),
        )
        points = [_made(one, now) for one in INSTRUMENTS if role in one.on]
        batch = Batch(Source(resource, Scope(names.SCOPE, "0", names.SCHEMA_URL)), now - 30, now, points)
        body, _ = Series().request(batch)
        request = urllib.request.Request(
            f"{collector}/v1/metrics", body, {"Content-Type": "application/x-protobuf"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200


def _made(one: Instrument, now: float) -> Measured:
    of = list(itertools.product(*(VALUES[key] for key in one.attributes)))
    if one.kind != HISTOGRAM:
        return measured(one, dict.fromkeys(of, 3.0))
    found = Distributions(one)
    for key in of:
        found.record(key, one.boundaries[1], Exemplar(one.boundaries[1], now, os.urandom(16), os.urandom(8)))
    return measured(one, found.snapshots())
