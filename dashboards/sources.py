"""Grafana's data sources, linked both ways: exemplar to trace, span to metrics, span to logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dashboards.promql import label, metric
from dashboards.spans import jaeger_search, tempo_search
from dask_otel import instruments, names
from dask_otel.instruments import Instrument


class TraceStore(NamedTuple):
    """Where traces are kept: Grafana's name of the kind, its address in the stack, how to search it."""

    kind: str
    title: str
    url: str
    search: Callable[[Any], Any]


JAEGER = TraceStore("jaeger", "Jaeger", "http://jaeger:16686", jaeger_search)
TEMPO = TraceStore("tempo", "Tempo", "http://tempo:3200", tempo_search)

#: Attributes of a span (or its resource) that narrow the queries below.
TAGS = (names.CLUSTER_ID, names.TASK_PREFIX)


def _rate(instrument: Instrument, by: str, suffix: str = "") -> str:
    return f"sum by ({by}) (rate({metric(instrument)}{suffix}{{$__tags}}[5m]))"


#: What a span's link to metrics asks; `$__tags` are those of TAGS that the span has.
FROM_A_SPAN = {
    "Durations of its prefix (p99)": f"histogram_quantile(0.99, {_rate(instruments.TASK_DURATION, 'le', '_bucket')})",
    "Attempts by outcome": _rate(instruments.TASK_ATTEMPTS, label(names.OUTCOME)),
    "Threads held": _rate(instruments.COMPUTE_SECONDS, label(names.WORKER_NAME)),
    "What its tasks do": _rate(instruments.ACTIVITY_SECONDS, label(names.ACTIVITY_NAME)),
}

TEXT = """\
# Written by `python -m dashboards`: change it there.
#
# Grafana replaces $NAME by the environment; $$ is a dollar of ours.
apiVersion: 1

datasources:
  - name: Prometheus
    uid: prometheus
    type: prometheus
    access: proxy
    url: http://prometheus:9090
    isDefault: true
    jsonData:
      httpMethod: POST
      prometheusType: Prometheus
      # Shows alerts.yaml, which Prometheus evaluates, among Grafana's alert rules.
      manageAlerts: true
      # How often servers export; $__rate_interval is at least four times as much.
      timeInterval: $METRIC_EXPORT_INTERVAL
      # A dot in a panel opens the trace of that task or transfer.
      exemplarTraceIdDestinations:
        - name: trace_id
          datasourceUid: traces
          urlDisplayLabel: Open the trace

  - name: {title}
    uid: traces
    type: {kind}
    access: proxy
    url: {url}
    jsonData:
      # A span's link to the metrics of its task prefix.
      tracesToMetrics:
        datasourceUid: prometheus
        spanStartTimeShift: -5m
        spanEndTimeShift: 5m
        tags:
{tags}
        queries:
{queries}
      # A span's link to its logs: it appears as soon as there is a Loki data source with the uid `loki`.
      tracesToLogsV2:
        datasourceUid: loki
        spanStartTimeShift: -5m
        spanEndTimeShift: 5m
        customQuery: true
        query: '{{service_name=~".+"}} | trace_id="$${{__span.traceId}}"'
      nodeGraph:
        enabled: true
"""


def text(store: TraceStore) -> str:
    """The file for a stack with such a store."""
    return TEXT.format(
        title=store.title,
        kind=store.kind,
        url=store.url,
        tags="\n".join(f"          - {{key: {key}, value: {label(key)}}}" for key in TAGS),
        queries="\n".join(
            f"          - name: {name}\n            query: '{query.replace('$', '$$')}'"
            for name, query in FROM_A_SPAN.items()
        ),
    )
