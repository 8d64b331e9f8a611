"""What a server has measured, as an OTLP request.

Rules
-----
1. A series that is new has a zero point at the moment of the export before, or at its server's start: so its first
   value is not lost to a query for increases.
2. Totals go as they are, or as differences to what a receiver has taken: what it has not taken is in the next
   difference. Up-down counters and gauges are never differences.
3. A server that goes ends what may fall by points without a value: backends would show the last one for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2

from dask_otel.distributions import Histogram
from dask_otel.export.bodies import Source
from dask_otel.export.values import encode_pair
from dask_otel.instruments import COUNTER, GAUGE, HISTOGRAM, Instrument
from dask_otel.records import Attributes
from dask_otel.series import Measured

_CUMULATIVE = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
_DELTA = metrics_pb2.AGGREGATION_TEMPORALITY_DELTA
_NO_VALUE = metrics_pb2.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_NS = 1e9
#: Kinds whose points are totals that never fall.
_TOTALS = (COUNTER, HISTOGRAM)

Totals = dict[tuple[str, Attributes], "float | Histogram"]


class Batch(NamedTuple):
    """What one server measured until ``now``, having begun at ``start`` (s since the epoch); ``last`` if it goes."""

    source: Source
    start: float
    now: float
    measured: Sequence[Measured]
    last: bool = False


class Series:
    """What is known of one server's series."""

    def __init__(self) -> None:
        self.before = 0.0
        #: When each began (s), and its total at the last export that was taken.
        self.began: dict[tuple[str, Attributes], float] = {}
        self.taken: Totals = {}
        self.taken_at = 0.0


def encode(batch: Batch, series: Series, delta: bool = False) -> tuple[bytes, Totals]:
    """An ExportMetricsServiceRequest, and the totals that it holds."""
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    resource.resource.attributes.extend(_pairs(batch.source.resource))
    scope = resource.scope_metrics.add(schema_url=batch.source.scope.schema_url)
    scope.scope.name, scope.scope.version = batch.source.scope.name, batch.source.scope.version
    before = series.before or batch.start
    totals: Totals = {}
    for instrument, points in batch.measured:
        if not points:
            continue
        metric = scope.metrics.add(name=instrument.name, unit=instrument.unit, description=instrument.brief)
        as_delta = delta and instrument.kind in _TOTALS
        into = _data(metric, instrument, as_delta)
        for attributes, value in points:
            key = instrument.name, attributes
            totals[key] = value
            pairs = list(_pairs(attributes))
            if as_delta:
                difference = _since(value, series.taken.get(key))
                _point(into, instrument, pairs, series.taken_at or batch.start, batch.now, difference)
                continue
            new = key not in series.began
            start = series.began.setdefault(key, before)
            if new and before < batch.now and instrument.kind != GAUGE:
                _point(into, instrument, pairs, start, start, _zero(value))
            ended = batch.last and instrument.kind not in _TOTALS
            _point(into, instrument, pairs, start, batch.now, None if ended else value)
    series.before = batch.now
    return request.SerializeToString(), totals


def _data(metric: metrics_pb2.Metric, instrument: Instrument, delta: bool) -> Any:
    """Where the points of an instrument go."""
    if instrument.kind == GAUGE:
        metric.gauge.SetInParent()
        return metric.gauge
    into: Any = metric.histogram if instrument.kind == HISTOGRAM else metric.sum
    into.aggregation_temporality = _DELTA if delta else _CUMULATIVE
    if instrument.kind != HISTOGRAM:
        metric.sum.is_monotonic = instrument.kind == COUNTER
    return into


def _point(
    into: Any,
    instrument: Instrument,
    pairs: list[KeyValue],
    start: float,
    now: float,
    value: float | Histogram | None,
) -> None:
    point = into.data_points.add(start_time_unix_nano=int(start * _NS), time_unix_nano=int(now * _NS))
    point.attributes.extend(pairs)
    if value is None:
        point.flags = _NO_VALUE
    elif isinstance(value, Histogram):
        _distribution(point, instrument, value)
    elif isinstance(value, int):
        point.as_int = value
    else:
        point.as_double = value


def _distribution(point: Any, instrument: Instrument, value: Histogram) -> None:
    point.count, point.sum = value.total, value.sum
    point.bucket_counts.extend(value.counts)
    point.explicit_bounds.extend(instrument.boundaries)
    for exemplar in value.exemplars:
        point.exemplars.add(
            time_unix_nano=int(exemplar.time * _NS),
            as_double=exemplar.value,
            trace_id=exemplar.trace_id,
            span_id=exemplar.span_id,
        )


def _zero(value: float | Histogram) -> float | Histogram:
    if isinstance(value, Histogram):
        return Histogram(0, 0.0, 0.0, 0.0, (0,) * len(value.counts))
    return type(value)(0)


def _since(value: float | Histogram, taken: float | Histogram | None) -> float | Histogram:
    """The difference to what was taken."""
    if taken is None:
        return value
    if isinstance(value, Histogram):
        assert isinstance(taken, Histogram)
        counts = tuple(map(sub, value.counts, taken.counts))
        return value._replace(total=value.total - taken.total, sum=value.sum - taken.sum, counts=counts)
    assert not isinstance(taken, Histogram)
    return value - taken


def _pairs(attributes: Attributes) -> list[KeyValue]:
    # Of the trace encoder, so that one resource is the same on spans and metrics.
    return [KeyValue.FromString(_content(encode_pair(b"\x0a", key, value))) for key, value in attributes]


def _content(field: bytes) -> bytes:
    """A field without its tag and length."""
    at = 1
    while field[at] & 0x80:
        at += 1
    return field[at + 1 :]
