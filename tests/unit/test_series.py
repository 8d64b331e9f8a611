"""Points as they are handed on."""

from __future__ import annotations

from dask_otel.instruments import COUNTER, Instrument
from dask_otel.series import measured

SECONDS = Instrument("seconds", COUNTER, "s", ("worker",), ("prefix", "activity"), "Seconds.")


def test_points_bear_the_attributes_that_have_a_value() -> None:
    found = measured(SECONDS, {("inc", "compute"): 1.5, ("", "disk-read"): 2})
    assert found.points == [
        ((("prefix", "inc"), ("activity", "compute")), 1.5),
        ((("activity", "disk-read"),), 2),
    ]
