"""What users meter may be anything: it costs neither the metrics of others nor an attempt."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from distributed import wait
from distributed.metrics import context_meter

import dask_otel
from dask_otel import instruments, names
from tests.cluster.metering import samples, totals
from tests.cluster.support import DEADLINE, Traced, attributes, named, tasks

AMOUNT = names.ACTIVITY_AMOUNT


def metered(x: int, label: str, amounts: list[Any], unit: str) -> int:
    for amount in amounts:
        context_meter.digest_metric(label, amount, unit)
    return x


def submit(traced: Traced, prefix: str, amounts: list[Any], unit: str = "rows") -> None:
    wait(traced.client.submit(metered, 1, prefix, amounts, unit, key=f"{prefix}-1"), timeout=DEADLINE)


def counted(traced: Traced, name: str, *keys: str) -> dict[tuple[str, ...], float]:
    return totals(samples(traced.receiver), name, *keys)


def test_numbers_of_any_type_add_up_and_what_is_none_is_left_out(traced: Traced) -> None:
    submit(traced, "whole", [True, Decimal(2)])
    submit(traced, "huge", [2**63])
    submit(traced, "less", [-1])
    submit(traced, "nan", [float("nan")])
    submit(traced, "complex", [1j, 1j])  # Dask cannot compare it, and raises.
    spans = traced.spans()
    prefixes = ("whole", "huge", "less", "nan", "complex")
    assert counted(traced, instruments.ACTIVITY_AMOUNT_OF.name, names.TASK_PREFIX, instruments.UNIT) == {
        ("whole", "rows"): 3,
        ("huge", "rows"): 2.0**63,
    }
    assert counted(traced, instruments.TASK_ATTEMPTS.name, names.TASK_PREFIX, names.OUTCOME) == {
        (prefix, names.SUCCESS): 1 for prefix in prefixes
    }
    assert {prefix: len(tasks(spans, prefix)) for prefix in prefixes} == dict.fromkeys(prefixes, 1)
    told = {
        prefix: attributes(group).get(f"{AMOUNT}{prefix}.rows")
        for prefix in prefixes
        for group in named(spans, f"{prefix} group")
    }
    assert told == {"whole": 3, "huge": 2.0**63, "less": -1, "nan": None, "complex": None}


def test_seconds_that_are_no_number_leave_an_attempt_its_end(traced: Traced) -> None:
    submit(traced, "nan", [float("nan")], "seconds")
    (span,) = tasks(traced.spans(), "nan")
    assert 0 < span.span.end - span.span.start < DEADLINE * 10**9
    assert dask_otel.flush(traced.client, DEADLINE)
    assert counted(traced, instruments.TASK_ATTEMPTS.name, names.TASK_PREFIX, names.OUTCOME) == {
        ("nan", names.SUCCESS): 1
    }
