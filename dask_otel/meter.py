"""Hands in what a server measures: once an interval, or when the readers of an application's provider ask.

Rules
-----
1. A server that exports no metrics measures nothing.
2. What is handed in last, when the server goes or counts anew, holds its last values: it is made at once, and nothing that was
   left for later is made after it.
3. A receiver that takes no metrics ends the counting.
4. An application's provider wins, also one that is set late: from then on nothing goes our own way, and what has gone
   that way does not go to the provider.
5. Nothing is handed in before all is known of the resource: a server has one identity.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Lock
from typing import Protocol
from weakref import WeakSet

from opentelemetry.sdk.metrics import MeterProvider

from dask_otel import about_us, names, provided
from dask_otel.distributions import Histograms
from dask_otel.export.metric_bodies import Batch, Later, Once, made
from dask_otel.feed import Feed, SeriesKey, totals
from dask_otel.guard import Guard
from dask_otel.instruments import FAULTS
from dask_otel.outlet import SCOPE, Outlet
from dask_otel.process import application_meter_provider, components, metric_exporters_for
from dask_otel.records import Attributes
from dask_otel.series import Measured, measured
from dask_otel.settings import Metrics

_HOOK, _ABOUT_US = "metrics", "metrics about dask-otel"
#: Seconds between looks for a provider that was set.
LOOK = 1.0
#: The form of histograms that are replayed.
_SINGLE_VALUES = Metrics()


class Counting(Protocol):
    """What counts on a server."""

    def install(self) -> None: ...

    def uninstall(self) -> None: ...


class Several:
    """Those that count, as one: installed in their order, uninstalled in the other."""

    def __init__(self, *counting: Counting) -> None:
        self._counting = counting

    def install(self) -> None:
        """Where one cannot, none is left installed."""
        done: list[Counting] = []
        try:
            for one in self._counting:
                done.append(one)
                one.install()
        except BaseException:
            for one in reversed(done):
                one.uninstall()
            raise

    def uninstall(self) -> None:
        """All of them, whichever fails."""
        raised: Exception | None = None
        for one in reversed(self._counting):
            try:
                one.uninstall()
            except Exception as fault:
                raised = fault
        if raised is not None:
            raise raised


class Meter:
    """The metrics of one server.

    Parameters
    ----------
    outlet:
        The server's: whose resource they bear and by whose settings they go.
    counting:
        Counts while it is installed.
    collect:
        Gives the points at this moment; what takes longer to make of what is there now as a function, which another
        thread calls.
    """

    def __init__(
        self,
        outlet: Outlet,
        counting: Counting,
        collect: Callable[[], Iterable[Measured | Later]],
        guard: Guard,
    ) -> None:
        self._outlet = outlet
        self._counting = counting
        self._collect = collect
        self._guard = guard
        #: Makes the server's histograms.
        self.histograms = Histograms()
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._feed: tuple[provided.Provided, Feed] | None = None
        #: What has gone our own way, once that is not taken any more.
        self._before: dict[SeriesKey, float] | None = None
        self._began = 0.0
        self._making = Lock()
        #: What was handed in and may not be made yet.
        self._handed: WeakSet[Once] = WeakSet()

    @property
    def on(self) -> bool:
        """Whether it counts and exports."""
        return self._next is not None or self._feed is not None

    def start(self) -> None:
        """Count and export from now on, if metrics are to be exported."""
        settings = self._outlet.settings
        if self._look is not None or self.on or settings.disabled or not settings.metrics.enabled:
            return
        self._guard.part("it exports no metrics", lambda: self._loop.call_soon_threadsafe(self.stop), _HOOK)
        try:
            self._watch()
            if application_meter_provider() is None and metric_exporters_for(settings):
                self._begin(settings.metrics)
                try:
                    self._schedule()
                except BaseException:
                    self._end()
                    raise
        except Exception:
            self._guard.fault(_HOOK)

    def export(self, last: bool = False) -> None:
        """Hand in what there is now; an application's provider asks by itself."""
        if self._next is not None and (last or self._outlet.settled):
            try:
                self._submit(last)
            except Exception:
                self._guard.fault(_HOOK)

    def _about_us(self) -> list[Measured]:
        told: list[Measured] = []
        if _ABOUT_US not in self._guard.off:
            try:
                told = list(about_us.told(self, components()))
            except Exception:
                self._guard.fault(_ABOUT_US)
        faults = self._guard.faults.copy()
        if faults:
            told.append(measured(FAULTS, {(hook,): n for hook, n in faults.items()}))
        return told

    def stop(self) -> None:
        """Hand in the last values; no more after them."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self._guard.each(_HOOK, lambda: self.export(last=True))
        if self._next is not None:
            self._next.cancel()
        if self._feed is not None:
            into, feed = self._feed
            self._guard.each(_HOOK, lambda: into.leave(feed))
        if self.on or self._before is not None:
            self._next = self._feed = self._before = None
            self._end()

    def _end(self) -> None:
        self._guard.each(_HOOK, lambda: about_us.leave(self), self._counting.uninstall)

    def _begin(self, form: Metrics) -> None:
        self.histograms.begin(form)
        # Before: no total is more than the time since then allows, however long the rest takes.
        self._began = time.time()
        try:
            self._counting.install()
        except BaseException:
            self._guard.each(_HOOK, self._counting.uninstall)
            raise

    def _found(self) -> list[Measured | Later]:
        found: list[Measured | Later] = []
        try:
            for one in self._collect():
                found.append(one if isinstance(one, Measured) else partial(self._make, one))
        except Exception:  # What was given before is as good as ever.
            self._guard.fault(_HOOK)
        return [*found, *self._about_us()]

    def _make(self, later: Later) -> list[Measured]:
        # In an exporter's thread, a reader's, or at the end on the event loop: one after the other.
        with self._making:
            try:
                return list(later())
            except Exception:
                self._guard.fault(_HOOK)
                return []

    # -- our own way ----------------------------------------------------------------------------------------------
    def _submit(self, last: bool) -> None:
        # Before anything is read: what runs is counted first, and its rate is as exact as the two are close.
        now = time.time()
        found: Sequence[Measured | Later]
        if last:
            found = self._all()
        else:
            found = [one if isinstance(one, Measured) else Once(one) for one in self._found()]
            self._handed.update([one for one in found if isinstance(one, Once)])
        self._hand_in(found, now, last)

    def _all(self) -> list[Measured]:
        """All that there is now, made at once; what is still to be made of before is left out: this holds the same and more."""
        for one in list(self._handed):
            one.leave_out()
        return list(made(self._found()))

    def _hand_in(self, found: Sequence[Measured | Later], now: float, last: bool) -> None:
        batch = Batch(self._outlet.source, self._began, now, found, last)
        for exporter in metric_exporters_for(self._outlet.settings):
            exporter.submit(batch)

    def _schedule(self) -> None:
        self._next = self._loop.call_later(self._outlet.settings.metrics.interval, self._tick)

    def _tick(self) -> None:
        try:
            if all(exporter.refused for exporter in metric_exporters_for(self._outlet.settings)):
                self._next = None
                self._end()
                return
            self.export()
        except Exception:
            self._guard.fault(_HOOK)
        finally:
            if self._next is not None:
                self._schedule()

    # -- the application's ----------------------------------------------------------------------------------------
    def _watch(self) -> None:
        """Until the application has a provider that is read."""
        self._look = None
        provider = application_meter_provider()
        try:
            if provider is not None and self._next is not None:
                self._leave_own_way()
            if provider is not None and provided.is_read(provider):
                self._provide(provider)
        except Exception:
            self._guard.fault(_HOOK)
        if self._feed is None:
            self._look = self._loop.call_later(LOOK, self._watch)

    def _leave_own_way(self) -> None:
        """Nothing goes our own way from now on; what has gone is noted."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._before = {}
        now, found = time.time(), self._all()
        self._hand_in(found, now, last=True)
        # The provider's histograms are filled value by value, whatever ours were: they begin anew.
        self.histograms.begin(_SINGLE_VALUES)
        self._before = dict(totals(found))

    def _provide(self, provider: MeterProvider) -> None:
        if self._before is None:
            self._begin(_SINGLE_VALUES)
            self._before = {}
        into = provided.of(provider, SCOPE)
        exclude = self._outlet.settings.metrics.exclude
        self._feed = into, Feed(self._points, self._who, self._before, exclude)
        into.join(self._feed[1])

    def _points(self) -> Sequence[Measured | Later]:
        try:
            return self._found()
        except Exception:
            self._guard.fault(_HOOK)
            return ()

    def _who(self, last: bool) -> Attributes | None:
        if not (last or self._outlet.settled):
            return None
        told = dict(self._outlet.source.resource)
        keys = names.CLUSTER_ID if names.CLUSTER_ID in told else names.WORKER_ADDRESS, names.WORKER_NAME
        return tuple([(key, told[key]) for key in keys if key in told])
