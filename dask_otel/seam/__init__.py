"""The only place that touches distributed's internals: reads them, wraps them, and gives records.

Rules
-----
1. What is wrapped is wrapped once and put back by `Wraps.undo`.
2. A wrapper calls the original exactly once, with what it was given, whatever happens to us.
3. Whatever distributed changes is mended here; `tests/unit/test_drift.py` says what and where.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: The annotation under which contexts travel: from the client with a graph, from the scheduler with a task.
ANNOTATION = "otel"
#: The topic of what workers tell the scheduler by Dask's own ``log-event``.
TOPIC = "dask-otel"
#: The topic whose last event says which version the scheduler runs: workers and clients ask by Dask's own ``events``.
HERE = "dask-otel-version"
#: Key of `Worker.metrics`, and so of `WorkerState.metrics` on the scheduler, where a worker runs dask-otel.
METRIC = "dask-otel"


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
        missing = object()
        old = vars(owner).get(name, missing)
        setattr(owner, name, new)

        def undo() -> None:
            if vars(owner).get(name) is not new:
                return  # Somebody wrapped ours: theirs stays, and calls through us to the original.
            if old is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, old)

        self._undo.append(undo)

    def entry(self, owner: dict[str, Any], key: str, new: Any) -> None:
        """Set a dictionary's entry that exists."""
        old = owner[key]
        owner[key] = new

        def undo() -> None:
            if owner.get(key) is new:
                owner[key] = old

        self._undo.append(undo)

    def undo(self) -> None:
        """Put everything back, last first."""
        while self._undo:
            self._undo.pop()()


def last_version(events: Any) -> object:
    """What the events of `HERE` say: ``None`` where there are none.

    Examples
    --------
    >>> last_version(((1.0, {"version": "0.1.0"}),)), last_version(())
    ('0.1.0', None)
    """
    return events[-1][1].get("version") if events else None
