from __future__ import annotations

from textwrap import dedent

from dask_otel import names, records
from dask_otel.records import Span, Value
from dask_otel.table import activity_table, thread_seconds


def task(prefix: str, operation: str = names.OP_TASK, **amounts: float) -> Span:
    seconds: tuple[tuple[str, Value], ...] = tuple(
        (f"{names.ACTIVITY_AMOUNT}{label.replace('_', '-')}.seconds", value)
        for label, value in amounts.items()
    )
    attributes = ((names.OPERATION, operation), (names.TASK_PREFIX, prefix), *seconds)
    return Span("task", records.CONSUMER, b"\x0a" * 16, b"\x01" * 8, attributes=attributes)


def test_thread_seconds_are_told_by_prefix_and_activity_the_largest_first_and_other_last() -> None:
    spans = [
        task("load", thread_cpu=0.5, thread_noncpu=1.25, other=9.0),
        task("inc", thread_cpu=3.0, other=0.0625),
        task("load", thread_cpu=0.25, disk_write=0.125),
        task("load", names.OP_GROUP, thread_cpu=100.0),
        task("never"),
    ]
    assert activity_table(spans) == dedent(
        """\
                            thread-
        prefix  thread-cpu   noncpu  disk-write  other   total
        load         0.750    1.250       0.125  9.000  11.125
        inc          3.000                       0.062   3.062
        total        3.750    1.250       0.125  9.062  14.188"""
    )


def test_activities_without_room_are_summed_up_and_counted() -> None:
    spans = [task("inc", names.OP_TASK, **{f"label_{i}": 1.0 + i for i in range(9)}, other=0.5)]
    assert activity_table(spans, width=50) == dedent(
        """\
        prefix  label-8  label-7  (7 more)  other   total
        inc       9.000    8.000    28.000  0.500  45.500
        total     9.000    8.000    28.000  0.500  45.500"""
    )


def test_long_prefixes_and_labels_leave_room_for_numbers() -> None:
    spans = [
        task("chunk-sum-aggregate-of-everything-there-is", p2p_get_output_noncpu=1.0, uninterruptible=2.0)
    ]
    assert activity_table(spans) == dedent(
        """\
                                                   p2p-get-
                                                    output-
        prefix                    uninterruptible    noncpu  total
        chunk-sum-aggregate-of-…            2.000     1.000  3.000
        total                               2.000     1.000  3.000"""
    )


def test_amounts_that_are_not_seconds_are_not_in_the_table() -> None:
    span = task("inc", thread_cpu=1.0)
    span = span._replace(attributes=(*span.attributes, (f"{names.ACTIVITY_AMOUNT}disk-write.bytes", 10)))
    assert thread_seconds([span]) == {"inc": {"thread-cpu": 1.0}}


def test_without_tasks_there_are_no_seconds() -> None:
    assert thread_seconds([]) == {}
