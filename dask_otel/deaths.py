"""What workers died of: a nanny may say it after the scheduler has noticed that its worker is gone.

Rules
-----
1. Standard library only; no clock.
2. A lost attempt is told when its worker's nanny has said that it ended it at its memory limit, or may say so no more.
"""

from __future__ import annotations

from collections.abc import Callable

from dask_otel import summary
from dask_otel.records import Span


class Deaths:
    """Attempts that were lost on workers that had a nanny, until it is known why.

    Parameters
    ----------
    emit:
        Gets each span when it is told.

    Examples
    --------
    >>> told = []
    >>> deaths = Deaths(told.append)
    >>> lost = Span("inc", 5, b"t" * 16, b"s" * 8, attributes=(("error.type", "worker_lost"),))
    >>> deaths.lost("tcp://w1:1", lost), deaths.over_limit("tcp://w1:1", alive=False), bool(deaths)
    (None, None, False)
    >>> told[0].attributes, told[0].message
    ((('error.type', 'memory_limit'),), 'worker tcp://w1:1 exceeded its memory limit')
    """

    def __init__(self, emit: Callable[[Span], object]) -> None:
        self._emit = emit
        self._over_limit: set[str] = set()
        self._held: dict[str, list[Span]] = {}

    def __bool__(self) -> bool:
        """Whether something waits to be told."""
        return bool(self._held)

    def lost(self, address: str, span: Span) -> None:
        """An attempt died with the worker at ``address``."""
        if address in self._over_limit:
            self._emit(summary.over_limit(span, address))
        else:
            self._held.setdefault(address, []).append(span)

    def over_limit(self, address: str, alive: bool) -> None:
        """A nanny ends its worker at its memory limit; ``alive`` says that the scheduler has it still."""
        if alive:
            self._over_limit.add(address)
        for span in self._held.pop(address, ()):
            self._emit(summary.over_limit(span, address))

    def conclude(self, address: str) -> None:
        """Nobody says any more what a worker died of."""
        self._over_limit.discard(address)
        for span in self._held.pop(address, ()):
            self._emit(span)

    def conclude_all(self) -> None:
        """Nobody will say anything any more."""
        for address in list(self._held):
            self.conclude(address)
        self._over_limit.clear()
