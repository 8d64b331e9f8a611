"""The dashboards, the alerts and the stack are whole, current, and ask for metrics that there are."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import dashboards
from dashboards import alerts, cluster, prefix, promql, records, scheduler, sources
from dashboards.promql import Scope, metric
from dashboards.records import HEAT, STAT, TRACES, Board
from dask_otel import instruments, names
from dask_otel.instruments import INSTRUMENTS

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "collector-config"
GRAFANA = CONFIG / "grafana"
DASHBOARDS = sorted(GRAFANA.rglob("*.json"))
BOARDS = (cluster.board(), prefix.board(), scheduler.board())
COMPOSE = ("compose.yaml", "compose-tempo.yaml")

#: Metrics that no panel shows, and why.
NOT_SHOWN = {
    instruments.GIL_SECONDS.name,  # There only where `gilknocker` is installed.
    instruments.MONITOR_TIME.name,  # A moment, not an amount.
}


def loaded(file: str) -> Any:
    return yaml.safe_load((CONFIG / file).read_text())


def all_panels(board: Board) -> list[records.Panel]:
    return [panel for row in board.rows for panel in row.panels]


def told(read: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in read.items() if value is not None}


def asked() -> str:
    return " ".join(query.expr for board in BOARDS for panel in all_panels(board) for query in panel.queries)


def metrics_named(text: str) -> set[str]:
    """What looks like a metric of ours, without the suffixes of histograms."""
    labels = {promql.label(key) for one in INSTRUMENTS for key in one.attributes}
    labels |= {"dask_cluster_id", "dask_worker_name", "dask_role", "dask_otel"}
    found = set(re.findall(r"\b(?:dask|otel)_[a-z_]+\b", text)) - labels
    return {re.sub(r"_(bucket|sum|count)$", "", one) if one not in KNOWN else one for one in found}


KNOWN = {metric(one) for one in INSTRUMENTS}


def test_the_committed_files_are_what_the_generator_gives() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="needs Python 3.11 and pip install '.[dashboards]'")
    files = importlib.import_module("dashboards.__main__").files()
    written = {name: (CONFIG / name).read_text() for name in files}
    assert written == files, "run: python -m dashboards"


def test_grafanas_own_types_read_every_dashboard() -> None:
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="needs Python 3.11")
    encoder = importlib.import_module("grafana_foundation_sdk.cog.encoder").JSONEncoder
    plugins = importlib.import_module("grafana_foundation_sdk.cog.plugins")
    plugins.register_default_plugins()
    for file in DASHBOARDS:
        read = json.loads(file.read_text())
        again = json.dumps(models.Dashboard.from_json(read), cls=encoder)
        # A heatmap's empty options are written where there were none.
        assert json.loads(again.replace('"custom": {}', '"custom": null'), object_hook=told) == read, file


def test_every_dashboard_is_small_enough_to_paste() -> None:
    assert [file for file in DASHBOARDS if file.stat().st_size > 100_000] == []
    assert len(DASHBOARDS) == 4


def test_every_metric_is_shown() -> None:
    found = metrics_named(asked())
    assert {one.name for one in INSTRUMENTS if metric(one) not in found} == NOT_SHOWN
    assert found <= KNOWN


def test_every_panel_says_what_is_seen_in_which_unit_and_whose_line_it_is() -> None:
    for board in BOARDS:
        for panel in all_panels(board):
            assert panel.about.endswith("."), panel.title
            assert panel.unit, panel.title
            assert panel.queries or panel.kind == TRACES, panel.title
            assert all(query.legend for query in panel.queries), panel.title
            assert panel.kind != HEAT or "le" in panel.queries[0].legend, panel.title
        titles = [panel.title for panel in all_panels(board) if panel.kind != STAT]
        assert sorted(set(titles)) == sorted(titles)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_every_row_fills_the_width(board: Board) -> None:
    for row in board.rows:
        assert sum(panel.width for panel in row.panels) % 24 == 0, row.title


def test_nothing_is_divided_by_what_may_be_0() -> None:
    exprs = [*asked().split(" \n "), *(alert.expr for alert in alerts.ALERTS)]
    for expr in exprs:
        for after in re.split(r" / (?:on \(\) group_left \(\) )?", expr)[1:]:
            assert after.startswith("(sum"), after
            assert " > 0)" in after, after


def test_an_attribute_that_an_instrument_does_not_have_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"^dask\.worker\.thread\.time has no attribute 'dask\.op'; it has dask\.thread\.state",
    ):
        Scope().rate(instruments.THREAD_SECONDS, [instruments.DASK_OP])
    with pytest.raises(ValueError, match=r"^dask\.worker\.thread\.time has no attribute"):
        Scope().rate(instruments.THREAD_SECONDS, only={instruments.DASK_OP: "idle"})


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    (group,) = loaded("alerts.yaml")["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [alert.name for alert in alerts.ALERTS]
    for rule in group["rules"]:
        assert re.fullmatch(r"\d+[sm]", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description", "action"}
        assert metrics_named(rule["expr"]) <= KNOWN
        for text in rule["annotations"].values():
            labels = set(re.findall(r"\$labels\.(\w+)", text))
            assert all(label in rule["expr"] or label == "lost" for label in labels), rule["alert"]


def test_prometheus_loads_the_alerts_that_lie_beside_its_file() -> None:
    assert loaded("prometheus.yaml")["rule_files"] == ["alerts.yaml"]


@pytest.mark.parametrize("store", [sources.JAEGER, sources.TEMPO], ids=lambda store: store.kind)
def test_metrics_lead_to_traces_and_traces_to_metrics_and_logs(store: sources.TraceStore) -> None:
    metrics, traces = loaded(f"grafana/{store.kind}/datasources.yaml")["datasources"]
    assert (metrics["type"], traces["type"], traces["uid"]) == ("prometheus", store.kind, "traces")
    (link,) = metrics["jsonData"]["exemplarTraceIdDestinations"]
    assert (link["name"], link["datasourceUid"]) == ("trace_id", traces["uid"])
    back = traces["jsonData"]["tracesToMetrics"]
    assert back["datasourceUid"] == metrics["uid"]
    assert [(tag["key"], tag["value"]) for tag in back["tags"]] == [
        (names.CLUSTER_ID, "dask_cluster_id"),
        (names.TASK_PREFIX, "dask_task_prefix"),
    ]
    for query in back["queries"]:
        assert metrics_named(query["query"]) <= KNOWN
        assert "{$$__tags}" in query["query"]
    logs = traces["jsonData"]["tracesToLogsV2"]
    assert (logs["datasourceUid"], logs["query"]) == (
        "loki",
        '{service_name=~".+"} | trace_id="$${__span.traceId}"',
    )


@pytest.mark.parametrize("file", COMPOSE)
def test_the_stack_mounts_what_there_is(file: str) -> None:
    for name, service in loaded(file)["services"].items():
        assert "extends" in service or re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+", service["image"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (
                (CONFIG / source).exists() if source.startswith("./") else source in loaded(file)["volumes"]
            )


def test_the_stack_runs_prometheus_with_the_flags_that_its_file_names() -> None:
    command = loaded("compose.yaml")["services"]["prometheus"]["command"]
    said = re.search(r"#     prometheus \S+ (.*)", (CONFIG / "prometheus.yaml").read_text())
    assert said is not None
    assert set(said[1].split()) <= set(command)


@pytest.mark.parametrize("store", ["jaeger", "tempo"])
def test_the_stack_finds_the_dashboards_where_grafana_looks(store: str) -> None:
    file = "compose.yaml" if store == "jaeger" else "compose-tempo.yaml"
    base = loaded("compose.yaml")["services"]["grafana"]["volumes"]
    over = loaded(file)["services"]["grafana"]["volumes"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in [*base, *over]}
    (provider,) = loaded("grafana/dashboards.yaml")["providers"]
    below = {
        place: source for place, source in mounted.items() if place.startswith(provider["options"]["path"])
    }
    assert below == {
        "/etc/grafana/dask/common": "./grafana/dashboards",
        "/etc/grafana/dask/traces": f"./grafana/{store}",
    }
    assert mounted["/etc/grafana/provisioning/datasources/dask.yaml"] == f"./grafana/{store}/datasources.yaml"
    found = {
        json.loads(path.read_text())["uid"]
        for source in below.values()
        for path in (CONFIG / source).glob("*.json")
    }
    assert found == {board.uid for board in BOARDS}


def test_the_documents_ask_for_metrics_that_there_are() -> None:
    for file in (ROOT / "docs").rglob("*.md"):
        for block in re.findall(r"```promql\n(.*?)```", file.read_text(), re.DOTALL):
            assert metrics_named(block) <= KNOWN, file


def test_the_documents_tell_the_queries_of_the_panels_and_every_alert() -> None:
    text = (ROOT / "docs" / "how-to" / "dashboards.md").read_text()
    dense = re.sub(r"\s", "", text)
    for query in (cluster.UTILISATION, cluster.LATENCY):
        assert re.sub(r"\s", "", query) in dense
    told = re.findall(r"\| `(Dask\w+)` \| .* \| (\w+) \|", text)
    assert told == [(alert.name, alert.severity) for alert in alerts.ALERTS]


@pytest.mark.parametrize("module", [one.name for one in pkgutil.iter_modules(dashboards.__path__)])
def test_examples_in_docstrings_hold(module: str) -> None:
    if module in ("grafana", "__main__"):
        pytest.importorskip("grafana_foundation_sdk", reason="needs Python 3.11")
    assert doctest.testmod(importlib.import_module(f"dashboards.{module}")).failed == 0
