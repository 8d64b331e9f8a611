"""What one server gives to the readers of an application's provider: a snapshot, made on its event loop.

Rules
-----
1. Points are collected on the server's event loop only; whoever asks from elsewhere waits, or takes the last ones.
2. A server that has gone is let go of; its last points stay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Event

from dask_otel.budget import Budget, shown
from dask_otel.export.metric_bodies import TOTALS, Later, made
from dask_otel.histograms import Exemplar, Histogram, Value
from dask_otel.instruments import COUNTER, HISTOGRAM, INSTRUMENTS
from dask_otel.records import Attributes
from dask_otel.replay import values_since
from dask_otel.series import Measured

#: What a series is told by on one server: its instrument's name and its attributes.
SeriesKey = tuple[str, Attributes]
_BOUNDARIES = {instrument.name: instrument.boundaries for instrument in INSTRUMENTS}


class Feed:
    """What one server gives to the readers.

    Parameters
    ----------
    collect:
        Gives the points at this moment; called on the server's event loop, where this is made. What takes longer is
        made in the reader's thread.
    who:
        Tells the server from others; nothing as long as more may become known of it, but if it is asked the last time.
    before:
        Totals of counters that have gone another way.
    exclude:
        Names of metrics that are not given.
    """

    def __init__(
        self,
        collect: Callable[[], Sequence[Measured | Later]],
        who: Callable[[bool], Attributes | None],
        before: Mapping[SeriesKey, float],
        exclude: Iterable[str] = (),
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._collect: Callable[[], Sequence[Measured | Later]] | None = collect
        self._who = who
        #: Tells the server from others; ``None`` as long as that is not known. Never changes then.
        self.who: Attributes | None = None
        self.before = dict(before)
        self.budget = Budget()
        self._exclude = frozenset(exclude)
        #: The last snapshot that was read, and those that nobody has read.
        self.last: Sequence[Measured] = ()
        self.unread: deque[Sequence[Measured | Later]] = deque()
        #: Totals of counters that were given, and snapshots of histograms that were replayed.
        self.given: dict[SeriesKey, float] = {}
        self.replayed: dict[SeriesKey, Histogram] = {}
        #: Whether readers have had its totals, and the last ones.
        self.begun = self.finished = False
        self.take()

    @property
    def ended(self) -> bool:
        """Whether the server has gone."""
        return self._collect is None

    def ask(self) -> Event:
        """Have a snapshot made on the event loop; the event is set when it is there."""
        done = Event()
        if self.ended or _running_loop() is self._loop:
            self._answer(done)
        else:
            try:
                self._loop.call_soon_threadsafe(self._answer, done)
            except RuntimeError:  # The loop is closed
                done.set()
        return done

    def end(self) -> None:
        """The server goes: take the last snapshot and let go of it."""
        try:
            self.take(last=True)
            # What is left to be made knows the server.
            self.unread = deque([list(made(found)) for found in self.unread])
        finally:
            self._collect, self._who = None, _nobody

    def take(self, last: bool = False) -> None:
        """Make a snapshot: on the event loop."""
        if self._collect is not None:
            if self.who is None:
                self.who = self._who(last)
            self.unread.append(self._collect())

    def begin(self, given: dict[SeriesKey, float] | None) -> None:
        """Readers have it from now on; ``given`` if it has been here before, and what it had then is no news."""
        self.begun = True
        if given is None:
            return
        self.last = self._bounded(self.unread.popleft())
        before = dict(totals(self.last))
        self.given = given
        self.before = {key: before.get(key, 0) - given.get(key, 0) for key in {**before, **given}}
        self.replayed = dict(_histograms(self.last))

    def read(self) -> Iterator[tuple[SeriesKey, Exemplar | None, float]]:
        """Bring everything up to the last snapshot: gives what came into histograms."""
        while self.unread:
            self.last = self._bounded(self.unread.popleft())
            for key, now in _histograms(self.last):
                before, self.replayed[key] = self.replayed.get(key), now
                for value, exemplar in values_since(before, now, _BOUNDARIES[key[0]]):
                    yield key, exemplar, value
            for key, total in totals(self.last):
                self.given[key] = total - self.before.get(key, 0)

    def values(self) -> Iterator[tuple[SeriesKey, float]]:
        """All that it gives but histograms: of one that has gone only totals."""
        yield from self.given.items()
        for one in () if self.ended else self.last:
            if one.instrument.kind not in TOTALS:
                yield from _points(one)  # type: ignore[misc]

    def _bounded(self, found: Sequence[Measured | Later]) -> list[Measured]:
        return self.budget.bound([one for one in made(found) if one.instrument.name not in self._exclude])

    def _answer(self, done: Event) -> None:
        try:
            self.take()
        finally:
            done.set()


def totals(found: Iterable[Measured]) -> Iterator[tuple[SeriesKey, float]]:
    """Those of counters."""
    for one in found:
        if one.instrument.kind == COUNTER:
            yield from _points(one)  # type: ignore[misc]


def _histograms(found: Iterable[Measured]) -> Iterator[tuple[SeriesKey, Histogram]]:
    for one in found:
        if one.instrument.kind == HISTOGRAM:
            yield from _points(one)  # type: ignore[misc]


def _points(of: Measured) -> Iterator[tuple[SeriesKey, Value]]:
    instrument, values = of
    for told, value in values.items():
        yield (instrument.name, shown(instrument, told)), value


def _nobody(last: bool) -> None:
    return None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
