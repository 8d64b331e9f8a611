"""What fails, is lost, is retried or cancelled: each attempt is told, once, as what it was."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any, NoReturn

import dask
import pytest
from distributed import Client, Future, KilledWorker, Reschedule, Scheduler, Worker, secede, wait
from distributed.diagnostics.plugin import SchedulerPlugin

import dask_otel
from dask_otel import endings, names
from dask_otel.instruments import COMPUTE_SECONDS
from dask_otel.receiver import Receiver
from dask_otel.records import ERROR, UNSET
from dask_otel.tree import Received, outline
from tests.cluster.commands import PRELOAD, commands
from tests.cluster.conftest import MakeTraced
from tests.cluster.metering import assert_all_is_told_and_counted, samples
from tests.cluster.metering import totals as metric_totals
from tests.cluster.support import (
    Once,
    Traced,
    attributes,
    named,
    tasks,
    wait_for,
    wait_until,
    without_transfers,
)

# -- tasks ---------------------------------------------------------------------------------------------------------


def inc(x: int) -> int:
    return x + 1


def fail(x: object = None) -> NoReturn:
    raise ValueError("boom")


def held(x: Any, gate: Gate) -> Any:
    """Go on when the test opens the gate."""
    gate.pass_through()
    return x


async def fail_later(x: object = None) -> NoReturn:
    raise ValueError("boom")


class Gate:
    """Where tasks wait until a test lets them go on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def pass_through(self) -> None:
        """In a task: say that it has begun, wait."""
        (self.folder / f"{os.getpid()}-{time.time_ns()}").touch()
        wait_for(self.folder / "open")

    def wait_for_tasks(self, n: int = 1) -> None:
        """In a test: block until so many tasks have come."""
        wait_until(lambda: len(list(self.folder.glob("*-*"))) >= n)

    def open(self) -> None:
        (self.folder / "open").touch()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.open()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine makes no worker late: totals are whole or the test fails."""
    monkeypatch.setattr(endings, "PATIENCE", 20.0)


# -- what tests ask ------------------------------------------------------------------------------------------------


def one(spans: list[Received], name: str) -> Received:
    """The only span of a name."""
    (found,) = named(spans, name)
    return found


def facts(received: Received) -> dict[str, object]:
    """What an attempt says of how it went."""
    told = attributes(received)
    return {
        key: told[key] for key in (names.ATTEMPT, names.OUTCOME, names.ERROR_TYPE, names.CAUSE) if key in told
    }


def totals(received: Received) -> dict[str, object]:
    """What a group or a computation says of its tasks; times left out."""
    starts = ("dask.group.", "dask.computation.outcomes.", "dask.computation.tasks", "dask.computation.state")
    return {key: value for key, value in attributes(received).items() if key.startswith(starts)}


def seconds(received: Received) -> float:
    return (received.span.end - received.span.start) / 1e9


def wasted(trace: list[Received]) -> float:
    """Seconds of attempts that were for nothing, as their spans have it."""
    return sum(
        seconds(r)
        for r in trace
        if attributes(r).get(names.OPERATION) == names.OP_TASK
        and (attributes(r)[names.OUTCOME] != names.SUCCESS or names.CAUSE in attributes(r))
    )


def links(received: Received) -> list[tuple[bytes, bytes]]:
    return [(link.trace_id, link.span_id) for link in received.span.links]


def itself(received: Received) -> tuple[bytes, bytes]:
    """What a link to a span holds."""
    return received.span.trace_id, received.span.span_id


def compute_seconds(traced: Traced) -> dict[tuple[str, ...], float]:
    """How long tasks have held a slot by prefix, those that run included, as workers have told up to now."""
    assert dask_otel.flush(traced.client)
    return metric_totals(samples(traced.receiver), COMPUTE_SECONDS.name, names.TASK_PREFIX)


def exceptions(received: Received) -> list[tuple[object, object]]:
    """Types and messages of the exceptions on a span."""
    told = [dict(e.attributes) for e in received.span.events if e.name == names.EXCEPTION_EVENT]
    return [(event[names.EXCEPTION_TYPE], event[names.EXCEPTION_MESSAGE]) for event in told]


def computed(traced: Traced) -> list[list[Received]]:
    """The traces that have a computation, oldest first."""
    return [trace for trace in traced.traces().values() if named(trace, names.COMPUTATION)]


def outlined(spans: list[Received]) -> str:
    """The structure below the computation, without transfers and the phases of graph updates."""
    kept = [r for r in without_transfers(spans) if attributes(r)[names.OPERATION] != names.OP_GRAPH]
    return outline(kept) + "\n"


def without_activities(spans: list[Received]) -> str:
    """The same, without what happened inside tasks."""
    return outlined([r for r in spans if attributes(r)[names.OPERATION] != names.OP_ACTIVITY])


# -- clusters ------------------------------------------------------------------------------------------------------


def addresses(traced: Traced) -> list[str]:
    return sorted(traced.client.scheduler_info(n_workers=-1)["workers"])


def incs(traced: Traced, n: int, **kwargs: Any) -> list[Future]:
    """So many tasks, which are one computation with what is submitted beside them."""
    return [traced.client.submit(inc, i, **kwargs) for i in range(n)]


def stop_stealing(traced: Traced) -> None:
    """What was sent to a worker runs there."""

    async def stop(dask_scheduler: Any) -> None:
        await dask_scheduler.extensions["stealing"].stop()

    traced.client.run_on_scheduler(stop)


def overhear_what_runs(dask_scheduler: Any) -> None:
    """Heartbeats come and do not say which tasks run."""
    heartbeat = dask_scheduler.handlers["heartbeat_worker"]

    def heartbeat_worker(executing: object = None, **message: Any) -> Any:
        return heartbeat(executing={}, **message)

    dask_scheduler.handlers["heartbeat_worker"] = heartbeat_worker


def kill(traced: Traced, address: str) -> None:
    """SIGKILL a worker and wait until the scheduler knows."""
    pid = traced.client.run(os.getpid, workers=[address])[address]
    os.kill(pid, signal.SIGKILL)
    scheduler = traced.cluster.scheduler  # type: ignore[union-attr]
    wait_until(lambda: address not in scheduler.workers)


def wait_for_heartbeat(traced: Traced, address: str, key: object) -> None:
    """Block until a worker's heartbeat said that it runs a task."""
    scheduler = traced.cluster.scheduler  # type: ignore[union-attr]
    wait_until(lambda: key in [ts.key for ts in scheduler.workers[address].executing])


#: Tasks are sent to workers at once.
NO_QUEUE = {"distributed.scheduler.worker-saturation": float("inf")}


def state(traced: Traced, key: str) -> str | None:
    """In which state a task is on the worker that has it."""

    def states(dask_worker: Any) -> str | None:
        task = dask_worker.state.tasks.get(key)
        return task.state if task is not None else None

    found = [state for state in traced.client.run(states).values() if state is not None]
    return found[0] if found else None


# -- lost workers --------------------------------------------------------------------------------------------------


