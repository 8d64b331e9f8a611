"""Where spans go: tries and fates at an OTLP receiver, other exporters, processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from threading import Event
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult

from dask_otel.export import sinks
from dask_otel.export.bodies import Source
from dask_otel.export.complaints import Complaints
from dask_otel.export.fates import Fates
from dask_otel.export.outcome import DELIVERED, REJECTED, RETRY, UNKNOWN, Outcome
from dask_otel.export.sinks import (
    ExporterSink,
    OtlpSink,
    ProcessorSink,
    load_exporter,
    make_sender,
    make_sinks,
    waits,
)
from dask_otel.records import Scope
from dask_otel.settings import Otlp, Settings

from .receivers import names
from .spans import numbered, span

SOURCE = Source((("service.name", "demo"),), Scope("dask_otel"))
ENDPOINT = "http://user:secret@collector:4318/v1/traces?token=secret"


class Scripted:
    """A sender whose outcomes are given."""

    def __init__(self, *outcomes: Outcome | Exception) -> None:
        self.outcomes = list(outcomes)
        self.sent: list[list[str]] = []
        self.closed = False

    def send(self, body: bytes, spans: int) -> Outcome:
        self.sent.append(names(body))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self) -> None:
        self.closed = True


class Waits(Event):
    """An event that notes how long it is waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return self.is_set()


