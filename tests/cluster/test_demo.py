from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from click.testing import CliRunner

from dask_otel.cli import otel
from dask_otel.receiver import Receiver, Request, Response

#: A line of the tree, from its branches to what is marked at its end.
LINE = re.compile(r"(?P<indent>[│├└─ ]*)(?P<name>\S.*?)(?: ×\d+)?  +[\d.].*? (?:n|µ|m)?s\b.*?(?P<marks>  (?:✗|attempt).*)?$")

#: How often tasks move their inputs, and which of P2P's outputs run first on the worker that does not hold them,
#: is up to the scheduler.
CHANGING = re.compile(r"gather-dep|.*rescheduled")

Outline = dict[str, Any]


def demo(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "DASK_OTEL__"))}
    return subprocess.run(
        [sys.executable, "-m", "dask", "otel", "demo", *arguments],
        env=environment | {"COLUMNS": "100", "PYTHONUTF8": "1"} | environ,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def assert_quiet(stderr: str) -> None:
    """Nothing but progress."""
    assert [line for line in stderr.splitlines() if not re.fullmatch(r"\d/7 .*: \d+\.\d s", line)] == []
    assert len(stderr.splitlines()) == 7


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--endpoint", "localhost:4318"],
            "--endpoint is 'localhost:4318', which is not an http:// or https:// URL; "
            "try --endpoint http://localhost:4318",
        ),
        (
            ["--endpoint", "http://localhost:4318/v1/traces"],
            "--endpoint is 'http://localhost:4318/v1/traces', which is one signal's URL; "
            "try --endpoint http://localhost:4318, to which /v1/traces is added",
        ),
        (
            ["--endpoint", "http://localhost:http"],
            "--endpoint is 'http://localhost:http', which is not a URL "
            "(Port could not be cast to integer value as 'http'); try --endpoint http://localhost:4318",
        ),
        (
            ["--protocol", "grpc"],
            "--protocol says how to send, and nothing says where to; add --endpoint http://localhost:4318",
        ),
    ],
)
def test_a_mistake_is_told_in_one_sentence_with_exit_code_2(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(otel, ["demo", *arguments])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"Error: {says}\n")


def test_a_disabled_sdk_is_told_before_anything_is_started() -> None:
    runner = CliRunner(env={"OTEL_SDK_DISABLED": "true"})
    result = runner.invoke(otel, ["demo", "--endpoint", "http://localhost:4318"])
    assert result.exit_code == 2
    assert result.stderr == "Error: OTEL_SDK_DISABLED is true in the environment, so nothing would be sent; unset it\n"


def test_help_says_what_there_is() -> None:
    assert "demo  Run some real work" in CliRunner().invoke(otel, ["--help"]).stdout
    assert "dask otel demo --endpoint http://localhost:4318" in CliRunner().invoke(otel, ["demo", "--help"]).stdout
