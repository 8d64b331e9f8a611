"""What a process of servers keeps for good, forgotten after each test: here all tests share one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dask_otel.attempts import ACTIVITY_NAMES, TASK_NAMES
from dask_otel.distributions import Distributions
from dask_otel.summary import TAG_NAMES


@pytest.fixture(autouse=True)
def forget_what_the_process_keeps() -> Iterator[None]:
    yield
    for vocabulary in (ACTIVITY_NAMES, TAG_NAMES, TASK_NAMES):
        vocabulary._known.clear()
    Distributions.recent = 0