def test_a_killed_worker_leaves_a_lost_attempt_and_the_results_it_had_are_recomputed(
    traced: Traced, gate: Gate
) -> None:
    """Scenario 1."""
    victim = addresses(traced)[0]
    total = dask.delayed(held)(dask.delayed(inc)(1), gate)
    future = traced.client.compute(total, workers=[victim], allow_other_workers=True, optimize_graph=False)
    gate.wait_for_tasks()
    wait_for_heartbeat(traced, victim, future.key)
    wait_until(lambda: named(traced.spans(), "inc group"))
    counted = compute_seconds(traced)["held",]
    kill(traced, victim)
    gate.open()
    assert future.result() == 2

    trace = traced.trace()
    # Of the time that the worker had told, nothing is taken back when it is gone; of its last moments nobody knows.
    lost, again = tasks(trace, "held")
    assert 0 < counted <= seconds(lost) + 0.5
    assert compute_seconds(traced)["held",] >= counted + seconds(again) - 0.5
    assert outlined(trace) == dedent("""\
        dask.compute
          dask.computation
            held group
              held [attempt 2]
                executor
                  compute
              held [lost]
            inc group
              inc
                executor
                  compute
            inc group
              inc [attempt 2]
                executor
                  compute
        """)
    lost, again = tasks(trace, "held")
    assert facts(lost) == {names.ATTEMPT: 1, names.OUTCOME: names.LOST, names.ERROR_TYPE: names.WORKER_LOST}
    assert attributes(lost)[names.WORKER_ADDRESS] == victim
    assert names.STARTED not in attributes(lost)
    assert (lost.span.status, lost.span.message) == (ERROR, f"worker {victim} was lost")
    assert facts(again) == {names.ATTEMPT: 2, names.OUTCOME: names.SUCCESS}
    assert (links(lost), links(again)) == ([], [itself(lost)])

    first, second = tasks(trace, "inc")
    assert attributes(first)[names.WORKER_ADDRESS] == victim
    assert facts(second) == {names.ATTEMPT: 2, names.OUTCOME: names.SUCCESS, names.CAUSE: names.RECOMPUTED}
    assert links(second) == [itself(first)]

    computation = one(trace, names.COMPUTATION)
    assert totals(computation) == {
        names.COMPUTATION_STATE: names.FINISHED,
        names.COMPUTATION_TASKS: 2,
        names.COMPUTATION_OUTCOMES + names.LOST: 1,
        names.COMPUTATION_OUTCOMES + names.SUCCESS: 3,
    }
    assert computation.span.status == UNSET
    assert attributes(computation)[names.WASTED_TIME] == pytest.approx(wasted(trace), abs=1e-5)
    assert totals(one(trace, "held group")) == {
        names.GROUP_OUTCOMES + names.LOST: 1,
        names.GROUP_OUTCOMES + names.SUCCESS: 1,
    }
    assert_all_is_told_and_counted(traced)


def test_where_no_heartbeat_said_that_a_task_ran_the_first_in_the_queue_is_assumed_to_have(
    traced_cluster_of: MakeTraced, gate: Gate
) -> None:
    """Scenarios 1 and 2: what stood in the queue of the lost worker did not run."""
    with dask.config.set(NO_QUEUE), traced_cluster_of(n_workers=1) as traced:
        traced.client.run_on_scheduler(overhear_what_runs)
        (victim,) = addresses(traced)
        running = traced.client.submit(held, 1, gate, priority=10)
        queued = incs(traced, 3)
        gate.wait_for_tasks()
        kill(traced, victim)
        gate.open()
        assert traced.client.gather([running, *queued]) == [1, 1, 2, 3]

        trace = traced.trace()
        lost, again = tasks(trace, "held")
        assert facts(lost) == {
            names.ATTEMPT: 1,
            names.OUTCOME: names.LOST,
            names.ERROR_TYPE: names.WORKER_LOST,
        }
        assert attributes(lost)[names.STARTED] == names.ASSUMED
        assert facts(again) == {names.ATTEMPT: 2, names.OUTCOME: names.SUCCESS}
        assert [facts(r) for r in tasks(trace, "inc")] == [
            {names.ATTEMPT: 1, names.OUTCOME: names.SUCCESS}
        ] * 3
        assert totals(one(trace, "inc group")) == {names.GROUP_OUTCOMES + names.SUCCESS: 3}
        assert_all_is_told_and_counted(traced)


def test_a_task_that_kills_its_workers_fails_with_killed_worker_and_its_queue_did_not_run(
    traced_cluster_of: MakeTraced,
) -> None:
    """Scenario 2."""
    with (
        dask.config.set({**NO_QUEUE, "distributed.scheduler.allowed-failures": 1}),
        traced_cluster_of(n_workers=1) as traced,
    ):
        deadly = traced.client.submit(sys.exit, 1, key="deadly-1", priority=10)
        bystander = traced.client.submit(inc, 1)
        for future in (deadly, bystander):
            # Dask suspects whatever was at the worker.
            with pytest.raises(KilledWorker):
                future.result()

        trace = traced.trace()
        assert outlined(trace) == dedent("""\
            dask.computation [error]
              deadly group
                deadly [lost, attempt 2]
                deadly [lost]
              inc group
            """)
        first, second = tasks(trace, "deadly")
        assert facts(first) == {
            names.ATTEMPT: 1,
            names.OUTCOME: names.LOST,
            names.ERROR_TYPE: names.WORKER_LOST,
        }
        assert facts(second) == {
            names.ATTEMPT: 2,
            names.OUTCOME: names.LOST,
            names.ERROR_TYPE: names.KILLED_WORKER,
        }
        assert (first.span.status, second.span.status) == (ERROR, ERROR)
        assert links(second) == [itself(first)]
        assert totals(one(trace, "deadly group")) == {names.GROUP_OUTCOMES + names.LOST: 2}
        assert totals(one(trace, "inc group")) == {}
        computation = one(trace, names.COMPUTATION)
        assert totals(computation) == {
            names.COMPUTATION_STATE: names.FAILED,
            names.COMPUTATION_TASKS: 2,
            names.COMPUTATION_OUTCOMES + names.LOST: 2,
        }
        assert computation.span.message == "2 of 2 tasks failed"
        assert attributes(computation)[names.WASTED_TIME] == pytest.approx(wasted(trace), abs=1e-5)
        assert_all_is_told_and_counted(traced)


def grow_beyond_the_limit_once(folder: Path, gate: Gate) -> int:
    """Take more memory than there is and keep it, but not the second time."""
    gate.pass_through()
    try:
        (folder / "grown").touch(exist_ok=False)
    except FileExistsError:
        return 1
    taken = [b"x" * 10**6 for _ in range(600)]
    wait_for(folder / "never")
    return len(taken)


