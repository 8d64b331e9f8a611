"""The span that is current inside a task: an API span of ours, written into the attempt's record.

Rules
-----
1. What the user's code writes here is on the span that is sent; after the task's end writing does nothing.
2. It costs next to nothing where nobody writes: everything is made on first use.
3. Task threads and the event loop use it at once: only single operations on lists and dicts, no locks.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from functools import lru_cache

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)
from opentelemetry.trace.propagation import _SPAN_KEY
from opentelemetry.util import types

from dask_otel import names
from dask_otel.attempts import Failure, Written
from dask_otel.carried import Carried
from dask_otel.parents import TASK, Parent
from dask_otel.propagation import to_context
from dask_otel.records import IS_REMOTE, IS_REMOTE_KNOWN, Attributes, Event, Link


class TaskSpan(Span):
    """The current span of a running task.

    Examples
    --------
    >>> span = TaskSpan(Parent(b"t" * 16, b"g" * 8, b"c" * 8, flags=1, detail=3), b"s" * 8)
    >>> span.set_attribute("rows", 3)
    >>> span.end_task().attributes, span.is_recording()
    ((('rows', 3),), False)
    """

    __slots__ = (
        "_attributes",
        "_context",
        "_events",
        "_links",
        "_name",
        "_parent",
        "_span_id",
        "_status",
        "_writable",
        "failure",
    )

    def __init__(self, parent: Parent, span_id: bytes) -> None:
        self._parent = parent
        self._span_id = span_id
        self._writable = True
        self._context: SpanContext | None = None
        self._attributes: dict[str, object] | None = None
        self._events: list[Event] | None = None
        self._links: list[Link] | None = None
        self._name: str | None = None
        self._status: tuple[int, str] | None = None
        #: The exception that ended the task, where it was seen as an object.
        self.failure: Failure | None = None

    # -- what the API asks for ------------------------------------------------------------------------------
    def get_span_context(self) -> SpanContext:
        if self._context is None:
            self._context = span_context(self._parent, self._span_id)
        return self._context

    def is_recording(self) -> bool:
        return self._writable

    def end(self, end_time: int | None = None) -> None:
        """Do nothing: the task's end is the span's."""

    def set_attributes(self, attributes: Mapping[str, types.AnyValue]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def set_attribute(self, key: str, value: types.AnyValue) -> None:
        if self._writable:
            if self._attributes is None:
                self._attributes = {}
            self._attributes[key] = value

    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        if self._writable:
            if self._events is None:
                self._events = []
            self._events.append(Event(name, timestamp or time.time_ns(), _pairs(attributes)))

    def add_link(self, context: SpanContext, attributes: types.Attributes = None) -> None:
        if self._writable and context.is_valid:
            if self._links is None:
                self._links = []
            self._links.append(link(context, _pairs(attributes)))

    def update_name(self, name: str) -> None:
        if self._writable:
            self._name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        if not self._writable:
            return
        if isinstance(status, Status):
            description, status = status.description, status.status_code
        if status is StatusCode.UNSET or (self._status and self._status[0] == StatusCode.OK.value):
            return  # The specification: unset is ignored, OK is final.
        self._status = (status.value, (description or "") if status is StatusCode.ERROR else "")

    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        told: dict[str, object] = {
            names.EXCEPTION_TYPE: class_name(type(exception)),
            names.EXCEPTION_MESSAGE: message(exception),
            names.EXCEPTION_STACKTRACE: stacktrace(exception),
            "exception.escaped": str(escaped),
        }
        told.update(attributes or {})
        self.add_event(names.EXCEPTION_EVENT, told, timestamp)  # type: ignore[arg-type]

    # -- what the worker asks for ---------------------------------------------------------------------------
    def end_task(self) -> Written | None:
        """What was written, if anything was; from now on nothing more can be."""
        self._writable = False
        if not (self._attributes or self._events or self._links or self._name or self._status):
            return None
        status, description = self._status or (0, "")
        attributes: Attributes = tuple((self._attributes or {}).items())  # type: ignore[arg-type]
        return Written(
            self._name, attributes, tuple(self._events or ()), tuple(self._links or ()), status, description
        )


def span_context(parent: Parent, span_id: bytes, is_remote: bool = False) -> SpanContext:
    """The API's form of a span's identity."""
    return SpanContext(
        int.from_bytes(parent.trace_id, "big"),
        int.from_bytes(span_id, "big"),
        is_remote,
        TraceFlags(parent.flags),
        _trace_state(parent.trace_state),
    )


@lru_cache(maxsize=256)
def _trace_state(header: str) -> TraceState:
    return TraceState.from_header([header]) if header else TraceState()


def context_of(parent: Parent, span_id: bytes) -> tuple[Context, TaskSpan | None]:
    """The context that is current in a task, and the span to read at its end if there is one.

    Where the task's span is not certain to be sent, the group's context is current instead (rule 3 of the
    contract: never an orphan); where nothing of ours is sent, the context that came from the client.
    """
    if parent.detail >= TASK:
        span = TaskSpan(parent, span_id)
        return _with_span(span, parent.baggage), span
    return group_context(parent), None


@lru_cache(maxsize=1024)
def group_context(parent: Parent) -> Context:
    """The context of a group (or, at detail `OFF`, of what came from the client), nothing to be written on it."""
    if not any(parent.trace_id):
        return to_context(Carried(b"", b"", 0, "", parent.baggage))
    return _with_span(NonRecordingSpan(span_context(parent, parent.group_id, is_remote=True)), parent.baggage)


def _with_span(span: Span, baggage: str) -> Context:
    if not baggage:
        return Context({_SPAN_KEY: span})
    return Context({**to_context(Carried(b"", b"", 0, "", baggage)), _SPAN_KEY: span})


def link(context: SpanContext, attributes: Attributes = ()) -> Link:
    """The record of a link to a span of the API."""
    remote = IS_REMOTE_KNOWN | (IS_REMOTE if context.is_remote else 0)
    return Link(
        context.trace_id.to_bytes(16, "big"),
        context.span_id.to_bytes(8, "big"),
        int(context.trace_flags) | remote,
        context.trace_state.to_header() if context.trace_state else "",
        attributes,
    )


def _pairs(attributes: types.Attributes) -> Attributes:
    return tuple(attributes.items()) if attributes else ()  # type: ignore[arg-type]


def class_name(cls: type) -> str:
    """OpenTelemetry's name of an exception's class: with its module, but for builtins.

    Examples
    --------
    >>> class_name(ValueError), class_name(traceback.TracebackException)
    ('ValueError', 'traceback.TracebackException')
    """
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def failure_of(exception: BaseException) -> Failure:
    """An exception as text."""
    return Failure(class_name(type(exception)), message(exception), stacktrace(exception))


def message(exception: BaseException) -> str:
    """What an exception says, also where its ``__str__`` raises."""
    try:
        return str(exception)
    except BaseException as fault:  # Without us nobody might have called it: not even SystemExit may leave.
        return f"<str() of it raised {type(fault).__name__}>"


def stacktrace(exception: BaseException) -> str:
    """An exception's traceback as text, also where its ``__str__`` raises."""
    try:
        return "".join(traceback.format_exception(type(exception), exception, exception.__traceback__))
    except BaseException:
        return "".join(traceback.format_tb(exception.__traceback__))
