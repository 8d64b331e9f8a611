"""The exception that ends a task, seen as an object where it still is one.

Dask turns it into text and pickles where it was caught; a class that cannot be pickled, or whose ``__str__`` raises,
is lost there. So ``error_message`` is wrapped, for the process: in the worker module, where it is called in the
context of the task, it notes the exception on the span that is current; in the state machine's, which has no such
context (a result that cannot be stored, a run that could not begin), on the message that it makes.
"""

from __future__ import annotations

import logging
from typing import Any

import distributed.worker
import distributed.worker_state_machine
from opentelemetry.trace import get_current_span

from dask_otel.attempts import Failure
from dask_otel.current import TaskSpan, class_name, failure_of
from dask_otel.guard import PROCESS
from dask_otel.seam import Wraps

logger = logging.getLogger("dask_otel")

_wraps = Wraps()
_users = 0
_NOTE = "_dask_otel_failure"
_HOOK = "error_message"


def install() -> None:
    """Wrap it, once a process."""
    global _users
    if not _users:
        PROCESS.part("exceptions are told by their texts only", _wraps.undo, _HOOK)
        _install()
    _users += 1


def _install() -> None:
    from_task = distributed.worker.error_message
    from_machine = distributed.worker_state_machine.error_message

    def error_message_of_task(e: BaseException, *args: Any, **kwargs: Any) -> Any:
        shown = False
        try:
            shown = _note(e)
        except Exception:
            PROCESS.fault(_HOOK)
        message = from_task(e, *args, **kwargs)
        try:
            if not shown:
                _note_on(message, e, whole=False)
        except Exception:
            PROCESS.fault(_HOOK)
        return message

    def error_message_of_machine(e: BaseException, *args: Any, **kwargs: Any) -> Any:
        message = from_machine(e, *args, **kwargs)
        try:
            _note_on(message, e, whole=True)
        except Exception:
            PROCESS.fault(_HOOK)
        return message

    _wraps.attribute(distributed.worker, "error_message", error_message_of_task)
    _wraps.attribute(distributed.worker_state_machine, "error_message", error_message_of_machine)


def uninstall() -> None:
    """Put it back when the last worker of the process is let go."""
    global _users
    _users -= 1
    if _users == 0:
        _wraps.undo()


def noted(exception: object) -> Failure | None:
    """What was noted on the ``exception`` of a message; it is not kept there."""
    found = vars(exception).pop(_NOTE, None) if hasattr(exception, "__dict__") else None
    return found if isinstance(found, Failure) else None


def _note(e: BaseException) -> bool:
    """Note it on the task's span; whether there is one."""
    try:
        span = get_current_span()
        if not isinstance(span, TaskSpan):
            return False
        if span.failure is None:
            span.failure = failure_of(e)
    except Exception:  # The user's classes may do anything when they are looked at.
        logger.debug("An exception could not be noted", exc_info=True)
    return True


def _note_on(message: Any, e: BaseException, whole: bool) -> None:
    """Note it, or its class only, on the message."""
    try:
        setattr(message["exception"], _NOTE, failure_of(e) if whole else Failure(class_name(type(e))))
    except Exception:
        logger.debug("An exception could not be noted", exc_info=True)