@pytest.mark.parametrize("allowed", [0, 3])
def test_an_attempt_whose_worker_was_ended_at_its_memory_limit_says_so(
    traced_cluster_of: MakeTraced, gate: Gate, tmp_path: Path, allowed: int
) -> None:
    """Scenario 3."""
    config = {
        "distributed.scheduler.allowed-failures": allowed,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.spill": False,
    }
    with dask.config.set(config), traced_cluster_of(n_workers=1, memory_limit="500 MB") as traced:
        (victim,) = addresses(traced)
        future = traced.client.submit(grow_beyond_the_limit_once, tmp_path, gate, key="grown-1")
        gate.wait_for_tasks()
        wait_for_heartbeat(traced, victim, future.key)
        gate.open()
        wait(future)
        assert future.status == ("finished" if allowed else "error")

        trace = traced.trace()
        lost, *again = tasks(trace, "grown")
        assert facts(lost) == {
            names.ATTEMPT: 1,
            names.OUTCOME: names.LOST,
            names.ERROR_TYPE: names.OVER_MEMORY_LIMIT,
        }
        assert attributes(lost)[names.WORKER_ADDRESS] == victim
        assert (lost.span.status, lost.span.message) == (
            ERROR,
            f"worker {victim} exceeded its memory limit",
        )
        assert [(facts(r), links(r)) for r in again] == [
            ({names.ATTEMPT: 2, names.OUTCOME: names.SUCCESS}, [itself(lost)])
        ] * bool(allowed)
        computation = one(trace, names.COMPUTATION)
        assert totals(computation) == {
            names.COMPUTATION_STATE: names.FINISHED if allowed else names.FAILED,
            names.COMPUTATION_TASKS: 1,
            names.COMPUTATION_OUTCOMES + names.LOST: 1,
            **({names.COMPUTATION_OUTCOMES + names.SUCCESS: 1} if allowed else {}),
        }
        assert attributes(computation)[names.WASTED_TIME] == pytest.approx(wasted(trace), abs=1e-5)
        assert_all_is_told_and_counted(traced)


def test_results_on_an_idle_worker_that_is_killed_are_recomputed_in_one_computation_linked_to_theirs(
    traced: Traced,
) -> None:
    """Scenario 1, for results whose computations are settled; another with the same group came after them."""
    stop_stealing(traced)
    victim = addresses(traced)[0]
    there = {"workers": [victim], "allow_other_workers": True}
    futures = incs(traced, 3, **there)
    wait(futures)
    wait_until(lambda: named(traced.spans(), names.COMPUTATION))
    other = traced.client.submit(inc, 7, **there)
    assert other.result() == 8
    wait_until(lambda: len(named(traced.spans(), names.COMPUTATION)) == 2)
    del other
    scheduler = traced.cluster.scheduler  # type: ignore[union-attr]
    wait_until(lambda: len(scheduler.tasks) == 3)
    kill(traced, victim)
    assert traced.client.gather(futures) == [1, 2, 3]

    old, _, new = traces = computed(traced)
    assert outlined(new) == dedent("""\
        dask.computation
          inc group
            inc [attempt 2] ×3
              executor
                compute
        """)
    first = {attributes(r)[names.TASK_KEY]: itself(r) for r in tasks(old, "inc")}
    for again in tasks(new, "inc"):
        assert facts(again) == {names.ATTEMPT: 2, names.OUTCOME: names.SUCCESS, names.CAUSE: names.RECOMPUTED}
        assert links(again) == [first[attributes(again)[names.TASK_KEY]]]
    computation = one(new, names.COMPUTATION)
    assert links(computation) == [itself(one(old, names.COMPUTATION))]
    assert attributes(computation)[names.CLIENT_ID] == traced.client.id
    assert attributes(computation)[names.WASTED_TIME] == pytest.approx(wasted(new), abs=1e-5)
    assert [totals(one(t, names.COMPUTATION)) for t in traces] == [
        {
            names.COMPUTATION_STATE: names.FINISHED,
            names.COMPUTATION_TASKS: n,
            names.COMPUTATION_OUTCOMES + names.SUCCESS: n,
        }
        for n in (3, 1, 3)
    ]
    assert_all_is_told_and_counted(traced)


def test_a_lost_result_is_recomputed_in_its_own_computation_while_that_goes_on(
    traced: Traced, gate: Gate
) -> None:
    """Scenario 1, for a result that nothing running needs."""
    stop_stealing(traced)
    victim, other = addresses(traced)
    there = {"workers": [victim], "allow_other_workers": True}
    running = traced.client.submit(held, 1, gate, workers=[other])
    results = incs(traced, 2, **there)
    wait(results)
    wait_until(lambda: named(traced.spans(), "inc group"))
    kill(traced, victim)
    gate.open()
    assert traced.client.gather(results) == [1, 2]
    assert running.result() == 1

    trace = traced.trace()
    assert [facts(r) for r in tasks(trace, "inc")] == [
        *[{names.ATTEMPT: 1, names.OUTCOME: names.SUCCESS}] * 2,
        *[{names.ATTEMPT: 2, names.OUTCOME: names.SUCCESS, names.CAUSE: names.RECOMPUTED}] * 2,
    ]
    assert totals(one(trace, names.COMPUTATION)) == {
        names.COMPUTATION_STATE: names.FINISHED,
        names.COMPUTATION_TASKS: 3,
        names.COMPUTATION_OUTCOMES + names.SUCCESS: 5,
    }
    assert_all_is_told_and_counted(traced)


def double(x: int) -> int:
    return 2 * x


def test_what_a_lost_result_was_made_from_is_computed_again_with_it(traced_cluster_of: MakeTraced) -> None:
    """Scenario 1: the input had been released, since nobody needed it."""
    with traced_cluster_of(n_workers=1) as traced:
        total = dask.delayed(inc)(dask.delayed(double)(1))
        future = traced.client.compute(total, optimize_graph=False)
        assert future.result() == 3
        wait_until(lambda: named(traced.spans(), names.COMPUTATION))
        kill(traced, addresses(traced)[0])
        assert future.result() == 3

        old, new = computed(traced)
        assert outlined(new) == dedent("""\
            dask.computation
              double group
                double [attempt 2]
                  executor
                    compute
              inc group
                inc [attempt 2]
                  executor
                    compute
            """)
        for name in ("double", "inc"):
            (first,), (second,) = tasks(old, name), tasks(new, name)
            assert facts(second)[names.CAUSE] == names.RECOMPUTED
            assert links(second) == [itself(first)]
        computation = one(new, names.COMPUTATION)
        assert totals(computation)[names.COMPUTATION_TASKS] == 2
        assert links(computation) == [itself(one(old, names.COMPUTATION))]
        assert attributes(computation)[names.WASTED_TIME] == pytest.approx(wasted(new), abs=1e-5)
        assert_all_is_told_and_counted(traced)


def seceded(x: Any, gate: Gate) -> Any:
    """Wait without a slot."""
    secede()
    gate.pass_through()
    return x


def test_a_task_that_has_seceded_is_lost_beside_the_one_in_its_slot(
    traced_cluster_of: MakeTraced, gate: Gate
) -> None:
    """Scenario 1: more tasks run than there are threads."""
    with dask.config.set(NO_QUEUE), traced_cluster_of(n_workers=1) as traced:
        (victim,) = addresses(traced)
        first = traced.client.submit(seceded, 1, gate)
        gate.wait_for_tasks()
        second = traced.client.submit(held, 2, gate)
        gate.wait_for_tasks(2)
        queued = incs(traced, 2)
        for future in (first, second):
            wait_for_heartbeat(traced, victim, future.key)
        kill(traced, victim)
        gate.open()
        assert traced.client.gather([first, second, *queued]) == [1, 2, 1, 2]

        trace = traced.trace()
        for prefix in ("seceded", "held"):
            lost, again = tasks(trace, prefix)
            assert facts(lost)[names.OUTCOME] == names.LOST
            assert names.STARTED not in attributes(lost)
            assert facts(again) == {names.ATTEMPT: 2, names.OUTCOME: names.SUCCESS}
        assert [facts(r) for r in tasks(trace, "inc")] == [
            {names.ATTEMPT: 1, names.OUTCOME: names.SUCCESS}
        ] * 2
        assert_all_is_told_and_counted(traced)


