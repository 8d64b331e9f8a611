"""Attempts as spans of shapes: what most attempts are like is made and encoded at a fraction of the price.

Rules
-----
1. The spans are those that `Attempt.spans` gives, to the byte; a test compares them on generated attempts.
2. Whatever is rare (a failure, a link, what the user wrote, a trace state) takes the way of `Attempt.spans`.
3. Shapes are kept per group and labels, bounded.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache

from dask_otel import names
from dask_otel.attempts import (
    ACTIVITY_NAMES,
    MAX_KEY_LENGTH,
    Attempt,
    Origin,
    activity_common,
    activity_span_id,
    amount_key,
)
from dask_otel.export.shape import Record, Shape
from dask_otel.intervals import Interval
from dask_otel.parents import ACTIVITY
from dask_otel.records import CONSUMER, INTERNAL, IS_REMOTE, IS_REMOTE_KNOWN

_NS = 1e9
#: Keys of a task's own attributes that may be missing, and the fields of `Attempt` that have them.
_OPTIONAL: tuple[tuple[str, type], ...] = (
    (names.THREAD_ID, int),
    (names.RESULT_SIZE, int),
    (names.RESULT_TYPE, str),
    (names.WAIT_DEPENDENCIES, float),
    (names.WAIT_SLOT, float),
)
_MAX_SHAPES = 4096


class ShapedAttempt(Attempt):
    """An `Attempt` on its way through the pipeline."""

    __slots__ = ()

    def spans(self) -> Iterator[Record]:  # type: ignore[override]
        """As `Attempt.spans`, as spans of shapes where that can be."""
        shape = _shape(self)
        return Attempt.spans(self) if shape is None else _spans(self, shape)


_shapes: dict[tuple[int, int, tuple[tuple[Hashable, str], ...]], tuple[Origin, Shape]] = {}


def _shape(attempt: Attempt) -> Shape | None:
    """The shape of the task's span; ``None`` where it has something that most have not."""
    if (
        attempt.written is not None
        or attempt.failure is not None
        or attempt.previous
        or attempt.cause
        or attempt.seceded is not None
        or attempt.outcome != names.SUCCESS
        or attempt.origin.parent.trace_state
        or abs(attempt.offset) > 1e-3
    ):
        return None
    labels = tuple([(label, unit) for label, _, unit in attempt.amounts])
    present = (
        (attempt.thread is not None)
        | (attempt.size is not None) << 1
        | (attempt.type is not None) << 2
        | (attempt.wait_dependencies is not None) << 3
        | (attempt.wait_slot is not None) << 4
    )
    origin = attempt.origin
    found = _shapes.get((id(origin), present, labels))
    if found is not None:
        return found[1]
    if len(set(labels)) < len(labels):
        return None  # Several posts of one label are one amount: added up on the other way.
    return _new_shape(origin, present, labels)


def _new_shape(origin: Origin, present: int, labels: tuple[tuple[Hashable, str], ...]) -> Shape:
    own: list[tuple[str, type]] = [(names.TASK_KEY, str), (names.ATTEMPT, int), (names.OUTCOME, str)]
    own += [pair for bit, pair in enumerate(_OPTIONAL) if present >> bit & 1]
    own += [(amount_key(label, unit), int if unit in ("bytes", "count") else float) for label, unit in labels]
    shape = Shape(origin.name, CONSUMER, origin.common, own)
    if len(_shapes) >= _MAX_SHAPES:
        _shapes.clear()
    # The entry keeps its origin alive, hence no other one can have its id.
    _shapes[id(origin), present, labels] = (origin, shape)
    return shape


def _spans(attempt: Attempt, shape: Shape) -> Iterator[Record]:
    key = str(attempt.key)
    if len(key) > MAX_KEY_LENGTH:
        yield from Attempt.spans(attempt)
        return
    parent = attempt.origin.parent
    optional = (
        attempt.thread,
        attempt.size,
        attempt.type,
        attempt.wait_dependencies,
        attempt.wait_slot,
    )
    yield (
        shape,
        parent.trace_id,
        attempt.span_id,
        parent.group_id,
        parent.flags | IS_REMOTE_KNOWN | IS_REMOTE,
        int(attempt.start * _NS),
        int(attempt.end * _NS),
        key,
        attempt.ordinal,
        attempt.outcome,
        *[value for value in optional if value is not None],
        *[value for _, value, _ in attempt.amounts],
    )
    if parent.detail >= ACTIVITY:
        activities: list[Record] = []
        _activities(attempt, attempt.intervals(), attempt.span_id, activities)
        yield from activities


def _activities(
    attempt: Attempt, intervals: Sequence[Interval], parent_id: bytes, into: list[Record]
) -> None:
    parent, prefix = attempt.origin.parent, attempt.origin.prefix
    trace_id, flags = parent.trace_id, parent.flags | IS_REMOTE_KNOWN
    for interval in intervals:
        span_id = activity_span_id(attempt.span_id, len(into) + 1)
        present = (
            (interval.cpu is not None)
            | (interval.noncpu is not None) << 1
            | (interval.size is not None) << 2
            | (interval.count is not None) << 3
        )
        values = (interval.cpu, interval.noncpu, interval.size, interval.count) if present else ()
        into.append(
            (
                _activity_shape(prefix, interval.label, present),
                trace_id,
                span_id,
                parent_id,
                flags,
                int(interval.start * _NS),
                int(interval.end * _NS),
                *[value for value in values if value is not None],
            )
        )
        if interval.children:
            _activities(attempt, interval.children, span_id, into)


@lru_cache(maxsize=_MAX_SHAPES)
def _activity_shape(prefix: str, label: str, present: int) -> Shape:
    keys: tuple[tuple[str, type], ...] = (
        (names.THREAD_CPU_TIME, float),
        (names.THREAD_NONCPU_TIME, float),
        (names.ACTIVITY_SIZE, int),
        (names.ACTIVITY_COUNT, int),
    )
    own = [pair for bit, pair in enumerate(keys) if present >> bit & 1]
    return Shape(ACTIVITY_NAMES.name(label), INTERNAL, activity_common(prefix, label), own)
