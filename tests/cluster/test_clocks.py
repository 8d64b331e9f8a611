"""Workers whose clocks are far from the scheduler's: the tree is whole, no length is negative, the difference is told."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from textwrap import dedent

import dask
import pytest
from distributed import Client
from distributed.metrics import context_meter

import dask_otel
from dask_otel import names
from dask_otel.instruments import (
    COMPUTE_SECONDS,
    TASK_ATTEMPTS,
    THREAD_SECONDS,
    WASTE_REASON,
    WASTED_SECONDS,
)
from dask_otel.receiver import Receiver
from dask_otel.tree import outline
from tests.cluster.commands import PRELOAD, ROOT, commands
from tests.cluster.metering import samples, totals
from tests.cluster.support import Once, Traced, attributes, named, tasks, wait_until
from tests.cluster.test_failures import Gate, facts, held, one, seconds

#: Seconds by which the clocks of the workers are off, by the workers' names.
SHIFTS = {"ahead": 100.0, "behind": -100.0}
#: Python imports it before anything else; nothing else is known to look at the clock by another way.
SHIFTED = """\
    import os, time

    _time, _time_ns, _shift = time.time, time.time_ns, float(os.environ["SHIFT"])
    time.time = lambda: _time() + _shift
    time.time_ns = lambda: _time_ns() + int(_shift * 10**9)
"""


def metered(x: int) -> int:
    with context_meter.meter("mine"):
        return x + 1


@pytest.fixture(autouse=True)
def python_path(clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Where Python finds what shifts its clock."""
    folder = tmp_path / "shifted"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(dedent(SHIFTED))
    return f"{folder}{os.pathsep}{ROOT}"


def work(client: Client, ahead: str, behind: str, folder: Path) -> None:
    """Metered, moved between workers, failed and retried, below one span."""
    with dask.annotate(workers=[ahead]):
        made = dask.delayed(metered)(1, dask_key_name="metered-1")
    with dask.annotate(workers=[behind], retries=1):
        moved = dask.delayed(Once(folder))(made, dask_key_name="once-1")
    assert client.compute(moved, sync=True, optimize_graph=False) == 2


WHOLE = """\
dask.compute
  dask.computation
    dask.graph.update
      dask.graph.init
      dask.graph.materialize
      dask.graph.order
    gather-dep
      get-data
    metered group
      metered
        executor
          compute
            mine
    once group
      once [attempt 2]
        executor
          compute
      once [failed]
        executor
          compute"""

AFTER_A_LOSS = """\
dask.computation
  dask.graph.update
    dask.graph.init
    dask.graph.materialize
    dask.graph.order
  held group
    held [attempt 2]
      executor
        compute
    held [lost]"""


def test_clocks_that_are_100_s_apart_make_no_length_negative_and_leave_the_tree_whole(
    receiver: Receiver, tmp_path: Path, python_path: str
) -> None:
    """Scenario 29: one worker ahead of the scheduler, one behind; the one ahead is killed."""
    began = time.time()
    gate = Gate(tmp_path / "gate")
    with commands(tmp_path) as started:
        started.scheduler(*PRELOAD)
        for name, shift in SHIFTS.items():
            started.worker(*PRELOAD, "--no-nanny", "--name", name, PYTHONPATH=python_path, SHIFT=str(shift))
        with started.client(2) as client:
            dask_otel.enable(client)
            traced = Traced(client, None, receiver)
            workers = client.scheduler_info()["workers"]
            of = {info["name"]: address for address, info in workers.items()}
            shifts = {of[name]: shift for name, shift in SHIFTS.items()}
            clocks = client.run(time.time)
            assert clocks[of["ahead"]] - clocks[of["behind"]] == pytest.approx(200, abs=10)
            work(client, of["ahead"], of["behind"], tmp_path)

            lost = client.submit(held, 1, gate, workers=[of["ahead"]], allow_other_workers=True, key="held-1")
            gate.wait_for_tasks()
            wait_until(lambda: client.run_on_scheduler(runs, of["ahead"], "held-1"))
            assert dask_otel.flush(client)
            os.kill(client.run(os.getpid, workers=[of["ahead"]])[of["ahead"]], signal.SIGKILL)
            gate.open()
            assert lost.result() == 1
            first, second = traced.traces().values()
            took = time.time() - began
            attempts = totals(samples(receiver), TASK_ATTEMPTS.name, names.TASK_PREFIX, names.OUTCOME)
            wasted = totals(samples(receiver), WASTED_SECONDS.name, names.TASK_PREFIX, WASTE_REASON)

    first, second = sorted((first, second), key=lambda trace: not named(trace, names.COMPUTE))
    assert outline(first) == WHOLE
    assert outline(second) == AFTER_A_LOSS
    gone, again = sorted(tasks(second, "held"), key=lambda r: attributes(r)[names.ATTEMPT])
    assert facts(gone)[names.OUTCOME] == names.LOST
    assert facts(again) == {names.ATTEMPT: 2, names.OUTCOME: names.SUCCESS}
    for received in (*first, *second):
        assert 0 <= seconds(received) < took
        shift = shifts.get(received.resource.get(names.WORKER_ADDRESS), 0.0)
        assert began + shift - 1 < received.span.start / 1e9 < began + shift + took
        told = attributes(received).get(names.CLOCK_OFFSET, 0.0)
        assert told == pytest.approx(shift, abs=1)

    assert attempts == {
        ("metered", names.SUCCESS): 1,
        ("once", names.FAILED): 1,
        ("once", names.SUCCESS): 1,
        ("held", names.LOST): 1,
        ("held", names.SUCCESS): 1,
    }
    (failed,) = [r for r in tasks(first, "once") if facts(r)[names.OUTCOME] == names.FAILED]
    assert wasted == pytest.approx(
        {("once", "failed"): seconds(failed), ("held", "lost"): seconds(gone)}, abs=1e-5
    )
    measured = [one for one in samples(receiver) if one.name in (COMPUTE_SECONDS.name, THREAD_SECONDS.name)]
    assert {one.name for one in measured} == {COMPUTE_SECONDS.name, THREAD_SECONDS.name}
    assert all(0 <= one.value < took and one.start <= one.time for one in measured)
    assert one(second, names.COMPUTATION).span.status == 0


def runs(address: str, key: str, dask_scheduler: object = None) -> bool:
    """Whether a worker's heartbeat said that it runs a task."""
    state = dask_scheduler.workers[address]  # type: ignore[attr-defined]
    return key in [ts.key for ts in state.executing]
