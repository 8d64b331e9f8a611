"""What a server has measured, as an OTLP request.

Rules
-----
1. A total that is new has a zero point at the moment of the export before, or at its server's start, until a receiver has
   taken one: so its first value is not lost to a query for increases.
2. Totals go as they are, or as differences to what a receiver has taken: what it has not taken is in the next difference, and
   what has not changed is left out. Up-down counters and gauges are never differences.
3. A total that is less than it was began anew at the export before; what is less by rounding only is sent as it was.
4. What may fall is ended by a point without a value, when it is no longer measured or its server goes: backends would show the last
   one for ever.
5. A difference does not say its least and greatest value, unless it is the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from time import sleep
from typing import Any, NamedTuple, TypeVar

from dask_otel.budget import MAX_SERIES, Budget, shown
from dask_otel.export import metric_wire
from dask_otel.export.bodies import Source, around
from dask_otel.histograms import Histogram, Value, fell, nothing, risen, since
from dask_otel.instruments import COUNTER, HISTOGRAM, Instrument
from dask_otel.series import Measured

#: Kinds whose points are totals that never fall.
TOTALS = (COUNTER, HISTOGRAM)
#: Kinds that go as differences, by OpenTelemetry's word. Counters are totals that are read, as its observable ones are: so with
#: `lowmemory` they stay cumulative.
DIFFERENCES = {"cumulative": (), "lowmemory": (HISTOGRAM,), "delta": TOTALS}

Values = Mapping[tuple[str, ...], Value | None]
M = TypeVar("M", Measured, tuple[Instrument, Values])
#: Points that are worked on at a stretch: less than a millisecond.
_TURN = 100
Later = Callable[[], Iterable[Measured]]


class Batch(NamedTuple):
    """What one server measured until ``now``, having begun at ``start`` (s since the epoch); ``last`` if it goes.

    What takes long to make of what was measured is made later, in the exporter's thread.
    """

    source: Source
    start: float
    now: float
    measured: Sequence[Measured | Later]
    last: bool = False

    def all(self) -> Iterator[Measured]:
        """What was measured, made of whatever was left for later."""
        return made(self.measured)


def made(found: Iterable[Measured | Later]) -> Iterator[Measured]:
    """What was measured, made of whatever was left for later."""
    for one in found:
        if isinstance(one, Measured):
            yield one
        else:
            yield from one()


class Once:
    """What was left for later, made once, though several exporters ask."""

    def __init__(self, make: Later) -> None:
        self._make = make
        self._making = Lock()
        self._made: list[Measured] | None = None

    def __call__(self) -> list[Measured]:
        with self._making:
            if self._made is None:
                self._made = list(self._make())
            return self._made

    def leave_out(self) -> None:
        """If it is not made yet, nothing is: what comes after it holds the same and more."""
        with self._making:
            if self._made is None:
                self._made = []


def _in_turns(items: Iterable[M]) -> Iterator[M]:
    """Let the event loop have the interpreter in between: it would have to wait for it for 5 ms."""
    points = 0
    for item in items:
        yield item
        points += len(item[1])
        if points > _TURN:
            points = 0
            sleep(0)


class _History:
    """One series: when it began, what all its points bear, what was sent last, and what a receiver has taken."""

    __slots__ = ("began", "head", "sent", "taken")

    def __init__(self, began: float, head: bytes) -> None:
        self.began = began
        self.head = head
        self.sent: Value | None = None
        self.taken: Value | None = None


class Series:
    """What is known of one server's series, and how they are told.

    Parameters
    ----------
    temporality:
        OpenTelemetry's word: ``cumulative``, ``delta`` or ``lowmemory``.
    exclude:
        Names of metrics that are not told.
    limit:
        How many there may be, as Prometheus counts them.
    """

    def __init__(
        self, temporality: str = "cumulative", exclude: Iterable[str] = (), limit: int = MAX_SERIES
    ) -> None:
        self.budget = Budget(limit)
        #: Whether it was said that there are too many.
        self.said = False
        self._exclude = frozenset(exclude)
        self._differences = DIFFERENCES[temporality]
        self._known: dict[tuple[str, tuple[str, ...]], _History] = {}
        #: What may fall, as of the export before.
        self._falling: dict[str, tuple[Instrument, set[tuple[str, ...]]]] = {}
        #: When the request before was of, and the last one that was taken.
        self._before = self._taken_at = 0.0
        # Of the request that is being made.
        self._batch: Batch
        self._moments: dict[float, bytes] = {}
        self._sent: list[tuple[_History, Value]] = []

    def request(self, batch: Batch) -> tuple[bytes, int]:
        """An ExportMetricsServiceRequest, and how many points it has beside zero points; without any, no bytes."""
        self._batch, self._moments, self._sent = batch, {}, []
        self._before = self._before or batch.start
        metrics, number = [], 0
        wanted = [found for found in _in_turns(batch.all()) if found.instrument.name not in self._exclude]
        for instrument, values in _in_turns(self._with_gone(self.budget.bound(wanted))):
            points = self._points(instrument, values)
            if points:
                metrics.append(self._metric(instrument, values, points))
                number += len(points)
        self._before = batch.now
        body = b"".join(metrics)
        opening, closing, _ = around(batch.source, len(body))
        return (b"".join((opening, body, closing)) if number else b""), number

    def taken(self) -> None:
        """A receiver has taken the last request, or may have."""
        self._taken_at = self._batch.now
        for one, value in self._sent:
            one.taken = value

    def _with_gone(self, found: Iterable[Measured]) -> Iterator[tuple[Instrument, Values]]:
        """With ``None`` for what may fall and is not measured any more."""
        before, self._falling = self._falling, {}
        for instrument, values in found:
            if instrument.kind in TOTALS:
                yield instrument, values
                continue
            _, gone = before.pop(instrument.name, (instrument, set()))
            self._falling[instrument.name] = instrument, set(values)
            yield instrument, {**values, **dict.fromkeys(gone.difference(values))}
        for instrument, gone in before.values():
            yield instrument, dict.fromkeys(gone)

    def _metric(self, instrument: Instrument, values: Values, points: list[bytes]) -> bytes:
        exponential = any(
            [isinstance(value, Histogram) and value.scale is not None for value in values.values()]
        )
        delta = instrument.kind in self._differences
        return metric_wire.metric(instrument, points, delta=delta, exponential=exponential)

    def _points(self, instrument: Instrument, values: Values) -> list[bytes]:
        """One for each series that has something to say, its zero point with it."""
        name, known = instrument.name, self._known
        tell: Callable[[_History, Any], bytes] = self._value
        if instrument.kind in TOTALS:
            tell = self._difference if instrument.kind in self._differences else self._total
        points = []
        for of, value in values.items():
            one = known.get((name, of))
            if one is None:
                one = known[name, of] = self._new(instrument, of, value)
            points.append(tell(one, value))
        return [point for point in points if point]

    def _new(self, instrument: Instrument, of: tuple[str, ...], value: Value | None) -> _History:
        return _History(self._before, metric_wire.head(instrument, shown(instrument, of), value))

    def _total(self, one: _History, value: Value) -> bytes:
        sent, zero = one.sent, b""
        # Most are floats that have risen: the rest is asked of few.
        if sent is not None and not (type(value) is type(sent) is float and value >= sent):
            if fell(value, sent):
                one.began = self._before
            else:
                value = risen(value, sent)
        one.sent = value
        self._sent.append((one, value))
        if one.taken is None and one.began < self._batch.now:
            zero = metric_wire.point(one.head, metric_wire.moments(one.began, one.began), nothing(value))
        return zero + metric_wire.point(one.head, self._since(one.began), value)

    def _difference(self, one: _History, value: Value) -> bytes:
        taken = one.taken
        if taken is None or fell(value, taken):
            self._sent.append((one, value))
        else:
            value = risen(value, taken)
            self._sent.append((one, value))
            value = since(value, taken)
        if not (value.total if isinstance(value, Histogram) else value):
            return b""
        return metric_wire.point(one.head, self._since(self._taken_at or self._batch.start), value)

    def _value(self, one: _History, value: Value | None) -> bytes:
        return metric_wire.point(one.head, self._since(one.began), None if self._batch.last else value)

    def _since(self, start: float) -> bytes:
        found = self._moments.get(start)
        if found is None:
            found = self._moments[start] = metric_wire.moments(start, self._batch.now)
        return found
