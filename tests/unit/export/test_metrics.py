"""Metrics on their way: points, zero points, differences, receivers that fail or take none."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from dask_otel.export.bodies import Source
from dask_otel.export.metric_bodies import Batch, Series, encode
from dask_otel.export.metrics import MetricExporter
from dask_otel.instruments import COUNTER, UP_DOWN_COUNTER, Instrument
from dask_otel.records import Scope
from dask_otel.series import OTHER, Folding, Measured, measured
from dask_otel.settings import Otlp

from .receivers import Answer, free_port, http_receiver

SECONDS = Instrument("work.time", COUNTER, "s", ("worker",), ("prefix",), "Seconds.")
RUNNING = Instrument("running.time", UP_DOWN_COUNTER, "s", ("worker",), ("prefix",), "Running.")
SOURCE = Source((("service.name", "dask-worker"), ("process.pid", 7)), Scope("dask_otel", "1", "https://s/1"))


@pytest.fixture
def exporter() -> Iterator[Any]:
    """Makes exporters to an endpoint, and closes them."""
    made: list[MetricExporter] = []

    def make(endpoint: str, delta: bool = False) -> MetricExporter:
        made.append(MetricExporter(Otlp(endpoint=endpoint, timeout=5.0), delta))
        return made[-1]

    yield make
    for one in made:
        one.close(0.5)


def batch(now: float, *values: Measured) -> Batch:
    return Batch(SOURCE, 100.0, now, values)


def seconds(**values: float) -> Measured:
    return measured(SECONDS, {(prefix,): value for prefix, value in values.items()})


def points(body: bytes) -> list[tuple[str, str, float, float, float]]:
    """Metric, prefix, start, time and value of each point, in the order in which they stand."""
    request = ExportMetricsServiceRequest.FromString(body)
    return [
        (
            metric.name,
            point.attributes[0].value.string_value,
            point.start_time_unix_nano / 1e9,
            point.time_unix_nano / 1e9,
            point.as_double if point.HasField("as_double") else point.as_int,
        )
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.sum.data_points
    ]


def sent(receiver: Any) -> list[list[tuple[str, str, float, float, float]]]:
    return [points(gzip.decompress(request.body)) for request in receiver.requests]


def test_a_request_holds_resource_scope_and_points_exactly() -> None:
    body, totals = encode(batch(110.0, seconds(inc=1.5)), Series())
    expected = ExportMetricsServiceRequest()
    resource = expected.resource_metrics.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "dask-worker"
    resource.resource.attributes.add(key="process.pid").value.int_value = 7
    scope = resource.scope_metrics.add(schema_url="https://s/1")
    scope.scope.name, scope.scope.version = "dask_otel", "1"
    metric = scope.metrics.add(name="work.time", unit="s", description="Seconds.")
    metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, 2
    for time, value in ((100, 0.0), (110, 1.5)):
        point = metric.sum.data_points.add(
            start_time_unix_nano=100 * 10**9, time_unix_nano=time * 10**9, as_double=value
        )
        point.attributes.add(key="prefix").value.string_value = "inc"
    assert ExportMetricsServiceRequest.FromString(body) == expected
    assert totals == {("work.time", (("prefix", "inc"),)): 1.5}


def test_a_series_that_is_new_starts_with_zero_at_the_export_before(exporter: Any) -> None:
    with http_receiver() as receiver:
        one = exporter(receiver.url)
        one.submit(batch(110.0, seconds(inc=1.0)))
        one.submit(batch(120.0, seconds(inc=2.0, add=5.0)))
        assert one.flush(10)
        assert sent(receiver) == [
            [("work.time", "inc", 100.0, 100.0, 0.0), ("work.time", "inc", 100.0, 110.0, 1.0)],
            [
                ("work.time", "inc", 100.0, 120.0, 2.0),
                ("work.time", "add", 110.0, 110.0, 0.0),
                ("work.time", "add", 110.0, 120.0, 5.0),
            ],
        ]
        assert (one.exported, one.lost) == (3, 0)


def test_differences_hold_what_a_receiver_has_not_taken(exporter: Any) -> None:
    with http_receiver(Answer(503), Answer()) as receiver:
        one = exporter(receiver.url, delta=True)
        running = measured(RUNNING, {("inc",): 3})
        for now, value in ((110.0, 1.0), (120.0, 4.0), (130.0, 4.5)):
            one.submit(batch(now, seconds(inc=value), running))
        assert one.flush(10)
        assert [found[0] for found in sent(receiver)] == [
            ("work.time", "inc", 100.0, 110.0, 1.0),
            ("work.time", "inc", 100.0, 120.0, 4.0),
            ("work.time", "inc", 120.0, 130.0, 0.5),
        ]
        # What may fall is told as it is.
        assert sent(receiver)[-1][-1] == ("running.time", "inc", 100.0, 130.0, 3)
        assert one.lost == 2


def test_a_server_that_goes_ends_what_may_fall_and_is_forgotten(exporter: Any) -> None:
    with http_receiver() as receiver:
        one = exporter(receiver.url)
        values = seconds(inc=1.0), measured(RUNNING, {("inc",): 3.5})
        one.submit(batch(110.0, *values))
        one.submit(batch(120.0, *values)._replace(last=True))
        assert one.flush(10)
        request = ExportMetricsServiceRequest.FromString(receiver.requests[-1].unzipped)
    found = [
        (metric.name, point.flags, point.WhichOneof("value"))
        for metric in request.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.sum.data_points
    ]
    assert found == [("work.time", 0, "as_double"), ("running.time", 1, None)]
    assert one._series == {}


def test_a_receiver_that_takes_no_metrics_is_said_once_and_left_alone(
    exporter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with http_receiver(Answer(404)) as receiver, caplog.at_level(logging.WARNING, "dask_otel"):
        one = exporter(receiver.url)
        one.submit(batch(110.0, seconds(inc=1.0)))
        assert one.flush(10)
        one.submit(batch(120.0, seconds(inc=2.0)))
        assert one.flush(10)
        assert len(receiver.requests) == 1
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        f"dask-otel: {receiver.url.removesuffix('/v1/traces')} takes no metrics (HTTP 404 Not Found): none are sent. Set "
        "OTEL_METRICS_EXPORTER=none, or OTEL_EXPORTER_OTLP_METRICS_ENDPOINT to what takes them."
    )


def test_a_receiver_that_is_down_holds_nobody_up(exporter: Any, caplog: pytest.LogCaptureFixture) -> None:
    one = exporter(f"http://127.0.0.1:{free_port()}/")
    for now in range(110, 200):
        one.submit(batch(float(now), seconds(inc=1.0)))
    assert one.flush(10)
    assert one.close(1.0)
    assert one.lost > 0
    assert len([record for record in caplog.records if record.name.startswith("dask_otel")]) <= 2


def test_prefixes_that_were_given_out_are_kept_and_totals_stay_exact() -> None:
    folding = Folding(limit=2)
    folding.choose({"a": 1.0, "b": 3.0, "c": 2.0})
    values = {("a", "x"): 1.0, ("b", "x"): 3.0, ("c", "x"): 2.0, ("", "y"): 7.0}
    assert folding.fold(values, 0) == {(OTHER, "x"): 1.0, ("b", "x"): 3.0, ("c", "x"): 2.0, ("", "y"): 7.0}
    folding.choose({"a": 100.0, "b": 3.0, "c": 2.0, "d": 50.0})
    values = {("a", "x"): 100.0, ("b", "x"): 3.0, ("c", "x"): 2.0, ("d", "x"): 50.0}
    assert folding.fold(values, 0) == {(OTHER, "x"): 150.0, ("b", "x"): 3.0, ("c", "x"): 2.0}
    assert folding.folded == 2
