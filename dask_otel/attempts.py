"""One attempt of a task, and the spans it makes.

Rules
-----
1. Standard library only; no clock, no random: what happened is handed in, in the moment that it did.
2. An attempt is recorded on the event loop and becomes spans in the background thread.
3. Every number on a span is the one that Dask's metering gave.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from dask_otel import names
from dask_otel.intervals import Amounts, Interval, clamp, nest, text
from dask_otel.parents import ACTIVITY, Parent, link_to
from dask_otel.records import (
    CONSUMER,
    ERROR,
    INTERNAL,
    IS_REMOTE,
    IS_REMOTE_KNOWN,
    UNSET,
    Attributes,
    Event,
    Link,
    Span,
    Value,
)
from dask_otel.vocabulary import Vocabulary

MAX_KEY_LENGTH = 256
#: The names that this process has given to spans of tasks and of activities.
TASK_NAMES = Vocabulary(names.OVERFLOW_TASK)
ACTIVITY_NAMES = Vocabulary(names.OVERFLOW_ACTIVITY)
#: From one activity's span id to the next: odd, so that those of one task differ.
ACTIVITY_STEP = 0xD1342543DE82EF95
_NS = 1e9
#: Bytes of a task's span, of each amount on it, of an activity's span.
_TASK_BYTES, _AMOUNT_BYTES, _ACTIVITY_BYTES = 420, 60, 170
#: So many are not looked at for those that are of one kind.
_FEW_AMOUNTS = 16


class Failure(NamedTuple):
    """An exception as text: its class, what it says, its traceback; nothing of it is kept alive."""

    type: str
    message: str = ""
    stacktrace: str = ""


class Written(NamedTuple):
    """What the user's code wrote on the current span of its task."""

    name: str | None = None
    attributes: Attributes = ()
    events: tuple[Event, ...] = ()
    links: tuple[Link, ...] = ()
    status: int = UNSET
    message: str = ""


class Origin(NamedTuple):
    """What all attempts of one group on one worker share."""

    parent: Parent
    name: str
    prefix: str
    group: str
    common: Attributes


def origin(parent: Parent, prefix: str, group: str, address: str, name: str) -> Origin:
    """The `Origin` of a group's attempts on the worker at ``address``."""
    common = (
        (names.OPERATION, names.OP_TASK),
        (names.TASK_PREFIX, prefix),
        (names.TASK_GROUP, group),
        (names.WORKER_ADDRESS, address),
        (names.WORKER_NAME, name),
    )
    return Origin(parent, TASK_NAMES.name(prefix), prefix, group, common)


class Attempt(NamedTuple):
    """One attempt that ended, as its worker saw it.

    ``start`` and ``end`` are seconds since the epoch, ``moments`` are once ``shift`` is added to
    them. ``amounts`` are what Dask's digests got, ``posts`` what the metering contexts posted where that is not all of
    the amounts but the last, ``moments`` when and ``depths`` how many such contexts were open around each post.
    ``offset`` is the worker's clock minus the scheduler's (s).
    """

    origin: Origin
    key: Hashable
    span_id: bytes
    ordinal: int
    previous: bytes
    cause: str
    start: float
    end: float
    outcome: str
    amounts: Amounts
    posts: Amounts | None = None
    moments: Sequence[float] = ()
    shift: float = 0.0
    compute: float | None = None
    size: int | None = None
    type: str | None = None
    wait_dependencies: float | None = None
    wait_slot: float | None = None
    seceded: float | None = None
    thread: int | None = None
    offset: float = 0.0
    failure: Failure | None = None
    written: Written | None = None
    depths: Sequence[int] = ()

    @property
    def weight(self) -> int:
        """Spans it stands for, about."""
        if self.origin.parent.detail < ACTIVITY:
            return 1
        labels, _, units = self.posts if self.posts is not None else self.amounts
        # Two amounts of `compute` are one span; without posts the last amount is the rest, which is none.
        others = ("thread-noncpu" in labels) + (self.posts is None and units[-1:] == ("seconds",))
        return 1 + units.count("seconds") - others

    def bytes(self, spans: int) -> int:
        """Bytes of OTLP that so many spans of it come to, about."""
        labels, _, units = self.amounts
        different = len(labels)
        if different > _FEW_AMOUNTS:  # A reduction has two posts for each of what it reads.
            different = len(set(zip(labels, units)))
        size = _TASK_BYTES + _AMOUNT_BYTES * different + _ACTIVITY_BYTES * (spans - 1)
        if self.failure is not None:
            size += len(self.failure.message) * 2 + len(self.failure.stacktrace)
        return size if self.written is None else size + _size_of(self.written)

    @property
    def posted(self) -> Amounts:
        """What the metering contexts posted."""
        if self.posts is not None:
            return self.posts
        labels, values, units = self.amounts
        return Amounts(labels[:-1], values[:-1], units[:-1])

    def spans(self) -> Iterator[Span]:
        """The task's span, then one for each metering context."""
        yield _task_span(self)
        if self.origin.parent.detail >= ACTIVITY:
            yield from _activity_spans(self, self.intervals(), self.span_id, [0])

    def intervals(self) -> list[Interval]:
        """Its metering contexts, the outermost of them."""
        shift = self.shift
        intervals = nest(self.posted, [moment + shift for moment in self.moments], self.depths, self.compute)
        clamp(intervals, self.start, self.end)
        return intervals


