"""Exporters of metrics by OpenTelemetry's entry points, in the place of what sends OTLP.

Rules
-----
1. Used by the thread of a `MetricExporter` only, but for `close`.
2. What is no exporter, cannot be loaded or cannot be made gives one sentence, and nothing more is asked of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from opentelemetry.sdk.metrics import Histogram, ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricExportResult
from opentelemetry.sdk.metrics.export import MetricExporter as SdkExporter

from dask_otel.export.metric_data import to_metrics_data
from dask_otel.export.outcome import DELIVERED, RETRY, Outcome

GROUP = "opentelemetry_metrics_exporter"


class Useless(Exception):
    """Something was named that takes no metrics of ours."""


class EntryPointSender:
    """Hands each request to an exporter, as the SDK's data.

    Parameters
    ----------
    name:
        Among OpenTelemetry's entry points.
    timeout:
        Of one export (s).

    Raises
    ------
    Useless
        It cannot be had; the message is a sentence for the user.
    """

    def __init__(self, name: str, timeout: float) -> None:
        self._timeout = timeout
        self._exporter = _load(name)
        preferred = getattr(self._exporter, "_preferred_temporality", None) or {}
        #: How totals go, in OpenTelemetry's word: our counters are to the SDK observable ones.
        self.temporality = _word(preferred)

    def send(self, body: bytes, points: int) -> Outcome:
        data = to_metrics_data(body)
        result = self._exporter.export(data, timeout_millis=self._timeout * 1000)
        if result is MetricExportResult.SUCCESS:
            return Outcome(DELIVERED)
        return Outcome(RETRY, "the exporter reports a failure")

    def close(self) -> None:
        self._exporter.shutdown()


def _word(preferred: Mapping[type, AggregationTemporality]) -> str:
    differ = [preferred.get(kind) is AggregationTemporality.DELTA for kind in (Histogram, ObservableCounter)]
    return "delta" if all(differ) else "lowmemory" if differ[0] else "cumulative"


def _load(name: str) -> SdkExporter:
    found: dict[str, Any] = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        allowed = ", ".join(sorted({"otlp", "none", *found}))
        raise Useless(f"OTEL_METRICS_EXPORTER names {name!r}; installed are {allowed}.")
    try:
        exporter = found[name].load()()
    except Exception as error:
        raise Useless(
            f"OTEL_METRICS_EXPORTER names {name!r}, which cannot be used ({type(error).__name__}: {error}): "
            "set it to otlp, to none, or mend what it needs."
        ) from error
    if not isinstance(exporter, SdkExporter):
        exporter.shutdown()
        raise Useless(
            f"OTEL_METRICS_EXPORTER names {name!r}, which does not send but waits to be asked; dask-otel sends only. "
            "Set it to otlp, or set a MeterProvider with that reader in your application, which dask-otel then uses."
        )
    return exporter
