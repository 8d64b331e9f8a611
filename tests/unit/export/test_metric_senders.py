"""Exporters of metrics that are named and not OTLP: what they get, and what becomes of it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from math import inf
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import Histogram, ObservableCounter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ConsoleMetricExporter,
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)

from dask_otel import process
from dask_otel.distributions import Distributions, Exemplar
from dask_otel.export import metric_senders
from dask_otel.export.bodies import Source
from dask_otel.export.metric_bodies import Batch, Series
from dask_otel.export.metric_data import to_metrics_data
from dask_otel.instruments import (
    ACTIVE_COMPUTATIONS,
    COMPUTE_SECONDS,
    GRAPH_UPDATE_SECONDS,
    LEASE_WAIT,
)
from dask_otel.records import Scope
from dask_otel.series import Measured, keyed, measured
from dask_otel.settings import Metrics, Settings

SOURCE = Source(
    (("service.name", "dask-worker"), ("process.pid", 7), ("share", 0.5), ("on", True), ("tags", ("a", "b"))),
    Scope("dask_otel", "1", "https://s/1"),
)


class Kept(MetricExporter):
    """Keeps what it is given."""

    made: list[Kept]
    results: list[Any]
    preferred: dict[type, AggregationTemporality] | None = None

    def __init__(self) -> None:
        super().__init__(preferred_temporality=self.preferred)
        self.given: list[tuple[MetricsData, float]] = []
        self.shut = 0
        self.made.append(self)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        self.given.append((metrics_data, timeout_millis))
        result = self.results.pop(0) if self.results else MetricExportResult.SUCCESS
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self.shut += 1


class Prefers(Kept):
    preferred = dict.fromkeys((ObservableCounter, Histogram), AggregationTemporality.DELTA)


class Fails(Kept):
    def __init__(self) -> None:
        raise RuntimeError("no key")


INSTALLED = {"kept": Kept, "prefers": Prefers, "fails": Fails, "asked": InMemoryMetricReader}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    Kept.made, Kept.results = [], []
    entries = [EntryPoint(name, f"{__name__}:{cls.__name__}", "g") for name, cls in INSTALLED.items()]
    monkeypatch.setattr(metric_senders, "entry_points", lambda group: entries)


Named = Callable[..., Any]


@pytest.fixture
def named() -> Iterator[Named]:
    """The process's exporters by their names."""

    def make(*names: str) -> Any:
        return process.metric_exporters_for(Settings(metrics=Metrics(exporters=names, timeout=7.0)))

    before = set(process._pipelines)
    said = set(process._said)
    process._said.clear()
    yield make
    process._said.clear()
    process._said.update(said)
    for key in set(process._pipelines) - before:
        process._pipelines.pop(key).close(1.0)


def everything(form: str = "explicit_bucket_histogram") -> list[Measured]:
    durations = Distributions(GRAPH_UPDATE_SECONDS, Metrics(histograms=form))
    durations.record(("order",), 0.02, Exemplar(0.02, 105.0, b"\1" * 16, b"\2" * 8))
    durations.record(("order",), 700.0)
    return [
        measured(COMPUTE_SECONDS, keyed({"inc": 1.5, "add": 2.0})),
        measured(ACTIVE_COMPUTATIONS, {(): 2}),
        measured(LEASE_WAIT, {("s",): 0.25}),
        measured(GRAPH_UPDATE_SECONDS, durations.snapshots()),
    ]


def batch(*values: Measured, now: float = 110.0, last: bool = False) -> Batch:
    return Batch(SOURCE, 100.0, now, values, last)


@pytest.mark.parametrize("form", ["explicit_bucket_histogram", "base2_exponential_bucket_histogram"])
@pytest.mark.parametrize("temporality", ["cumulative", "delta", "lowmemory"])
def test_the_sdk_s_encoder_makes_of_it_what_ours_sends(temporality: str, form: str) -> None:
    """But for a gauge's start, which it leaves out, and smallest and largest where there are none, which it writes."""
    body, _ = Series(temporality).request(batch(*everything(form)))
    ours = ExportMetricsServiceRequest.FromString(body)
    theirs = encode_metrics(to_metrics_data(body))
    for metric in ours.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.gauge.data_points:
            point.ClearField("start_time_unix_nano")
        for point in (*metric.histogram.data_points, *metric.exponential_histogram.data_points):
            if not point.HasField("min"):
                point.min, point.max = inf, -inf
    assert theirs == ours


def test_a_point_that_ends_a_series_is_left_out() -> None:
    body, _ = Series().request(batch(*everything(), last=True))
    (scope,) = to_metrics_data(body).resource_metrics[0].scope_metrics
    ended = {one.name: [point.value for point in one.data.data_points] for one in scope.metrics[:-1]}
    assert ended == {COMPUTE_SECONDS.name: [0.0, 1.5, 0.0, 2.0]}