def test_a_worker_that_is_killed_while_it_has_nothing_leaves_no_trace(traced: Traced) -> None:
    """Nothing ran, nothing is told."""
    kill(traced, addresses(traced)[0])
    assert traced.spans() == []
    assert traced.client.submit(inc, 1).result() == 2
    assert totals(one(traced.trace(), names.COMPUTATION)) == {
        names.COMPUTATION_STATE: names.FINISHED,
        names.COMPUTATION_TASKS: 1,
        names.COMPUTATION_OUTCOMES + names.SUCCESS: 1,
    }
    assert_all_is_told_and_counted(traced)


def fail_then_wait(folder: Path, gate: Gate) -> int:
    """Fail at first, then wait at the gate."""
    Once(folder)(0)
    gate.pass_through()
    return 1


def test_attempts_that_fail_and_attempts_that_are_lost_are_one_chain(
    traced: Traced, gate: Gate, tmp_path: Path
) -> None:
    """Scenarios 1 and 4 together."""
    future = traced.client.submit(fail_then_wait, tmp_path, gate, retries=1, key="unlucky-1")
    gate.wait_for_tasks()
    scheduler = traced.cluster.scheduler  # type: ignore[union-attr]
    victim = scheduler.tasks[future.key].processing_on.address
    wait_for_heartbeat(traced, victim, future.key)
    assert dask_otel.flush(traced.client)
    kill(traced, victim)
    gate.open()
    assert future.result() == 1

    trace = traced.trace()
    first, second, third = tasks(trace, "unlucky")
    assert [facts(r) for r in (first, second, third)] == [
        {names.ATTEMPT: 1, names.OUTCOME: names.FAILED, names.ERROR_TYPE: "ValueError"},
        {names.ATTEMPT: 2, names.OUTCOME: names.LOST, names.ERROR_TYPE: names.WORKER_LOST},
        {names.ATTEMPT: 3, names.OUTCOME: names.SUCCESS},
    ]
    assert [links(r) for r in (first, second, third)] == [[], [itself(first)], [itself(second)]]
    assert totals(one(trace, names.COMPUTATION)) == {
        names.COMPUTATION_STATE: names.FINISHED,
        names.COMPUTATION_TASKS: 1,
        names.COMPUTATION_OUTCOMES + names.FAILED: 1,
        names.COMPUTATION_OUTCOMES + names.LOST: 1,
        names.COMPUTATION_OUTCOMES + names.SUCCESS: 1,
    }
    assert attributes(one(trace, names.COMPUTATION))[names.WASTED_TIME] == pytest.approx(
        wasted(trace), abs=1e-5
    )
    assert_all_is_told_and_counted(traced)


# -- retries -------------------------------------------------------------------------------------------------------


def test_a_task_that_fails_once_and_then_succeeds_has_two_attempts(shared: Traced, tmp_path: Path) -> None:
    """Scenario 4."""
    assert shared.client.submit(Once(tmp_path), 7, retries=2).result() == 7

    trace = shared.trace()
    assert outlined(trace) == dedent("""\
        dask.computation
          once group
            once [attempt 2]
              executor
                compute
            once [failed]
              executor
                compute
        """)
    first, second = tasks(trace, "once")
    assert facts(first) == {names.ATTEMPT: 1, names.OUTCOME: names.FAILED, names.ERROR_TYPE: "ValueError"}
    assert (first.span.status, first.span.message) == (ERROR, "boom")
    assert exceptions(first) == [("ValueError", "boom")]
    assert facts(second) == {names.ATTEMPT: 2, names.OUTCOME: names.SUCCESS}
    assert (second.span.status, exceptions(second)) == (UNSET, [])
    assert (links(first), links(second)) == ([], [itself(first)])
    assert totals(one(trace, "once group")) == {
        names.GROUP_OUTCOMES + names.FAILED: 1,
        names.GROUP_OUTCOMES + names.SUCCESS: 1,
    }
    computation = one(trace, names.COMPUTATION)
    assert totals(computation) == {
        names.COMPUTATION_STATE: names.FINISHED,
        names.COMPUTATION_TASKS: 1,
        names.COMPUTATION_OUTCOMES + names.FAILED: 1,
        names.COMPUTATION_OUTCOMES + names.SUCCESS: 1,
    }
    assert computation.span.status == UNSET
    assert attributes(computation)[names.WASTED_TIME] == pytest.approx(seconds(first), abs=1e-5)
    assert_all_is_told_and_counted(shared)


def test_a_task_that_uses_up_its_retries_fails_with_its_last_attempt(shared: Traced) -> None:
    """Scenario 4, to its end."""
    with pytest.raises(ValueError, match="boom"):
        shared.client.submit(fail, retries=2, pure=False).result()

    trace = shared.trace()
    first, second, third = tasks(trace, "fail")
    assert [facts(r) for r in (first, second, third)] == [
        {names.ATTEMPT: n, names.OUTCOME: names.FAILED, names.ERROR_TYPE: "ValueError"} for n in (1, 2, 3)
    ]
    assert [links(r) for r in (first, second, third)] == [[], [itself(first)], [itself(second)]]
    computation = one(trace, names.COMPUTATION)
    assert totals(computation) == {
        names.COMPUTATION_STATE: names.FAILED,
        names.COMPUTATION_TASKS: 1,
        names.COMPUTATION_OUTCOMES + names.FAILED: 3,
    }
    assert (computation.span.status, computation.span.message) == (ERROR, "1 of 1 tasks failed")
    assert attributes(computation)[names.WASTED_TIME] == pytest.approx(wasted(trace), abs=1e-5)
    assert_all_is_told_and_counted(shared)


def test_a_rescheduled_attempt_is_no_error(shared: Traced, tmp_path: Path) -> None:
    """Scenario 5."""
    assert shared.client.submit(Once(tmp_path, error=Reschedule), 7).result() == 7

    trace = shared.trace()
    assert outlined(trace) == dedent("""\
        dask.computation
          once group
            once [attempt 2]
              executor
                compute
            once [rescheduled]
              executor
                compute
        """)
    first, second = tasks(trace, "once")
    assert facts(first) == {names.ATTEMPT: 1, names.OUTCOME: names.RESCHEDULED}
    assert (first.span.status, exceptions(first)) == (UNSET, [])
    assert facts(second) == {names.ATTEMPT: 2, names.OUTCOME: names.SUCCESS}
    assert links(second) == [itself(first)]
    computation = one(trace, names.COMPUTATION)
    assert totals(computation) == {
        names.COMPUTATION_STATE: names.FINISHED,
        names.COMPUTATION_TASKS: 1,
        names.COMPUTATION_OUTCOMES + names.RESCHEDULED: 1,
        names.COMPUTATION_OUTCOMES + names.SUCCESS: 1,
    }
    assert_all_is_told_and_counted(shared)


