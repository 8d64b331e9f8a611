"""What the real Prometheus has, asked through its API."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from .jaeger import get

T = TypeVar("T")


class Value(NamedTuple):
    """A sample: when (s since the epoch), and how much."""

    time: float
    value: float


def instant(prometheus: str, query: str, *labels: str) -> dict[tuple[str, ...], float]:
    """What a query gives now, by values of labels."""
    return {
        tuple(one["metric"].get(label, "") for label in labels): float(one["value"][1])
        for one in _ask(prometheus, "query", query=query)["result"]
    }


def raw(prometheus: str, selector: str) -> list[list[Value]]:
    """The samples of the last ten minutes of each series, as they were stored."""
    found = _ask(prometheus, "query", query=f"{selector}[10m]")["result"]
    return [[Value(float(at), float(value)) for at, value in one["values"]] for one in found]


def over(prometheus: str, query: str, start: float, end: float, step: float) -> list[list[Value]]:
    """What a query gives at moments between two."""
    found = _ask(prometheus, "query_range", query=query, start=start, end=end, step=step)["result"]
    return [[Value(float(at), float(value)) for at, value in one["values"]] for one in found]


def exemplars(prometheus: str, query: str, start: float) -> list[dict[str, Any]]:
    """The labels of all exemplars of the series of a query since a moment."""
    found = _ask(prometheus, "query_exemplars", query=query, start=start, end=time.time() + 60)
    return [exemplar["labels"] for series in found for exemplar in series["exemplars"]]


def until(ask: Callable[[], T], holds: Callable[[T], object]) -> T:
    """The answer as soon as it is as it should be."""
    deadline = time.monotonic() + 30
    while not holds(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


def _ask(prometheus: str, what: str, **parameters: object) -> Any:
    return get(f"{prometheus}/api/v1/{what}?{urllib.parse.urlencode(parameters)}")["data"]
