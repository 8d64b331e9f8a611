"""How the traces of a task prefix are searched for."""

from __future__ import annotations

from typing import Any

from dask_otel import names

#: How many traces are listed.
MOST = 20


def jaeger_search(source: Any) -> Any:
    """A search in Jaeger. It needs a service; attributes of the resource are found as those of the span."""
    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.cog.runtime import UnknownDataquery

    query = {
        "refId": "A",
        "datasource": source,
        "queryType": "search",
        "service": "$service",
        "tags": f"{names.TASK_PREFIX}=$prefix {names.CLUSTER_ID}=$cluster",
        "limit": MOST,
    }

    class Search(Builder[UnknownDataquery]):
        def build(self) -> UnknownDataquery:
            return UnknownDataquery(query)

    return Search()


def tempo_search(source: Any) -> Any:
    """A search in Tempo, in TraceQL."""
    from grafana_foundation_sdk.builders import tempo
    from grafana_foundation_sdk.models.tempo import SearchTableType

    prefix, cluster = f"span.{names.TASK_PREFIX}", f"resource.{names.CLUSTER_ID}"
    return (
        tempo.TempoQuery()
        .ref_id("A")
        .datasource(source)
        .query_type("traceql")
        .query(f'{{ {prefix} = "$prefix" && {cluster} = "$cluster" }}')
        .limit(MOST)
        .table_type(SearchTableType.TRACES)
    )