def wait_then_fail_once(gate: Gate, folder: Path) -> int:
    """Wait at the gate, then fail unless this is the second time."""
    gate.pass_through()
    return int(Once(folder)(1))


def test_a_retry_that_the_client_asks_for_is_a_new_computation_linked_to_the_one_that_failed(
    shared: Traced, gate: Gate, tmp_path: Path
) -> None:
    """The dependents that never ran come along."""
    failing = shared.client.submit(wait_then_fail_once, gate, tmp_path, key="once-1")
    dependents = [shared.client.submit(inc, failing, key=key) for key in ("inc-1", "inc-2")]
    scheduler = shared.cluster.scheduler  # type: ignore[union-attr]
    wait_until(lambda: "inc-2" in scheduler.tasks)
    gate.open()
    wait([failing, *dependents])
    wait_until(lambda: named(shared.spans(), names.COMPUTATION))
    shared.client.retry(dependents)
    assert shared.client.gather(dependents) == [2, 2]

    old, new = computed(shared)
    assert outlined(old) == dedent("""\
        dask.computation [error]
          inc group
          once group
            once [failed]
              executor
                compute
        """)
    assert outlined(new) == dedent("""\
        dask.computation
          inc group
            inc ×2
              executor
                compute
          once group
            once [attempt 2]
              executor
                compute
        """)
    (first,), (second,) = tasks(old, "once"), tasks(new, "once")
    assert links(second) == [itself(first)]
    assert links(one(new, names.COMPUTATION)) == [itself(one(old, names.COMPUTATION))]
    assert totals(one(old, names.COMPUTATION)) == {
        names.COMPUTATION_STATE: names.FAILED,
        names.COMPUTATION_TASKS: 3,
        names.COMPUTATION_OUTCOMES + names.FAILED: 1,
    }
    assert totals(one(new, names.COMPUTATION)) == {
        names.COMPUTATION_STATE: names.FINISHED,
        names.COMPUTATION_TASKS: 3,
        names.COMPUTATION_OUTCOMES + names.SUCCESS: 3,
    }
    assert attributes(one(new, names.COMPUTATION))[names.CLIENT_ID] == shared.client.id
    assert_all_is_told_and_counted(shared)


# -- errors --------------------------------------------------------------------------------------------------------


def test_what_depends_on_a_task_that_failed_has_no_task_span_and_its_group_says_so(shared: Traced) -> None:
    """Scenario 6."""
    failing = dask.delayed(fail)()
    above = [dask.delayed(inc)(failing) for _ in range(3)]
    with pytest.raises(ValueError, match="boom"):
        dask.delayed(sum)(above).compute()

    trace = shared.trace()
    assert outlined(trace) == dedent("""\
        dask.compute [error]
          dask.computation [error]
            fail group
              fail [failed]
                executor
                  compute
            inc group
            sum group
        """)
    assert exceptions(one(trace, names.COMPUTE)) == [("ValueError", "boom")]
    assert facts(one(trace, "fail")) == {
        names.ATTEMPT: 1,
        names.OUTCOME: names.FAILED,
        names.ERROR_TYPE: "ValueError",
    }
    assert totals(one(trace, "fail group")) == {names.GROUP_OUTCOMES + names.FAILED: 1}
    assert totals(one(trace, "inc group")) == {names.GROUP_UPSTREAM_FAILED: 3}
    assert totals(one(trace, "sum group")) == {names.GROUP_UPSTREAM_FAILED: 1}
    computation = one(trace, names.COMPUTATION)
    assert totals(computation) == {
        names.COMPUTATION_STATE: names.FAILED,
        names.COMPUTATION_TASKS: 5,
        names.COMPUTATION_OUTCOMES + names.FAILED: 1,
    }
    assert computation.span.message == "5 of 5 tasks failed"
    assert_all_is_told_and_counted(shared)


def test_what_is_submitted_on_top_of_a_task_that_has_failed_is_a_computation_that_fails_at_once(
    shared: Traced,
) -> None:
    """Scenario 6, one submission after the other."""
    failing = shared.client.submit(fail, pure=False)
    wait(failing)
    wait_until(lambda: named(shared.spans(), names.COMPUTATION))
    above = shared.client.submit(inc, failing)
    beyond = shared.client.submit(inc, above)
    wait([above, beyond])
    assert above.status == "error"

    _, *late = computed(shared)  # One or two, as the second finds the first settled or not.
    assert [t for trace in late for t in tasks(trace, "inc")] == []
    groups = [totals(group) for trace in late for group in named(trace, "inc group")]
    assert sum(group[names.GROUP_UPSTREAM_FAILED] for group in groups) == 2  # type: ignore[misc]
    for trace in late:
        computation = one(trace, names.COMPUTATION)
        assert totals(computation)[names.COMPUTATION_STATE] == names.FAILED
        assert computation.span.status == ERROR
    assert_all_is_told_and_counted(shared)


def test_what_only_a_failed_task_needed_is_cancelled_while_it_runs(shared: Traced, gate: Gate) -> None:
    """Scenario 6: nobody wants the other input any more."""
    slow = dask.delayed(held)(1, gate)
    future = shared.client.compute(dask.delayed(max)(slow, dask.delayed(held_then_fails)(gate)))
    gate.wait_for_tasks(2)
    (gate.folder / "fail").touch()
    with pytest.raises(ValueError, match="boom"):
        future.result()
    gate.open()

    wait_until(lambda: tasks(shared.spans(), "held"))
    trace = shared.trace()
    assert facts(one(trace, "held")) == {names.ATTEMPT: 1, names.OUTCOME: names.CANCELLED}
    assert totals(one(trace, "max group")) == {names.GROUP_UPSTREAM_FAILED: 1}
    assert totals(one(trace, names.COMPUTATION))[names.COMPUTATION_STATE] == names.FAILED
    assert_all_is_told_and_counted(shared)


def held_then_fails(gate: Gate) -> NoReturn:
    (gate.folder / f"{os.getpid()}-{time.time_ns()}").touch()
    wait_for(gate.folder / "fail")
    raise ValueError("boom")


def test_an_async_task_that_fails_says_so(shared: Traced) -> None:
    """Scenario 6, on the event loop."""
    with pytest.raises(ValueError, match="boom"):
        shared.client.submit(fail_later, pure=False).result()

    trace = shared.trace()
    (attempt,) = tasks(trace, "fail_later")
    assert facts(attempt) == {names.ATTEMPT: 1, names.OUTCOME: names.FAILED, names.ERROR_TYPE: "ValueError"}
    assert exceptions(attempt) == [("ValueError", "boom")]
    assert names.THREAD_ID not in attributes(attempt)
    assert totals(one(trace, "fail_later group")) == {names.GROUP_OUTCOMES + names.FAILED: 1}
    assert_all_is_told_and_counted(shared)