def test_console_prints_every_metric() -> None:
    out = io.StringIO()
    body, _ = Series().request(batch(*everything()))
    ConsoleMetricExporter(out).export(to_metrics_data(body))
    (resource,) = json.loads(out.getvalue())["resource_metrics"]
    assert resource["resource"]["attributes"] == {**dict(SOURCE.resource), "tags": ["a", "b"]}
    assert [one["name"] for one in resource["scope_metrics"][0]["metrics"]] == [
        one.instrument.name for one in everything()
    ]


def values(exporter: Kept) -> list[list[float]]:
    """The last value of each export's first metric and prefix."""
    return [
        [
            point.value
            for point in data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
            if point.start_time_unix_nano != point.time_unix_nano
        ]
        for data, _ in exporter.given
    ]


def seconds(value: float) -> Measured:
    return measured(COMPUTE_SECONDS, keyed({"inc": value}))


@pytest.mark.parametrize(
    ("name", "expected"), [("kept", [[1.0], [4.0], [4.5]]), ("prefers", [[1.0], [4.0], [0.5]])]
)
def test_each_exporter_has_totals_as_it_prefers_and_what_it_did_not_take_is_in_the_next(
    named: Named, name: str, expected: list[list[float]], caplog: pytest.LogCaptureFixture
) -> None:
    Kept.results = [MetricExportResult.FAILURE]
    (exporter,) = named(name)
    with caplog.at_level(logging.WARNING, "dask_otel"):
        for now, value in ((110.0, 1.0), (120.0, 4.0), (130.0, 4.5)):
            exporter.submit(batch(seconds(value), now=now))
        assert exporter.flush(10)
    (made,) = Kept.made
    assert values(made) == expected
    assert {timeout for _, timeout in made.given} == {7000.0}
    assert exporter.settled == {"": 2, "unreachable": 1}
    assert caplog.messages == [
        f"dask-otel: exporter {name}: the exporter reports a failure; 1 point lost so far."
    ]
    assert exporter.close(5.0)
    assert made.shut == 1


def test_one_that_raises_costs_another_nothing(named: Named, caplog: pytest.LogCaptureFixture) -> None:
    Kept.results = [ValueError("broken")]
    first, second = named("kept", "prefers")
    first.submit(batch(seconds(1.0)))
    assert first.flush(10)
    second.submit(batch(seconds(1.0)))
    assert second.flush(10)
    assert [values(made) for made in Kept.made] == [[[1.0]], [[1.0]]]
    assert [one.settled for one in (first, second)] == [{"": 0, "invalid": 1}, {"": 1}]
    assert caplog.messages == ["dask-otel: exporter kept: ValueError: broken; 1 point lost so far."]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "fails",
            "dask-otel: OTEL_METRICS_EXPORTER names 'fails', which cannot be used (RuntimeError: no key): set it to otlp, "
            "to none, or mend what it needs.",
        ),
        (
            "asked",
            "dask-otel: OTEL_METRICS_EXPORTER names 'asked', which does not send but waits to be asked; dask-otel sends "
            "only. Set it to otlp, or set a MeterProvider with that reader in your application, which dask-otel then uses.",
        ),
        (
            "absent",
            "dask-otel: OTEL_METRICS_EXPORTER names 'absent'; installed are asked, fails, kept, none, otlp, prefers.",
        ),
    ],
)
def test_one_that_cannot_be_had_is_told_once_and_left_alone(
    named: Named, name: str, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    (exporter,) = named(name)
    for now in (110.0, 120.0):
        exporter.submit(batch(seconds(1.0), now=now))
        assert exporter.flush(10)
    assert exporter.refused
    assert caplog.messages == [sentence]


def test_prometheus_is_told_what_to_do_instead(named: Named, caplog: pytest.LogCaptureFixture) -> None:
    assert named("prometheus") == named("prometheus") == named("none") == []
    assert caplog.messages == [
        "OTEL_METRICS_EXPORTER names prometheus, which listens; dask-otel sends only. Let Prometheus take OTLP "
        "(OTEL_METRICS_EXPORTER=otlp, "
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://<prometheus>:9090/api/v1/otlp/v1/metrics) or scrape a Collector, or "
        "set a MeterProvider with a PrometheusMetricReader in your application."
    ]
    one, other = named("otlp", "kept")
    assert named("kept", "none", "prometheus")[0] is not other, (
        "settings that differ have exporters of their own"
    )
    assert one is not other
    assert named("otlp", "kept") == [one, other]
