"""Metrics through a `MeterProvider` that the application has set: its readers ask, its views and resource count.

Rules
-----
1. Of Dask's state nothing is touched in a reader's thread: a snapshot is made on the server's event loop, once for
   each time that a reader collects; where the loop does not answer within `PATIENCE`, the last one is given.
2. A series has one writer: points bear the cluster's id and the worker's name, since the resource is the provider's.
3. Totals never fall, and hold nothing that went over our own path before: a server that goes and comes again goes on
   where it was.
4. Nothing here keeps a server alive. One that has gone gives its last totals until they were collected, then nothing.
5. Values of histograms are recorded one by one in the reader's thread, for half of its time at most.
6. Nothing raises into a reader; in a forked child nothing is given.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

from opentelemetry.context import Context, set_value
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import DropAggregation
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from dask_otel.distributions import Distributions, Exemplar
from dask_otel.export.complaints import Complaints
from dask_otel.export.metrics import say_exceeded
from dask_otel.feed import Feed, SeriesKey
from dask_otel.instruments import COUNTER, GAUGE, HISTOGRAM, INSTRUMENTS, Instrument
from dask_otel.records import Attributes, Scope

logger = logging.getLogger("dask_otel")

#: How long (s) a reader waits for the event loops of all servers of the process.
PATIENCE = 0.25
#: Values that a series of a histogram keeps as they are between two collections; further ones are the middles of their buckets.
RECENT = 2_000
#: Values that wait to be recorded, and servers that have gone, at most.
MOST_VALUES, MOST_GONE = 100_000, 64

#: For sentences.
_HERE = "the application's meter provider"
#: Not what is current in a reader's thread: the SDK would take its span for the value's. It takes an empty one for none.
_NOWHERE = set_value("dask_otel.replayed", True, Context())


class _Value(NamedTuple):
    """A value of a histogram that is to be recorded."""

    name: str
    value: float
    attributes: dict[str, Any]
    exemplar: Exemplar | None


class Provided:
    """Our instruments on one provider, and who feeds them.

    Parameters
    ----------
    provider:
        The application's.
    scope:
        Ours.
    """

    def __init__(self, provider: MeterProvider, scope: Scope) -> None:
        Distributions.recent = RECENT
        self._complaints = Complaints(what="value")
        self._collecting = Lock()
        self._asked: set[str] = set()
        self._said = False
        self._observed: Mapping[str, Sequence[Observation]] = {}
        self._values: deque[_Value] = deque()
        self._record: dict[str, Callable[..., None]] = {}
        self._left: dict[Attributes, dict[SeriesKey, float]] = {}
        #: Not `_collecting`, which a reader holds while it waits for the event loop.
        self._membership = Lock()
        self._feeds: tuple[ref[Feed], ...] = ()
        self._gone: tuple[Feed, ...] = ()
        self._ready = Event()
        # The SDK makes no instrument while a reader collects, and a reader may wait for our event loop.
        Thread(
            target=self._make, args=(ref(provider), scope), name="dask-otel-instruments", daemon=True
        ).start()

    def join(self, feed: Feed) -> None:
        """A server has come."""
        with self._membership:
            alive = [one for one in self._feeds if one() is not None]
            self._feeds = (*alive, ref(feed))

    def leave(self, feed: Feed) -> None:
        """A server goes, on its event loop."""
        try:
            feed.end()
        finally:
            with self._membership:
                self._feeds = tuple([one for one in self._feeds if one() is not feed])
                self._gone = (*self._gone, feed)[-MOST_GONE:]

    def flush(self, provider: MeterProvider, timeout: float) -> bool:
        """Have all readers collect, then forget the servers that have gone. Blocks; readers' faults are raised."""
        until = monotonic() + timeout
        gone = self._gone
        self._ready.wait(timeout)
        try:
            return bool(provider.force_flush(max(1.0, (until - monotonic()) * 1000)))
        finally:
            with self._membership:
                self._gone = tuple([one for one in self._gone if one not in gone or not one.finished])

    def forget(self) -> None:
        """In a forked child: what is not there cannot be asked."""
        self._collecting, self._membership = Lock(), Lock()
        self._feeds, self._gone, self._observed = (), (), {}

    # -- in a reader's thread ---------------------------------------------------------------------------------
    def _make(self, of: ref[MeterProvider], scope: Scope) -> None:
        try:
            if (provider := of()) is not None:
                meter = provider.get_meter(scope.name, scope.version, scope.schema_url)
                made = {
                    instrument.name: self._make_instrument(meter, instrument) for instrument in INSTRUMENTS
                }
                self._leave_out([name for name, one in made.items() if is_dropped(provider, one)])
        except Exception:
            logger.exception("dask-otel: %s takes no instruments of ours.", _HERE)
        self._ready.set()

    def _leave_out(self, dropped: Sequence[str]) -> None:
        if dropped:
            logger.info("dask-otel: views of %s drop %s.", _HERE, ", ".join(dropped))
        for name in dropped:
            self._record.pop(name, None)

    def _make_instrument(self, meter: Meter, instrument: Instrument) -> object:
        name, unit, brief = instrument.name, instrument.unit, instrument.brief
        if instrument.kind == HISTOGRAM:
            histogram = meter.create_histogram(
                name, unit, brief, explicit_bucket_boundaries_advisory=list(instrument.boundaries)
            )
            self._record[name] = histogram.record
            return histogram

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            return self._observe(name, options.timeout_millis / 1000)

        if instrument.kind == COUNTER:
            return meter.create_observable_counter(name, [observe], unit, brief)
        if instrument.kind == GAUGE:
            return meter.create_observable_gauge(name, [observe], unit, brief)
        return meter.create_observable_up_down_counter(name, [observe], unit, brief)

    def _observe(self, name: str, timeout: float) -> Sequence[Observation]:
        with self._collecting:
            # Readers ask for each instrument once a collection.
            if not self._asked or name in self._asked:
                self._asked.clear()
                try:
                    self._refresh(timeout)
                except Exception as error:
                    self._complaints.lost(0, _HERE, f"reading raised {type(error).__name__}: {error}"[:300])
            self._asked.add(name)
            return self._observed.get(name, ())

    def _refresh(self, timeout: float) -> None:
        start = monotonic()
        feeds = [feed for one in self._feeds if (feed := one()) is not None]
        _wait([feed.ask() for feed in feeds], start + min(PATIENCE, timeout / 4))
        # One that has come again stands for what it was before.
        shown = {
            who: feed
            for feed in (*self._gone, *feeds)
            if (who := feed.who) is not None and self._read(feed, who)
        }
        observed: defaultdict[str, list[Observation]] = defaultdict(list)
        for who, feed in shown.items():
            for (name, attributes), value in feed.values():
                observed[name].append(Observation(value, dict(attributes + who)))
        self._observed = observed
        self._replay(start + timeout / 2)

    def _read(self, feed: Feed, who: Attributes) -> bool:
        if not feed.begun:
            feed.begin(self._left.pop(who, None))
        try:
            for (name, attributes), exemplar, value in feed.read():
                self._values.append(_Value(name, value, dict(attributes + who), exemplar))
        except Exception as error:  # Others are to be read nevertheless
            self._complaints.lost(0, _HERE, f"reading raised {type(error).__name__}: {error}"[:300])
        if feed.budget.exceeded and not self._said:
            self._said = True
            say_exceeded(feed.budget)
        if feed.ended and not feed.finished:
            feed.finished = True
            self._left[who] = feed.given
            if len(self._left) > MOST_GONE:
                self._left.pop(next(iter(self._left)))
        return True

    def _replay(self, until: float) -> None:
        over = len(self._values) - MOST_VALUES
        if over > 0:
            self._complaints.lost(
                over,
                _HERE,
                "too slow for our histograms (let readers collect more often, or drop them by a view)",
            )
            for _ in range(over):
                self._values.popleft()
        while self._values and self._ready.is_set() and monotonic() < until:
            one = self._values.popleft()
            if (record := self._record.get(one.name)) is not None:
                record(one.value, one.attributes, _context(one.exemplar))


