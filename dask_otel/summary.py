"""The spans that graphs, tags, groups, computations and lost attempts become when they are told.

Rules
-----
1. Standard library only; no clock; ids are handed in.
2. What is not known is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dask_otel import names
from dask_otel.attempts import MAX_KEY_LENGTH, TASK_NAMES, amount_attributes
from dask_otel.chains import Past
from dask_otel.graph_phases import phases
from dask_otel.instruments import INIT, MATERIALIZE, ORDER
from dask_otel.parents import DETAILS, link_to
from dask_otel.records import (
    CONSUMER,
    ERROR,
    INTERNAL,
    IS_REMOTE,
    IS_REMOTE_KNOWN,
    PRODUCER,
    UNSET,
    Attributes,
    Link,
    Span,
    Value,
)
from dask_otel.rollup import Computation, Graph, Group, Tag
from dask_otel.vocabulary import Vocabulary

_NS = 1e9
_QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
_DETAIL_NAMES = {number: name for name, number in DETAILS.items()}
_MAX_PREFIXES = 100
_PHASE_NAMES = {MATERIALIZE: names.GRAPH_MATERIALIZE, ORDER: names.GRAPH_ORDER, INIT: names.GRAPH_INIT}
TAG_NAMES = Vocabulary(names.OVERFLOW_TAG)


def graph_spans(graph: Graph, new_span_id: Callable[[], bytes]) -> Iterator[Span]:
    """The update's span and its three phases, the phases where Dask measured them."""
    computation = graph.computation
    metrics = graph.metrics
    start = metrics.get("start_timestamp_seconds", graph.start)
    end = start + metrics["duration_seconds"] if "duration_seconds" in metrics else graph.end
    known = (
        (names.GRAPH_TASKS, metrics.get("tasks")),
        (names.GRAPH_NEW_TASKS, metrics.get("new_tasks")),
        (names.GRAPH_COLLISIONS, metrics.get("key_collisions")),
        (names.GRAPH_STIMULUS, graph.stimulus_id),
        (names.ERROR_TYPE, graph.error_type),
    )
    yield _scheduler_span(
        computation,
        names.GRAPH_UPDATE,
        names.OP_GRAPH,
        INTERNAL,
        graph.span_id,
        computation.span_id,
        start,
        max(end, start),
        (
            *_identity(computation, names.RUNNING),
            *((key, value) for key, value in known if value is not None),
        ),
        status=ERROR if graph.error_type else UNSET,
    )
    for phase, seconds in phases(metrics):
        yield _scheduler_span(
            computation,
            _PHASE_NAMES[phase],
            names.OP_GRAPH,
            INTERNAL,
            new_span_id(),
            graph.span_id,
            start,
            start + seconds,
        )
        start += seconds


def tag_span(tag: Tag) -> Span:
    """The span of a tag."""
    computation = tag.computation
    above = tag.above.span_id if tag.above else computation.span_id
    attributes: Attributes = ((names.SPAN_ID, tag.dask_id), (names.SPAN_NAME, list(tag.names)))
    return _scheduler_span(
        computation,
        TAG_NAMES.name(tag.names[-1]),
        names.OP_TAG,
        INTERNAL,
        tag.span_id,
        above,
        tag.start,
        tag.end,
        attributes,
    )


def group_span(group: Group) -> Span:
    """The span of a group, with its exact totals."""
    computation = group.computation
    above = group.tag.span_id if group.tag else computation.span_id
    tag = group.tag
    while tag is not None:
        tag.end = max(tag.end, group.end)
        tag = tag.above
    return _scheduler_span(
        computation,
        f"{TASK_NAMES.name(group.prefix)} group",
        names.OP_GROUP,
        PRODUCER,
        group.span_id,
        above,
        group.start,
        group.end,
        tuple(_group_attributes(group)),
    )


def _group_attributes(group: Group) -> Iterator[tuple[str, Value]]:
    sums = group.sums
    yield names.TASK_GROUP, group.name
    yield names.TASK_PREFIX, group.prefix
    yield from ((names.GROUP_OUTCOMES + outcome, n) for outcome, n in sorted(group.outcomes().items()))
    if group.upstream_failed:
        yield names.GROUP_UPSTREAM_FAILED, group.upstream_failed
    if not group.complete:
        yield names.GROUP_INCOMPLETE, True
    if sums.attempts:
        yield names.DURATION + "sum", sums.total
        yield names.DURATION + "min", sums.minimum
        yield names.DURATION + "max", sums.maximum
        yield from ((names.DURATION + name, sums.quantile(q)) for name, q in _QUANTILES)
    if names.SUCCESS in sums.counts:
        yield names.RESULT_SIZE, sums.size
    yield from amount_attributes([(label, value, unit) for (label, unit), value in sums.amounts.items()])


