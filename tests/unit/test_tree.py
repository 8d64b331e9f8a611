from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from textwrap import dedent
from typing import Any

import pytest

from dask_otel import names, records
from dask_otel.records import Event, Span, Value
from dask_otel.tree import Received, duration, outline, tree

MS = 1_000_000
TRACE = b"\x0a" * 16


class Spans(list[Span | Received]):
    """Builds spans with ids that count up; times are milliseconds."""

    def __init__(self, trace_id: bytes = TRACE) -> None:
        super().__init__()
        self._ids: Iterator[int] = count(1)
        self._trace_id = trace_id

    def add(
        self,
        name: str,
        parent: bytes = b"",
        at: float = 0,
        lasts: float = 1,
        service: str = "",
        worker: str = "",
        **more: Any,
    ) -> bytes:
        span_id = next(self._ids).to_bytes(8, "big")
        span = Span(name, records.INTERNAL, self._trace_id, span_id, parent, start=int(at * MS))
        span = span._replace(end=int((at + lasts) * MS), **more)
        resource: dict[str, Value] = {names.SERVICE_NAME: service, names.WORKER_NAME: worker}
        self.append(Received({k: v for k, v in resource.items() if v}, ("", ""), span) if service else span)
        return span_id


def attempt(outcome: str, number: int = 1, status: int = records.UNSET, error: str = "") -> dict[str, Any]:
    attributes: list[tuple[str, Value]] = [(names.OUTCOME, outcome), (names.ATTEMPT, number)]
    attributes += [(names.ERROR_TYPE, error)] if error else []
    return {"attributes": tuple(attributes), "status": status}


def computation() -> Spans:
    spans = Spans()
    client = spans.add("dask.compute", at=0, lasts=110, service="dask-client")
    root = spans.add("dask.computation", client, at=5, lasts=100, service="dask-scheduler")
    spans.add("dask.graph.update", root, at=5, lasts=2, service="dask-scheduler")
    group = spans.add("inc group", root, at=7, lasts=90, service="dask-scheduler")
    for i in range(10):
        task = spans.add("inc", group, at=10 + i, lasts=2 + i, service="dask-worker", worker=str(i % 2))
        spans.add("compute", task, at=10 + i, lasts=1 + i, service="dask-worker", worker=str(i % 2))
        if i == 3:
            spans.add("disk-write", task, at=12 + i, lasts=0.5, service="dask-worker", worker="1")
    failed = attempt(names.FAILED, status=records.ERROR, error="ValueError")
    spans.add("inc", group, at=30, lasts=0.75, service="dask-worker", worker="0", **failed)
    spans.add("inc", group, at=40, lasts=3, service="dask-worker", worker="1", **attempt(names.SUCCESS, 2))
    return spans


def test_a_tree_shows_durations_who_sent_it_and_what_went_wrong_and_folds_what_is_alike() -> None:
    assert tree(computation()) == dedent(
        """\
        dask.compute                     110 ms             dask-client
        └─ dask.computation              100 ms             dask-scheduler
           ├─ dask.graph.update         2.00 ms             dask-scheduler
           └─ inc group                 90.0 ms             dask-scheduler
              ├─ inc ×10           2.00–11.0 ms  Σ 65.0 ms  dask-worker
              │  ├─ compute ×10    1.00–10.0 ms  Σ 55.0 ms  dask-worker
              │  └─ disk-write ×1        500 µs   Σ 500 µs  dask-worker 1
              ├─ inc ✗ ValueError        750 µs             dask-worker 0
              └─ inc [attempt 2]        3.00 ms             dask-worker 1"""
    )


def test_an_outline_has_the_structure_alone() -> None:
    assert outline(computation()) == dedent(
        """\
        dask.compute
          dask.computation
            dask.graph.update
            inc group
              inc ×9
                compute
              inc
                compute
                disk-write
              inc [attempt 2]
              inc [failed]"""
    )


def test_an_outline_does_not_depend_on_order_ids_times_or_processes() -> None:
    spans = computation()
    expected = outline(spans)
    random.Random(0).shuffle(spans)
    mask = bytes(range(1, 9))
    other = [
        item.span._replace(
            trace_id=b"\x0b" * 16,
            span_id=bytes(a ^ b for a, b in zip(item.span.span_id, mask, strict=True)),
            parent_id=bytes(a ^ b for a, b in zip(item.span.parent_id, mask, strict=False)),
            start=7,
            end=8,
        )
        for item in spans
        if isinstance(item, Received)
    ]
    assert outline(other) == expected


