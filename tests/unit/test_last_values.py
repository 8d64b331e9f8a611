"""The last values of a server that goes, or counts anew, and what was left for later before them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dask_otel import instruments
from dask_otel.export.metric_bodies import Batch
from dask_otel.guard import Guard
from dask_otel.meter import Meter
from dask_otel.series import Measured, measured
from dask_otel.settings import Metrics

SECONDS = instruments.COMPUTE_SECONDS


class Exporter:
    """One that is slow: it has made nothing yet."""

    refused = False

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def submit(self, batch: Batch) -> None:
        self.batches.append(batch)

    def made(self) -> list[list[float]]:
        """What it comes to make of each batch, in the end."""
        return [
            [value for one in batch.all() if one.instrument is SECONDS for value in one.values.values()]  # type: ignore[misc]
            for batch in self.batches
        ]


class Counting:
    """Begins anew when it is installed."""

    def __init__(self) -> None:
        self.total = 0.0

    def install(self) -> None:
        self.total = 0.0

    def uninstall(self) -> None: ...

    def collect(self) -> Iterator[Any]:
        yield self.later

    def later(self) -> Iterator[Measured]:
        yield measured(SECONDS, {("inc",): self.total})


def test_what_was_left_for_later_is_made_before_counting_begins_anew_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter, counting = Exporter(), Counting()
    monkeypatch.setattr("dask_otel.meter.metric_exporters_for", lambda settings: [exporter])
    settings = SimpleNamespace(disabled=False, metrics=Metrics())
    outlet: Any = SimpleNamespace(settings=settings, settled=True, source=None)

    async def run() -> None:
        meter = Meter(outlet, counting, counting.collect, Guard("a server"))
        meter.start()
        counting.total = 3.0
        meter.export()
        counting.total = 5.0
        meter.stop()
        meter.start()
        counting.total = 1.0
        meter.export()
        assert [batch.last for batch in exporter.batches] == [False, True, False]
        assert exporter.made() == [[], [5.0], [1.0]]
        meter.stop()

    asyncio.run(run())
