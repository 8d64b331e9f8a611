"""Which runs of a worker a garbage collection stopped, and which computations that is told of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dask_otel.guard import Guard
from dask_otel.seam.run import Run
from dask_otel.seam.worker import WorkerSeam
from dask_otel.sums import Sums
from dask_otel.worker import WorkerTelemetry


class Listener:
    def __init__(self) -> None:
        self.told: list[tuple[list[str], float]] = []

    def paused(self, runs: list[Run], seconds: float) -> None:
        self.told.append(([str(run.key) for run in runs], seconds))


class Log(list[tuple[float, float, int]]):
    def take(self) -> list[tuple[float, float, int]]:
        taken = list(self)
        self.clear()
        return taken


def run_of(key: str, start: float) -> Run:
    """A run that began at ``start`` by the clock of pauses, which is 1000 s behind the epoch's."""
    run = Run(key, 1, None)
    run.start, run.shift = start + 1000.0, 1000.0
    return run


def test_a_pause_stopped_what_had_begun_before_it() -> None:
    listener = Listener()
    seam: Any = WorkerSeam(SimpleNamespace(), listener, SimpleNamespace(), Guard("worker", strict=True))  # type: ignore[arg-type]
    seam._pauses = Log()
    seam._runs = {key: run_of(key, start) for key, start in (("a", 1), ("b", 2), ("c", 3))}
    seam._tell_pauses()
    seam._pauses += [(0.5, 0.75, 0), (2.5, 3.5, 2), (4, 4.25, 1)]
    seam._tell_pauses()
    seam._tell_pauses()
    assert listener.told == [(["a", "b"], 1.0), (["a", "b", "c"], 0.25)]


def test_a_computation_is_told_once_of_a_pause() -> None:
    places = [
        SimpleNamespace(parent=SimpleNamespace(computation_id=of, tells=True), sums=Sums(), waiting=False)
        for of in "xxy"
    ]
    runs: Any = [SimpleNamespace(listener=SimpleNamespace(place=place)) for place in places]
    waiting: list[object] = []
    telemetry: Any = SimpleNamespace(sums=SimpleNamespace(flush_soon=waiting.append))
    WorkerTelemetry.paused(telemetry, runs, 0.5)
    WorkerTelemetry.paused(telemetry, runs[2:], 0.25)
    assert sorted(place.sums.paused for place in places) == [0, 0.5, 0.75]
    assert len(waiting) == 3
