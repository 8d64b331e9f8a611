"""The arithmetic of the page on sizing is right, and what it says is set is set so."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import dask_otel
from dask_otel.budget import MAX_SERIES
from dask_otel.settings import TraceBudget
from dask_otel.worker_sums import FLUSH_AFTER

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "size-it.md").read_text(encoding="utf-8")
UNITS = {"": 1.0, "s": 1.0, "%": 0.01, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def rows() -> Iterator[list[str]]:
    """Cells of the rows that begin with a name."""
    for line in PAGE.splitlines():
        if re.match(r"\| `\w+` \|", line):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def number(cell: str) -> float | None:
    """What a cell says, in units without prefix; of a formula nothing."""
    found = re.fullmatch(r"([\d,.]+) ?(%|\w*)", cell)
    return float(found[1].replace(",", "")) * UNITS[found[2]] if found else None


def follow(peak: float | None = None) -> tuple[dict[str, float], list[str]]:
    """What each name comes to, with another peak perhaps, and what the page shows otherwise."""
    known: dict[str, float] = {}
    wrong = []
    for name, second, third, *_ in rows():
        name = name.strip("`")
        assert name not in known, f"{name} is there twice"
        given = number(second)
        if given is not None:
            known[name] = peak if name == "peak" and peak else given
            continue
        known[name] = evaluated(second, known)
        # Shown is two digits or three.
        if number(third) != pytest.approx(known[name], rel=0.03):
            wrong.append(f"{name}: {third} is on the page, {known[name]:.4g} comes of {second}")
    return known, wrong


def evaluated(formula: str, known: dict[str, float]) -> float:
    assert re.fullmatch(r"[\w\s.()×/+,]+", formula), formula
    return float(eval(formula.replace("×", "*"), {"min": min, "ceil": math.ceil}, known))


def test_every_example_follows_from_those_before_it() -> None:
    known, wrong = follow()
    assert wrong == []
    assert sum(number(second) is None for _, second, *_ in rows()) == 25
    # What is said in words.
    whole = known["sampling_cpu"] + known["points_a_second"] * known["point_cpu"] / 1e6
    assert "a ninth of a core and half a gigabyte" in PAGE
    assert 1 / whole == pytest.approx(9, abs=0.5)
    assert known["sampling_memory"] + known["rest"] * 1e6 == pytest.approx(0.5e9, rel=0.1)
    assert "With `peak` at 100 it is four samplers, and the gateways need half a core." in PAGE
    higher, _ = follow(peak=100)
    assert (higher["samplers"], higher["gateway_cpu"]) == (4, pytest.approx(0.5, abs=0.05))


def test_what_the_page_says_is_set_is_the_default() -> None:
    page = {row[0].strip("`"): number(row[1]) for row in rows()}
    config = ROOT / "collector-config"
    agent = (config / "collector-agent.yaml").read_text()
    sampling = (config / "collector-tail-sampling.yaml").read_text()
    budget = yaml.safe_load((Path(dask_otel.__file__).parent / "otel.yaml").read_text())["otel"]["traces"][
        "budget"
    ]
    assert (budget["spans"], budget["size"]) == (page["budget"], "4 MB")
    assert TraceBudget() == TraceBudget(page["budget"], 4_000_000)
    assert page["flushes"] == 1 / FLUSH_AFTER
    assert page["series"] == MAX_SERIES
    assert [int(found) for found in re.findall(r"AGENT_QUEUE_BYTES:-(\d+)", agent)] == [page["queue"]]
    assert "AGENT_MEMORY_MIB:-400}" in agent
    assert {int(found) for found in re.findall(r"SLOW_MS:-(\d+)", sampling)} == {1000 * page["wait"]}
    assert "num_traces: 50000" in sampling
