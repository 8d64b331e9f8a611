"""Metrics on their way: receivers that take them, fail, refuse, never answer, or take none."""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from dask_otel.export.bodies import Source
from dask_otel.export.metric_bodies import Batch
from dask_otel.export.metrics import MetricExporter
from dask_otel.instruments import COUNTER, UP_DOWN_COUNTER, Instrument
from dask_otel.records import Scope
from dask_otel.series import Measured, measured
from dask_otel.settings import Metrics, Otlp

from .receivers import Answer, free_port, http_receiver

SECONDS = Instrument("work.time", COUNTER, "s", ("worker",), ("prefix",), "Seconds.")
RUNNING = Instrument("running.time", UP_DOWN_COUNTER, "s", ("worker",), ("prefix",), "Running.")
SOURCE = Source((("service.name", "dask-worker"), ("process.pid", 7)), Scope("dask_otel", "1", "https://s/1"))


@pytest.fixture
def exporter() -> Iterator[Any]:
    """Makes exporters to an endpoint, and closes them."""
    made: list[MetricExporter] = []

    def make(endpoint: str, **settings: Any) -> MetricExporter:
        made.append(MetricExporter(Metrics(otlp=Otlp(endpoint=endpoint, timeout=5.0), **settings)))
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
        assert one.settled == {"": 3}


@pytest.mark.parametrize(
    ("answer", "error", "expected"),
    [
        # Refused for now or for good, or never reached: the next difference has it.
        (Answer(503), "unreachable", [(100, 110, 1.0), (100, 120, 4.0), (120, 130, 0.5)]),
        (Answer(400), "rejected", [(100, 110, 1.0), (100, 120, 4.0), (120, 130, 0.5)]),
        # No answer came: it may have been taken.
        (Answer(drop=True), "unknown", [(100, 110, 1.0), (110, 120, 3.0), (120, 130, 0.5)]),
    ],
)
def test_differences_hold_what_a_receiver_has_not_taken(
    exporter: Any, answer: Answer, error: str, expected: Any
) -> None:
    with http_receiver(answer, Answer()) as receiver:
        one = exporter(receiver.url, temporality="delta")
        running = measured(RUNNING, {("inc",): 3})
        for now, value in ((110.0, 1.0), (120.0, 4.0), (130.0, 4.5)):
            one.submit(batch(now, seconds(inc=value), running))
        assert one.flush(10)
        assert [found[0] for found in sent(receiver)] == [("work.time", "inc", *told) for told in expected]
        # What may fall is told as it is.
        assert sent(receiver)[-1][-1] == ("running.time", "inc", 100.0, 130.0, 3)
        assert one.settled == {"": 4, error: 2}


def test_the_zero_point_of_a_series_comes_again_where_it_was_not_taken(exporter: Any) -> None:
    with http_receiver(Answer(503), Answer()) as receiver:
        one = exporter(receiver.url)
        for now in (110.0, 120.0, 130.0):
            one.submit(batch(now, seconds(inc=1.0)))
        assert one.flush(10)
        zero = ("work.time", "inc", 100.0, 100.0, 0.0)
        assert [found[0] == zero for found in sent(receiver)] == [True, True, False]


def test_the_last_values_of_a_server_are_sent_again_until_they_are_taken(exporter: Any) -> None:
    with http_receiver(Answer(503), Answer()) as receiver:
        one = exporter(receiver.url)
        one.submit(batch(110.0, seconds(inc=1.0))._replace(last=True))
        assert one.flush(10)
        assert [found[-1] for found in sent(receiver)] == [("work.time", "inc", 100.0, 110.0, 1.0)] * 2
        assert one.settled == {"": 1}


def test_the_last_values_are_tried_no_longer_than_an_export_may_take(exporter: Any) -> None:
    with http_receiver(Answer(503)) as receiver:
        one = exporter(receiver.url, timeout=0.1)
        one.submit(batch(110.0, seconds(inc=1.0))._replace(last=True))
        assert one.flush(10)
        assert (len(receiver.requests), one.settled, one._series) == (1, {"": 0, "unreachable": 1}, {})


