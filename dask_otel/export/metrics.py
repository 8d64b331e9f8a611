"""One background thread in a process that sends what servers have measured.

Rules
-----
1. A server hands in its points on its own event loop and goes on; the thread encodes and sends them.
2. A series that is new has a zero point at the moment of the export before, or at its server's start: so its first
   value is not lost to a query for increases.
3. Totals are sent as they are, or as differences to what a receiver has taken, by the user's preference: what it has
   not taken is in the next difference.
4. Nothing is sent again: the next totals hold it. What was not sent is said once a minute; to a receiver that takes
   no metrics nothing more is sent.
5. A server that goes ends what may fall by points without a value: backends would show the last one for ever.
6. `close` returns within its timeout. In a forked child nothing is sent.
"""

from __future__ import annotations

import atexit
import os
import re
from collections import Counter, deque
from collections.abc import Callable
from threading import Event, Lock, Thread
from time import monotonic
from weakref import WeakSet

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value

from dask_otel.export.bodies import Source
from dask_otel.export.complaints import Complaints, logger, shown
from dask_otel.export.fates import INVALID, QUEUE_FULL, REFUSED, UNANSWERED, UNREACHABLE
from dask_otel.export.grpc import METRICS_METHOD
from dask_otel.export.metric_bodies import Batch, Series, encode
from dask_otel.export.metric_senders import Useless
from dask_otel.export.outcome import DELIVERED, REJECTED, RETRY, UNKNOWN, Outcome
from dask_otel.export.queue import Bell
from dask_otel.export.sinks import Sender, make_sender
from dask_otel.settings import Otlp

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
    """Sends batches as OTLP.

    Parameters
    ----------
    otlp:
        Where to.
    delta:
        Whether counters go as differences.
    sender:
        Sends in the place of OTLP's sender, which says by its ``delta`` how counters go; made in the thread.
    where:
        What is sent to, for sentences.
    """

    def __init__(
        self,
        otlp: Otlp,
        delta: bool = False,
        sender: Callable[[], Sender] | None = None,
        where: str | None = None,
    ) -> None:
        #: Seconds that `close` may take where it is not told.
        self.patience = CLOSE_TIMEOUT
        self._delta = delta
        self._make_sender = sender or (lambda: make_sender(otlp, METRICS_METHOD))
        self._where = where or shown(otlp.endpoint)
        self._sender: Sender | None = None
        self._complaints = Complaints(what="point")
        self._series: dict[Source, Series] = {}
        self._batches: deque[Batch] = deque(maxlen=_MOST)
        self._flushes: deque[Event] = deque()
        self._bell = Bell()
        self._closing = self._ended = False
        self._starting = Lock()
        self._thread: Thread | None = None
        #: Whether the receiver takes no metrics at all.
        self.refused = False
        #: Points that were taken (by the empty string), and that were not, by `error.type`.
        self._settled: Counter[str] = Counter({"": 0})
        _exporters.add(self)

    @property
    def settled(self) -> dict[str, int]:
        """Points whose export has ended, by `error.type`: those that arrived have none."""
        return dict(self._settled)

    @property
    def exported(self) -> int:
        """Points that were taken."""
        return self._settled[""]

    @property
    def lost(self) -> int:
        """Points that were not."""
        return sum(self.settled.values()) - self.exported

    def submit(self, batch: Batch) -> None:
        """Send it soon."""
        if self._closing:
            return
        if len(self._batches) == _MOST:
            self._settled[QUEUE_FULL] += _number(self._batches[0])
        self._batches.append(batch)
        if self._thread is None:
            self._start()
        self._bell.ring()

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
        self._closing = True
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
            closing = self._closing
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
        points, error = _number(batch), ""
        try:
            sender = self._open()
            series = self._series.setdefault(batch.source, Series())
            body, totals = encode(batch, series, getattr(sender, "delta", self._delta))
            outcome = sender.send(body, points)
        except Useless as reason:
            self._stop_for_good(str(reason))
            return
        except Exception as fault:
            outcome, totals = Outcome(REJECTED, f"{type(fault).__name__}: {fault}"[:300]), {}
            error = INVALID
        if outcome.fate == REJECTED and _NO_METRICS.match(outcome.reason):
            self._give_up(outcome.reason)
            return
        refused = min(max(outcome.rejected, 0), points) if outcome.fate == DELIVERED else points
        self._settled[""] += points - refused
        self._settled[error or _ERRORS[outcome.fate]] += refused
        if outcome.fate != RETRY and totals:
            series.taken, series.taken_at = totals, batch.now
        if batch.last:
            self._series.pop(batch.source, None)
        if outcome.fate != DELIVERED or outcome.reason:
            self._complaints.lost(refused, self._where, outcome.reason or "rejected without a reason")

    def _give_up(self, reason: str) -> None:
        self._stop_for_good(
            f"{self._where} takes no metrics ({reason.partition(' (')[0]}): none are sent. Set OTEL_METRICS_EXPORTER=none, "
            "or OTEL_EXPORTER_OTLP_METRICS_ENDPOINT to what takes them."
        )

    def _stop_for_good(self, sentence: str) -> None:
        self._closing = self.refused = True
        self._batches.clear()
        logger.warning("dask-otel: %s", sentence)

    def _open(self) -> Sender:
        if self._sender is None:
            self._sender = self._make_sender()
        return self._sender

    def _turn_off(self) -> None:
        """In a forked child."""
        self._closing = True
        self._batches = deque(maxlen=_MOST)
        self._thread = None
        self._starting = Lock()


def _number(batch: Batch) -> int:
    return sum(len(one.points) for one in batch.measured)


def _after_fork() -> None:
    for exporter in list(_exporters):
        exporter._turn_off()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
