"""How long the scheduler takes to work a graph in, by phase: the one source of the phases' spans and of their metric.

Rules
-----
1. Standard library only; no clock: the seconds are those that Dask measured.
2. A phase that Dask tells nothing of is left out: a graph that could not be worked in has none.
"""

from __future__ import annotations

from collections.abc import Mapping

from dask_otel.distributions import Histograms
from dask_otel.instruments import GRAPH_UPDATE_SECONDS, INIT, MATERIALIZE, ORDER
from dask_otel.series import Measured, measured

_PHASES = ((MATERIALIZE, "materialization"), (ORDER, "ordering"), (INIT, "state_initialization"))


def phases(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    """Each phase of a graph's update and its seconds, in the order in which they follow one another.

    Parameters
    ----------
    metrics:
        What Dask says in the event ``update-graph``.

    Examples
    --------
    >>> phases({"materialization_duration_seconds": 0.5, "ordering_duration_seconds": -0.25})
    [('materialize', 0.5), ('order', 0.25)]
    """
    # distributed gives the last two negated.
    return [
        (phase, abs(metrics[key]))
        for phase, name in _PHASES
        if (key := f"{name}_duration_seconds") in metrics
    ]


class GraphPhases:
    """The phases of all graphs of a scheduler, as histograms."""

    def __init__(self, histograms: Histograms) -> None:
        self._found = histograms.of(GRAPH_UPDATE_SECONDS)

    def add(self, metrics: Mapping[str, float]) -> None:
        """A graph's update has ended; ``metrics`` are Dask's own of it."""
        for phase, seconds in phases(metrics):
            self._found.record((phase,), seconds)

    def measured(self) -> Measured:
        """What there is up to now."""
        return measured(GRAPH_UPDATE_SECONDS, self._found.snapshots())
