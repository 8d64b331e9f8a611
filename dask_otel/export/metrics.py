"""One background thread in a process that sends what servers have measured.

Rules
-----
1. A server hands in its points on its own event loop and goes on; the thread encodes and sends them.
2. Totals are sent as they are, or as differences to what a receiver has taken, by the user's preference. What was refused, or
   never reached a receiver, it has not taken: it is in the next difference. What it may have taken, since no answer came, it has:
   twice would be worse than not at all.
3. Nothing is sent again, since the next totals hold it; but the last ones of a server that goes are, for as long as an
   export may take. What was not sent is said once a minute; to a receiver that takes no metrics nothing more is sent.
4. A server's series have a bound; what exceeds it is said once.
5. `close` returns within its timeout. In a forked child nothing is sent.
"""

from __future__ import annotations

import atexit
import os
import re
from collections import deque
from dataclasses import replace
from threading import Event, Lock, Thread
from time import monotonic
from weakref import WeakSet

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value

from dask_otel.export.bodies import Source
from dask_otel.export.complaints import Complaints, logger, shown
from dask_otel.export.grpc import METRICS_METHOD
from dask_otel.export.metric_bodies import Batch, Series
from dask_otel.export.outcome import DELIVERED, REJECTED, RETRY, UNKNOWN, Outcome
from dask_otel.export.queue import Bell
from dask_otel.export.sinks import Sender, make_sender, waits
from dask_otel.instruments import OVERFLOW
from dask_otel.names import SERVICE_INSTANCE_ID
from dask_otel.settings import Metrics

#: What `MetricExporter.close` may take (s).
CLOSE_TIMEOUT = 1.5
#: How a receiver answers that takes spans only, as Jaeger does.
_NO_METRICS = re.compile(r"HTTP 40[45]\b|gRPC UNIMPLEMENTED\b")
#: Exports of all servers of a process that wait at most.
_MOST = 64

_exporters: WeakSet[MetricExporter] = WeakSet()


