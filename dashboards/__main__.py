"""Writes what Grafana and Prometheus read of collector-config/; a test fails where the committed files differ.

pip install -e '.[dashboards]'
python -m dashboards
"""

from __future__ import annotations

from pathlib import Path

from dashboards import alerts, cluster, grafana, prefix, scheduler, sources
from dashboards.sources import JAEGER, TEMPO

CONFIG = Path(__file__).parents[1] / "collector-config"


def files() -> dict[str, str]:
    """What belongs into each file, by its path below collector-config/."""
    made = {
        "alerts.yaml": alerts.text(),
        "grafana/dashboards/cluster.json": grafana.text(cluster.board(), JAEGER),
        "grafana/dashboards/scheduler.json": grafana.text(scheduler.board(), JAEGER),
    }
    for store in (JAEGER, TEMPO):
        made[f"grafana/{store.kind}/datasources.yaml"] = sources.text(store)
        made[f"grafana/{store.kind}/prefix.json"] = grafana.text(prefix.board(), store)
    return made


def main() -> None:
    """Write them."""
    for name, content in files().items():
        path = CONFIG / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


if __name__ == "__main__":
    main()