def test_a_task_that_cannot_begin_fails(shared: Traced) -> None:
    """An executor that the worker does not have."""
    with dask.annotate(executor="nowhere"):
        future = shared.client.submit(inc, 1, pure=False)
    with pytest.raises(ValueError, match="Invalid executor"):
        future.result()

    trace = shared.trace()
    (attempt,) = tasks(trace, "inc")
    assert facts(attempt) == {names.ATTEMPT: 1, names.OUTCOME: names.FAILED, names.ERROR_TYPE: "ValueError"}
    assert totals(one(trace, "inc group")) == {names.GROUP_OUTCOMES + names.FAILED: 1}
    assert totals(one(trace, names.COMPUTATION)) == {
        names.COMPUTATION_STATE: names.FAILED,
        names.COMPUTATION_TASKS: 1,
        names.COMPUTATION_OUTCOMES + names.FAILED: 1,
    }
    assert_all_is_told_and_counted(shared)


class Unprintable(Exception):
    """Says nothing."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unrepresentable(Exception):
    """Cannot even be shown to programmers."""

    def __repr__(self) -> str:
        raise RuntimeError("no representation")


class Unpicklable(Exception):
    """Cannot leave its process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("not to be pickled")


class Mine(BaseException):
    """Not even an Exception."""


def throw(cls: type[BaseException]) -> NoReturn:
    raise cls("boom")


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Unprintable, "<str() of it raised RuntimeError>"),
        (Unrepresentable, "boom"),
        (Unpicklable, "boom"),
        (Mine, "boom"),
    ],
)
def test_an_exception_that_defies_everything_has_its_class_told(
    shared: Traced, cls: type[BaseException], message: str
) -> None:
    """Scenario 7."""
    future = shared.client.submit(throw, cls, pure=False)
    wait(future)
    assert future.status == "error"

    trace = shared.trace()
    (attempt,) = tasks(trace, "throw")
    name = f"{cls.__module__}.{cls.__qualname__}"
    assert facts(attempt) == {names.ATTEMPT: 1, names.OUTCOME: names.FAILED, names.ERROR_TYPE: name}
    assert exceptions(attempt) == [(name, message)]
    assert (attempt.span.status, attempt.span.message) == (ERROR, message)
    assert totals(one(trace, "throw group")) == {names.GROUP_OUTCOMES + names.FAILED: 1}
    assert shared.client.submit(inc, 1, pure=False).result() == 2
    assert_all_is_told_and_counted(shared)


class Watched(Exception):
    """Leaves word of the processes in which it is unpickled."""

    def __init__(self, folder: Path) -> None:
        super().__init__("boom")
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickle, (self.folder,)


def unpickle(folder: Path) -> Watched:
    (folder / str(os.getpid())).touch()
    return Watched(folder)


def throw_watched(folder: Path) -> NoReturn:
    raise Watched(folder)


def test_no_exception_is_unpickled_on_the_scheduler(receiver: Receiver, tmp_path: Path) -> None:
    """Scenario 7, with a scheduler in a process of its own."""
    seen = tmp_path / "seen"
    seen.mkdir()
    with commands(tmp_path) as started:
        scheduler, worker = started.scheduler(*PRELOAD), started.worker("--no-nanny", *PRELOAD)
        with started.client(workers=1) as client:
            dask_otel.enable(client)
            traced = Traced(client, None, receiver)
            with pytest.raises(Watched, match="boom"):
                client.submit(throw_watched, seen).result()
            unprintable = client.submit(throw, Unprintable)
            wait(unprintable)

            assert {path.name for path in seen.iterdir()} == {str(worker.process.pid), str(os.getpid())}
            errors = [attributes(r).get(names.ERROR_TYPE) for r in named(traced.spans(), "throw_watched")]
            assert errors == [f"{__name__}.Watched"]
            errors = [attributes(r).get(names.ERROR_TYPE) for r in named(traced.spans(), "throw")]
            assert errors == [f"{__name__}.Unprintable"]
            assert (scheduler.said(), worker.said()) == ([], [])
            assert_all_is_told_and_counted(traced)


class Unspillable:
    """A large result that cannot be written to disk."""

    def __sizeof__(self) -> int:
        return 2 * 10**9

    def __reduce__(self) -> NoReturn:
        raise TypeError("not to be pickled")


def test_a_result_that_cannot_be_stored_makes_its_attempt_fail(traced_cluster_of: MakeTraced) -> None:
    """The function returned, the task failed."""
    with traced_cluster_of(n_workers=1, memory_limit="2 GB") as traced:
        future = traced.client.submit(Unspillable)
        wait(future)
        assert future.status == "error"

        trace = traced.trace()
        (attempt,) = tasks(trace, "Unspillable")
        assert facts(attempt) == {
            names.ATTEMPT: 1,
            names.OUTCOME: names.FAILED,
            names.ERROR_TYPE: "distributed.spill.PickleError",
        }
        assert attempt.span.status == ERROR
        assert exceptions(attempt) == [("distributed.spill.PickleError", attempt.span.message)]
        assert attempt.span.message == f"Failed to pickle {future.key!r}"
        assert names.RESULT_SIZE not in attributes(attempt)
        assert totals(one(trace, "Unspillable group")) == {names.GROUP_OUTCOMES + names.FAILED: 1}
        assert totals(one(trace, names.COMPUTATION))[names.COMPUTATION_STATE] == names.FAILED
        assert_all_is_told_and_counted(traced)


# -- cancelled -----------------------------------------------------------------------------------------------------


async def held_on_the_loop(x: Any, gate: Gate) -> Any:
    """The same, asynchronously."""
    await asyncio.to_thread(gate.pass_through)
    return x


@pytest.mark.parametrize("function", [held, held_on_the_loop])
def test_a_cancelled_task_that_runs_has_a_span_of_its_true_length(
    shared: Traced, gate: Gate, function: Any
) -> None:
    """Scenario 8."""
    future = shared.client.submit(function, 1, gate, key="held-1")
    gate.wait_for_tasks()
    begun = time.time()
    future.cancel()
    wait_until(lambda: state(shared, future.key) == "cancelled")
    opened = time.time()
    gate.open()

    wait_until(lambda: tasks(shared.spans(), "held"))
    trace = shared.trace()
    attempt = one(trace, "held")
    assert facts(attempt) == {names.ATTEMPT: 1, names.OUTCOME: names.CANCELLED}
    assert attempt.span.status == UNSET
    assert attempt.span.start / 1e9 <= begun
    assert attempt.span.end / 1e9 >= opened
    assert (names.THREAD_ID in attributes(attempt)) == (function is held)
    assert names.RESULT_SIZE not in attributes(attempt)
    assert totals(one(trace, "held group")) == {names.GROUP_OUTCOMES + names.CANCELLED: 1}
    computation = one(trace, names.COMPUTATION)
    assert totals(computation) == {
        names.COMPUTATION_STATE: names.CANCELLED,
        names.COMPUTATION_TASKS: 1,
        names.COMPUTATION_OUTCOMES + names.CANCELLED: 1,
    }
    assert computation.span.status == UNSET
    assert attributes(computation)[names.WASTED_TIME] == pytest.approx(seconds(attempt), abs=1e-5)
    assert_all_is_told_and_counted(shared)


