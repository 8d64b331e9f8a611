"""Where the thread-seconds went, as text.

Rules
-----
1. Standard library, `records` and `names` only.
2. Only task spans count: a group's sums are of the same seconds.
3. What was not metered is blank, never 0; what has no room is summed up and counted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from dask_otel import names
from dask_otel.forest import Spans, cut, received

__all__ = ["activity_table", "thread_seconds"]

#: Seconds by prefix, then by activity.
Seconds: TypeAlias = Mapping[str, Mapping[str, float]]

_UNIT = ".seconds"
_OTHER = "other"


def thread_seconds(spans: Spans) -> dict[str, dict[str, float]]:
    """Seconds by prefix and activity, summed over task spans.

    Examples
    --------
    >>> from dask_otel.records import Span
    >>> attributes = (names.OPERATION, names.OP_TASK), ("dask.task.activity.deserialize.seconds", 0.5)
    >>> thread_seconds([Span("inc", 5, b"t" * 16, b"s" * 8, attributes=attributes)])
    {'inc': {'deserialize': 0.5}}
    """
    sums: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for prefix, label, seconds in _amounts(spans):
        sums[prefix][label] += seconds
    return {prefix: dict(row) for prefix, row in sums.items()}


def _amounts(spans: Spans) -> Iterator[tuple[str, str, float]]:
    for item in received(spans):
        attributes = dict(item.span.common + item.span.attributes)
        if attributes.get(names.OPERATION) != names.OP_TASK:
            continue
        prefix = str(attributes.get(names.TASK_PREFIX, item.span.name))
        for key, value in attributes.items():
            if (
                key.startswith(names.ACTIVITY_AMOUNT)
                and key.endswith(_UNIT)
                and isinstance(value, int | float)
            ):
                yield prefix, key.removeprefix(names.ACTIVITY_AMOUNT).removesuffix(_UNIT), value


def activity_table(spans: Spans, *, width: int = 100) -> str:
    """Thread-seconds by prefix and activity, the largest first, Dask's ``other`` last, with sums of both.

    Examples
    --------
    >>> from dask_otel.records import Span
    >>> def task(prefix, **seconds):
    ...     amounts = ((f"dask.task.activity.{label}.seconds", value) for label, value in seconds.items())
    ...     attributes = ((names.OPERATION, names.OP_TASK), (names.TASK_PREFIX, prefix), *amounts)
    ...     return Span(prefix, 5, b"t" * 16, b"s" * 8, attributes=attributes)
    >>> print(activity_table([task("inc", read=0.25, other=0.5), task("sum", read=2.0), task("inc", other=0.25)]))
    prefix   read  other  total
    sum     2.000         2.000
    inc     0.250  0.750  1.000
    total   2.250  0.750  3.000
    """
    seconds = thread_seconds(spans)
    labels = list(dict.fromkeys(label for row in seconds.values() for label in row))
    labels.sort(key=lambda label: (-_sum(seconds, [label]), label))
    named = [label for label in labels if label != _OTHER]
    last = [(name, [name]) for name in labels if name == _OTHER] + [("total", labels)]
    for shown in range(len(named), -1, -1):
        rest = named[shown:]
        more = [(f"({len(rest)} more)", rest)] if rest else []
        lines = _lines(seconds, [(name, [name]) for name in named[:shown]] + more + last)
        if max(map(len, lines)) <= width:
            break
    return "\n".join(lines)


def _sum(seconds: Seconds, labels: Sequence[str]) -> float:
    return sum(row.get(label, 0.0) for row in seconds.values() for label in labels)


def _lines(seconds: Seconds, columns: Sequence[tuple[str, list[str]]]) -> list[str]:
    order = sorted(seconds, key=lambda prefix: (-sum(seconds[prefix].values()), prefix))
    table = [
        [cut(prefix, 24), *(_cell([seconds[prefix]], labels) for _, labels in columns)] for prefix in order
    ]
    table += [["total", *(_cell(seconds.values(), labels) for _, labels in columns)]]
    table = _headings([heading for heading, _ in columns]) + table
    first, *others = (max(map(len, column)) for column in zip(*table, strict=True))
    return [
        f"{prefix:{first}}{''.join(f'  {cell:>{size}}' for cell, size in zip(cells, others, strict=True))}".rstrip()
        for prefix, *cells in table
    ]


def _headings(headings: Sequence[str]) -> list[list[str]]:
    """Rows of headings: long ones are broken after hyphens, so that their columns stay narrow."""
    broken = [_broken(heading) for heading in headings]
    height = max(map(len, broken))
    filled = [[""] * (height - len(parts)) + parts for parts in broken]
    return [
        ["prefix" if row == height - 1 else "", *(parts[row] for parts in filled)] for row in range(height)
    ]


def _broken(heading: str, most: int = 10) -> list[str]:
    parts = [""]
    for part in re.findall(r"[^-]*-|[^-]+$", heading):
        if parts[-1] and len(parts[-1] + part) > most:
            parts.append("")
        parts[-1] += part
    return parts


def _cell(rows: Iterable[Mapping[str, float]], labels: Sequence[str]) -> str:
    found = [row[label] for row in rows for label in labels if label in row]
    return f"{sum(found):.3f}" if found else ""