def test_up_to_the_limit_siblings_are_not_folded() -> None:
    spans = Spans()
    root = spans.add("root", lasts=9)
    for i in range(3):
        spans.add("task", root, at=i)
    assert tree(spans, most=3) == dedent(
        """\
        root     9.00 ms
        ├─ task  1.00 ms
        ├─ task  1.00 ms
        └─ task  1.00 ms"""
    )
    assert tree(spans, most=2) == dedent(
        """\
        root        9.00 ms
        └─ task ×3  1.00 ms  Σ 3.00 ms"""
    )


def test_what_went_wrong_alike_is_folded_apart_from_the_rest() -> None:
    spans = Spans()
    root = spans.add("group", lasts=9)
    for i in range(4):
        spans.add("task", root, at=i, **attempt(names.SUCCESS))
        spans.add("task", root, at=i + 0.5, **attempt(names.RESCHEDULED))
        spans.add("task", root, at=i + 10, **attempt(names.SUCCESS, 2))
    assert tree(spans) == dedent(
        """\
        group                     9.00 ms
        ├─ task ×4                1.00 ms  Σ 4.00 ms
        ├─ task ×4 [rescheduled]  1.00 ms  Σ 4.00 ms
        └─ task ×4 [attempt 2]    1.00 ms  Σ 4.00 ms"""
    )


def test_a_task_below_which_something_is_wrong_is_told_apart() -> None:
    spans = Spans()
    root = spans.add("group", lasts=9)
    for i in range(5):
        task = spans.add("task", root, at=i)
        spans.add("GET", task, at=i, status=records.ERROR if i == 2 else records.UNSET, message="timeout")
    assert tree(spans) == dedent(
        """\
        group                9.00 ms
        ├─ task ×4           1.00 ms  Σ 4.00 ms
        │  └─ GET ×4         1.00 ms  Σ 4.00 ms
        └─ task              1.00 ms
           └─ GET ✗ timeout  1.00 ms"""
    )


def of(operation: str) -> dict[str, Any]:
    return {"attributes": ((names.OPERATION, operation),)}


def test_activities_and_phases_below_the_floor_are_only_counted() -> None:
    spans = Spans()
    update = spans.add(names.GRAPH_UPDATE, lasts=9, **of(names.OP_GRAPH))
    spans.add(names.GRAPH_ORDER, update, lasts=5, **of(names.OP_GRAPH))
    spans.add(names.GRAPH_INIT, update, lasts=1, **of(names.OP_GRAPH))
    for i in range(4):
        task = spans.add("task", at=i, lasts=0.5, **of(names.OP_TASK))
        spans.add(
            "long", spans.add("compute", task, lasts=1.5, **of(names.OP_ACTIVITY)), **of(names.OP_ACTIVITY)
        )
        outer = spans.add("executor", task, lasts=0.5, **of(names.OP_ACTIVITY))
        spans.add("inner", outer, lasts=0.25, **of(names.OP_ACTIVITY))
    within = spans.add("serialize", task, lasts=0.5, **of(names.OP_ACTIVITY))
    spans.add("user code", within, lasts=0.5)
    assert tree(spans, floor=3 * MS) == dedent(
        """\
        dask.graph.update    9.00 ms
        └─ dask.graph.order  5.00 ms
        task ×4               500 µs  Σ 2.00 ms
        ├─ compute ×4        1.50 ms  Σ 6.00 ms
        │  └─ long ×4        1.00 ms  Σ 4.00 ms
        └─ serialize ×1       500 µs   Σ 500 µs
           └─ user code ×1    500 µs   Σ 500 µs
        (9 spans not shown: activities and phases below 3.00 ms)"""
    )


def test_a_group_stands_where_its_first_task_starts() -> None:
    spans = Spans()
    late = spans.add("late group", at=0, lasts=9, **of(names.OP_GROUP))
    early = spans.add("early group", at=1, lasts=9, **of(names.OP_GROUP))
    spans.add("late", late, at=5)
    spans.add("early", early, at=4)
    assert [line.split()[-4] for line in tree(spans).splitlines()][::2] == ["early", "late"]


def test_spans_whose_parent_did_not_come_are_shown_below_a_line_that_says_so() -> None:
    spans = Spans()
    spans.add("root", lasts=9)
    gone = bytes(range(8))
    for i in range(5):
        spans.add("task", gone, at=3 + i)
    spans.add("other", b"\xff" * 8, at=2)
    assert tree(spans) == dedent(
        """\
        root        9.00 ms
        (parent ffffffffffffffff not received)
        └─ other    1.00 ms
        (parent 0001020304050607 not received)
        └─ task ×5  1.00 ms  Σ 5.00 ms"""
    )
    assert outline(spans) == dedent(
        """\
        (parent not received)
          other
        (parent not received)
          task ×5
        root"""
    )


