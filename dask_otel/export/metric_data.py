"""An OTLP request as the SDK's `MetricsData`, for exporters of metrics that are not ours.

Rules
-----
1. What they get is what OTLP's receivers get, point by point: it is read off the request.
2. Left out is what the SDK has no place for: a point without a value, which ends a series.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from dask_otel.decode import attributes

_NO_VALUE = metrics_pb2.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK


def to_metrics_data(body: bytes) -> MetricsData:
    """An ExportMetricsServiceRequest as the SDK's readers would give it to an exporter.

    Examples
    --------
    >>> to_metrics_data(b"")
    MetricsData(resource_metrics=[])
    """
    request = ExportMetricsServiceRequest.FromString(body)
    return MetricsData([_resource(one) for one in request.resource_metrics])


def _resource(of: metrics_pb2.ResourceMetrics) -> ResourceMetrics:
    resource = Resource(dict(attributes(of.resource.attributes)), of.schema_url)
    return ResourceMetrics(resource, [_scope(one) for one in of.scope_metrics], of.schema_url)


def _scope(of: metrics_pb2.ScopeMetrics) -> ScopeMetrics:
    scope = InstrumentationScope(of.scope.name, of.scope.version, of.schema_url)
    metrics = [Metric(one.name, one.description, one.unit, _data(one)) for one in of.metrics]
    return ScopeMetrics(scope, [one for one in metrics if one.data.data_points], of.schema_url)


def _data(of: metrics_pb2.Metric) -> Gauge | Sum | Histogram | ExponentialHistogram:
    which = str(of.WhichOneof("data"))
    data = getattr(of, which)
    points = [point for point in data.data_points if not point.flags & _NO_VALUE]
    if which == "gauge":
        return Gauge([_number(point) for point in points])
    temporality = AggregationTemporality(data.aggregation_temporality)
    if which == "sum":
        return Sum([_number(point) for point in points], temporality, data.is_monotonic)
    if which == "histogram":
        return Histogram([_distribution(point) for point in points], temporality)
    return ExponentialHistogram([_exponential(point) for point in points], temporality)


def _number(point: Any) -> NumberDataPoint:
    return NumberDataPoint(**_common(point), value=getattr(point, point.WhichOneof("value")))


def _distribution(point: Any) -> HistogramDataPoint:
    return HistogramDataPoint(
        **_common(point),
        count=point.count,
        sum=point.sum,
        bucket_counts=list(point.bucket_counts),
        explicit_bounds=list(point.explicit_bounds),
        **_extremes(point),
    )


def _exponential(point: Any) -> ExponentialHistogramDataPoint:
    return ExponentialHistogramDataPoint(
        **_common(point),
        count=point.count,
        sum=point.sum,
        scale=point.scale,
        zero_count=point.zero_count,
        positive=Buckets(point.positive.offset, list(point.positive.bucket_counts)),
        negative=Buckets(point.negative.offset, list(point.negative.bucket_counts)),
        flags=point.flags,
        **_extremes(point),
    )


def _extremes(point: Any) -> dict[str, Any]:
    """As the SDK has them where there are none."""
    return {
        "min": point.min if point.HasField("min") else inf,
        "max": point.max if point.HasField("max") else -inf,
    }


def _common(point: Any) -> dict[str, Any]:
    return {
        "attributes": dict(attributes(point.attributes)),
        "start_time_unix_nano": point.start_time_unix_nano,
        "time_unix_nano": point.time_unix_nano,
        "exemplars": list(_exemplars(point.exemplars)),
    }


def _exemplars(of: Iterable[Any]) -> Iterable[Exemplar]:
    for one in of:
        value = getattr(one, one.WhichOneof("value"))
        trace_id, span_id = int.from_bytes(one.trace_id, "big"), int.from_bytes(one.span_id, "big")
        told = dict(attributes(one.filtered_attributes))
        yield Exemplar(told, value, one.time_unix_nano, span_id or None, trace_id or None)
