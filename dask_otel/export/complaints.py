"""Says what goes wrong with the export, and does not say it every second.

Rules
-----
1. At most one warning a minute for each pipeline, whatever fails; what was not said is counted into the next
   one.
2. Neither headers nor what stands in a URL beside its host is ever shown: tokens stand there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from urllib.parse import urlsplit

logger = logging.getLogger("dask_otel.export")

#: Seconds between warnings.
INTERVAL = 60.0


class Complaints:
    """Warns about lost spans, or ``what`` else is lost.

    Examples
    --------
    >>> said = []
    >>> complaints = Complaints(say=said.append, clock=iter([0.0, 1.0, 60.0]).__next__)
    >>> for _ in range(3):
    ...     complaints.lost(5, "http://collector:4318", "HTTP 400")
    >>> for sentence in said:
    ...     print(sentence)
    dask-otel: http://collector:4318: HTTP 400; 5 spans lost so far.
    dask-otel: http://collector:4318: HTTP 400; 15 spans lost so far (this and 1 earlier problems).
    """

    def __init__(
        self,
        say: Callable[[str], object] = logger.warning,
        clock: Callable[[], float] = monotonic,
        what: str = "span",
    ) -> None:
        self._say = say
        self._what = what
        self._clock = clock
        self._next = float("-inf")
        self._lost = 0
        self._unsaid = 0
        self._latest = ("", "")

    def lost(self, spans: int, where: str, cause: str) -> None:
        """Spans were lost (0: not yet) at ``where`` by ``cause``."""
        self._lost += spans
        self._unsaid += 1
        self._latest = where, cause
        time = self._clock()
        if time >= self._next:
            self._next = time + INTERVAL
            self._tell()

    def hush(self) -> None:
        """Say nothing any more before `conclude`."""
        self._next = float("inf")

    def conclude(self) -> None:
        """Say what was not said yet, if there is anything."""
        if self._unsaid:
            self._tell()

    def _tell(self) -> None:
        where, cause = self._latest
        more = f" (this and {self._unsaid - 1} earlier problems)" if self._unsaid > 1 else ""
        self._unsaid = 0
        lost = f"{self._lost} {self._what}{'' if self._lost == 1 else 's'}"
        self._say(f"dask-otel: {where}: {cause}; {lost} lost so far{more}.")


def shown(endpoint: str) -> str:
    """An endpoint as it may be shown: scheme, host and port.

    Examples
    --------
    >>> shown("https://user:secret@otel.example:4318/v1/traces?token=x"), shown("localhost:4317")
    ('https://otel.example:4318', 'localhost:4317')
    """
    url = urlsplit(endpoint)
    if not url.netloc:
        return endpoint.rpartition("@")[2].partition("/")[0]
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
