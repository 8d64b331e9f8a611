"""A dashboard before it is Grafana's: what is asked, how it is shown, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dashboards.promql import Scope, label
from dask_otel import instruments, names
from dask_otel.instruments import COUNTER, HISTOGRAM, Instrument

# How a panel shows its queries.
LINES, STACK, STAT, HEAT, TRACES = "lines", "stack", "stat", "heat", "traces"

# Grafana's units. Thread-seconds a second are threads: a number.
SECONDS, BYTES, BYTES_A_SECOND, SHARE, NUMBER, A_SECOND = (
    "s",
    "bytes",
    "binBps",
    "percentunit",
    "short",
    "cps",
)

#: What the variables of every dashboard say.
CLUSTER = Scope(((names.CLUSTER_ID, "=", "$cluster"),))
#: Of the workers that are chosen.
CHOSEN = CLUSTER.where(names.WORKER_NAME, "=~", "$worker")
#: Of the prefix that is chosen.
OF_PREFIX = CLUSTER.where(names.TASK_PREFIX, "=", "$prefix")


class Query(NamedTuple):
    """PromQL, and the name of what it gives; with ``exemplars`` dots lead to traces."""

    expr: str
    legend: str
    exemplars: bool = False


class Panel(NamedTuple):
    """``about`` says what is seen and what to do; ``width`` is of 24."""

    title: str
    about: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = LINES
    width: int = 8
    at_most: float | None = None


class Row(NamedTuple):
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


class Variable(NamedTuple):
    """Chosen at the top of a dashboard from the values of a label; with ``all`` also several, or all of them."""

    name: str
    title: str
    label: str
    series: str
    all: bool = False


class Board(NamedTuple):
    """A dashboard."""

    uid: str
    title: str
    about: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]


CLUSTER_VARIABLE = Variable(
    "cluster", "Cluster", label(names.CLUSTER_ID), Scope().select(instruments.ACTIVE_COMPUTATIONS)
)
WORKER_VARIABLE = Variable(
    "worker", "Worker", label(names.WORKER_NAME), CLUSTER.select(instruments.THREAD_SECONDS), all=True
)
PREFIX_VARIABLE = Variable(
    "prefix", "Task prefix", label(names.TASK_PREFIX), CLUSTER.select(instruments.COMPUTE_SECONDS)
)
#: Jaeger searches within a service.
SERVICE_VARIABLE = Variable(
    "service", "Service", label(names.SERVICE_NAME), OF_PREFIX.select(instruments.COMPUTE_SECONDS)
)


def panel(
    title: str,
    about: str,
    unit: str,
    *queries: Query,
    kind: str = LINES,
    width: int = 8,
    at_most: float | None = None,
) -> Panel:
    """A panel of these queries."""
    return Panel(title, about, unit, queries, kind, width, at_most)


def legend(*keys: str) -> str:
    """Grafana's template of a legend by the values of attributes.

    Examples
    --------
    >>> legend(names.TASK_PREFIX, names.SERVICE_NAME)
    '{{dask_task_prefix}} {{job}}'
    """
    return " ".join(f"{{{{{label(key)}}}}}" for key in keys)


def by(
    scope: Scope,
    instrument: Instrument,
    *keys: str,
    only: Mapping[str, str] | None = None,
    top: int = 0,
) -> Query:
    """An instrument by attributes: what a counter rises a second, how many a histogram counts a second, else what is now.

    With ``top`` only so many, the highest.
    """
    if instrument.kind == HISTOGRAM:
        expr = scope.rate(instrument, keys, only, "_count")
    elif instrument.kind == COUNTER:
        expr = scope.rate(instrument, keys, only)
    else:
        expr = scope.now(instrument, keys, only)
    return Query(f"topk({top}, {expr})" if top else expr, legend(*keys))


def one(scope: Scope, instrument: Instrument, name: str, only: Mapping[str, str] | None = None) -> Query:
    """The same over everything, under a name."""
    return by(scope, instrument, only=only)._replace(legend=name)


def quantiles(
    scope: Scope,
    instrument: Instrument,
    *keys: str,
    only: Mapping[str, str] | None = None,
    of: tuple[float, ...] = (0.5, 0.99),
    exemplars: bool = False,
) -> list[Query]:
    """Quantiles of a histogram by attributes."""
    return [
        Query(scope.quantile(q, instrument, keys, only), f"{legend(*keys)} p{q * 100:g}".strip(), exemplars)
        for q in of
    ]
