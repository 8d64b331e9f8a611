"""Where spans go: an OTLP receiver, other exporters of OpenTelemetry, an application's own processors.

Rules
-----
1. A sink is used by the pipeline's thread only; `abort` may be called by any.
2. After `deliver` every span that it was given is in the sink's fates. What a sink leaves out counts as
   failed.
3. A sink that raises is told of once a minute and used again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from threading import Event
from time import monotonic
from typing import Any, Protocol, TypeAlias

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from dask_otel.export.bodies import Bodies, Body, Source, Taken, plain
from dask_otel.export.complaints import Complaints, shown
from dask_otel.export.fates import Fates
from dask_otel.export.grpc import METHOD, GrpcSender
from dask_otel.export.http import HttpSender
from dask_otel.export.outcome import DELIVERED, REJECTED, RETRY, UNKNOWN, Outcome
from dask_otel.export.readable import to_readable, to_resource, to_scope
from dask_otel.records import Span
from dask_otel.settings import Otlp, Settings

#: Spans by who made them.
Batch: TypeAlias = "Sequence[tuple[Source, Sequence[Taken]]]"

FIRST_WAIT, LONGEST_WAIT = 1.0, 32.0

_GROUP = "opentelemetry_traces_exporter"


class Sink(Protocol):
    """Takes batches."""

    fates: Fates

    def deliver(self, batch: Batch) -> None:
        """Hand the spans on, and count each."""

    def abort(self) -> None:
        """Return soon from `deliver`, and deliver nothing any more."""

    def close(self) -> None:
        """Let go of what is open; the last call."""


class Sender(Protocol):
    """Sends one request."""

    def send(self, body: bytes, spans: int) -> Outcome: ...

    def close(self) -> None: ...


def make_sender(otlp: Otlp, method: str = METHOD) -> Sender:
    """The sender for a protocol; ``method`` is gRPC's, HTTP has the endpoint's path."""
    if otlp.protocol == "grpc":
        return GrpcSender(otlp, method)
    if otlp.protocol == "http/protobuf":
        return HttpSender(otlp)
    raise ValueError(f"OTLP protocol {otlp.protocol!r} is not one of http/protobuf, grpc")


class OtlpSink:
    """Sends spans as OTLP, again where the receiver cannot have had them.

    ``patience`` is how long (s) a request is tried; ``closing`` ends the waits between tries.
    """

    def __init__(self, otlp: Otlp, patience: float, closing: Event, complaints: Complaints) -> None:
        self.fates = Fates()
        self._otlp = otlp
        self._patience = patience
        self._closing = closing
        self._complaints = complaints
        self._bodies = Bodies(failed=self._unencodable)
        self._sender: Sender | None = None
        self._aborted = False

    def deliver(self, batch: Batch) -> None:
        for body in self._bodies.build(batch):
            self._settle(body, self._send(body))

    def abort(self) -> None:
        self._aborted = True
        if (sender := self._sender) is not None:
            sender.close()

    def close(self) -> None:
        self.abort()

    def _send(self, body: Body) -> Outcome:
        """Send until there is an answer other than "later", patience ends, or the process closes."""
        until = monotonic() + self._patience
        for wait in waits():
            closing = self._closing.is_set()
            outcome = self._try(body)
            if outcome.fate != RETRY or closing:
                return outcome
            wait = max(wait, outcome.after)
            if monotonic() + wait > until:
                self.fates.given_up += body.spans
                return Outcome(REJECTED, f"given up after {self._patience:g} s: {outcome.reason}")
            self._complaints.lost(0, shown(self._otlp.endpoint), f"{outcome.reason}; trying again")
            self._closing.wait(wait)
        raise AssertionError("waits never end")

    def _try(self, body: Body) -> Outcome:
        if self._aborted:
            return Outcome(RETRY, "closed before they could be sent")
        try:
            if self._sender is None:
                self._sender = make_sender(self._otlp)
        except Exception as error:
            return Outcome(REJECTED, f"{type(error).__name__}: {error}")
        try:
            return self._sender.send(body.data, body.spans)
        except Exception as error:
            return Outcome(UNKNOWN, f"sending raised {type(error).__name__}")

    def _settle(self, body: Body, outcome: Outcome) -> None:
        lost = body.spans
        if outcome.fate == DELIVERED:
            lost = min(max(outcome.rejected, 0), body.spans)
            self.fates.exported += body.spans - lost
            self.fates.failed += lost
        elif outcome.fate == REJECTED:
            self.fates.failed += lost
        elif outcome.fate == UNKNOWN:
            self.fates.unknown += lost
        else:
            self.fates.dropped += lost
        if lost or outcome.reason:
            self._complaints.lost(
                lost, shown(self._otlp.endpoint), outcome.reason or "rejected without a reason"
            )

    def _unencodable(self, span: Span, error: Exception) -> None:
        self.fates.failed += 1
        self.fates.unmade += 1
        self._complaints.lost(1, "encoding", f"{type(error).__name__}: {error}"[:300])


def waits() -> Iterator[float]:
    """Seconds to wait before each next try: doubling, with a fifth of jitter, bounded.

    Examples
    --------
    >>> from itertools import islice
    >>> [round(wait, -1) for wait in islice(waits(), 5, 8)]
    [30.0, 30.0, 30.0]
    """
    wait = FIRST_WAIT
    while True:
        yield wait * random.uniform(0.8, 1.0)
        wait = min(2 * wait, LONGEST_WAIT)


class ReadableSink:
    """Hands spans on as ``ReadableSpan`` objects; the base of what is not OTLP."""

    def __init__(self, name: str, complaints: Complaints) -> None:
        self.fates = Fates()
        self._name = name
        self._complaints = complaints
        self._aborted = False

    def deliver(self, batch: Batch) -> None:
        for source, taken in batch:
            spans = list(plain(taken))
            if self._aborted:
                self.fates.dropped += len(spans)
            else:
                self.hand_on(self._readable(source, spans))

    def hand_on(self, spans: Sequence[ReadableSpan]) -> None:
        """Give the spans away and count them."""
        raise NotImplementedError

    def abort(self) -> None:
        self._aborted = True

    def close(self) -> None:
        self._aborted = True

    def failed(self, spans: int, error: BaseException | str) -> None:
        """Count spans that were refused, and say why."""
        self.fates.failed += spans
        cause = error if isinstance(error, str) else f"{type(error).__name__}: {error}"[:300]
        self._complaints.lost(spans, self._name, cause)

    def _readable(self, source: Source, spans: Sequence[Span]) -> list[ReadableSpan]:
        resource, scope = to_resource(source.resource), to_scope(source.scope)
        made: list[ReadableSpan] = []
        for span in spans:
            try:
                made.append(to_readable(span, resource, scope))
            except Exception as error:
                self.failed(1, error)
        return made


class ExporterSink(ReadableSink):
    """Feeds an exporter of OpenTelemetry's entry points, loaded when the first spans come."""

    def __init__(self, name: str, complaints: Complaints) -> None:
        super().__init__(f"exporter {name}", complaints)
        self._entry_point = name
        self._exporter: SpanExporter | None = None

    def hand_on(self, spans: Sequence[ReadableSpan]) -> None:
        try:
            if self._exporter is None:
                self._exporter = load_exporter(self._entry_point)
            result = self._exporter.export(spans)
        except Exception as error:
            self.failed(len(spans), error)
            return
        if result is SpanExportResult.SUCCESS:
            self.fates.exported += len(spans)
        else:
            self.failed(len(spans), "the exporter reports a failure")

    def close(self) -> None:
        super().close()
        if self._exporter is not None:
            self._exporter.shutdown()


