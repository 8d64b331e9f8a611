"""The reference page says what `names` says, and `names` what is sent."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import dask_otel
from dask_otel import names

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_page_is_what_the_generator_gives() -> None:
    generator = runpy.run_path(str(DOCS / "generate.py"))
    assert (DOCS / "reference" / "telemetry.md").read_text() == generator["page"](), (
        "run: python docs/generate.py"
    )


def test_the_page_about_endpoints_is_what_the_generator_gives() -> None:
    generator = runpy.run_path(str(DOCS / "generate.py"))
    assert (DOCS / "reference" / "prometheus.md").read_text() == generator["endpoints_page"](), (
        "run: python docs/generate.py"
    )


def test_every_attribute_is_on_the_page() -> None:
    text = (DOCS / "reference" / "telemetry.md").read_text().replace("\\|", "|")
    assert [a.key for a in names.ATTRIBUTES if f"| `{a.key}` |" not in text] == []


def test_no_attribute_is_declared_twice_and_none_is_a_namespace_of_another() -> None:
    keys = [attribute.key for attribute in names.ATTRIBUTES]
    assert sorted(keys) == sorted(set(keys))
    assert [(a, b) for a in keys for b in keys if b.startswith(f"{a}.")] == []


def test_names_are_lower_case_and_dotted() -> None:
    form = re.compile(r"[a-z]+(\.[a-z_]+)+(\.<[a-z0-9|]+>)*")
    assert [a.key for a in names.ATTRIBUTES if not form.fullmatch(a.key)] == []


@pytest.mark.parametrize("file", sorted(Path(dask_otel.__file__).parent.rglob("*.py")), ids=lambda f: f.stem)
def test_names_are_spelled_in_one_module(file: Path) -> None:
    """A key of ours in quotes elsewhere is a name that the reference does not know, or one said twice."""
    if file.name in ("names.py", "instruments.py"):
        return
    ours = re.compile(r"""["'](dask\.(?!config|distributed|array|dataframe|utils)[a-z_]+[a-z_.]*)["']""")
    code = "".join(line for line in _without_docstrings(file))
    assert ours.findall(code) == []


def _without_docstrings(file: Path) -> list[str]:
    return re.split(r'""".*?"""', file.read_text(), flags=re.DOTALL)
