"""The names that the reference gives for Prometheus are those that Prometheus has."""

from __future__ import annotations

import time
import uuid

from dask_otel.distributions import Histogram
from dask_otel.endpoint_names import prometheus_name
from dask_otel.export.bodies import Source
from dask_otel.export.metric_bodies import Batch
from dask_otel.export.metrics import MetricExporter
from dask_otel.instruments import HISTOGRAM, INSTRUMENTS, Instrument
from dask_otel.process import SCOPE
from dask_otel.series import Measured, measured
from dask_otel.settings import Metrics, Otlp

from .test_prometheus import ask_until


def one_point(instrument: Instrument) -> Measured:
    values = tuple("0" for _ in instrument.attributes)
    counts = (1, *[0 for _ in instrument.boundaries])
    value = Histogram(1, 1.0, 1.0, 1.0, counts) if instrument.kind == HISTOGRAM else 1
    return measured(instrument, {values: value})


def test_every_metric_has_its_name_in_prometheus(collector_http: str, prometheus: str) -> None:
    job = f"names-{uuid.uuid4().hex}"
    source = Source((("service.name", job), ("service.instance.id", "1")), SCOPE)
    exporter = MetricExporter(Metrics(otlp=Otlp(endpoint=f"{collector_http}/v1/metrics")))
    now = time.time()
    exporter.submit(Batch(source, now - 10, now, [one_point(one) for one in INSTRUMENTS]))
    assert exporter.flush(30)
    assert exporter.close()
    assert exporter.settled == {"": len(INSTRUMENTS)}
    expected = {
        prometheus_name(one) + part
        for one in INSTRUMENTS
        for part in (("_bucket", "_sum", "_count") if one.kind == HISTOGRAM else ("",))
    }
    query = f'count by (__name__) (group by (__name__) ({{job="{job}",__name__!="target_info"}}))'
    ask_until(query, prometheus, {(name,): 1.0 for name in expected})
