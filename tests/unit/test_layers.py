"""Imports go down only, and the pure core is pure: the linter says so, and what it cannot see is read off the code.

From the top: commands, shells, the seam, emission and export, the pure core.
"""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dask_otel"

#: The lowest first; a module belongs to the first that names it.
LAYERS = {
    "core": (
        *(
            "actors",
            "attempt_totals",
            "attempts",
            "budget",
            "carried",
            "chains",
            "clock",
            "computations",
            "deaths",
            "detail",
            "distributions",
            "durations",
            "endings",
            "endpoint_names",
            "environment",
            "folding",
            "forest",
            "graph_phases",
            "handler_time",
            "histograms",
            "history",
            "idle_time",
            "instruments",
            "intervals",
            "keeping",
            "loop_parts",
            "names",
        ),
        *(
            "otlp_environment",
            "parents",
            "records",
            "replay",
            "rising",
            "rollup",
            "series",
            "running_time",
            "settings",
            "summary",
            "sums",
            "table",
            "thread_time",
            "trace_budget",
            "transfers",
            "tree",
        ),
        *("variables", "vocabulary"),
    ),
    "emission": (
        *(
            "about_us",
            "current",
            "decode",
            "export",
            "export.*",
            "feed",
            "guard",
            "meter",
            "outlet",
            "process",
            "propagation",
            "provided",
            "provider",
            "receiver",
            "resource",
        ),
        *("sampling", "sdk_import", "submission", "version", "config"),
    ),
    "seam": ("seam", "seam.*"),
    "shells": (
        *("client", "health", "holders", "overhead", "scheduler", "scheduler_metrics"),
        *("worker", "worker_data", "worker_metrics", "worker_sums"),
    ),
    "turning on": ("turning_on", "cluster", ""),
    "commands": ("cli", "demo", "demo.*", "instrumentor"),
}
#: Standard library that makes the same call give another result, or does I/O.
IMPURE = {
    "asyncio",
    "logging",
    "os",
    "random",
    "secrets",
    "socket",
    "subprocess",
    "sys",
    "threading",
    "time",
    "uuid",
}


def modules() -> dict[str, Path]:
    """Every module of the package by its name below it; the package itself is the empty name."""
    files = {path.relative_to(PACKAGE).with_suffix(""): path for path in PACKAGE.rglob("*.py")}
    return {".".join(path.parts).removesuffix("__init__").rstrip("."): file for path, file in files.items()}


MODULES = modules()


def layer(module: str) -> str:
    return next(
        (name for name, patterns in LAYERS.items() if any(fnmatch(module, p) for p in patterns)), "none"
    )


def imports(module: str) -> Iterator[str]:
    """What a module imports, wherever in it, by whole names."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own(module: str) -> set[str]:
    """Which of our modules a module imports."""
    found = set()
    for name in imports(module):
        if name == "dask_otel" or name.startswith("dask_otel."):
            below = name.removeprefix("dask_otel").removeprefix(".")
            while below not in MODULES:
                below = below.rpartition(".")[0]
            found.add(below)
    return found


def test_every_module_has_a_layer() -> None:
    assert [module for module in MODULES if layer(module) == "none"] == []


def test_imports_go_down_only() -> None:
    rank = {name: i for i, name in enumerate(LAYERS)}
    up = [
        f"{module} ({layer(module)}) imports {other} ({layer(other)})"
        for module in MODULES
        for other in own(module)
        if rank[layer(other)] > rank[layer(module)]
    ]
    assert up == []


def test_no_module_imports_itself_by_a_detour() -> None:
    TopologicalSorter({module: own(module) - {module} for module in MODULES}).prepare()


@pytest.mark.parametrize("module", sorted(m for m in MODULES if layer(m) == "core"))
def test_the_core_is_pure(module: str) -> None:
    allowed = (sys.stdlib_module_names - IMPURE) | {"dask_otel"}
    assert [name for name in imports(module) if name.partition(".")[0] not in allowed] == []


@pytest.mark.parametrize("module", sorted(m for m in MODULES if layer(m) == "emission" and m != "config"))
def test_emission_knows_nothing_of_dask(module: str) -> None:
    assert [name for name in imports(module) if name.partition(".")[0] in ("dask", "distributed")] == []


def test_the_sdk_is_known_to_emission_and_export_only() -> None:
    sdk = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto")
    assert {m for m in MODULES if layer(m) != "emission" for name in imports(m) if name.startswith(sdk)} <= {
        "demo.root"  # The demo is an application of its own, with a provider of its own.
    }


def test_only_the_seam_wraps_or_reaches_into_distributed() -> None:
    public = ("distributed.diagnostics.plugin.", "distributed.metrics.context_meter")
    found = {
        f"{module}: {name}"
        for module in MODULES
        if layer(module) != "seam"
        for name in imports(module)
        if name.startswith("distributed.") and name.count(".") > 1 and not name.startswith(public)
    }
    assert found == set()


# -- the linter ---------------------------------------------------------------------------------------------------

needs_ruff = pytest.mark.skipif(
    importlib.util.find_spec("ruff") is None, reason="ruff is not installed: pip install '.[lint]'"
)


def lint(folder: Path, file: str, line: str) -> list[str]:
    """The codes of what ruff finds in a file of a copy of this project that holds this line."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    path = folder / file
    path.parent.mkdir(parents=True)
    path.write_text(f"{line}\n")
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--select",
        "TID",
        "--output-format",
        "concise",
        file,
    ]
    output = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout
    return [found.split()[1] for found in output.splitlines() if found.startswith(file)]


@needs_ruff
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("dask_otel/computations.py", "from distributed import Scheduler"),
        ("dask_otel/attempts.py", "import time"),
        ("dask_otel/rollup.py", "from opentelemetry.trace import Span"),
        ("dask_otel/parents.py", "from dask_otel import process"),
        ("dask_otel/tree.py", "from dask_otel.seam.worker import Run"),
        ("dask_otel/of_tomorrow.py", "import random"),
    ],
)
def test_the_linter_keeps_the_core_pure(tmp_path: Path, file: str, line: str) -> None:
    assert "TID251" in lint(tmp_path, file, line)


@needs_ruff
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("dask_otel/export/pipeline.py", "from distributed import Worker"),
        ("dask_otel/export/sinks.py", "from dask_otel.seam import Wraps"),
        ("dask_otel/process.py", "from dask_otel import worker"),
        ("dask_otel/current.py", "import dask"),
    ],
)
def test_the_linter_keeps_emission_from_dask(tmp_path: Path, file: str, line: str) -> None:
    assert lint(tmp_path, file, line) == ["TID253"]


@needs_ruff
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("dask_otel/seam/worker.py", "from dask_otel.computations import Activated"),
        ("dask_otel/scheduler.py", "from distributed import Scheduler"),
        ("dask_otel/export/sinks.py", "from opentelemetry.sdk.trace import ReadableSpan"),
        ("dask_otel/attempts.py", "from dask_otel.records import Span"),
    ],
)
def test_the_linter_lets_imports_go_down(tmp_path: Path, file: str, line: str) -> None:
    assert lint(tmp_path, file, line) == []
