#!/usr/bin/env python3
"""Writes docs/reference/telemetry.md from `dask_otel.names` and `dask_otel.instruments`, prometheus.md from `endpoint_names`.

    python docs/generate.py

A test fails where the page that is committed is not what this gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dask_otel import names, scheduler_metrics, worker_metrics
from dask_otel.budget import MAX_SERIES
from dask_otel.endpoint_names import FOREIGN, SHOWN, Shown, prometheus_name
from dask_otel.folding import OTHER
from dask_otel.instruments import INSTRUMENTS, OVERFLOW
from dask_otel.names import ATTRIBUTES, Attribute

#: What is said of attributes that are there only where the user asks for them.
LISTED = "of `otel.metrics.span-names`"
PAGE = Path(__file__).parent / "reference" / "telemetry.md"
ENDPOINTS = PAGE.with_name("prometheus.md")

TEXT = """\
<!-- Written by `python docs/generate.py` from dask_otel/names.py and dask_otel/instruments.py: change it there. -->

# What dask-otel emits

Dashboards and alerts may rely on these names: one that has been released is never given another meaning. What is not
known is left out, never 0 or empty.

## Spans

| name | kind | sent by | below | what it is |
| --- | --- | --- | --- | --- |
{spans}

A computation is SERVER below a CLIENT span of ours, CONSUMER below a PRODUCER, else INTERNAL; it is the root where nothing
was current in the client. Names of tasks, tags and activities come from the code that runs: at most {names} different ones
of each kind in a process, then `{task}`, `{tag}`, `{activity}`.

Status is ERROR for outcomes `{failed}` and `{lost}`, for a computation with a task that failed, for a graph that could not be
taken and for a transfer that failed; else it is unset, but for what your own code sets in a task.

## Attributes

{attributes}
## Outcomes

A task's attempt ends as one of these; `dask.computation.outcomes.<outcome>` and `dask.group.outcomes.<outcome>` count them.

| `dask.task.outcome` | meaning |
| --- | --- |
{task_outcomes}

| `dask.transfer.outcome` | meaning |
| --- | --- |
{transfer_outcomes}

