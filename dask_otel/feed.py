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

from dask_otel.distributions import Exemplar, Histogram
from dask_otel.instruments import COUNTER, HISTOGRAM
from dask_otel.records import Attributes
from dask_otel.replay import since
from dask_otel.series import Measured

#: What a series is told by on one server: its instrument's name and its attributes.
Series = tuple[str, Attributes]
Totals = Mapping[Series, "float | Histogram"]


class Feed:
    """What one server gives to the readers.

    Parameters
    ----------
    collect:
        Gives the points at this moment; called on the server's event loop, where this is made.
    who:
        Tells the server from others; nothing as long as more may become known of it, but if it is asked the last time.
    before:
        Totals that have gone another way.
    """

    def __init__(
        self,
        collect: Callable[[], Sequence[Measured]],
        who: Callable[[bool], Attributes | None],
        before: Totals,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._collect: Callable[[], Sequence[Measured]] | None = collect
        self._who = who
        #: Tells the server from others; ``None`` as long as that is not known. Never changes then.
        self.who: Attributes | None = None
        self.before = before
        #: The last snapshot, and the histograms of those that nobody has read.
        self.last: Sequence[Measured] = ()
        self.unread: deque[Sequence[Measured]] = deque()
        #: Totals of counters that were given, and snapshots of histograms that were replayed.
        self.given: dict[Series, float] = {}
        self.replayed = {key: value for key, value in before.items() if isinstance(value, Histogram)}
        #: Whether readers have had its totals, and the last ones.
        self.begun = self.read = False
        self.take()
        self._first = dict(_totals(self.last))

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
        finally:
            self._collect, self._who = None, _nobody

    def take(self, last: bool = False) -> None:
        """Make a snapshot: on the event loop."""
        if self._collect is not None:
            if self.who is None:
                self.who = self._who(last)
            self.last = self._collect()
            self.unread.append([one for one in self.last if one.instrument.kind == HISTOGRAM])

    def read_totals(self) -> None:
        """Bring `given` up to the last snapshot."""
        for key, value in _totals(self.last):
            if not isinstance(value, Histogram):
                self.given[key] = value - self._before(key)
        self.begun, self._first = True, {}

    def read_values(self) -> Iterator[tuple[Series, float, Exemplar | None]]:
        """What came into histograms since it was read last."""
        while self.unread:
            for instrument, points in self.unread.popleft():
                for attributes, now in points:
                    assert isinstance(now, Histogram)
                    key = instrument.name, attributes
                    before, self.replayed[key] = self.replayed.get(key), now
                    for value, exemplar in since(before, now, instrument.boundaries):
                        yield key, value, exemplar

    def go_on(self, given: dict[Series, float]) -> None:
        """It has been here before and gave so much: what it had when it came again is no news."""
        self.given = given
        self.before = {
            key: value - given.get(key, 0)
            for key, value in self._first.items()
            if not isinstance(value, Histogram)
        }
        self.before |= {key: -total for key, total in given.items() if key not in self.before}
        self.replayed = {key: value for key, value in self._first.items() if isinstance(value, Histogram)}

    def _before(self, key: Series) -> float:
        before = self.before.get(key, 0)
        assert not isinstance(before, Histogram)
        return before

    def _answer(self, done: Event) -> None:
        try:
            self.take()
        finally:
            done.set()


def _totals(of: Iterable[Measured]) -> Iterator[tuple[Series, float | Histogram]]:
    for instrument, points in of:
        if instrument.kind in (COUNTER, HISTOGRAM):
            for attributes, value in points:
                yield (instrument.name, attributes), value


def _nobody(last: bool) -> None:
    return None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
