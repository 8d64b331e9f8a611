"""Takes what was emitted off the queue: expanded, within limits, grouped by who made it.

Rules
-----
1. Used by the pipeline's thread only, but for `stop`.
2. Every span that was taken is counted, whether it is handed on or not.
3. An item that raises costs its own spans and nothing else.
4. Attempts are encoded whole where ``forms`` are given: by whoever knows that all sinks take `Encoded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from dask_otel.attempts import Attempt
from dask_otel.export.bodies import Source, Taken
from dask_otel.export.complaints import Complaints
from dask_otel.export.forms import Encoded, Forms
from dask_otel.export.limits import Limiter
from dask_otel.export.queue import Item, Line
from dask_otel.records import Span
from dask_otel.settings import Limits


class Intake:
    """The consumer's side of a `Line`.

    ``taken`` counts spans that left the queue, ``failed`` those of them that could not be made, ``places``
    the places in the queue that they had: an item may become more or fewer spans than it said. ``forms`` may be
    taken away at any time.
    """

    def __init__(
        self, line: Line, limits: Limits, complaints: Complaints, forms: Forms | None = None
    ) -> None:
        self.forms = forms
        self.taken = 0
        self.failed = 0
        self.places = 0
        self._taking = Lock()
        self._stopped = False
        self._line = line
        self._limiter = Limiter(limits)
        self._complaints = complaints

    def batch(self, most: int) -> list[tuple[Source, Sequence[Taken]]]:
        """The oldest spans, about ``most``: an item is not torn apart."""
        with self._taking:
            return [] if self._stopped else self._batch(most)

    def stop(self, timeout: float) -> None:
        """Take nothing any more; return when a batch that is being taken is taken, so that counts hold still."""
        self._stopped = True
        if self._taking.acquire(timeout=timeout):
            self._taking.release()

    def _batch(self, most: int) -> list[tuple[Source, Sequence[Taken]]]:
        groups: dict[Source, list[Taken]] = {}
        entries, taken, places, last = self._line.entries, 0, 0, None
        try:
            while entries and taken < most:
                source, item, weight = entries.popleft()
                places += weight
                if source is not last:
                    last, spans = source, groups.setdefault(source, [])
                if type(item) is Span:
                    spans.append(item)
                    taken += 1
                else:
                    taken += weight
                    taken += self._expand(item, weight, spans) - weight
        finally:
            self.taken += taken
            self.places += places
        return [(source, self._limit(spans)) for source, spans in groups.items()]

    def _expand(self, item: Item, weight: int, into: list[Taken]) -> int:
        """Add the spans of an item that stands in the queue ``weight`` times; how many were taken with it."""
        for _ in range(weight - 1):
            self._line.entries.popleft()
        if type(item) is Attempt and (encoded := self._encoded(item)) is not None:
            into.append(encoded)
            return encoded.spans
        try:
            made = list(item.spans())  # type: ignore[union-attr]
        except BaseException as error:  # A SystemExit of users' code would take the batch with it.
            self._fail(weight, f"{type(item).__name__}.spans()", error)
            return weight
        into += made
        return len(made)

    def _encoded(self, attempt: Attempt) -> Encoded | None:
        try:
            return self.forms.encode(attempt) if self.forms is not None else None
        except Exception:  # What cannot be encoded so has another way, and fails there if it must.
            return None

    def _limit(self, taken: list[Taken]) -> Sequence[Taken]:
        spans = [span for span in taken if type(span) is Span]
        try:
            limited = self._limiter.apply(spans)
        except Exception:
            limited = [span for one in spans for span in self._limit_one(one)]
        return [*limited, *[span for span in taken if type(span) is Encoded]]

    def _limit_one(self, span: Span) -> Sequence[Span]:
        try:
            return self._limiter.apply([span])
        except Exception as error:
            self._fail(1, "limits of spans", error)
            return []

    def _fail(self, spans: int, where: str, error: BaseException) -> None:
        self.failed += spans
        self._complaints.lost(spans, where, f"{type(error).__name__}: {error}"[:300])
