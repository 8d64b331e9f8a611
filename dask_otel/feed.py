"""What one server gives to the readers of an application's provider: a snapshot, made on its event loop.

Rules
-----
1. Points are collected on the server's event loop only; whoever asks from elsewhere waits, or takes the last ones.
2. A server that has gone is let go of; its last points stay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        for found in self.last:
            if found.instrument.kind == COUNTER:
                for attributes, value in found.points:
                    key = found.instrument.name, attributes
                    assert not isinstance(value, Histogram)
                    self.given[key] = value - self._before(key)

    def read_values(self) -> Iterator[tuple[Series, float, Exemplar | None]]:
        """What came into histograms since it was read last."""
        while self.unread:
            for found in self.unread.popleft():
                for attributes, now in found.points:
                    assert isinstance(now, Histogram)
                    key = found.instrument.name, attributes
                    before, self.replayed[key] = self.replayed.get(key), now
                    for value, exemplar in since(before, now, found.instrument.boundaries):
                        yield key, value, exemplar

    def go_on(self, given: dict[Series, float]) -> None:
        """It has been here before and gave so much."""
        self.given = given
        self.before = {**self.before, **{key: self._before(key) - total for key, total in given.items()}}

    def _before(self, key: Series) -> float:
        before = self.before.get(key, 0)
        assert not isinstance(before, Histogram)
        return before

    def _answer(self, done: Event) -> None:
        try:
            self.take()
        finally:
            done.set()


def _nobody(last: bool) -> None:
    return None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