def _size_of(written: Written) -> int:
    """Bytes of OTLP that what the user wrote comes to, about; whatever the values are."""
    carriers: list[Attributes] = [written.attributes]
    carriers += [event.attributes for event in written.events]
    carriers += [link.attributes for link in written.links]
    pairs = [pair for attributes in carriers for pair in attributes]
    texts = sum(len(value) for _, value in pairs if isinstance(value, str | bytes | list | tuple))
    return 40 * (len(carriers) + len(pairs)) + texts


def _task_span(attempt: Attempt) -> Span:
    parent = attempt.origin.parent
    written = attempt.written or Written()
    failure = attempt.failure
    failed = attempt.outcome in (names.FAILED, names.LOST)
    links = link_to(parent, attempt.previous) + written.links
    status = ERROR if failed else written.status
    return Span(
        written.name or attempt.origin.name,
        CONSUMER,
        parent.trace_id,
        attempt.span_id,
        parent.group_id,
        parent.flags | IS_REMOTE_KNOWN | IS_REMOTE,
        parent.trace_state,
        int(attempt.start * _NS),
        int(attempt.end * _NS),
        attempt.origin.common,
        merged(attempt.origin.common, tuple(_task_attributes(attempt)), written.attributes),
        exception_events(failure, written, int(attempt.end * _NS)),
        links,
        status,
        (failure.message if failed and failure else written.message) if status == ERROR else "",
    )


def _task_attributes(attempt: Attempt) -> Iterator[tuple[str, Value]]:
    key = str(attempt.key)
    yield names.TASK_KEY, key[:MAX_KEY_LENGTH]
    if len(key) > MAX_KEY_LENGTH:
        yield names.TASK_KEY_TRUNCATED, True
    yield names.ATTEMPT, attempt.ordinal
    yield names.OUTCOME, attempt.outcome
    if attempt.cause:
        yield names.CAUSE, attempt.cause
    if attempt.thread is not None:
        yield names.THREAD_ID, attempt.thread
    if attempt.size is not None:
        yield names.RESULT_SIZE, attempt.size
    if attempt.type is not None:
        yield names.RESULT_TYPE, attempt.type
    if attempt.wait_dependencies is not None:
        yield names.WAIT_DEPENDENCIES, attempt.wait_dependencies
    if attempt.wait_slot is not None:
        yield names.WAIT_SLOT, attempt.wait_slot
    if attempt.seceded is not None:
        yield names.SECEDED_TIME, attempt.seceded
    if attempt.failure is not None:
        yield names.ERROR_TYPE, attempt.failure.type
    if abs(attempt.offset) > 1e-3:
        yield names.CLOCK_OFFSET, attempt.offset
    yield from amount_attributes(attempt.amounts.posts)


def merged(common: Attributes, ours: Attributes, written: Attributes) -> Attributes:
    """``ours`` and what the user's code wrote, no key twice: the user's come first, but for Dask's own names.

    Examples
    --------
    >>> ours = (("thread.id", 1), ("dask.task.key", "x"))
    >>> merged((), ours, (("thread.id", 2), ("dask.task.key", "y"), ("rows", 3)))
    (('dask.task.key', 'x'), ('thread.id', 2), ('rows', 3))
    """
    if not written:
        return ours
    kept = {key for key, _ in common + ours if key.startswith("dask.")}
    theirs = tuple([pair for pair in written if pair[0] not in kept])
    replaced = {key for key, _ in theirs}
    return tuple([pair for pair in ours if pair[0] not in replaced]) + theirs


