"""What the committed dashboards, alerts and documents ask Prometheus, ready to be asked."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dashboards.promql import metric
from dask_otel.instruments import INSTRUMENTS

from .jaeger import get

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "collector-config" / "grafana"
DASHBOARDS = sorted(GRAFANA.rglob("*.json"))


class Asked(NamedTuple):
    """A query, and where it stands."""

    where: str
    expr: str


def panels(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The panels of a dashboard by dashboard and title, without rows."""
    dashboard = json.loads(file.read_text())
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield f"{file.relative_to(GRAFANA)}: {panel['title']}", panel


def asked_by_panels(variables: Mapping[str, str]) -> list[Asked]:
    """Every query of every panel, with Grafana's variables replaced; those of a file for another store once."""
    found = {
        Asked(where.replace("tempo/", "jaeger/"), filled(target["expr"], variables))
        for file in DASHBOARDS
        for where, panel in panels(file)
        for target in panel["targets"]
        if "expr" in target
    }
    return sorted(found)


def asked_by_alerts() -> list[Asked]:
    """The expression of every alert without its threshold."""
    rules = yaml.safe_load((ROOT / "collector-config" / "alerts.yaml").read_text())["groups"][0]["rules"]
    return [Asked(rule["alert"], _without_threshold(rule["expr"])) for rule in rules]


def asked_by_documents(variables: Mapping[str, str]) -> list[Asked]:
    """Every block of PromQL in the documentation."""
    return [
        Asked(file.name, filled(block, variables))
        for file in sorted((ROOT / "docs").rglob("*.md"))
        for block in re.findall(r"```promql\n(.*?)```", file.read_text(), re.DOTALL)
    ]


def variables_asked(variables: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Of each variable that offers the values of a label: where it stands, series, label."""
    found = []
    for file in DASHBOARDS:
        for one in json.loads(file.read_text())["templating"]["list"]:
            if one["type"] == "query":
                match = re.fullmatch(r"label_values\((.*), (\w+)\)", one["query"])
                assert match is not None, one["query"]
                found.append((f"{file.name}: {one['name']}", filled(match[1], variables), match[2]))
    return found


def filled(expr: str, variables: Mapping[str, str]) -> str:
    """The expression with `$name` replaced; one that has no value is a fault of the dashboard."""
    return re.sub(r"\$(\w+)", lambda match: variables[match[1]], expr)


def metrics_in(expr: str) -> set[str]:
    """The names of the instruments that an expression asks for."""
    words = {re.sub(r"_(bucket|sum|count)$", "", word) for word in re.findall(r"\w+", expr)}
    words |= set(re.findall(r"\w+", expr))
    return {one.name for one in INSTRUMENTS if metric(one) in words}


def ask(prometheus: str, expr: str) -> list[dict[str, Any]]:
    """What an instant query gives now."""
    query = urllib.parse.urlencode({"query": expr})
    return get(f"{prometheus}/api/v1/query?{query}")["data"]["result"]


def names_of(prometheus: str, cluster: str) -> set[str]:
    """The names of all series of a cluster."""
    query = urllib.parse.urlencode({"match[]": f'{{dask_cluster_id="{cluster}"}}'})
    return set(get(f"{prometheus}/api/v1/label/__name__/values?{query}")["data"])


def values_of(prometheus: str, series: str, label: str) -> list[str]:
    """The values that a label has in these series."""
    query = urllib.parse.urlencode({"match[]": series})
    return get(f"{prometheus}/api/v1/label/{label}/values?{query}")["data"]


def _without_threshold(expr: str) -> str:
    match = re.fullmatch(r"\((.*)\) > [\d.]+\n", expr, re.DOTALL)
    assert match is not None, expr
    return match[1]
