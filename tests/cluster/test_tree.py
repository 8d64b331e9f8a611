"""The whole tree of a computation, over real processes."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import dask
from distributed import span

from dask_otel import names
from tests.cluster.support import Once, Traced, attributes, named, tasks


def inc(x: int) -> int:
    return x + 1


def add(*xs: int) -> int:
    return sum(xs)


def test_a_compute_is_one_tree_from_the_client_to_the_metering_contexts(traced: Traced) -> None:
    total = dask.delayed(add)(*[dask.delayed(inc)(i) for i in range(4)])
    assert total.compute() == 10
    assert traced.outline() == dedent("""\
        dask.compute
          dask.computation
            add group
              add
                executor
                  compute
            dask.graph.update
              dask.graph.init
              dask.graph.materialize
              dask.graph.order
            inc group
              inc ×4
                executor
                  compute""")


def test_tags_stand_between_the_computation_and_its_groups(traced: Traced) -> None:
    with span("outer"), span("inner"):
        future = traced.client.submit(inc, 1)
    future.result()
    assert traced.outline() == dedent("""\
        dask.computation
          dask.graph.update
            dask.graph.init
            dask.graph.materialize
            dask.graph.order
          outer
            inner
              inc group
                inc
                  executor
                    compute""")


def test_a_retried_task_has_a_span_for_each_attempt(traced: Traced, tmp_path: object) -> None:
    assert traced.client.submit(Once(tmp_path), 7, retries=2).result() == 7  # type: ignore[arg-type]
    first, second = tasks(traced.trace(), "once")
    assert attributes(first)[names.OUTCOME] == names.FAILED
    assert attributes(first)[names.ERROR_TYPE] == "ValueError"
    assert attributes(second)[names.OUTCOME] == names.SUCCESS
    assert attributes(second)[names.ATTEMPT] == 2
    assert [link.span_id for link in second.span.links] == [first.span.span_id]


def test_a_computation_says_which_line_called_it_where_dask_captures_code(traced: Traced) -> None:
    with dask.config.set({"distributed.diagnostics.computations.nframes": 1}):
        traced.client.submit(inc, 1).result()
    (computation,) = named(traced.trace(), names.COMPUTATION)
    found = attributes(computation)
    assert found["code.file.path"] == __file__
    assert (
        "traced.client.submit(inc, 1)"
        in Path(__file__).read_text().splitlines()[found["code.line.number"] - 1]
    )
