"""From a key's arrival to its last trace: what runs, what does not, what waits, what leaves its slot."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from textwrap import indent
from typing import Any

import dask
import pytest
from distributed import (
    Client,
    Worker,
    fire_and_forget,
    get_client,
    get_worker,
    rejoin,
    secede,
    wait,
    worker_client,
)

import dask_otel
from dask_otel import names
from dask_otel.tree import Received, outline
from tests.cluster.commands import until
from tests.cluster.support import DEADLINE, Traced, attributes, named, tasks, wait_for, without_transfers

UPDATE = "dask.graph.update\n  dask.graph.init\n  dask.graph.materialize\n  dask.graph.order\n"


def inc(x: int) -> int:
    return x + 1


def add(*xs: int) -> int:
    return sum(xs)


def start_and_wait(folder: Path) -> int:
    (folder / "started").touch()
    wait_for(folder / "end")
    return 1


def state_of(key: str, dask_worker: Worker) -> str:
    """What a worker's state machine says of a task."""
    return str(getattr(dask_worker.state.tasks.get(key), "state", "unknown"))


def leave_and_return() -> tuple[float, float]:
    """Gives two moments between which the worker learned that the task had left its slot."""
    state, before = get_worker().state, time.time()
    secede()
    until(lambda: state.long_running)
    after = time.time()
    rejoin()
    return before, after


def inc_later(x: int, folder: Path) -> int:
    wait_for(folder / "end")
    return x + 1


def submit_three(client: Client, folder: Path) -> int:
    inner = [client.submit(inc_later, i, folder, key=f"inc-{i}") for i in range(3)]
    return client.submit(add, *inner, key="total-1").result()  # type: ignore[no-any-return]


def with_worker_client(folder: Path) -> int:
    with worker_client() as client:
        return submit_three(client, folder)


def with_get_client(folder: Path) -> int:
    client = get_client()
    secede()
    result = submit_three(client, folder)
    rejoin()
    return result


async def meet(x: int, folder: Path) -> int:
    """Wait until two are here."""
    (folder / str(x)).touch()
    deadline = time.monotonic() + DEADLINE
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)
    return x


def below(x: int) -> Any:
    return dask.delayed(add)(dask.delayed(inc)(x, dask_key_name=f"inc-{x}"), 1, dask_key_name=f"add-{x}")


def compute_inside(x: int) -> int:
    return below(x).compute()  # type: ignore[no-any-return]


async def compute_inside_async(x: int) -> int:
    return await get_client().compute(below(x))  # type: ignore[no-any-return]


def ran(name: str, *inside: str) -> str:
    """The outline of a group of one task that ran in a thread."""
    return f"{name} group\n  {name}\n" + "".join(
        indent(part, "    ") for part in (*inside, "executor\n  compute\n")
    )


def computation(*inside: str) -> str:
    """The outline of a computation, what is inside sorted."""
    return "dask.computation\n" + "".join(indent(part, "  ") for part in sorted(inside))


def structure(spans: list[Received]) -> list[Received]:
    """The spans that do not depend on where Dask has put the data."""
    return [
        r for r in without_transfers(spans) if r.span.name not in ("deserialize", "decompress", names.GATHER)
    ]


def outlines(traced: Traced) -> list[str]:
    """The outline of each trace."""
    found = [outline(structure(spans)) for spans in traced.traces().values()]
    return sorted(f"{text}\n" for text in found if text)


def offset(received: Received) -> dict[str, Any]:
    """The clock's offset, which is there when it is large enough."""
    return {key: value for key, value in attributes(received).items() if key == names.CLOCK_OFFSET}


def computations(spans: list[Received]) -> list[Received]:
    return named(spans, names.COMPUTATION)


def until_forgotten(traced: Traced, *keys: str) -> None:
    """Wait until the scheduler knows the tasks no more."""
    assert traced.cluster is not None
    scheduler = traced.cluster.scheduler
    until(lambda: not set(keys) & scheduler.tasks.keys())


def until_told(traced: Traced, n: int) -> list[Received]:
    """All spans, once those of ``n`` computations are there.

    A client that has a key's result does not wait until the graph that it sends for it has arrived.
    """
    traced.receiver.wait(lambda spans: len(computations(spans[traced.forgotten :])) >= n, DEADLINE)
    return traced.spans()


# -- 9, 10: keys that are there already ------------------------------------------------------------------------------


