"""Boards as Grafana reads them, made with its own types (`grafana-foundation-sdk`)."""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.promql import label
from dashboards.records import HEAT, NUMBER, STACK, STAT, TRACES, Board, Panel, Query, Variable
from dashboards.sources import TraceStore
from dask_otel import names

#: What links the dashboards to each other.
TAG = "dask"
_METRICS = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")


def text(board: Board, store: TraceStore) -> str:
    """The dashboard as JSON, with traces from a store of this kind."""
    made = json.loads(json.dumps(dashboard_of(board, store).build(), cls=JSONEncoder))
    return json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def dashboard_of(board: Board, store: TraceStore) -> builders.Dashboard:
    """The dashboard as Grafana's builder."""
    made = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags([TAG, "generated"])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .link(_to_the_others())
        .with_variable(builders.DatasourceVariable("datasource").label("Metrics").type("prometheus"))
    )
    if any(panel.kind == TRACES for row in board.rows for panel in row.panels):
        made.with_variable(builders.DatasourceVariable("traces").label("Traces").type(store.kind))
    for variable in board.variables:
        made.with_variable(_variable(variable))
    number = 0
    for row in board.rows:
        number += 1
        made.with_row(builders.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            made.with_panel(_panel(panel, store).id(number))
    return made


def _to_the_others() -> builders.DashboardLink:
    return (
        builders.DashboardLink("Dask")
        .type(dashboard.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(True)
        .keep_time(True)
    )


def _to_the_prefix() -> builders.DashboardLink:
    chosen = f"${{__field.labels.{label(names.TASK_PREFIX)}}}"
    url = f"/d/dask-prefix?var-cluster=${{cluster}}&var-prefix={chosen}&${{__url_time_range}}"
    return builders.DashboardLink("This task prefix").type(dashboard.DashboardLinkType.LINK).url(url)


def _variable(variable: Variable) -> builders.QueryVariable:
    made = (
        builders.QueryVariable(variable.name)
        .label(variable.title)
        .datasource(_METRICS)
        .query(f"label_values({variable.series}, {variable.label})")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )
    if variable.all:
        everything = dashboard.VariableOption(selected=True, text="All", value="$__all")
        made.multi(True).include_all(True).all_value(".*").current(everything)
    return made


def _panel(panel: Panel, store: TraceStore) -> Any:
    made: Any
    if panel.kind == TRACES:
        made = _traces(store)
    elif panel.kind == STAT:
        made = _stat()
        if panel.unit == NUMBER:
            made.decimals(0)
    elif panel.kind == HEAT:
        made = _heat(panel.unit)
    else:
        made = _lines(panel.kind == STACK)
    made.title(panel.title).description(panel.about).span(panel.width).height(4 if panel.kind == STAT else 8)
    if panel.kind != TRACES:
        made.unit(panel.unit).datasource(_METRICS).min(0)
    if panel.kind != TRACES and any(label(names.TASK_PREFIX) in query.legend for query in panel.queries):
        made.data_links([_to_the_prefix()])
    if panel.at_most is not None:
        made.max(panel.at_most)
    for number, query in enumerate(panel.queries):
        made.with_target(_target(query, panel.kind).ref_id(chr(ord("A") + number)))
    return made


def _target(query: Query, kind: str) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).datasource(_METRICS)
    if kind == STAT:
        return made.instant()
    if kind == HEAT:
        made.format(PromQueryFormat.HEATMAP)
    return made.range().exemplar(query.exemplars)


def _lines(stacked: bool) -> timeseries.Panel:
    legend = (
        common_builders.VizLegendOptions()
        .show_legend(True)
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .calcs(["mean", "max", "lastNotNull"])
    )
    tooltip = (
        common_builders.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )
    made = timeseries.Panel().legend(legend).tooltip(tooltip).line_width(1)
    made.show_points(common.VisibilityMode.NEVER).fill_opacity(40 if stacked else 0)
    if stacked:
        made.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    return made


def _stat() -> stat.Panel:
    last = common_builders.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False)
    return (
        stat.Panel()
        .reduce_options(last)
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(common.BigValueColorMode.NONE)
    )


def _heat(unit: str) -> heatmap.Panel:
    color = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(64)
    return heatmap.Panel().calculate(False).color(color).y_axis(heatmap.YAxisConfig().unit(unit))


def _traces(store: TraceStore) -> table.Panel:
    source = dashboard.DataSourceRef(type_val=store.kind, uid="${traces}")
    return table.Panel().datasource(source).with_target(store.search(source))
