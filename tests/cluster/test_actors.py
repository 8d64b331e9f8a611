"""Actors: creation is a task, a method call a span under its caller."""

from __future__ import annotations

from textwrap import dedent

from distributed import Actor
from opentelemetry import trace

from dask_otel import names
from dask_otel.records import ERROR
from dask_otel.tree import outline
from tests.cluster.support import Traced, attributes, named


class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.n = 0

    def increment(self) -> int:
        trace.get_current_span().set_attribute("n", self.n)
        with trace.get_tracer("user").start_as_current_span("in method"):
            self.n += 1
        return self.n

    async def later(self) -> int:
        with trace.get_tracer("user").start_as_current_span("in coroutine"):
            return self.n

    def fail(self) -> None:
        raise LookupError("nothing")


def call(counter: Actor) -> int:
    return int(counter.increment().result())


def test_a_method_call_is_a_span_under_the_task_that_calls_it(traced: Traced) -> None:
    """Scenario 17."""
    counter = traced.client.submit(Counter, actor=True, workers=[worker_addresses(traced)[0]]).result()
    assert call_on(traced, counter, worker_addresses(traced)[1]) == 1
    creation, computation = (spans for spans in traced.traces().values() if len(spans) > 3)
    assert {attributes(s)[names.TASK_PREFIX] for s in creation if s.span.name == "Counter"} == {"Counter"}
    assert OUTLINE_OF_CALL in outline(computation)
    (called,) = named(computation, "Counter.increment")
    found = attributes(called)
    found.pop(names.CLOCK_OFFSET, None)  # There where Dask measured more than a millisecond.
    assert found == {
        names.OPERATION: names.OP_ACTOR,
        names.TASK_PREFIX: "Counter",
        names.ACTOR_METHOD: "increment",
        names.WORKER_ADDRESS: worker_addresses(traced)[0],
        names.WORKER_NAME: str(worker_names(traced)[worker_addresses(traced)[0]]),
        "n": 0,
    }


def test_a_coroutine_and_a_failing_method_are_spans_too(traced: Traced) -> None:
    """Scenario 17."""
    counter = traced.client.submit(Counter, actor=True).result()
    future = traced.client.submit(use_all, counter, pure=False)
    assert future.result() == (0, "nothing")
    spans = [r for spans in traced.traces().values() for r in spans]
    (later,) = named(spans, "Counter.later")
    (inner,) = named(spans, "in coroutine")
    assert inner.span.parent_id == later.span.span_id
    (failed,) = named(spans, "Counter.fail")
    assert attributes(failed)[names.ERROR_TYPE] == "LookupError"
    assert (failed.span.status, failed.span.message) == (ERROR, "nothing")


def use_all(counter: Actor) -> tuple[int, str]:
    n = counter.later().result()
    try:
        counter.fail().result()
    except LookupError as error:
        return n, str(error.args[0])
    raise AssertionError("it should have raised")


OUTLINE_OF_CALL = dedent("""\
      call
        Counter.increment
          in method
        executor
          compute""").replace("\n", "\n    ")


def worker_addresses(traced: Traced) -> list[str]:
    return sorted(traced.client.scheduler_info(n_workers=-1)["workers"])


def worker_names(traced: Traced) -> dict[str, object]:
    workers = traced.client.scheduler_info(n_workers=-1)["workers"]
    return {address: worker["name"] for address, worker in workers.items()}


def call_on(traced: Traced, counter: Actor, address: str) -> int:
    return int(traced.client.submit(call, counter, workers=[address], pure=False).result())