class MetricExporter:
    """Sends batches as OTLP, where and in the form that settings say."""

    def __init__(self, settings: Metrics) -> None:
        #: Seconds that `close` may take where it is not told.
        self.patience = CLOSE_TIMEOUT
        self._otlp = replace(settings.otlp, timeout=min(settings.otlp.timeout, settings.timeout))
        self._settings = settings
        self._sender: Sender | None = None
        self._complaints = Complaints(what="point")
        #: By server: its resource may come to say more.
        self._series: dict[object, Series] = {}
        self._batches: deque[Batch] = deque()
        self._flushes: deque[Event] = deque()
        self._bell = Bell()
        self._closing = Event()
        self._ended = False
        self._starting = Lock()
        self._thread: Thread | None = None
        #: Whether the receiver takes no metrics at all.
        self.refused = False
        #: Points that were taken, and that were not.
        self.exported = self.lost = 0
        _exporters.add(self)

    def submit(self, batch: Batch) -> None:
        """Send it soon."""
        if self._closing.is_set():
            return
        self._batches.append(batch)
        self._make_room()
        if self._thread is None:
            self._start()
        self._bell.ring()

    def _make_room(self) -> None:
        """Let go of the oldest that is not a server's last: the next one of its server holds the same and more."""
        if len(self._batches) > _MOST:
            for waiting in list(self._batches):
                if not waiting.last:
                    try:
                        self._batches.remove(waiting)
                    except (IndexError, ValueError):
                        pass  # The thread has taken it meanwhile.
                    return

    def flush(self, timeout: float) -> bool:
        """Wait until what was submitted before has an answer; whether that was so in time."""
        if self._thread is None:
            return not self._batches
        done = Event()
        self._flushes.append(done)
        self._bell.ring()
        # A thread that ends sets what it finds, and may have looked before.
        return self._ended or done.wait(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Send what waits, then stop for good; whether all was handed on."""
        until = monotonic() + (self.patience if timeout is None else timeout)
        atexit.unregister(self.close)
        self._closing.set()
        self._bell.ring()
        if self._thread is not None:
            self._thread.join(max(0.0, until - monotonic() - 0.2))
            if self._thread.is_alive() and self._sender is not None:
                self._sender.close()
                self._thread.join(0.2)
        self._complaints.conclude()
        return not self._batches

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="dask-otel-metrics", daemon=True)
                self._thread.start()
                atexit.register(self.close)

    def _run(self) -> None:
        # Instrumented grpc and sockets would make spans of our own requests.
        attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        while True:
            closing = self._closing.is_set()
            flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
            while self._batches:
                self._export(self._batches.popleft())
            for done in flushes:
                done.set()
            if closing:
                break
            self._bell.wait(60.0)
        self._ended = True
        for done in self._flushes:
            done.set()
        if self._sender is not None:
            self._sender.close()

    def _export(self, batch: Batch) -> None:
        points = 0
        try:
            series = self._series_of(batch.source)
            body, points = series.request(batch)
            outcome = self._deliver(body, points, batch.last)
            if outcome.fate in (DELIVERED, UNKNOWN):
                series.taken()
            self._say_exceeded(series)
        except Exception as error:
            outcome = Outcome(REJECTED, f"{type(error).__name__}: {error}"[:300])
        if batch.last:
            self._series.pop(_server(batch.source), None)
        if outcome.fate == REJECTED and _NO_METRICS.match(outcome.reason):
            self._give_up(outcome.reason)
        else:
            self._count(outcome, points)

    def _series_of(self, source: Source) -> Series:
        server = _server(source)
        if server not in self._series:
            self._series[server] = Series(self._settings.temporality, self._settings.exclude)
        return self._series[server]

    def _deliver(self, body: bytes, points: int, last: bool) -> Outcome:
        """Send; again only what no later export holds."""
        until = monotonic() + self._settings.timeout
        for wait in waits():
            closing = self._closing.is_set()
            outcome = self._send(body, points)
            wait = max(wait, outcome.after)
            if outcome.fate != RETRY or not last or closing or monotonic() + wait > until:
                return outcome
            self._complaints.lost(0, shown(self._otlp.endpoint), f"{outcome.reason}; trying again")
            self._closing.wait(wait)
        raise AssertionError("waits never end")

    def _count(self, outcome: Outcome, points: int) -> None:
        lost = points if outcome.fate != DELIVERED else min(max(outcome.rejected, 0), points)
        self.exported += points - lost
        self.lost += lost
        if outcome.fate != DELIVERED or outcome.reason:
            reason = outcome.reason or "rejected without a reason"
            self._complaints.lost(lost, shown(self._otlp.endpoint), reason)

    def _say_exceeded(self, series: Series) -> None:
        exceeded = series.budget.exceeded
        if exceeded and not series.said:
            series.said = True
            logger.warning(
                "dask-otel: a server has more than %d series of metrics, %s among them: what exceeds them is added up "
                "under the attribute %s. Set otel.metrics.exclude to metrics that you do not need.",
                series.budget.limit,
                exceeded,
                OVERFLOW,
            )

    def _give_up(self, reason: str) -> None:
        self.refused = True
        self._closing.set()
        self._batches.clear()
        logger.warning(
            "dask-otel: %s takes no metrics (%s): none are sent. Set OTEL_METRICS_EXPORTER=none, or "
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT to what takes them.",
            shown(self._otlp.endpoint),
            reason.partition(" (")[0],
        )

    def _send(self, body: bytes, points: int) -> Outcome:
        if not points:
            return Outcome(DELIVERED)
        if self._sender is None:
            self._sender = make_sender(self._otlp, METRICS_METHOD)
        return self._sender.send(body, points)

    def _turn_off(self) -> None:
        """In a forked child."""
        self._closing = Event()
        self._closing.set()
        self._batches = deque()
        self._thread = None
        self._starting = Lock()


def _server(source: Source) -> object:
    return dict(source.resource).get(SERVICE_INSTANCE_ID, source)


def _after_fork() -> None:
    for exporter in list(_exporters):
        exporter._turn_off()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