def computation_span(computation: Computation, state: str) -> Span:
    """The span of a computation, told last, with its totals."""
    if state == names.FINISHED and computation.restarted:
        state = names.RESTARTED
    elif state == names.FINISHED and computation.erred:
        state = names.FAILED
    elif state == names.FINISHED and computation.cancelled:
        state = names.CANCELLED
    attributes: list[tuple[str, Value]] = [
        *_identity(computation, state),
        (names.COMPUTATION_TASKS, computation.tasks),
        (names.COMPUTATION_PREFIXES, sorted(computation.prefixes)[:_MAX_PREFIXES]),
        *((names.COMPUTATION_OUTCOMES + outcome, n) for outcome, n in sorted(computation.outcomes.items())),
        (names.COMPUTATION_GRAPHS, computation.submitted),
        (names.WASTED_TIME, computation.wasted),
        (names.GC_TIME, computation.paused),
        (names.TRACE_DETAIL, _DETAIL_NAMES[computation.shown]),
        (names.SPANS_EMITTED, computation.emitted),
        (names.SPANS_ROLLED_UP, computation.rolled_up),
        (names.SPANS_DROPPED, computation.dropped),
        *(zip((names.CODE_FILE, names.CODE_LINE), computation.code) if computation.code else ()),
        *computation.attributes,
    ]
    failed = state == names.FAILED
    return _scheduler_span(
        computation,
        names.COMPUTATION,
        names.OP_COMPUTATION,
        computation.kind,
        computation.span_id,
        computation.parent_id,
        computation.start,
        computation.end,
        tuple(attributes),
        links=computation.links,
        status=ERROR if failed else UNSET,
        message=f"{computation.erred} of {computation.tasks} tasks failed" if failed else "",
        remote=bool(computation.parent_id),
    )


def lost_span(
    group: Group,
    key: str,
    span_id: bytes,
    past: Past,
    start: float,
    end: float,
    assumed: bool,
    error_type: str,
    worker: tuple[str, str],
) -> Span:
    """The span of an attempt that died with its worker; nobody else can tell it."""
    attributes: list[tuple[str, Value]] = [
        (names.TASK_PREFIX, group.prefix),
        (names.TASK_GROUP, group.name),
        (names.WORKER_ADDRESS, worker[0]),
        (names.WORKER_NAME, worker[1]),
        (names.TASK_KEY, key[:MAX_KEY_LENGTH]),
        *(((names.TASK_KEY_TRUNCATED, True),) if len(key) > MAX_KEY_LENGTH else ()),
        (names.ATTEMPT, past.attempts + 1),
        (names.OUTCOME, names.LOST),
        (names.ERROR_TYPE, error_type),
    ]
    if past.cause:
        attributes.append((names.CAUSE, past.cause))
    if assumed:
        attributes.append((names.STARTED, names.ASSUMED))
    return _scheduler_span(
        group.computation,
        TASK_NAMES.name(group.prefix),
        names.OP_TASK,
        CONSUMER,
        span_id,
        group.span_id,
        start,
        end,
        tuple(attributes),
        links=link_to(group.computation.parent, past.span_id),
        status=ERROR,
        message=f"worker {worker[0]} was lost",
    )


def retired(span: Span) -> Span:
    """The span of an attempt whose worker was not lost but retired: no error."""
    attributes = tuple(
        (key, names.RESCHEDULED if key == names.OUTCOME else value)
        for key, value in span.attributes
        if key != names.ERROR_TYPE
    )
    return span._replace(attributes=attributes, status=UNSET, message="")


def over_limit(span: Span, address: str) -> Span:
    """The span of a lost attempt, now that its worker's nanny has said why it died."""
    attributes = tuple(
        (key, names.OVER_MEMORY_LIMIT if key == names.ERROR_TYPE else value) for key, value in span.attributes
    )
    return span._replace(attributes=attributes, message=f"worker {address} exceeded its memory limit")


def _identity(computation: Computation, state: str) -> Iterator[tuple[str, Value]]:
    if computation.dask_id:
        yield names.COMPUTATION_ID, computation.dask_id
    yield names.COMPUTATION_STATE, state
    if computation.client:
        yield names.CLIENT_ID, computation.client


def _scheduler_span(
    computation: Computation,
    name: str,
    operation: str,
    kind: int,
    span_id: bytes,
    parent_id: bytes,
    start: float,
    end: float,
    attributes: Attributes = (),
    links: tuple[Link, ...] = (),
    status: int = UNSET,
    message: str = "",
    remote: bool = False,
) -> Span:
    parent = computation.parent
    return Span(
        name,
        kind,
        parent.trace_id,
        span_id,
        parent_id,
        parent.flags | IS_REMOTE_KNOWN | (IS_REMOTE if remote else 0),
        parent.trace_state,
        int(start * _NS),
        int(end * _NS),
        ((names.OPERATION, operation),),
        attributes,
        links=links,
        status=status,
        message=message,
    )
