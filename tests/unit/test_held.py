"""What a task that has not ended costs the scheduler's models, and what is left of it."""

from __future__ import annotations

import sys
from itertools import count

from dask_otel.carried import Decision
from dask_otel.chains import Chains
from dask_otel.computations import Activated, Computations, Flight
from dask_otel.parents import ACTIVITY

#: Just more than a dictionary of 2**15 places takes: then an entry takes the most room.
TASKS = 22_000


def computations() -> Computations:
    ids = count(1)
    return Computations(
        emit=lambda span: None,
        emit_lost=lambda address, span: None,
        new_trace_id=lambda: next(ids).to_bytes(16, "big"),
        new_span_id=lambda: next(ids).to_bytes(8, "big"),
        sample=lambda trace_id, kind: Decision(True),
        detail=ACTIVITY,
        max_age=600.0,
    )


def activated(n: int) -> Activated:
    return Activated(("one", n), "graph", "one", "one", ((), ()), (), (), None, False)


def run(model: Computations, n: int) -> None:
    group, flight = model.deactivate(("one", n), "processing", "memory", lambda: 2.0)
    assert group is not None and flight is not None  # noqa: PT018
    model.ended(("one", n), group, flight, "memory", ran=True)


def test_a_task_at_a_worker_costs_150_bytes_and_an_emptied_dictionary_nothing() -> None:
    model = computations()
    graph = model.receive("graph", "client", None, "", 0.0)
    model.create("graph")
    for n in range(TASKS):
        model.activate(activated(n), lambda: 0.0)
    model.finish(graph, 0.5)
    model.check(0.5)
    for n in range(TASKS):
        model.dispatch(("one", n), n, "tcp://worker", float(n), False)
    flight = model._active[("one", 5)]
    assert type(flight) is Flight
    # With the header that the garbage collector puts before an object.
    each = sys.getsizeof(model._active) / TASKS + sys.getsizeof(flight) + sys.getsizeof(flight.time)
    assert each <= 150
    for n in range(TASKS - 1_000):
        run(model, n)
    model.check(2.0)
    assert len(model._active) == 1_000
    assert sys.getsizeof(model._active) < 100 * 1_000
    for n in range(TASKS - 1_000, TASKS):
        run(model, n)
    model.check(2.0)
    assert sys.getsizeof(model._active) < 1_000


def test_a_task_that_has_ended_is_known_by_the_number_of_its_dispatch_alone() -> None:
    chains = Chains(limit=10)
    chains.attempted("x", b"1" * 8)
    chains.end("x", 5, b"t" * 16)
    assert "x" not in repr(vars(chains))
    assert [chains.resume("x", n, "") for n in (4, 6, 5)] == [False, False, True]
    assert chains.past("x") == (1, b"t" * 16 + b"1" * 8, "")
