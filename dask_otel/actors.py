"""Method calls of actors as spans; standard library only, no clock, no random."""

from __future__ import annotations

from typing import NamedTuple

from dask_otel import names
from dask_otel.attempts import TASK_NAMES, Failure, Written, exception_events, merged
from dask_otel.carried import Carried
from dask_otel.parents import ACTIVITY, OFF, Parent
from dask_otel.records import ERROR, INTERNAL, IS_REMOTE, IS_REMOTE_KNOWN, SAMPLED, Attributes, Span

_NS = 1e9


class Call(NamedTuple):
    """A method call that has begun (``start`` in seconds since the epoch); the caller's span is its group."""

    parent: Parent
    span_id: bytes
    prefix: str
    method: str
    start: float


def begin(carried: Carried, span_id: bytes, prefix: str, method: str, start: float) -> Call:
    """A call under the caller's context; untraced where that is not sampled."""
    detail = ACTIVITY if carried.trace_id and carried.flags & SAMPLED else OFF
    trace_id = carried.trace_id or b"\0" * 16
    parent = Parent(
        trace_id, carried.span_id, b"", carried.flags, detail, False, carried.trace_state, carried.baggage
    )
    return Call(parent, span_id, prefix, method, start)


def span(
    call: Call,
    end: float,
    failure: Failure | None,
    written: Written | None,
    worker: tuple[str, str],
    offset: float,
) -> Span:
    """The span of a call that returned, or raised."""
    parent = call.parent
    written = written or Written()
    common: Attributes = (
        (names.OPERATION, names.OP_ACTOR),
        (names.TASK_PREFIX, call.prefix),
        (names.ACTOR_METHOD, call.method),
        (names.WORKER_ADDRESS, worker[0]),
        (names.WORKER_NAME, worker[1]),
    )
    own: Attributes = ((names.ERROR_TYPE, failure.type),) if failure else ()
    if abs(offset) > 1e-3:
        own += ((names.CLOCK_OFFSET, offset),)
    return Span(
        written.name or TASK_NAMES.name(f"{call.prefix}.{call.method}"),
        INTERNAL,
        parent.trace_id,
        call.span_id,
        parent.group_id,
        parent.flags | IS_REMOTE_KNOWN | IS_REMOTE,
        parent.trace_state,
        int(call.start * _NS),
        int(end * _NS),
        common,
        merged(common, own, written.attributes),
        exception_events(failure, written, int(end * _NS)),
        written.links,
        ERROR if failure else written.status,
        failure.message if failure else written.message,
    )
