"""Metrics as a receiver has them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from dask_otel import names
from dask_otel.instruments import TASK_ATTEMPTS, WASTE_REASON, WASTED_SECONDS
from dask_otel.receiver import Receiver
from dask_otel.tree import Received
from tests.cluster.support import Traced, assert_nothing_open, attributes

#: Why the seconds of an attempt are wasted, by its outcome.
REASONS = {
    names.FAILED: "failed",
    names.LOST: "lost",
    names.CANCELLED: "cancelled",
    names.RESCHEDULED: "cancelled",
    names.DISCARDED: "cancelled",
}


class Sample(NamedTuple):
    """One point: what it is of, and its total."""

    role: str
    instance: str
    name: str
    unit: str
    monotonic: bool
    attributes: frozenset[tuple[str, str]]
    start: float
    time: float
    value: float


def samples(receiver: Receiver) -> list[Sample]:
    """All points that came, in the order of their requests."""
    found = []
    for request in receiver.requests():
        if request.path == "/v1/metrics":
            found += list(_samples(ExportMetricsServiceRequest.FromString(request.body)))
    return found


def _samples(request: Any) -> Any:
    for resource in request.resource_metrics:
        who = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.sum.data_points:
                    yield Sample(
                        who["dask.role"],
                        who["service.instance.id"],
                        metric.name,
                        metric.unit,
                        metric.sum.is_monotonic,
                        frozenset((pair.key, text_of(pair.value)) for pair in point.attributes),
                        point.start_time_unix_nano / 1e9,
                        point.time_unix_nano / 1e9,
                        point.as_double if point.HasField("as_double") else point.as_int,
                    )


def text_of(value: Any) -> str:
    """Of an attribute: ``cpython.gc.generation`` is a number."""
    return str(getattr(value, value.WhichOneof("value")))


def last(found: list[Sample]) -> dict[tuple[str, str, frozenset[tuple[str, str]]], Sample]:
    """The last point of each series, by instance, name and attributes."""
    return {(one.instance, one.name, one.attributes): one for one in found}


def totals(found: list[Sample], name: str, *keys: str) -> dict[tuple[str, ...], float]:
    """Last totals of one metric over all instances, by values of attributes."""
    sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for (_, of, pairs), one in last(found).items():
        if of == name:
            sums[tuple(dict(pairs).get(key, "") for key in keys)] += one.value
    return dict(sums)


def wasted_on_spans(shown: list[Received]) -> dict[tuple[str, ...], float]:
    """Seconds of task spans that were for nothing, by prefix and reason."""
    found: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for received in shown:
        told = attributes(received)
        reason = REASONS.get(told[names.OUTCOME], "recomputed" if names.CAUSE in told else "")
        if reason:
            found[told[names.TASK_PREFIX], reason] += (received.span.end - received.span.start) / 1e9
    return dict(found)


def assert_all_is_told_and_counted(traced: Traced) -> None:
    """Nothing is open, and attempts and wasted seconds as metrics are those of all task spans that ever came."""
    assert_nothing_open(traced)
    shown = [r for r in traced.receiver.spans() if attributes(r)[names.OPERATION] == names.OP_TASK]
    found = samples(traced.receiver)
    attempts = totals(found, TASK_ATTEMPTS.name, names.TASK_PREFIX, names.OUTCOME)
    assert attempts == Counter(
        (attributes(r)[names.TASK_PREFIX], attributes(r)[names.OUTCOME]) for r in shown
    )
    wasted = totals(found, WASTED_SECONDS.name, names.TASK_PREFIX, WASTE_REASON)
    assert wasted == pytest.approx(wasted_on_spans(shown), abs=1e-5 * (1 + len(shown)))
