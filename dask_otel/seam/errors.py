"""The exception that ends a task, seen as an object where it still is one.

Dask turns it into text and pickles in the thread of the task; a class that cannot be pickled, or whose ``__str__``
raises, is lost there. So ``error_message`` of the worker module is wrapped, for the process: it notes the class on
the span that is current.
"""

from __future__ import annotations

from typing import Any

import distributed.worker
from opentelemetry.trace import get_current_span

from dask_otel.current import TaskSpan, failure_of
from dask_otel.seam import Wraps

_wraps = Wraps()
_users = 0


def install() -> None:
    """Wrap it, once a process."""
    global _users
    _users += 1
    if _users > 1:
        return
    original = distributed.worker.error_message

    def error_message(e: BaseException, *args: Any, **kwargs: Any) -> Any:
        _note(e)
        return original(e, *args, **kwargs)

    _wraps.attribute(distributed.worker, "error_message", error_message)


def uninstall() -> None:
    """Put it back when the last worker of the process is let go."""
    global _users
    _users -= 1
    if _users == 0:
        _wraps.undo()


def _note(e: BaseException) -> None:
    span = get_current_span()
    if isinstance(span, TaskSpan) and span.failure is None:
        span.failure = failure_of(e)