def test_a_span_that_is_its_own_parent_is_shown() -> None:
    spans = Spans()
    spans.add("loop", (1).to_bytes(8, "big"))
    assert outline(spans) == "(parent not received)\n  loop"


def test_a_span_that_was_sent_twice_is_there_twice() -> None:
    spans = Spans()
    root = spans.add("root")
    spans.add("task", root)
    spans.append(spans[0])
    assert outline(spans) == "root\nroot\n  task"


def test_several_traces_stand_under_their_ids_in_the_order_they_began() -> None:
    late, early = Spans(b"\x01" * 16), Spans(b"\x02" * 16)
    late.add("late", at=5)
    early.add("early", at=1)
    assert tree([*late, *early]) == dedent(
        """\
        trace 02020202020202020202020202020202
        early  1.00 ms
        trace 01010101010101010101010101010101
        late   1.00 ms"""
    )


def test_the_same_span_id_in_two_traces_is_two_spans() -> None:
    one, two = Spans(b"\x01" * 16), Spans(b"\x02" * 16)
    one.add("task", one.add("one"))
    two.add("task", two.add("two"))
    assert outline([*one, *two]) == "one\n  task\ntwo\n  task"


def test_names_that_are_too_long_for_the_width_are_cut() -> None:
    spans = Spans()
    spans.add("read-parquet-" + "x" * 80, service="dask-worker")
    (line,) = tree(spans, width=60).splitlines()
    assert len(line) == 60
    assert line.endswith("x…  1.00 ms  dask-worker")


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ({"status": records.ERROR}, "✗ error"),
        ({"status": records.ERROR, "message": "broken"}, "✗ broken"),
        (
            {
                "status": records.ERROR,
                "message": "broken",
                "events": (Event("exception", 0, ((names.EXCEPTION_TYPE, "OSError"),)),),
            },
            "✗ OSError",
        ),
        (attempt(names.LOST, 2, records.ERROR, names.WORKER_LOST), "✗ worker_lost [lost, attempt 2]"),
        (attempt(names.CANCELLED), "[cancelled]"),
        ({"attributes": ((names.TRANSFER_OUTCOME, names.BUSY),)}, "[busy]"),
        ({"common": ((names.OUTCOME, names.DISCARDED),)}, "[discarded]"),
        (attempt(names.SUCCESS), ""),
        ({"status": records.OK}, ""),
    ],
)
def test_what_is_out_of_the_ordinary_is_said(span: dict[str, Any], expected: str) -> None:
    spans = Spans()
    spans.add("it", **span)
    assert tree(spans) == f"{f'it {expected}'.rstrip()}  1.00 ms"


def test_spans_of_several_services_do_not_name_one() -> None:
    spans = Spans()
    root = spans.add("root", service="client")
    for i in range(4):
        spans.add("call", root, at=i, service=f"shop-{i}")
    assert tree(spans) == dedent(
        """\
        root        1.00 ms             client
        └─ call ×4  1.00 ms  Σ 4.00 ms  4 services"""
    )


@pytest.mark.parametrize(
    ("shortest", "longest", "expected"),
    [
        (2, 2, "2.00 ms"),
        (2, 30, "2.00–30.0 ms"),
        (0.5, 2, "500 µs–2.00 ms"),
        (12_000, 62_000, "12.0 s–1 min 2 s"),
    ],
)
def test_a_range_names_a_shared_unit_once(shortest: float, longest: float, expected: str) -> None:
    spans = Spans()
    spans.add("it", lasts=shortest)
    spans.add("it", lasts=longest)
    assert tree(spans, most=1).split("  ")[1] == expected


def test_nothing_gives_nothing() -> None:
    assert tree([]) == outline([]) == ""


def test_a_span_that_ends_before_it_starts_lasts_no_time() -> None:
    spans = Spans()
    spans.add("it", lasts=-1)
    spans.add("it", lasts=-1)
    assert tree(spans, most=1) == "it ×2  0 ns  Σ 0 ns"


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (99_940, "99.9 µs"),
        (123_456_789, "123 ms"),
        (59_990_000_000, "60.0 s"),
        (60_000_000_000, "1 min 0 s"),
        (3_599_999_999_999, "59 min 59 s"),
        (3_600_000_000_000, "1 h 0 min"),
    ],
)
def test_durations_have_three_digits_and_a_unit(nanoseconds: int, expected: str) -> None:
    assert duration(nanoseconds) == expected
