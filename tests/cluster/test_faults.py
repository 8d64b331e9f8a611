"""A fault of ours costs no computation: `injected_faults`, in a process of its own.

What it breaks and looks at is of the whole process, in which other tests may have left workers or clients that end late.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("injected_faults.py")


@pytest.mark.timeout(900)
def test_a_fault_in_any_function_of_ours_costs_no_computation() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FILE)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=FILE.parents[2],
    )
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-2_000:]
