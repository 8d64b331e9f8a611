"""The only place that touches distributed's internals: reads them, wraps them, and gives records.

Rules
-----
1. What is wrapped is wrapped once and put back by `Wraps.undo`, also where several wrap the same, in any order.
2. A wrapper calls the original exactly once, with what it was given, whatever happens to us.
3. Whatever distributed changes is mended here; `tests/unit/test_drift.py` says what and where.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_otel.guard import PROCESS

#: The annotation under which contexts travel: from the client with a graph, from the scheduler with a task.
ANNOTATION = "otel"
#: The annotation by which users say in how much detail what they submit is told: ``dask.annotate(otel_detail="task")``.
DETAIL = "otel_detail"
#: The topic of what workers tell the scheduler by Dask's own ``log-event``.
TOPIC = "dask-otel"
#: The topic whose last event says which version the scheduler runs, and its id: workers and clients ask by Dask's own ``events``.
HERE = "dask-otel-version"
#: Key of `Worker.metrics`, and so of `WorkerState.metrics` on the scheduler, where a worker runs dask-otel.
METRIC = "dask-otel"


_MISSING = object()
#: Where a wrapper that was undone beneath another notes what it had wrapped.
_BELOW = "_dask_otel_below"


def _bury(new: Any, old: Any) -> None:
    """Somebody wrapped ours: theirs stays, and calls through us to the original.

    If theirs is one of ours too, it puts back what we had wrapped.
    """
    try:
        setattr(new, _BELOW, (id(new), old))  # functools.wraps hands the note on: it says whose it is.
    except (AttributeError, TypeError):
        pass  # No function: whoever undoes the one above puts it back, and it calls through.


def _live(old: Any) -> Any:
    """What is to be put back, past wrappers that were undone in the meantime."""
    while (note := getattr(old, "__dict__", {}).get(_BELOW)) and note[0] == id(old):
        old = note[1]
    return old


def _below(old: Any) -> Any:
    """The same, whatever it finds there: better a wrapper that calls through than ours."""
    try:
        return _live(old)
    except Exception:
        PROCESS.fault("undo")
        return old


class Wraps:
    """Attributes and dictionary entries that were replaced, and how to put them back.

    Examples
    --------
    >>> handlers = {"op": len}
    >>> wraps = Wraps()
    >>> wraps.entry(handlers, "op", max)
    >>> wraps.undo()
    >>> handlers["op"] is len
    True
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def attribute(self, owner: Any, name: str, new: Any) -> None:
        """Set an instance's (or a module's) attribute."""
        old = vars(owner).get(name, _MISSING)
        setattr(owner, name, new)

        def undo() -> None:
            if vars(owner).get(name) is not new:
                _bury(new, old)
                return
            below = _below(old)
            if below is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, below)

        self._undo.append(undo)

    def entry(self, owner: dict[str, Any], key: str, new: Any) -> None:
        """Set a dictionary's entry that exists."""
        old = owner[key]
        owner[key] = new

        def undo() -> None:
            if owner.get(key) is new:
                owner[key] = _below(old)
            else:
                _bury(new, old)

        self._undo.append(undo)

    def also(self, undo: Callable[[], None]) -> None:
        """Call this too when everything is put back."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Put everything back, last first, whichever of it fails."""
        raised: Exception | None = None
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as fault:
                raised = fault
        if raised is not None:
            raise raised


def members(heap: Any) -> Any:
    """The set within one of distributed's ``HeapSet``, whose length is a call of Python code; it is the same for good."""
    return getattr(heap, "_data", heap)


def last_said(events: Any) -> dict[str, Any]:
    """What the last event of `HERE` says: nothing where there is none.

    Examples
    --------
    >>> last_said(((1.0, {"version": "0.1.0"}),)), last_said(())
    ({'version': '0.1.0'}, {})
    """
    return dict(events[-1][1]) if events else {}