`error.type` is the exception's class, or one of: `{worker_lost}` (the worker of the attempt is gone), `{killed_worker}` (and the task failed of
that), `{over_memory_limit}` (its nanny ended it at its memory limit, by the nanny's word), `{other}` (the class is not known).

## Metrics

Totals since the server started to report, unless your receiver wants differences (`OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta`).
The first export of a series has a zero point before it, so that a query for its increase sees the first value. A server is told by its
resource, not by attributes. Of task prefixes at
most {worker_prefixes} of a worker and {scheduler_prefixes} of the scheduler have series of their own, the others are `{folded}`; what exceeds {series:,} series of a server is under
`{overflow}` ([how metrics leave](../configuration.md#how-metrics-leave)).

{metrics}
## Scope

The instrumentation scope is `{scope}` with the version of dask-otel and the schema `{schema}`.
"""

ENDPOINTS_TEXT = """\
<!-- Written by `python docs/generate.py` from dask_otel/endpoint_names.py: change it there. -->

# What Dask's Prometheus endpoints show, and its names here

Every number of Dask's that `/metrics` of a scheduler or worker shows, dask-otel sends too; no name is the same, so that both can be
scraped and sent to one Prometheus. The third column is what Prometheus makes of the name (dots become underscores, the unit and
`_total` are added), with the labels; an attribute's dots become underscores too. A worker or the scheduler is told by its resource:
`instance` and `job` in Prometheus.

{tables}
Task prefixes and semaphores beyond the busiest are `{folded}` here; Dask shows all of them. Totals here never fall while a server
lives. A series of a value that has always been 0 may be missing.

Not sent, though the endpoints show them:

{foreign}
"""

SPANS = (
    (names.COMPUTE, "CLIENT", "client", "your span, if there is one", "`compute()` that waits for its result; PRODUCER where it does not"),
    (names.PERSIST, "PRODUCER", "client", "your span", "`persist()`"),
    (names.MAP, "PRODUCER", "client", "your span", "`Client.map()`"),
    (names.GATHER, "CLIENT", "client", "your span", "`gather()` that is not part of a call above"),
    (names.COMPUTATION, "see below", "scheduler", "the client's span", "what one client submitted under one context, until its last task is settled"),
    (names.GRAPH_UPDATE, "INTERNAL", "scheduler", f"`{names.COMPUTATION}`", "one submitted graph, from its arrival until its tasks are known"),
    (names.GRAPH_MATERIALIZE, "INTERNAL", "scheduler", f"`{names.GRAPH_UPDATE}`", "the graph is made of what the client sent"),
    (names.GRAPH_ORDER, "INTERNAL", "scheduler", f"`{names.GRAPH_UPDATE}`", "`dask.order`"),
    (names.GRAPH_INIT, "INTERNAL", "scheduler", f"`{names.GRAPH_UPDATE}`", "the tasks' states are made"),
    ("<tag>", "INTERNAL", "scheduler", f"`{names.COMPUTATION}`, or the tag around it", "one `distributed.span()`"),
    ("<prefix> group", "PRODUCER", "scheduler", f"its tag, else `{names.COMPUTATION}`", "one task group; its totals are exact"),
    ("<prefix>", "CONSUMER", "worker (where lost: scheduler)", "its group", "one attempt of a task, linked to the attempt it replaces"),
    ("<activity>", "INTERNAL", "worker", "the task, or the activity around it", "one metering context: `compute`, `deserialize`, `disk-read`, your own"),
    ("<prefix>.<method>", "INTERNAL", "worker", "the caller's span", "one method call of an actor"),
    (names.GATHER_DEP, "CLIENT", "worker", f"`{names.COMPUTATION}`, else a root", "one transfer, linked to the tasks that waited for it"),
    (names.GET_DATA, "SERVER", "worker", f"`{names.GATHER_DEP}`", "the same, from the sending worker"),
    (names.SPILL, "INTERNAL", "worker", "a root", "the memory monitor spilled for at least 10 ms; linked to the computations that ran"),
)  # fmt: skip

TASK_OUTCOMES = {
    names.SUCCESS: "its result was taken",
    names.FAILED: "it raised, or its result could not be stored",
    names.CANCELLED: "nobody wanted it any more while it ran, or the client restarted the cluster; the span ends when its code does, at the latest when its worker closes",
    names.RESCHEDULED: "it raised `Reschedule`, or its worker was retired while it ran",
    names.DISCARDED: "its result came when another run of the same task was wanted",
    names.LOST: "its worker died, or was closed or restarted by itself",
}
TRANSFER_OUTCOMES = {
    names.SUCCESS: "data came",
    names.BUSY: "the sender had too many others to serve; it is asked again",
    names.MISSING: "the sender no longer had it",
    names.FAILED: "the connection broke, or what came could not be read",
    names.CANCELLED: "what came was wanted no more",
}


def page() -> str:
    """The whole page."""
    assert tuple(TASK_OUTCOMES) == names.TASK_OUTCOMES
    assert tuple(TRANSFER_OUTCOMES) == names.TRANSFER_OUTCOMES
    return TEXT.format(
        spans="\n".join(_row(_code(name), kind, by, below, what) for name, kind, by, below, what in SPANS),
        attributes="\n".join(section for target in targets() for section in _section(target)),
        task_outcomes="\n".join(_row(f"`{name}`", what) for name, what in TASK_OUTCOMES.items()),
        transfer_outcomes="\n".join(_row(f"`{name}`", what) for name, what in TRANSFER_OUTCOMES.items()),
        names=names.MAX_SPAN_NAMES,
        task=names.OVERFLOW_TASK,
        tag=names.OVERFLOW_TAG,
        activity=names.OVERFLOW_ACTIVITY,
        failed=names.FAILED,
        lost=names.LOST,
        worker_lost=names.WORKER_LOST,
        killed_worker=names.KILLED_WORKER,
        over_memory_limit=names.OVER_MEMORY_LIMIT,
        other=names.OTHER_ERROR,
        metrics="\n".join(section for server in ("worker", "scheduler") for section in _metrics(server)),
        worker_prefixes=worker_metrics.MAX_PREFIXES,
        scheduler_prefixes=scheduler_metrics.MAX_PREFIXES,
        series=MAX_SERIES,
        overflow=OVERFLOW,
        folded=OTHER,
        scope=names.SCOPE,
        schema=names.SCHEMA_URL,
    )


def endpoints_page() -> str:
    """The page about Dask's endpoints."""
    return ENDPOINTS_TEXT.format(
        tables="\n".join(section for server in ("scheduler", "worker") for section in _endpoint(server)),
        folded=OTHER,
        foreign="\n".join(f"- `{beginning}…`: {why}." for beginning, why in FOREIGN.items()),
    )


def _endpoint(server: str) -> Iterator[str]:
    yield (
        f"## {server[0].upper()}{server[1:]}s\n\n"
        "| Dask's | metric | in Prometheus | Dask's number and ours | |\n| --- | --- | --- | --- | --- |"
    )
    for one in SHOWN:
        if one.role == server:
            given = _code(prometheus_name(one.instrument) + _selected(one))
            labels = ",".join(label for label, _ in one.labels)
            name = _code(one.name + (f"{{{labels}}}" if labels else ""))
            yield _row(name, _code(one.instrument.name), given, one.comparison, one.note)
    yield ""


def _selected(shown: Shown) -> str:
    parts = [key.replace(".", "_") for _, key in shown.labels]
    parts += [f'{key.replace(".", "_")}="{value}"' for key, value in shown.attributes]
    return f"{{{','.join(parts)}}}" if parts else ""


def targets() -> list[str]:
    """What attributes are on, in the order in which `names` comes to it; the resource last."""
    found = dict.fromkeys(target for attribute in ATTRIBUTES for target in attribute.on.split(", "))
    return [*(target for target in found if target != "resource"), "resource"]


def _metrics(server: str) -> Iterator[str]:
    yield f"### {server[0].upper()}{server[1:]}s\n\n| name | kind | unit | attributes | |\n| --- | --- | --- | --- | --- |"
    for one in INSTRUMENTS:
        if server in one.on:
            optional = [f"{_code(key)} ({LISTED})" for key in one.optional]
            attributes = ", ".join([*map(_code, one.attributes), *optional])
            yield _row(_code(one.name), one.kind, _code(one.unit), attributes, one.brief)
    yield ""


def _section(target: str) -> Iterator[str]:
    on = [attribute for attribute in ATTRIBUTES if target in attribute.on.split(", ")]
    yield f"### {target[0].upper()}{target[1:]}\n\n| key | type | |\n| --- | --- | --- |"
    yield from map(_attribute, on)
    yield ""


def _attribute(attribute: Attribute) -> str:
    return _row(_code(attribute.key), attribute.type, attribute.brief)


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    ENDPOINTS.write_text(endpoints_page())