@pytest.fixture
def otlp(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a sink with a scripted sender, and gives sink, sender, waits and what was said."""

    def make(*outcomes: Outcome | Exception, patience: float = 1e9) -> Any:
        sender, closing, said = Scripted(*outcomes), Waits(), []
        monkeypatch.setattr(sinks, "make_sender", lambda settings: sender)
        sink = OtlpSink(Otlp(endpoint=ENDPOINT), patience, closing, Complaints(said.append))
        return sink, sender, closing, said

    return make


def deliver(sink: Any, first: int = 1, last: int = 5) -> Fates:
    sink.deliver([(SOURCE, numbered(first, last))])
    fates: Fates = sink.fates
    return fates


# -- OTLP ----------------------------------------------------------------------------------------------------


def test_delivered_spans_are_exported_and_nothing_is_said(otlp: Any) -> None:
    sink, sender, _, said = otlp(Outcome(DELIVERED))
    assert deliver(sink) == Fates(exported=5)
    assert (sender.sent, said) == ([[f"span-{i}" for i in range(1, 6)]], [])


def test_rejected_spans_have_failed_and_it_is_said_without_the_urls_secrets(otlp: Any) -> None:
    sink, sender, _, said = otlp(Outcome(REJECTED, "HTTP 400 Bad Request: no"))
    assert deliver(sink) == Fates(failed=5)
    assert said == ["dask-otel: http://collector:4318: HTTP 400 Bad Request: no; 5 spans lost so far."]
    assert len(sender.sent) == 1


def test_spans_without_an_answer_are_unknown_and_not_sent_again(otlp: Any) -> None:
    sink, sender, _, said = otlp(Outcome(UNKNOWN, "sent, but no answer came"))
    assert deliver(sink) == Fates(unknown=5)
    assert (len(sender.sent), len(said)) == (1, 1)


@pytest.mark.parametrize(("rejected", "fates"), [(2, Fates(3, 0, 2)), (9, Fates(0, 0, 5)), (0, Fates(5))])
def test_a_partial_success_is_split_and_not_sent_again(otlp: Any, rejected: int, fates: Fates) -> None:
    sink, sender, _, said = otlp(Outcome(DELIVERED, "too old", rejected=rejected))
    assert deliver(sink) == fates
    assert (len(sender.sent), len(said)) == (1, 1)
    assert said[0].startswith("dask-otel: http://collector:4318: too old;")


def test_a_request_is_tried_again_until_it_is_delivered(otlp: Any) -> None:
    sink, sender, closing, said = otlp(Outcome(RETRY, "down"), Outcome(RETRY, "down"), Outcome(DELIVERED))
    assert deliver(sink) == Fates(exported=5)
    assert sender.sent[0] == sender.sent[1] == sender.sent[2]
    assert [0.8 <= closing.waited[0] <= 1.0, 1.6 <= closing.waited[1] <= 2.0] == [True, True]
    assert said == ["dask-otel: http://collector:4318: down; trying again; 0 spans lost so far."]


def test_the_receivers_time_to_wait_is_kept(otlp: Any) -> None:
    sink, _, closing, _ = otlp(Outcome(RETRY, "busy", 17.0), Outcome(DELIVERED))
    assert deliver(sink) == Fates(exported=5)
    assert closing.waited == [17.0]


def test_patience_ends(otlp: Any) -> None:
    sink, sender, closing, _ = otlp(Outcome(RETRY, "down"), Outcome(RETRY, "down", after=99.0), patience=30.0)
    assert deliver(sink) == Fates(failed=5, given_up=5)
    assert (len(sender.sent), len(closing.waited)) == (2, 1)


def test_waits_double_up_to_a_bound() -> None:
    for bound, wait in zip([1, 2, 4, 8, 16, 32, 32, 32], islice(waits(), 8), strict=True):
        assert 0.8 * bound <= wait <= bound


def test_a_closing_sink_tries_each_request_once_and_drops_it(otlp: Any) -> None:
    sink, sender, closing, _ = otlp(Outcome(RETRY, "down"), Outcome(DELIVERED))
    closing.set()
    assert deliver(sink) == Fates(dropped=5)
    assert deliver(sink) == Fates(dropped=5, exported=5)
    assert (closing.waited, len(sender.sent)) == ([], 2)


def test_a_sink_that_starts_to_close_while_it_waits_tries_once_more(otlp: Any) -> None:
    sink, sender, closing, _ = otlp(Outcome(RETRY, "down"), Outcome(RETRY, "down"))
    closing.wait = lambda timeout=None: closing.set()
    assert deliver(sink) == Fates(dropped=5)
    assert len(sender.sent) == 2


def test_an_aborted_sink_closes_its_sender_and_sends_nothing(otlp: Any) -> None:
    sink, sender, closing, _ = otlp(Outcome(DELIVERED))
    deliver(sink)
    closing.set()
    sink.abort()
    assert deliver(sink) == Fates(exported=5, dropped=5)
    assert (sender.closed, len(sender.sent)) == (True, 1)


def test_a_sender_that_raises_leaves_its_spans_unknown_and_shows_no_message(otlp: Any) -> None:
    sink, _, _, said = otlp(RuntimeError("header secret"), Outcome(DELIVERED))
    assert deliver(sink) == Fates(unknown=5)
    assert deliver(sink) == Fates(unknown=5, exported=5)
    assert said == ["dask-otel: http://collector:4318: sending raised RuntimeError; 5 spans lost so far."]


def test_settings_that_make_no_sender_are_said_and_cost_the_spans() -> None:
    said: list[str] = []
    sink = OtlpSink(Otlp(protocol="http/json"), 1.0, Waits(), Complaints(said.append))
    assert deliver(sink) == Fates(failed=5)
    assert "OTLP protocol 'http/json' is not one of http/protobuf, grpc" in said[0]


def test_spans_that_cannot_be_encoded_have_failed(otlp: Any) -> None:
    sink, _, _, said = otlp(Outcome(DELIVERED))
    sink.deliver([(SOURCE, [span(1), span(2, trace_id=b""), span(3)])])
    assert sink.fates == Fates(exported=2, failed=1, unmade=1)
    assert said[0].startswith("dask-otel: encoding: ValueError: ")


@pytest.mark.parametrize(("protocol", "kind"), [("grpc", "GrpcSender"), ("http/protobuf", "HttpSender")])
def test_each_protocol_has_its_sender(protocol: str, kind: str) -> None:
    sender = make_sender(Otlp(protocol=protocol))
    sender.close()
    assert type(sender).__name__ == kind


# -- others --------------------------------------------------------------------------------------------------


class Keeping(SpanExporter):
    """Keeps what it is given."""

    result: SpanExportResult | None = SpanExportResult.SUCCESS

    def __init__(self) -> None:
        self.got: list[str] = []
        self.shut = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.got += [f"{made.resource.attributes['service.name']} {made.name}" for made in spans]
        if self.result is None:
            raise RuntimeError("broken")
        return self.result

    def shutdown(self) -> None:
        self.shut = True


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> Keeping:
    exporter = Keeping()
    monkeypatch.setattr(sinks, "load_exporter", lambda name: exporter)
    return exporter


def test_an_exporter_gets_readable_spans_and_is_shut_down(keeping: Keeping) -> None:
    sink = ExporterSink("keeping", Complaints(print))
    assert deliver(sink, 1, 2) == Fates(exported=2)
    sink.close()
    assert (keeping.got, keeping.shut) == (["demo span-1", "demo span-2"], True)


def test_an_exporter_that_reports_a_failure_has_failed(keeping: Keeping) -> None:
    said: list[str] = []
    keeping.result = SpanExportResult.FAILURE
    assert deliver(ExporterSink("keeping", Complaints(said.append))) == Fates(failed=5)
    assert said == ["dask-otel: exporter keeping: the exporter reports a failure; 5 spans lost so far."]


def test_an_exporter_that_raises_has_failed_and_is_used_again(keeping: Keeping) -> None:
    said: list[str] = []
    sink = ExporterSink("keeping", Complaints(said.append))
    keeping.result = None
    assert deliver(sink) == Fates(failed=5)
    keeping.result = SpanExportResult.SUCCESS
    assert deliver(sink) == Fates(failed=5, exported=5)
    assert said == ["dask-otel: exporter keeping: RuntimeError: broken; 5 spans lost so far."]


def test_an_exporter_that_nobody_installed_is_said_with_what_is_allowed() -> None:
    said: list[str] = []
    sink = ExporterSink("jaegr", Complaints(said.append))
    assert deliver(sink) == Fates(failed=5)
    assert said[0].startswith(
        "dask-otel: exporter jaegr: ValueError: OTEL_TRACES_EXPORTER names 'jaegr'; installed are console, "
    )


def test_exporters_come_from_opentelemetrys_entry_points() -> None:
    assert isinstance(load_exporter("console"), ConsoleSpanExporter)


def test_processors_get_each_span_and_one_that_raises_costs_that_span() -> None:
    said: list[str] = []
    got: list[str] = []
    sink = ProcessorSink(Complaints(said.append))

    def on_end(made: ReadableSpan) -> None:
        if made.name == "span-2":
            raise RuntimeError("broken")
        got.append(made.name)

    sink.processors.append(on_end)
    assert deliver(sink, 1, 3) == Fates(exported=2, failed=1)
    assert got == ["span-1", "span-3"]
    assert said == ["dask-otel: span processor: RuntimeError: broken; 1 span lost so far."]


def test_an_aborted_sink_of_another_kind_drops_what_it_is_given() -> None:
    sink = ProcessorSink(Complaints(print))
    sink.abort()
    assert deliver(sink) == Fates(dropped=5)


def test_settings_name_the_sinks_otlp_first_and_none_is_no_sink() -> None:
    def kinds(**settings: Any) -> list[str]:
        made = make_sinks(Settings(**settings), Event(), Complaints(print))
        return [type(sink).__name__ for sink in made]

    assert kinds(exporters=("console", "otlp", "console")) == ["OtlpSink", "ExporterSink"]
    assert kinds(exporters=("none",)) == kinds() == kinds(exporters=("otlp",), disabled=True) == []