def test_an_export_takes_no_longer_than_it_may(exporter: Any) -> None:
    with http_receiver(Answer(hang=True), Answer()) as receiver:
        one = exporter(receiver.url, timeout=0.2)
        one.submit(batch(110.0, seconds(inc=1.0)))
        one.submit(batch(120.0, seconds(inc=2.0)))
        assert one.flush(3)
        assert one.settled == {"": 1, "unknown": 1}


def test_a_server_stays_the_same_where_more_is_known_of_its_resource(exporter: Any) -> None:
    with http_receiver() as receiver:
        one = exporter(receiver.url, temporality="delta")
        for now, more in ((110.0, ()), (120.0, (("dask.cluster.id", "c"),))):
            source = Source((("service.instance.id", "w1"), *more), SOURCE.scope)
            one.submit(batch(now, seconds(inc=now))._replace(source=source))
        assert one.flush(10)
        assert sent(receiver) == [
            [("work.time", "inc", 100.0, 110.0, 110.0)],
            [("work.time", "inc", 110.0, 120.0, 10.0)],
        ]


def test_a_metric_that_is_excluded_is_not_sent_nor_a_request_without_any(exporter: Any) -> None:
    with http_receiver() as receiver:
        one = exporter(receiver.url, exclude=("work.time",))
        one.submit(batch(110.0, seconds(inc=1.0)))
        one.submit(batch(120.0, seconds(inc=1.0), measured(RUNNING, {("inc",): 3})))
        assert one.flush(10)
        assert sent(receiver) == [[("running.time", "inc", 110.0, 120.0, 3)]]


def test_too_many_series_are_said_once(exporter: Any, caplog: pytest.LogCaptureFixture) -> None:
    with http_receiver() as receiver, caplog.at_level(logging.WARNING, "dask_otel"):
        one = exporter(receiver.url)
        for now in (110.0, 120.0):
            one.submit(batch(now, seconds(**{f"p{number}": 1 for number in range(5_000)})))
        assert one.flush(10)
        assert [sum(value for *_, value in found) for found in sent(receiver)] == [5_000, 5_000]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "dask-otel: a server has more than 3000 series of metrics, work.time among them: what exceeds them is added up "
        "under the attribute otel.metric.overflow. Set otel.metrics.exclude to metrics that you do not need."
    )


def test_of_what_waits_the_oldest_gives_way_but_not_a_servers_last(exporter: Any) -> None:
    one = exporter("http://127.0.0.1:1/")
    one._thread = threading.current_thread()  # Nobody sends.
    last = batch(1.0, seconds(inc=1.0))._replace(last=True)
    waiting = [batch(float(now), seconds(inc=1.0)) for now in range(110, 200)]
    for given in (last, *waiting):
        one.submit(given)
    assert list(one._batches) == [last, *waiting[-63:]]
    one._batches.clear()
    one._thread = None


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
        f"dask-otel: {receiver.url.removesuffix('/v1/traces')} takes no metrics at the path that they were sent to (HTTP 404 "
        "Not Found): no more are sent. Set OTEL_EXPORTER_OTLP_METRICS_ENDPOINT to the whole URL of what takes them (of "
        "Prometheus http://<prometheus>:9090/api/v1/otlp/v1/metrics, started with --web.enable-otlp-receiver), or "
        "OTEL_METRICS_EXPORTER=none."
    )


def test_a_receiver_that_is_down_holds_nobody_up(exporter: Any, caplog: pytest.LogCaptureFixture) -> None:
    one = exporter(f"http://127.0.0.1:{free_port()}/")
    for now in range(110, 200):
        one.submit(batch(float(now), seconds(inc=1.0)))
    assert one.flush(10)
    assert one.close(1.0)
    assert one.settled["unreachable"] > 0
    assert len([record for record in caplog.records if record.name.startswith("dask_otel")]) <= 2


def test_flush_waits_for_no_more_than_there_was(exporter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where exports come faster than they are sent."""
    with http_receiver() as receiver:
        one = exporter(receiver.url)
        send = one._export
        left = iter(range(2_000))

        def export(sending: Batch) -> None:
            if next(left, None) is not None:
                one.submit(batch(sending.now + 1, seconds(inc=sending.now)))
            send(sending)

        monkeypatch.setattr(one, "_export", export)
        one.submit(batch(110.0, seconds(inc=1.0)))
        assert one.flush(10)
        assert next(left, None) is not None, "the next is on its way still"
