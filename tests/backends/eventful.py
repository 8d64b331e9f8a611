"""A workload in which everything happens that a dashboard shows: tasks fail, workers die, data moves and is spilled."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from distributed import Client, Semaphore, secede, wait
from distributed.metrics import context_meter
from opentelemetry import trace

#: The prefix of the tasks to which everything happens.
PREFIX = "step"
MEMORY_LIMIT = "1 GiB"
#: Results above 2 % of the limit go to disk.
CONFIG = {
    "distributed.worker.memory.target": 0.02,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.scheduler.work-stealing-interval": "50ms",
}
#: A caller's span that its sampler has left out.
NOT_SAMPLED = trace.NonRecordingSpan(
    trace.SpanContext(1, 1, is_remote=False, trace_flags=trace.TraceFlags(0))
)
_RESULT = 4_000_000  # bytes


def load(x: int) -> bytes:
    return os.urandom(_RESULT)


def step(a: bytes, b: bytes, x: int, folder: str) -> bytes:
    with context_meter.meter("parse"):
        context_meter.digest_metric("parse", 3, "rows")
    if x == 0 and _first(folder, "failed"):
        raise ConnectionError("refused")
    if x == 1 and _first(folder, "died"):
        # Its heartbeat has to tell that it runs.
        time.sleep(1.5)
        os._exit(1)
    if x == 2:
        secede()
        time.sleep(0.2)
    return a[: _RESULT // 2] + b[: _RESULT // 2]


def limited(x: int, leases: Semaphore) -> int:
    with leases:
        time.sleep(0.05)
    return x


def stolen(x: int) -> int:
    time.sleep(0.1)
    return x


def unseen(x: int) -> int:
    return x


def given_up(folder: str) -> None:
    _first(folder, "given-up")
    time.sleep(0.5)


def nowhere() -> None:
    """Asks for what no worker has."""


def run(client: Client, folder: Path) -> list[object]:
    """Do it all; what is returned has to be kept, so that its results stay in memory."""
    first, second = sorted(client.scheduler_info(n_workers=-1)["workers"])
    # Each step has one input here and one there, so that data moves.
    loaded = [
        client.submit(
            load, x, key=f"load-{x}", workers=[first if x < 6 else second], allow_other_workers=True
        )
        for x in range(12)
    ]
    wait(loaded)
    steps = client.map(
        step,
        loaded,
        [*loaded[6:], *loaded[:6]],
        range(12),
        folder=str(folder),
        key=[f"{PREFIX}-{x}" for x in range(12)],
        retries=2,
    )
    wait(steps)
    leases = Semaphore(max_leases=1, name="narrow")
    wait(client.map(limited, range(6), leases=leases))
    wait(client.map(stolen, range(30), workers=[second], allow_other_workers=True))
    with trace.use_span(NOT_SAMPLED):
        wait(client.submit(unseen, 1))
    cancelled = client.submit(given_up, str(folder))
    _until((folder / "given-up").exists)
    cancelled.cancel()
    waiting = client.submit(nowhere, resources={"GPU": 1})
    return [loaded, steps, leases, waiting]


def _first(folder: str, name: str) -> bool:
    with suppress(FileExistsError):
        (Path(folder) / name).touch(exist_ok=False)
        return True
    return False


def _until(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