def _wait(answers: Iterable[Event], until: float) -> None:
    for answer in answers:
        answer.wait(max(0.0, until - monotonic()))


def _context(exemplar: Exemplar | None) -> Context:
    if exemplar is None:
        return _NOWHERE
    trace_id, span_id = int.from_bytes(exemplar.trace_id, "big"), int.from_bytes(exemplar.span_id, "big")
    span = SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(span), Context())


# -- of the process -----------------------------------------------------------------------------------------------

_all: WeakKeyDictionary[MeterProvider, Provided] = WeakKeyDictionary()
_lock = Lock()
_alive: WeakSet[Provided] = WeakSet()


def of(provider: MeterProvider, scope: Scope) -> Provided:
    """Our instruments on a provider, made the first time."""
    with _lock:
        found = _all.get(provider)
        if found is None:
            found = _all[provider] = Provided(provider, scope)
            _alive.add(found)
        return found


def fed() -> list[tuple[MeterProvider, Provided]]:
    """The providers that have instruments of ours."""
    with _lock:
        return list(_all.items())


def is_read(provider: MeterProvider) -> bool:
    """Whether it has a reader; where the SDK does not say so (1.45 has no other place), it is taken to have one."""
    consumer = getattr(provider, "_measurement_consumer", None)
    return bool(getattr(consumer, "_reader_storages", True))


def is_dropped(provider: MeterProvider, instrument: Any) -> bool:
    """Whether its views leave nothing of an instrument; where the SDK does not say so, they do."""
    try:
        views = [view for view in provider._sdk_config.views if view._match(instrument)]
        return bool(views) and all(isinstance(view._aggregation, DropAggregation) for view in views)
    except AttributeError:
        return False


def _after_fork() -> None:
    global _lock
    _lock = Lock()
    for one in list(_alive):
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