def test_a_key_that_is_in_memory_makes_a_computation_without_tasks_that_settles_at_once(
    shared: Traced,
) -> None:
    """9, also from a second client."""
    future = shared.client.submit(inc, 1, key="inc-1")
    assert future.result() == 2
    shared.spans()
    with Client(shared.client.scheduler.address, set_as_default=False) as other:
        dask_otel.enable(other)
        assert other.submit(inc, 1, key="inc-1").result() == 2
        assert dask.delayed(inc)(1, dask_key_name="inc-1").compute() == 2
        spans = until_told(shared, 3)
    assert outlines(shared) == [
        computation(UPDATE),
        computation(UPDATE, ran("inc")),
        "dask.compute\n" + indent(computation(UPDATE), "  "),
    ]
    first, *again = computations(spans)
    assert attributes(first)[names.COMPUTATION_TASKS] == 1
    updates = {received.span.parent_id: received for received in named(spans, names.GRAPH_UPDATE)}
    for received in again:
        found = attributes(received)
        assert found[names.COMPUTATION_TASKS] == 0
        assert found[names.COMPUTATION_STATE] == names.FINISHED
        assert found[names.COMPUTATION_PREFIXES] == ()
        assert found[names.SPANS_EMITTED] == 0
        assert not [key for key in found if key.startswith(names.COMPUTATION_OUTCOMES)]
        update = updates[received.span.span_id]
        assert (attributes(update)[names.GRAPH_TASKS], attributes(update)[names.GRAPH_NEW_TASKS]) == (1, 0)
    assert {attributes(received)[names.CLIENT_ID] for received in again} == {other.id, shared.client.id}


def test_another_graph_behind_known_keys_is_counted_on_the_update(shared: Traced) -> None:
    """10. What is in memory under the key is the result; nothing crashes."""
    future = shared.client.submit(inc, 1, key="known-1")
    assert future.result() == 2
    other = dask.delayed(add)(dask.delayed(inc)(40, dask_key_name="below-1"), 1, dask_key_name="known-1")
    assert other.compute() == 2
    spans = until_told(shared, 2)
    assert [
        attributes(received)[names.GRAPH_COLLISIONS] for received in named(spans, names.GRAPH_UPDATE)
    ] == [0, 1]
    assert outlines(shared) == [
        computation(UPDATE, ran("known")),
        "dask.compute\n" + indent(computation(UPDATE), "  "),
    ]


# -- 11: nobody waits ------------------------------------------------------------------------------------------------


def test_what_was_fired_and_forgotten_is_told_to_its_end_after_the_client_has_gone(
    shared: Traced, tmp_path: Path
) -> None:
    """11."""
    with Client(shared.client.scheduler.address, set_as_default=False) as other:
        dask_otel.enable(other)
        future = other.submit(start_and_wait, tmp_path, key="forgotten-1")
        after = other.submit(add, future, key="after-1")
        fire_and_forget(after)
        wait_for(tmp_path / "started")
    (tmp_path / "end").touch()
    until_forgotten(shared, "forgotten-1", "after-1")
    assert outlines(shared) == [
        computation(ran("after"), UPDATE.replace("update", "update ×2", 1), ran("forgotten"))
    ]
    (received,) = computations(shared.spans())
    found = attributes(received)
    assert found[names.CLIENT_ID] == other.id
    assert found[names.COMPUTATION_STATE] == names.FINISHED
    assert found[names.COMPUTATION_OUTCOMES + names.SUCCESS] == 2


def test_what_nobody_wants_any_more_is_told_to_its_end_after_the_client_has_gone(
    shared: Traced, tmp_path: Path
) -> None:
    """11, without `fire_and_forget`: the running task is cancelled, what waits for it never runs."""
    with Client(shared.client.scheduler.address, set_as_default=False) as other:
        dask_otel.enable(other)
        future = other.submit(start_and_wait, tmp_path, key="left-1")
        after = other.submit(add, future, key="after-1")
        wait_for(tmp_path / "started")
    until_forgotten(shared, "left-1", "after-1")
    until(lambda: "cancelled" in shared.client.run(state_of, "left-1").values())
    (tmp_path / "end").touch()
    shared.receiver.wait(
        lambda spans: [r for r in spans[shared.forgotten :] if r.span.name == "left"], DEADLINE
    )
    assert outlines(shared) == [
        computation(
            "after group\n",
            UPDATE.replace("update", "update ×2", 1),
            ran("left").replace("  left\n", "  left [cancelled]\n"),
        )
    ]
    del future, after


# -- 12: data without tasks ------------------------------------------------------------------------------------------


