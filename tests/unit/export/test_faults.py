"""Whatever of the export fails, its threads go on, and what is lost is counted and said."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import suppress
from threading import current_thread

import pytest

from dask_otel.distributions import Histograms
from dask_otel.export import metrics, pipeline
from dask_otel.export.bodies import Source
from dask_otel.export.metric_bodies import Batch
from dask_otel.export.metrics import MetricExporter
from dask_otel.export.pipeline import Pipeline
from dask_otel.instruments import LOOP_LAG, LOOP_TICKS, WORKER_THREADS
from dask_otel.receiver import Receiver
from dask_otel.records import Scope
from dask_otel.series import measured
from dask_otel.settings import Metrics, Otlp, Queue, Settings
from tests.injection import Injected, failing, targets_of

from .spans import span
from .test_forms import attempt

RESOURCE, SCOPE = (("service.name", "demo"),), Scope("dask_otel", "1.0")

#: What is there to keep faults away: the threads have nothing below it.
LAST = {
    "export.pipeline.Pipeline._run",
    "export.pipeline.Pipeline._guard",
    "export.metrics.MetricExporter._run",
    "export.metrics.MetricExporter._guard",
    # Called at the end of the process.
    "export.pipeline.Pipeline.close",
    "export.metrics.MetricExporter.close",
}
#: What cannot be made so is made in another way: nothing is lost.
HARMLESS = ("export.forms.", "export.intake.Intake._encoded")
MODULES = (
    *(
        "bodies",
        "encode",
        "endpoint",
        "fates",
        "forms",
        "http",
        "intake",
        "limits",
        "metric_bodies",
        "metric_data",
    ),
    *("metric_wire", "metrics", "outcome", "pipeline", "queue", "sinks", "values", "wire"),
)
TARGETS = {
    target.label: target
    for name in MODULES
    for target in targets_of(importlib.import_module(f"dask_otel.export.{name}"))
    if target.label not in LAST
}


class Sending:
    """A pipeline of spans and an exporter of metrics that send to a receiver."""

    def __init__(self, receiver: Receiver) -> None:
        otlp = Otlp(endpoint=f"{receiver.endpoint}/v1/traces", timeout=1.0)
        self.spans = Pipeline(Settings(exporters=("otlp",), otlp=otlp, queue=Queue(delay=0.01, timeout=1.0)))
        otlp = Otlp(endpoint=f"{receiver.endpoint}/v1/metrics", timeout=1.0)
        self.points = MetricExporter(Metrics(exporters=("otlp",), otlp=otlp, timeout=1.0))
        self.emitter = self.spans.emitter(RESOURCE, SCOPE)
        self.lags = Histograms().of(LOOP_LAG)
        self.n = 0

    def send(self) -> None:
        """A span, an attempt, some points; the threads come to all of it."""
        self.n += 1
        self.emitter.emit(span(name=f"span {self.n}"))
        self.emitter.emit(attempt())
        self.lags.record((), 0.1)
        values = (
            measured(LOOP_TICKS, {(): self.n}),
            measured(WORKER_THREADS, {(): self.n}),
            measured(LOOP_LAG, self.lags.snapshots()),
        )
        self.points.submit(Batch(Source(RESOURCE, SCOPE), 100.0, 100.0 + self.n, values))

    def lost(self) -> int:
        counts = self.spans.counts
        points = sum(n for error, n in self.points.settled.items() if error)
        return counts.dropped + counts.failed + counts.unknown + points

    def faults(self) -> int:
        return sum(self.spans.faults.values()) + sum(self.points.faults.values())


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.mark.parametrize("label", TARGETS)
def test_threads_outlive_a_function_that_fails(
    receiver: Receiver, label: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (pipeline, metrics):
        monkeypatch.setattr(module, "_AFTER_FAULT", 0.01)
    sending = Sending(receiver)
    with caplog.at_level(logging.WARNING, "dask_otel"), failing(TARGETS[label]) as bomb:
        for _ in range(2):
            with suppress(Injected):  # As a hook does, whose guard tells it.
                sending.send()
        with suppress(Injected):
            sending.spans.flush(0.3)
            sending.points.flush(0.3)
    in_thread = [call for call in bomb.calls if call.thread is not current_thread()]
    before = len(receiver.requests())
    sending.send()
    assert sending.spans.flush(5)
    assert sending.points.flush(5)
    assert {request.path for request in receiver.requests()[before:]} == {"/v1/traces", "/v1/metrics"}
    if in_thread and not label.startswith(HARMLESS):
        assert sending.lost() + sending.faults() > 0
        assert label in caplog.text
    assert sending.spans.close()
    assert sending.points.close()
    assert sending.spans.counts.waiting == 0
