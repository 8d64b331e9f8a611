"""What becomes of spans, counted so that the numbers add up.

Rules
-----
1. A span has one fate: exported, failed, unknown or dropped; until then it is waiting.
2. Raising a count takes no lock where any thread may do it: a lock could be held by the very thread that a
   finalizer interrupts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import count, islice
from threading import Lock
from typing import NamedTuple

#: Why spans or points did not arrive, as `error.type` says it: there was no room; the receiver refused them; it could
#: not be reached as long as they were tried; they were sent and not answered; the process closed; they could not be
#: made or encoded.
QUEUE_FULL, REFUSED, UNREACHABLE = "queue_full", "rejected", "unreachable"
UNANSWERED, CLOSED, INVALID = "unknown", "closed", "invalid"


class Counts(NamedTuple):
    """Spans by fate; ``emitted`` is the sum of the others.

    ``exported`` were taken by the receiver, ``dropped`` never left (the queue was full, or the process
    closed), ``failed`` were refused, given up or could not be encoded, ``unknown`` were sent and not
    answered, ``waiting`` are queued or being sent.
    """

    emitted: int = 0
    exported: int = 0
    dropped: int = 0
    failed: int = 0
    unknown: int = 0
    waiting: int = 0


@dataclass(slots=True)
class Fates:
    """The fates of the spans that one sink was given; written by the pipeline's thread only.

    Of those that ``failed`` some were ``given_up`` after they had been tried for long, some ``unmade``.
    """

    exported: int = 0
    dropped: int = 0
    failed: int = 0
    unknown: int = 0
    given_up: int = 0
    unmade: int = 0

    @property
    def total(self) -> int:
        return self.exported + self.dropped + self.failed + self.unknown

    def by_error(self) -> dict[str, int]:
        """The same by `error.type`; those that arrived have none.

        Examples
        --------
        >>> {error: n for error, n in Fates(exported=3, failed=2, given_up=1).by_error().items() if n}
        {'': 3, 'rejected': 1, 'unreachable': 1}
        """
        return {
            "": self.exported,
            REFUSED: self.failed - self.given_up - self.unmade,
            UNREACHABLE: self.given_up,
            UNANSWERED: self.unknown,
            CLOSED: self.dropped,
            INVALID: self.unmade,
        }


class Tally:
    """A number that any thread may raise, without a lock and without losing any.

    Examples
    --------
    >>> tally = Tally()
    >>> tally.add(2), tally.add(3), tally.value(), tally.value()
    (None, None, 5, 5)
    """

    def __init__(self) -> None:
        # A single step of an iterator written in C is not interrupted; `+=` is.
        self._count = count()
        self._reads = 0
        self._reading = Lock()

    def add(self, number: int = 1) -> None:
        """Raise it by a number."""
        deque(islice(self._count, number), maxlen=0)

    def value(self) -> int:
        """The number; reading takes a step too, which is taken off again."""
        with self._reading:
            self._reads += 1
            return next(self._count) - self._reads + 1