class ProcessorSink(ReadableSink):
    """Feeds the processors of an application's provider, span by span."""

    def __init__(self, complaints: Complaints) -> None:
        super().__init__("span processor", complaints)
        self.processors: list[Callable[[ReadableSpan], object]] = []

    def hand_on(self, spans: Sequence[ReadableSpan]) -> None:
        for span in spans:
            try:
                for on_end in self.processors:
                    on_end(span)
                self.fates.exported += 1
            except Exception as error:
                self.failed(1, error)


def load_exporter(name: str) -> SpanExporter:
    """An exporter by its name among OpenTelemetry's entry points.

    Raises
    ------
    ValueError
        No installed package has an exporter of this name.
    """
    found: dict[str, Any] = {entry.name: entry for entry in entry_points(group=_GROUP)}
    if name not in found:
        allowed = ", ".join(sorted({"otlp", "none", *found}))
        raise ValueError(f"OTEL_TRACES_EXPORTER names {name!r}; installed are {allowed}")
    exporter: SpanExporter = found[name].load()()
    return exporter


def make_sinks(settings: Settings, closing: Event, complaints: Complaints) -> list[Sink]:
    """The sinks that settings name, OTLP first."""
    names = dict.fromkeys(name for name in settings.exporters if name != "none")
    if settings.disabled:
        names = {}
    otlp: list[Sink] = (
        [OtlpSink(settings.otlp, settings.queue.timeout, closing, complaints)] if "otlp" in names else []
    )
    return otlp + [ExporterSink(name, complaints) for name in names if name != "otlp"]
