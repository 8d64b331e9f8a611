"""What the event loop of a real scheduler does besides running handlers, seen from inside and as it is exported."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dask_otel
from dask_otel import instruments, names
from dask_otel.instruments import REST
from tests.cluster.metering import samples, totals
from tests.cluster.support import DEADLINE, Traced, wait_until

#: Makes a scheduler whose loop's time is told from the beginning.
PRELOAD = """
import time
from dask_otel.guard import Guard
from dask_otel.seam.loop_parts import LoopPartsSeam
from dask_otel.seam.scheduler_time import SchedulerTimeSeam

def dask_setup(scheduler):
    scheduler.times = SchedulerTimeSeam(scheduler, Guard("scheduler", strict=True))
    scheduler.parts = LoopPartsSeam(
        scheduler, Guard("scheduler", strict=True), lambda: scheduler.times.handler_time()["other"]
    )
    scheduler.began = time.perf_counter()
    scheduler.times.install()
    scheduler.parts.install()
    scheduler.late = time.perf_counter() - scheduler.began
"""
PARTS = {
    *(instruments.READ, instruments.WRITE, instruments.CONNECTION, instruments.TRANSITION),
    *(instruments.PERIODIC, instruments.TORNADO, instruments.ASYNCIO, instruments.REST),
}


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Client]:
    """A client of a scheduler in a process of its own, with two workers."""
    file = tmp_path / "scheduler.json"
    (tmp_path / "preload.py").write_text(PRELOAD)
    common = ("--scheduler-file", str(file), "--no-dashboard")
    started = [dask("scheduler", *common, "--port", "0", "--preload", str(tmp_path / "preload.py"))]
    try:
        wait_until(file.exists)
        started += [dask("worker", *common, "--no-nanny", "--nthreads", "1") for _ in range(2)]
        with Client(scheduler_file=str(file)) as client:
            client.wait_for_workers(2, DEADLINE)
            yield client
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait(DEADLINE)


def dask(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "dask", *command], stderr=subprocess.DEVNULL)


def looked_at(dask_scheduler: Any) -> tuple[float, float, dict[str, float], dict[str, float]]:
    """The least and the most that may have passed, seconds by operation, seconds of the parts of `other`."""
    before = time.perf_counter() - dask_scheduler.began - dask_scheduler.late
    handlers = dask_scheduler.times.handler_time()
    after = time.perf_counter() - dask_scheduler.began
    return before, after, handlers, dask_scheduler.parts.totals(handlers["other"])


def test_handlers_and_idle_and_other_are_all_of_a_busy_loops_time_and_nine_tenths_have_a_name(
    busy: Client,
) -> None:
    """Three times, since what is sampled is: the middle one counts."""
    named, earlier = [], {}
    for _ in range(3):
        busy.gather(busy.map(abs, range(1000), pure=False))
        before, after, handlers, parts = busy.run_on_scheduler(looked_at)
        assert before <= sum(handlers.values()) <= after
        assert parts.keys() <= PARTS
        assert sum(parts.values()) == pytest.approx(handlers["other"], rel=1e-9)
        assert {part for part in earlier if parts[part] < earlier[part]} == set()
        earlier = parts
        named.append(1 - parts.get(REST, 0.0) / sum(handlers.values()))
    assert sorted(named)[1] >= 0.85
    often = (instruments.READ, instruments.WRITE, instruments.TORNADO, instruments.ASYNCIO)
    assert min(parts.get(part, 0) for part in often) > 0


def test_the_parts_that_are_exported_add_up_to_other(traced: Traced) -> None:
    traced.client.gather(traced.client.map(abs, range(300)))
    assert dask_otel.flush(traced.client, DEADLINE)
    found = samples(traced.receiver)
    parts = totals(found, instruments.OTHER_SECONDS.name, instruments.LOOP_PART)
    other = totals(found, instruments.HANDLER_SECONDS.name, instruments.DASK_OP)[names.LOOP_OTHER,]
    assert {part for (part,) in parts} <= PARTS
    assert sum(parts.values()) == pytest.approx(other, rel=1e-9)