def test_a_cancelled_task_that_goes_on_for_long_is_counted_before_it_ends(
    shared: Traced, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 8: the computation does not wait for it, and says what it does not know."""
    monkeypatch.setattr(endings, "PATIENCE", 0.5)
    future = shared.client.submit(held, 1, gate)
    gate.wait_for_tasks()
    future.cancel()
    wait_until(lambda: named(shared.spans(), names.COMPUTATION))
    trace = shared.trace()
    assert outlined(trace) == dedent("""\
        dask.computation
          held group
        """)
    assert totals(one(trace, "held group")) == {
        names.GROUP_OUTCOMES + names.CANCELLED: 1,
        names.GROUP_INCOMPLETE: True,
    }
    assert totals(one(trace, names.COMPUTATION)) == {
        names.COMPUTATION_STATE: names.CANCELLED,
        names.COMPUTATION_TASKS: 1,
        names.COMPUTATION_OUTCOMES + names.CANCELLED: 1,
    }
    gate.open()
    wait_until(lambda: tasks(shared.spans(), "held"))
    assert outlined(shared.trace()) == dedent("""\
        dask.computation
          held group
            held [cancelled]
              executor
                compute
        """)
    assert_all_is_told_and_counted(shared)


def test_tasks_that_are_cancelled_before_they_start_have_no_task_span(
    traced_cluster_of: MakeTraced, gate: Gate
) -> None:
    """Whether they stand in a worker's queue or in the scheduler's."""
    with traced_cluster_of(n_workers=1) as traced:
        (address,) = addresses(traced)
        running = traced.client.submit(held, 1, gate)
        gate.wait_for_tasks()
        at_worker = traced.client.map(inc, range(5), workers=[address])
        at_scheduler = traced.client.map(pow, range(50), [2] * 50)
        traced.client.cancel([*at_worker, *at_scheduler])
        wait_until(lambda: not any(state(traced, future.key) for future in at_worker))
        gate.open()
        assert running.result() == 1

        spans = [
            r for t in traced.traces().values() for r in t if attributes(r)[names.OPERATION] == names.OP_TASK
        ]
        assert [(r.span.name, facts(r)) for r in spans] == [
            ("held", {names.ATTEMPT: 1, names.OUTCOME: names.SUCCESS})
        ]
        everything = traced.spans()
        assert totals(one(everything, "inc group")) == {}
        assert totals(one(everything, "pow group")) == {}
        states = [totals(r)[names.COMPUTATION_STATE] for r in named(everything, names.COMPUTATION)]
        assert states == [names.FINISHED, names.CANCELLED, names.CANCELLED]
        assert_all_is_told_and_counted(traced)


def test_a_future_that_is_dropped_while_its_task_runs_is_a_cancelled_task(shared: Traced, gate: Gate) -> None:
    """Scenario 8, by garbage collection."""
    future = shared.client.submit(held, 1, gate)
    gate.wait_for_tasks()
    key = future.key
    del future
    wait_until(lambda: state(shared, key) == "cancelled")
    gate.open()
    wait_until(lambda: tasks(shared.spans(), "held"))
    trace = shared.trace()
    assert facts(one(trace, "held")) == {names.ATTEMPT: 1, names.OUTCOME: names.CANCELLED}
    assert totals(one(trace, "held group")) == {names.GROUP_OUTCOMES + names.CANCELLED: 1}
    assert_all_is_told_and_counted(shared)


def test_a_cancelled_task_whose_exception_nobody_gets_is_no_error(shared: Traced, gate: Gate) -> None:
    """Scenario 8: what it raises after that is its own affair."""
    future = shared.client.submit(held_then_fails, gate)
    gate.wait_for_tasks()
    future.cancel()
    wait_until(lambda: state(shared, future.key) == "cancelled")
    (gate.folder / "fail").touch()
    wait_until(lambda: tasks(shared.spans(), "held_then_fails"))
    trace = shared.trace()
    attempt = one(trace, "held_then_fails")
    assert facts(attempt) == {names.ATTEMPT: 1, names.OUTCOME: names.CANCELLED}
    assert attempt.span.status == UNSET
    assert totals(one(trace, names.COMPUTATION))[names.COMPUTATION_STATE] == names.CANCELLED
    assert_all_is_told_and_counted(shared)


@pytest.mark.parametrize("function", [held, held_then_fails])
def test_a_run_that_was_cancelled_and_submitted_again_is_discarded(
    shared: Traced, gate: Gate, function: Any
) -> None:
    """The new future gets a run of its own, though the old one went on."""
    args = (1, gate) if function is held else (gate,)
    worker = addresses(shared)[0]
    old = shared.client.submit(function, *args, key="again-1", workers=[worker])
    gate.wait_for_tasks()
    old.cancel()
    shared.client.submit(
        inc, 1, pure=False
    ).result()  # The scheduler's word that it is cancelled comes before this.
    new = shared.client.submit(function, *args, key="again-1", workers=[worker])
    wait_until(lambda: state(shared, "again-1") == "executing")
    gate.open()
    (gate.folder / "fail").touch()
    wait(new)
    assert new.status == ("finished" if function is held else "error")

    attempts = tasks(shared.spans(), "again")
    outcome = (
        {names.OUTCOME: names.SUCCESS}
        if function is held
        else {names.OUTCOME: names.FAILED, names.ERROR_TYPE: "ValueError"}
    )
    assert [facts(r) for r in attempts] == [
        {names.ATTEMPT: 1, names.OUTCOME: names.DISCARDED},
        {names.ATTEMPT: 1, **outcome},
    ]
    assert attempts[0].span.status == UNSET
    first, second = [t for t in computed(shared) if named(t, "again group")]
    assert totals(one(first, "again group")) == {names.GROUP_OUTCOMES + names.DISCARDED: 1}
    assert totals(one(second, "again group")) == {names.GROUP_OUTCOMES + outcome[names.OUTCOME]: 1}
    states = [attributes(one(t, names.COMPUTATION))[names.COMPUTATION_STATE] for t in (first, second)]
    assert states == [names.CANCELLED, names.FINISHED if function is held else names.FAILED]
    assert_all_is_told_and_counted(shared)


# -- retired -------------------------------------------------------------------------------------------------------


def test_an_attempt_whose_worker_retires_is_rescheduled_and_no_error_and_the_worker_s_last_values_arrive(
    traced: Traced, gate: Gate
) -> None:
    """Scenario 21."""
    busy, other = addresses(traced)
    ids = traced.client.run(lambda dask_worker: dask_worker.id)
    future = traced.client.submit(held, 1, gate, workers=[busy], allow_other_workers=True)
    gate.wait_for_tasks()
    begun = time.time()
    wait_for_heartbeat(traced, busy, future.key)
    retiring = time.time()
    traced.client.retire_workers([busy])

    def compute_seconds() -> dict[str, float]:
        """What the retired worker has told, by prefix."""
        found = [
            s for s in samples(traced.receiver) if s.instance == ids[busy] and s.name == COMPUTE_SECONDS.name
        ]
        return {dict(s.attributes)[names.TASK_PREFIX]: s.value for s in found}

    # Its last, when it has closed: else it might tell of an end that nobody waits for.
    wait_until(lambda: compute_seconds().get("held", 0) >= retiring - begun)
    assert set(compute_seconds()) == {"held"}
    gate.open()
    assert future.result() == 1

    trace = traced.trace()
    first, second = tasks(trace, "held")
    assert facts(first) == {names.ATTEMPT: 1, names.OUTCOME: names.RESCHEDULED}
    assert (first.span.status, first.span.message, exceptions(first)) == (UNSET, "", [])
    assert attributes(first)[names.WORKER_ADDRESS] == busy
    assert facts(second) == {names.ATTEMPT: 2, names.OUTCOME: names.SUCCESS}
    assert attributes(second)[names.WORKER_ADDRESS] == other
    assert links(second) == [itself(first)]
    computation = one(trace, names.COMPUTATION)
    assert totals(computation) == {
        names.COMPUTATION_STATE: names.FINISHED,
        names.COMPUTATION_TASKS: 1,
        names.COMPUTATION_OUTCOMES + names.RESCHEDULED: 1,
        names.COMPUTATION_OUTCOMES + names.SUCCESS: 1,
    }
    assert attributes(computation)[names.WASTED_TIME] == pytest.approx(wasted(trace), abs=1e-5)
    assert_all_is_told_and_counted(traced)


# -- restarted -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [held, held_on_the_loop])
def test_a_restart_ends_what_is_open_and_says_so_and_a_computation_after_it_works_as_ever(
    traced: Traced, gate: Gate, function: Any
) -> None:
    """Scenario 20: its attempts are cancelled by the client, whichever comes first, their end or their worker's."""
    running = [traced.client.submit(function, n, gate, key=f"held-{n}") for n in range(2)]
    gate.wait_for_tasks(2)
    queued = incs(traced, 4)
    scheduler = traced.cluster.scheduler  # type: ignore[union-attr]
    wait_until(lambda: len(scheduler.tasks) == 6)
    begun = time.time()
    traced.client.restart()
    ended = time.time()
    assert {future.status for future in (*running, *queued)} == {"cancelled"}
    assert traced.client.submit(inc, 1).result() == 2

    restarted, after = computed(traced)
    assert without_activities(restarted) == dedent("""\
        dask.computation
          held group
            held [cancelled] ×2
          inc group
        """)
    for attempt in tasks(restarted, "held"):
        assert facts(attempt) == {names.ATTEMPT: 1, names.OUTCOME: names.CANCELLED}
        assert attempt.span.status == UNSET
        assert attempt.span.start / 1e9 <= begun <= attempt.span.end / 1e9 <= ended
    assert totals(one(restarted, "held group")) == {names.GROUP_OUTCOMES + names.CANCELLED: 2}
    assert totals(one(restarted, "inc group")) == {}
    computation = one(restarted, names.COMPUTATION)
    assert totals(computation) == {
        names.COMPUTATION_STATE: names.RESTARTED,
        names.COMPUTATION_TASKS: 6,
        names.COMPUTATION_OUTCOMES + names.CANCELLED: 2,
    }
    assert computation.span.status == UNSET
    assert attributes(computation)[names.WASTED_TIME] == pytest.approx(wasted(restarted), abs=1e-5)
    assert outlined(after) == dedent("""\
        dask.computation
          inc group
            inc
              executor
                compute
        """)
    assert totals(one(after, names.COMPUTATION)) == {
        names.COMPUTATION_STATE: names.FINISHED,
        names.COMPUTATION_TASKS: 1,
        names.COMPUTATION_OUTCOMES + names.SUCCESS: 1,
    }
    assert_all_is_told_and_counted(traced)


# -- stolen --------------------------------------------------------------------------------------------------------


def test_a_task_that_is_stolen_before_it_starts_is_no_attempt(traced: Traced, gate: Gate) -> None:
    """Whoever ran it tells it, once."""
    victim, thief = addresses(traced)
    there = {"workers": [victim], "allow_other_workers": True}
    running = traced.client.submit(held, 1, gate, workers=[victim])
    gate.wait_for_tasks()
    stolen = incs(traced, 4, **there)
    assert traced.client.gather(stolen) == [1, 2, 3, 4]
    gate.open()
    assert running.result() == 1

    trace = traced.trace()
    attempts = tasks(trace, "inc")
    assert [facts(r) for r in attempts] == [{names.ATTEMPT: 1, names.OUTCOME: names.SUCCESS}] * 4
    assert {attributes(r)[names.WORKER_ADDRESS] for r in attempts} == {thief}
    assert [links(r) for r in attempts] == [[]] * 4
    assert totals(one(trace, "inc group")) == {names.GROUP_OUTCOMES + names.SUCCESS: 4}
    assert totals(one(trace, names.COMPUTATION)) == {
        names.COMPUTATION_STATE: names.FINISHED,
        names.COMPUTATION_TASKS: 5,
        names.COMPUTATION_OUTCOMES + names.SUCCESS: 5,
    }
    assert_all_is_told_and_counted(traced)


class ReleaseAtOnce(SchedulerPlugin):
    """Has tasks that were just sent to a worker sent again, some times, as P2P does when it starts anew."""

    name = "release-at-once"

    def __init__(self, scheduler: Scheduler, times: int) -> None:
        self._scheduler = scheduler
        self._times = times

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "processing" and self._times:
            self._times -= 1
            asyncio.get_running_loop().call_soon(
                self._scheduler.transitions, {key: "released"}, f"again-{self._times}"
            )


def hold_messages(worker: Worker, operations: tuple[str, ...], number: int) -> None:
    """The scheduler's messages are handled when so many have come, all in one go."""
    held: list[Callable[[], object]] = []

    def hold(original: Callable[..., object]) -> Callable[..., None]:
        def handler(**message: Any) -> None:
            held.append(partial(original, **message))
            if len(held) == number:
                for handle in held:
                    handle()

        return handler

    for operation in operations:
        worker.stream_handlers[operation] = hold(worker.stream_handlers[operation])


def test_a_task_that_is_sent_again_before_it_began_leaves_nothing_to_wait_for(receiver: Receiver) -> None:
    """Its worker has it in the state executing, though none of its code has run, and is told all in one message."""

    async def run() -> None:
        async with (
            Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler,
            Worker(scheduler.address, nthreads=1, dashboard=False) as worker,
            Client(scheduler.address, asynchronous=True) as client,
        ):
            await dask_otel.enable(client)
            hold_messages(worker, ("compute-task", "free-keys"), number=7)
            scheduler.add_plugin(ReleaseAtOnce(scheduler, times=3))
            assert await client.submit(inc, 1, key="inc-1") == 2
            assert await dask_otel.flush(client)
            await dask_otel.disable(client)

    asyncio.run(run())
    spans = receiver.spans()
    assert [facts(r) for r in tasks(spans, "inc")] == [{names.ATTEMPT: 1, names.OUTCOME: names.SUCCESS}]
    assert totals(one(spans, "inc group")) == {names.GROUP_OUTCOMES + names.SUCCESS: 1}
