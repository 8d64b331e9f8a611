"""Names of Dask's endpoints and ours: what Prometheus makes of ours, and none the same."""

from __future__ import annotations

import pytest

from dask_otel.endpoint_names import SHOWN, prometheus_name
from dask_otel.instruments import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    INSTRUMENTS,
    UP_DOWN_COUNTER,
    Instrument,
)


@pytest.mark.parametrize(
    ("name", "kind", "unit", "expected"),
    [
        ("a.b.time", COUNTER, "s", "a_b_time_seconds_total"),
        ("a.size", HISTOGRAM, "By", "a_size_bytes"),
        ("a.bandwidth", HISTOGRAM, "By/s", "a_bandwidth_bytes_per_second"),
        ("a.share", GAUGE, "1", "a_share_ratio"),
        ("a.cost", COUNTER, "1", "a_cost_total"),
        ("a.level", UP_DOWN_COUNTER, "1", "a_level"),
        ("a.task.count", UP_DOWN_COUNTER, "{task}", "a_task_count"),
        ("a.event_loop.ticks", COUNTER, "{tick}", "a_event_loop_ticks_total"),
        ("a.seconds", COUNTER, "s", "a_seconds_total"),
        ("a.total.tasks", COUNTER, "{task}", "a_tasks_total"),
    ],
)
def test_prometheus_names_follow_the_specification(name: str, kind: str, unit: str, expected: str) -> None:
    assert prometheus_name(Instrument(name, kind, unit, (), (), "")) == expected


def test_no_name_of_ours_is_one_of_dasks_endpoints() -> None:
    ours = {
        prometheus_name(one) + suffix
        for one in INSTRUMENTS
        for suffix in (("", "_bucket", "_sum", "_count") if one.kind == HISTOGRAM else ("",))
    }
    assert ours & {shown.name for shown in SHOWN} == set()


def test_ours_are_told_apart_in_prometheus() -> None:
    names = [prometheus_name(one) for one in INSTRUMENTS]
    assert sorted(names) == sorted(set(names))


def test_every_name_of_an_endpoint_is_of_a_metric_that_its_server_has() -> None:
    for shown in SHOWN:
        assert shown.role in shown.instrument.on, shown.name
        keys = {key for _, key in (*shown.labels,)} | {key for key, _ in shown.attributes}
        assert keys <= set(shown.instrument.attributes), shown.name


def test_no_name_of_an_endpoint_is_there_twice() -> None:
    names = [shown.name for shown in SHOWN]
    assert sorted(names) == sorted(set(names))
