"""The last bound on the series of one server, whatever names users make up.

Rules
-----
1. Standard library only; no log: what was exceeded is told to whoever asks.
2. No server has more series than its budget, counted as Prometheus counts them: a histogram with boundaries is its
   buckets and two more.
3. What has been given out is kept. What has no room is added up under OpenTelemetry's `instruments.OVERFLOW`, from its first value on:
   totals stay exact and none falls. Gauges cannot be added up: those without room are left out.
4. No instrument takes more than half of what the others have left, so that those that come late have series too.
5. No value of an attribute is longer than `MAX_LENGTH`: what begins alike is added up.

Source: OpenTelemetry's specification, ``metrics/sdk.md`` (cardinality limits).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dask_otel.histograms import Histogram, Value, added
from dask_otel.instruments import GAUGE, INSTRUMENTS, OVERFLOW, Instrument
from dask_otel.records import Attributes
from dask_otel.series import Measured, attributes

#: Series of a server, all told.
MAX_SERIES = 3_000
#: Stands for the values of an instrument's attributes of what has no series of its own.
OVERFLOWING = ("\0",)
_OVERFLOWN: Attributes = ((OVERFLOW, True),)
#: Characters of an attribute's value: so many series of the longest fit into a request of 4 MiB.
MAX_LENGTH = 128


class Budget:
    """Bounds what one server sends.

    Examples
    --------
    >>> from dask_otel.instruments import SPILL_BYTES as some
    >>> budget = Budget(limit=3, instruments=[some])
    >>> [found] = budget.bound([Measured(some, {("a",): 1, ("b",): 2, ("c",): 3})])
    >>> found.values
    {('a',): 1, ('\\x00',): 5}
    >>> budget.exceeded
    'dask.worker.spill.size'
    """

    def __init__(self, limit: int = MAX_SERIES, instruments: Iterable[Instrument] = INSTRUMENTS) -> None:
        self.limit = limit
        #: The metric that had no room first.
        self.exceeded: str | None = None
        self._given: set[tuple[str, tuple[str, ...]]] = set()
        self._used: Counter[str] = Counter()
        #: By instrument what its overflow costs, which is always paid.
        self._reserved: dict[str, int] = {}
        self._all = 0
        for instrument in instruments:
            self._reserve(instrument)

    def bound(self, found: Iterable[Measured]) -> list[Measured]:
        """The same within the budget, each instrument once."""
        bounded: dict[str, tuple[Instrument, dict[tuple[str, ...], Value]]] = {}
        for instrument, values in found:
            _, into = bounded.setdefault(instrument.name, (instrument, {}))
            for of, value in values.items():
                of = self._room(instrument, _short(of), value)
                if of not in into:
                    into[of] = value
                elif instrument.kind != GAUGE:
                    into[of] = added(into[of], value)
            if instrument.kind == GAUGE:
                into.pop(OVERFLOWING, None)
        return [Measured(instrument, values) for instrument, values in bounded.values()]

    def _room(self, instrument: Instrument, of: tuple[str, ...], value: Value) -> tuple[str, ...]:
        name = instrument.name
        if (name, of) in self._given:
            return of
        if name not in self._reserved:
            self._reserve(instrument)
        weight = _weight(instrument, value)
        if not instrument.attributes:
            weight = 0  # Its one series is what was reserved.
        if 2 * self._used[name] + 2 * weight > self.limit - self._all + self._used[name]:
            self.exceeded = self.exceeded or name
            return OVERFLOWING
        self._given.add((name, of))
        self._used[name] += weight
        self._all += weight
        return of

    def _reserve(self, instrument: Instrument) -> None:
        self._reserved[instrument.name] = weight = _weight(instrument)
        self._all += weight


def shown(instrument: Instrument, of: tuple[str, ...]) -> Attributes:
    """The attributes of a series that `Budget.bound` has let pass.

    Examples
    --------
    >>> from dask_otel.instruments import SPILL_BYTES
    >>> shown(SPILL_BYTES, ("disk-write",)), shown(SPILL_BYTES, OVERFLOWING)
    ((('dask.activity.name', 'disk-write'),), (('otel.metric.overflow', True),))
    """
    return _OVERFLOWN if of == OVERFLOWING else attributes(instrument, of)


def _weight(instrument: Instrument, value: Value | None = None) -> int:
    """Series in Prometheus; before there is a value, as many as there may be."""
    if not instrument.boundaries or (isinstance(value, Histogram) and value.scale is not None):
        return 1
    return len(instrument.boundaries) + 3


def _short(of: tuple[str, ...]) -> tuple[str, ...]:
    if max(map(len, of), default=0) <= MAX_LENGTH:
        return of
    return tuple([text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 1] + "…" for text in of])