def test_data_that_no_task_made_has_no_spans_but_those_of_its_transfers(
    shared: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12. Scattered, published, replicated and rebalanced."""
    client, scheduler = shared.client, shared.cluster.scheduler  # type: ignore[union-attr]
    for name, value in (("MEASURE", "managed"), ("SENDER_MIN", 0.0), ("HALF_GAP", 0.0)):
        monkeypatch.setattr(scheduler, f"MEMORY_REBALANCE_{name}", value)
    here, there = scheduler.workers
    client.gather([client.submit(inc, 1, key=f"inc-{w}", workers=[w]) for w in (here, there)])
    shared.forget()

    futures = client.scatter({f"k{i}": bytes(1000) for i in range(4)}, workers=[here], hash=False)
    client.publish_dataset(mine=list(futures.values()))
    assert len(client.get_dataset("mine")) == 4
    client.unpublish_dataset("mine")
    assert shared.spans() == []

    client.replicate(futures["k0"])
    spans = shared.spans()
    assert outline(spans) == "gather-dep\n  get-data", spans
    (received,), (sent,) = named(spans, names.GATHER_DEP), named(spans, names.GET_DATA)
    host, port = here.removeprefix("tcp://").split(":")
    size = scheduler.tasks["k0"].nbytes
    assert attributes(received) == {
        names.OPERATION: names.OP_TRANSFER,
        names.TRANSFER_KEYS: 1,
        names.TRANSFER_SIZE: size,
        names.TRANSFER_OUTCOME: names.SUCCESS,
        names.SERVER_ADDRESS: host,
        names.SERVER_PORT: int(port),
        **offset(received),
    }
    assert attributes(sent)[names.TRANSFER_SIZE] == size
    assert [r.resource[names.WORKER_ADDRESS] for r in (received, sent)] == [there, here]
    assert received.span.parent_id == b""

    shared.forget()
    client.rebalance([futures["k1"], futures["k2"]], workers=[here, there])
    spans = shared.spans()
    assert outline(spans) == "gather-dep\n  get-data"
    moved = [key for key in ("k1", "k2") if client.who_has(futures[key])[key] == (there,)]
    assert attributes(*named(spans, names.GATHER_DEP))[names.TRANSFER_KEYS] == len(moved) > 0

    shared.forget()
    (copied,) = client.scatter([b"copied"], broadcast=True)
    assert outline(shared.spans()) == "gather-dep\n  get-data"
    assert client.gather(copied) == b"copied"

    shared.forget()
    assert client.submit(len, futures["k3"], key="len-1").result() == 1000
    assert outlines(shared) == [computation(UPDATE, ran("len"))]


# -- 13: waiting -----------------------------------------------------------------------------------------------------


def test_waiting_is_split_from_executing_and_what_cannot_run_has_no_span(
    shared: Traced, tmp_path: Path
) -> None:
    """13. Ten tasks, two threads, and a task for a resource that no worker has."""
    worker = next(iter(shared.cluster.scheduler.workers))  # type: ignore[union-attr]
    client = shared.client
    impossible = client.submit(inc, 1, key="impossible-1", resources={"GPU": 1})
    futures = client.map(
        start_and_wait, [tmp_path] * 10, key=[f"queued-{i}" for i in range(10)], workers=[worker]
    )
    until(
        lambda: client.run(lambda dask_worker: len(dask_worker.state.ready), workers=[worker]) == {worker: 8}
    )
    opened = time.time()
    (tmp_path / "end").touch()
    wait(futures)
    spans = shared.spans()
    received = tasks(spans, "queued")
    assert [r.span.start < opened * 1e9 for r in received] == [True] * 2 + [False] * 8
    for r in received:
        ready = r.span.start / 1e9 - attributes(r)[names.WAIT_SLOT]
        assert ready < opened
        assert attributes(r)[names.WAIT_DEPENDENCIES] >= 0
    assert [r.span.name for r in spans if r.span.trace_id not in {r.span.trace_id for r in received}] == [
        *("dask.graph.update", "dask.graph.materialize", "dask.graph.order", "dask.graph.init")
    ]

    cancelled = time.time()
    impossible.cancel()
    until_forgotten(shared, "impossible-1")
    assert outlines(shared) == [
        computation("impossible group\n", UPDATE),
        "dask.map\n"
        + indent(computation(UPDATE, ran("queued").replace("\n  queued\n", "\n  queued ×10\n")), "  "),
    ]
    (computed,) = [r for r in computations(shared.spans()) if not r.span.parent_id]
    found = attributes(computed)
    assert (found[names.COMPUTATION_TASKS], found[names.COMPUTATION_STATE]) == (1, names.CANCELLED)
    assert not [key for key in found if key.startswith(names.COMPUTATION_OUTCOMES)]
    assert cancelled < computed.span.end / 1e9 < time.time()


# -- 14: away from the slot ------------------------------------------------------------------------------------------


def test_time_after_secession_is_told_apart(shared: Traced) -> None:
    """14, also where the task comes back to a thread: Dask counts it as seceded to its end."""
    before, after = shared.client.submit(leave_and_return, key="away-1").result()
    assert shared.client.submit(inc, 1, key="inc-1").result() == 2
    spans = shared.spans()
    (received,) = tasks(spans, "away")
    end = received.span.end / 1e9
    assert end - after - 0.001 < attributes(received)[names.SECEDED_TIME] < end - before + 0.001
    assert names.SECEDED_TIME not in attributes(*tasks(spans, "inc"))


@pytest.mark.parametrize("nested", ["with_worker_client", "with_get_client"])
def test_what_a_task_submits_is_a_computation_below_its_span(
    shared: Traced, tmp_path: Path, nested: str
) -> None:
    """14."""
    function = {"with_worker_client": with_worker_client, "with_get_client": with_get_client}[nested]
    future = shared.client.submit(function, tmp_path, key="outer-1")
    # One computation, since the last graph is there before the first task has ended.
    until(lambda: "total-1" in shared.cluster.scheduler.tasks)  # type: ignore[union-attr]
    (tmp_path / "end").touch()
    assert future.result() == 6
    assert outlines(shared) == [
        computation(
            UPDATE,
            ran(
                "outer",
                computation(
                    UPDATE.replace("update", "update ×4", 1),
                    ran("inc").replace("\n  inc\n", "\n  inc ×3\n"),
                    ran("total"),
                ),
            ),
        )
    ]
    spans = shared.spans()
    (outer,) = tasks(spans, "outer")
    (inner,) = [r for r in computations(spans) if r.span.parent_id]
    assert attributes(inner)[names.CLIENT_ID].startswith("Client-worker-")
    assert [
        names.SECEDED_TIME in attributes(r) for r in [outer, *tasks(spans, "inc"), *tasks(spans, "total")]
    ] == [*(True, False, False, False, False)]
    assert outer.span.start <= inner.span.start <= inner.span.end <= outer.span.end


# -- 15: async tasks -------------------------------------------------------------------------------------------------


def test_async_tasks_have_their_time_but_no_threads(shared: Traced, tmp_path: Path) -> None:
    """15; that their contexts never mix is in `test_context`."""
    worker = next(iter(shared.cluster.scheduler.workers))  # type: ignore[union-attr]
    futures = shared.client.map(
        meet, range(2), [tmp_path] * 2, key=["meeting-0", "meeting-1"], workers=[worker]
    )
    assert shared.client.gather(futures) == [0, 1]
    spans = without_transfers(shared.spans())
    received = tasks(spans, "meeting")
    (first, second) = received
    assert second.span.start < first.span.end, "both at once"
    for r in received:
        found = attributes(r)
        assert names.THREAD_ID not in found
        assert {key for key in found if key.startswith(names.ACTIVITY_AMOUNT)} == {
            "dask.task.activity.thread-noncpu.seconds",
            "dask.task.activity.other.seconds",
        }
        (activity,) = [a for a in named(spans, "compute") if a.span.parent_id == r.span.span_id]
        assert (
            attributes(activity)[names.THREAD_NONCPU_TIME]
            == found["dask.task.activity.thread-noncpu.seconds"]
        )
        assert names.THREAD_CPU_TIME not in attributes(activity)
        assert r.span.start <= activity.span.start <= activity.span.end <= r.span.end


# -- 19: computations below tasks ------------------------------------------------------------------------------------


def test_a_compute_in_a_delayed_task_is_in_the_same_trace(shared: Traced) -> None:
    """19."""
    assert dask.delayed(compute_inside)(1, dask_key_name="outer-1").compute() == 3
    assert outlines(shared) == [
        "dask.compute\n"
        + indent(computation(UPDATE, ran("outer", computation(UPDATE, ran("add"), ran("inc")))), "  ")
    ]


def test_a_compute_that_an_async_task_awaits_is_in_the_same_trace(shared: Traced) -> None:
    """19."""
    assert shared.client.submit(compute_inside_async, 1, key="outer-1").result() == 3
    assert outlines(shared) == [
        computation(
            UPDATE,
            "outer group\n  outer\n    compute\n"
            + indent(computation(UPDATE, ran("add"), ran("inc")), "    "),
        )
    ]
