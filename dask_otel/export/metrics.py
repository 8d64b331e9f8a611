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
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from threading import Event, Lock, Thread
from time import monotonic, thread_time
from weakref import WeakSet

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value

from dask_otel.budget import Budget
from dask_otel.export.bodies import Source
from dask_otel.export.complaints import Complaints, logger, shown
from dask_otel.export.fates import INVALID, QUEUE_FULL, REFUSED, UNANSWERED, UNREACHABLE
from dask_otel.export.grpc import METRICS_METHOD
from dask_otel.export.metric_bodies import Batch, Series
from dask_otel.export.metric_senders import Useless
from dask_otel.export.outcome import DELIVERED, REJECTED, RETRY, UNKNOWN, Outcome
from dask_otel.export.queue import Bell
from dask_otel.export.sinks import Sender, make_sender, waits
from dask_otel.instruments import OVERFLOW
from dask_otel.names import SERVICE_INSTANCE_ID
from dask_otel.series import Measured
from dask_otel.settings import Metrics

#: What `MetricExporter.close` may take (s).
CLOSE_TIMEOUT = 1.5
#: How a receiver answers that takes spans only, as Jaeger does.
_NO_METRICS = re.compile(r"HTTP 40[45]\b|gRPC UNIMPLEMENTED\b")
#: Exports of all servers of a process that wait at most.
_MOST = 64

#: What is said of points that did not arrive.
_ERRORS = {DELIVERED: REFUSED, REJECTED: REFUSED, RETRY: UNREACHABLE, UNKNOWN: UNANSWERED}

_exporters: WeakSet[MetricExporter] = WeakSet()


class MetricExporter:
    """Sends batches as OTLP, where and in the form that settings say.

    Parameters
    ----------
    settings:
        Where to, and in which form.
    sender:
        Sends in the place of OTLP's sender, which says by its ``temporality`` how totals go; made in the thread.
    where:
        What is sent to, for sentences.
    """

    def __init__(
        self, settings: Metrics, sender: Callable[[], Sender] | None = None, where: str | None = None
    ) -> None:
        #: Seconds that `close` may take where it is not told.
        self.patience = CLOSE_TIMEOUT
        otlp = replace(settings.otlp, timeout=min(settings.otlp.timeout, settings.timeout))
        self._settings = settings
        self._make_sender = sender or (lambda: make_sender(otlp, METRICS_METHOD))
        self._where = where or shown(otlp.endpoint)
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
        #: CPU seconds of its thread.
        self.cpu = 0.0
        #: Whether the receiver takes no metrics at all.
        self.refused = False
        #: Points that were taken (by the empty string), and that were not, by `error.type`.
        self._settled: Counter[str] = Counter({"": 0})
        _exporters.add(self)

    @property
    def settled(self) -> dict[str, int]:
        """Points whose export has ended, by `error.type`: those that arrived have none."""
        return dict(self._settled)

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
                        self._settled[QUEUE_FULL] += _number(waiting)
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
            # What comes meanwhile is the next turn's: whoever flushes waits for no more than there was.
            there = len(self._batches)
            while self._batches and (closing or there):
                there -= 1
                self._export(self._batches.popleft())
            self.cpu = thread_time()
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
        points, error = 0, ""
        try:
            sender = self._open()
            series = self._series_of(batch.source, sender)
            body, points = series.request(batch)
            outcome = self._deliver(sender, body, points, batch.last)
            if outcome.fate in (DELIVERED, UNKNOWN):
                series.taken()
            self._say_exceeded(series)
        except Useless as reason:
            self._stop_for_good(str(reason))
            return
        except Exception as fault:
            outcome = Outcome(REJECTED, f"{type(fault).__name__}: {fault}"[:300])
            points, error = _number(batch), INVALID
        if batch.last:
            self._series.pop(_server(batch.source), None)
        if outcome.fate == REJECTED and _NO_METRICS.match(outcome.reason):
            self._give_up(outcome.reason)
        else:
            self._count(outcome, points, error)

    def _series_of(self, source: Source, sender: Sender) -> Series:
        server = _server(source)
        if server not in self._series:
            temporality = getattr(sender, "temporality", self._settings.temporality)
            self._series[server] = Series(temporality, self._settings.exclude)
        return self._series[server]

    def _deliver(self, sender: Sender, body: bytes, points: int, last: bool) -> Outcome:
        """Send; again only what no later export holds."""
        if not points:
            return Outcome(DELIVERED)
        until = monotonic() + self._settings.timeout
        for wait in waits():
            closing = self._closing.is_set()
            outcome = sender.send(body, points)
            wait = max(wait, outcome.after)
            if outcome.fate != RETRY or not last or closing or monotonic() + wait > until:
                return outcome
            self._complaints.lost(0, self._where, f"{outcome.reason}; trying again")
            self._closing.wait(wait)
        raise AssertionError("waits never end")

    def _count(self, outcome: Outcome, points: int, error: str) -> None:
        lost = points if outcome.fate != DELIVERED else min(max(outcome.rejected, 0), points)
        self._settled[""] += points - lost
        if lost:
            self._settled[error or _ERRORS[outcome.fate]] += lost
        if outcome.fate != DELIVERED or outcome.reason:
            self._complaints.lost(lost, self._where, outcome.reason or "rejected without a reason")

    def _say_exceeded(self, series: Series) -> None:
        if series.budget.exceeded and not series.said:
            series.said = True
            say_exceeded(series.budget)

    def _give_up(self, reason: str) -> None:
        self._stop_for_good(
            f"{self._where} takes no metrics at the path that they were sent to ({reason.partition(' (')[0]}): no more are "
            "sent. Set OTEL_EXPORTER_OTLP_METRICS_ENDPOINT to the whole URL of what takes them (of Prometheus "
            "http://<prometheus>:9090/api/v1/otlp/v1/metrics, started with --web.enable-otlp-receiver), or "
            "OTEL_METRICS_EXPORTER=none."
        )

    def _stop_for_good(self, sentence: str) -> None:
        self.refused = True
        self._closing.set()
        self._batches.clear()
        logger.warning("dask-otel: %s", sentence)

    def _open(self) -> Sender:
        if self._sender is None:
            self._sender = self._make_sender()
        return self._sender

    def _turn_off(self) -> None:
        """In a forked child."""
        self._closing = Event()
        self._closing.set()
        self._batches = deque()
        self._thread = None
        self._starting = Lock()


def say_exceeded(budget: Budget) -> None:
    """There was no room for all series of a server."""
    logger.warning(
        "dask-otel: a server has more than %d series of metrics, %s among them: what exceeds them is added up "
        "under the attribute %s. Set otel.metrics.exclude to metrics that you do not need.",
        budget.limit,
        budget.exceeded,
        OVERFLOW,
    )


def _number(batch: Batch) -> int:
    """How many points it has, but for those that are left for later."""
    return sum([len(one.values) for one in batch.measured if isinstance(one, Measured)])


def _server(source: Source) -> object:
    return dict(source.resource).get(SERVICE_INSTANCE_ID, source)


def _after_fork() -> None:
    for exporter in list(_exporters):
        exporter._turn_off()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
