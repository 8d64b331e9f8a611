"""How far two clocks are apart, by readings that are each off by what a message took.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence


def offset(readings: Sequence[float]) -> float:
    """The reading that is the least wrong, in the unit of the readings; 0 where they do not agree on a sign.

    A message that is answered late makes a reading too large or too small, and on a busy event loop most are late in
    the same direction: the smallest has the least of it.

    Examples
    --------
    >>> offset([0.004, -0.0002, 0.009]), offset([-100.2, -100.004, -100.01]), offset([])
    (0.0, -100.004, 0.0)
    """
    if not readings or min(readings) <= 0 <= max(readings):
        return 0.0
    return min(readings, key=abs)