def amount_attributes(amounts: Iterable[tuple[Hashable, float, str]]) -> list[tuple[str, Value]]:
    """One attribute for each label and unit; what came in several posts is added up.

    Examples
    --------
    >>> amount_attributes([("disk-read", 8, "bytes"), ("disk-read", 8, "bytes"), ("other", 0.5, "seconds")])
    [('dask.task.activity.disk-read.bytes', 16), ('dask.task.activity.other.seconds', 0.5)]
    """
    totals: dict[str, float] = {}
    for label, value, unit in amounts:
        key = amount_key(label, unit)
        totals[key] = totals[key] + value if key in totals else value
    return list(totals.items())


@lru_cache(maxsize=4096)
def amount_key(label: Hashable, unit: str) -> str:
    """The attribute of an amount."""
    return f"{names.ACTIVITY_AMOUNT}{text(label)}.{unit}"


@lru_cache(maxsize=4096)
def activity_common(prefix: str, label: str) -> Attributes:
    """What all activities of one label in tasks of one prefix share."""
    return (
        (names.OPERATION, names.OP_ACTIVITY),
        (names.ACTIVITY_NAME, label),
        (names.TASK_PREFIX, prefix),
    )


def _activity_spans(
    attempt: Attempt, intervals: Sequence[Interval], parent_id: bytes, counter: list[int]
) -> Iterator[Span]:
    parent = attempt.origin.parent
    for interval in intervals:
        counter[0] += 1
        span_id = activity_span_id(attempt.span_id, counter[0])
        yield Span(
            ACTIVITY_NAMES.name(interval.label),
            INTERNAL,
            parent.trace_id,
            span_id,
            parent_id,
            parent.flags | IS_REMOTE_KNOWN,
            parent.trace_state,
            int(interval.start * _NS),
            int(interval.end * _NS),
            activity_common(attempt.origin.prefix, interval.label),
            _activity_attributes(interval, attempt.offset),
        )
        if interval.children:
            yield from _activity_spans(attempt, interval.children, span_id, counter)


def _activity_attributes(interval: Interval, offset: float) -> Attributes:
    attributes: list[tuple[str, Value]] = []
    if interval.cpu is not None:
        attributes.append((names.THREAD_CPU_TIME, interval.cpu))
    if interval.noncpu is not None:
        attributes.append((names.THREAD_NONCPU_TIME, interval.noncpu))
    if interval.size is not None:
        attributes.append((names.ACTIVITY_SIZE, interval.size))
    if interval.count is not None:
        attributes.append((names.ACTIVITY_COUNT, interval.count))
    if abs(offset) > 1e-3:
        attributes.append((names.CLOCK_OFFSET, offset))
    return tuple(attributes)


def activity_span_id(task_span_id: bytes, number: int) -> bytes:
    """Id of the ``number``-th activity of a task; odd multiples keep them apart within a task."""
    z = (int.from_bytes(task_span_id, "little") + number * ACTIVITY_STEP) & 0xFFFFFFFFFFFFFFFF
    return (z or 1).to_bytes(8, "little")


def _tells(event: Event, failure: Failure) -> bool:
    if event.name != names.EXCEPTION_EVENT:
        return False
    told = dict(event.attributes)
    return (told.get(names.EXCEPTION_TYPE), told.get(names.EXCEPTION_MESSAGE)) == (
        failure.type,
        failure.message,
    )


def exception_events(failure: Failure | None, written: Written, moment: int) -> tuple[Event, ...]:
    """The user's events, and the exception that ended it all unless the user recorded that (``moment`` in ns)."""
    events = written.events
    if failure is None or any(_tells(event, failure) for event in events):
        return events
    attributes: list[tuple[str, Value]] = [
        (names.EXCEPTION_TYPE, failure.type),
        (names.EXCEPTION_MESSAGE, failure.message),
    ]
    if failure.stacktrace:
        attributes.append((names.EXCEPTION_STACKTRACE, failure.stacktrace))
    return (*events, Event(names.EXCEPTION_EVENT, moment, tuple(attributes)))


_CLASS_IN_REPR = re.compile(r"\s*([A-Za-z_][\w.]*)\s*[(<:]")


def failure_from_text(exception_text: str, traceback_text: str = "") -> Failure:
    """A `Failure` where only Dask's ``repr`` of the exception is there.

    Examples
    --------
    >>> failure_from_text("ValueError('no such file')")
    Failure(type='ValueError', message="ValueError('no such file')", stacktrace='')
    >>> failure_from_text("<unprintable>").type
    '_OTHER'
    """
    match = _CLASS_IN_REPR.match(exception_text)
    return Failure(match.group(1) if match else names.OTHER_ERROR, exception_text, traceback_text)
