"""Spans as text: a tree to read, an outline to compare.

Rules
-----
1. Standard library, `records` and `names` only: text comes out, nothing is printed.
2. `outline` depends on names, parents, outcomes and attempts alone: no id, time, order of arrival or process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from dask_otel import names
from dask_otel.forest import Node, Received, Spans, cut, fold, marks, prune, received, roots, wrong

__all__ = ["Received", "Spans", "duration", "outline", "tree"]


def tree(spans: Spans, *, most: int = 3, width: int = 100, floor: int = 0) -> str:
    """The spans as a tree with durations, who sent them, and what went wrong; the first to start stand first.

    More than `most` siblings of one name, kind and outcome, with the same wrong below them if anything, are one
    line: their number, the shortest and the longest, and the sum. What is below them is summed up in the same way.
    Activities, and phases of a graph's update, that last less than `floor` nanoseconds in sum are only counted.
    Several traces stand one below the other, each under its id.

    Examples
    --------
    >>> from dask_otel.records import Span
    >>> def span(name, id, parent=b"", start=0, end=0):
    ...     return Span(name, 1, b"t" * 16, bytes([id] * 8), parent and bytes([parent] * 8), start=start, end=end)
    >>> print(tree([span("load", 1, end=2_500_000), span("parse", 2, 1, 500, 480_500), span("lost", 4, 3, 7, 8)]))
    load      2.50 ms
    └─ parse   480 µs
    (parent 0303030303030303 not received)
    └─ lost      1 ns
    """
    traces: defaultdict[bytes, list[Received]] = defaultdict(list)
    for item in received(spans):
        traces[item.span.trace_id].append(item)
    rows: list[_Row] = []
    pruned = 0
    for trace_id, items in sorted(traces.items(), key=lambda pair: min(item.span.start for item in pair[1])):
        nodes = fold(roots(items), most)
        pruned += prune(nodes, floor)
        rows += [_Row(f"trace {trace_id.hex()}")] if len(traces) > 1 else []
        rows += _rows(nodes)
    rows += (
        [_Row(f"({pruned} spans not shown: activities and phases below {duration(floor)})")] if pruned else []
    )
    return "\n".join(_aligned(rows, width))


def outline(spans: Spans) -> str:
    """The structure alone, always the same for the same structure: what tests compare.

    Siblings are sorted by name, then by what is marked; equal ones, with all that is below them, are counted.
    Marked are an outcome that is not a success, an error where there is no outcome, and an attempt after the first.

    Examples
    --------
    >>> from dask_otel.records import Span
    >>> def span(name, id, parent=b"", **attributes):
    ...     ids = bytes([id] * 8), parent and bytes([parent] * 8)
    ...     return Span(name, 1, b"t" * 16, *ids, attributes=tuple(attributes.items()))
    >>> failed = span("inc", 4, 1, **{names.ATTEMPT: 1, names.OUTCOME: names.FAILED})
    >>> again = span("inc", 5, 1, **{names.ATTEMPT: 2, names.OUTCOME: names.SUCCESS})
    >>> print(outline([span("inc group", 1), span("inc", 2, 1), span("inc", 3, 1), again, failed]))
    inc group
      inc ×2
      inc [attempt 2]
      inc [failed]
    """
    return "\n".join(_outlined(roots(list(received(spans)))))


def duration(nanoseconds: int) -> str:
    """A duration for people.

    Examples
    --------
    >>> [duration(n) for n in (7, 45_600, 1_234_000, 59_940_000_000, 62_000_000_000, 7_500_000_000_000)]
    ['7 ns', '45.6 µs', '1.23 ms', '59.9 s', '1 min 2 s', '2 h 5 min']
    """
    seconds = nanoseconds // 1_000_000_000
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    if seconds >= 60:
        return f"{seconds // 60} min {seconds % 60} s"
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if nanoseconds >= size:
            amount = nanoseconds / size
            return f"{amount:.{2 if amount < 10 else 1 if amount < 100 else 0}f} {unit}"
    return f"{nanoseconds} ns"


# -- the outline -------------------------------------------------------------------------------------------------


def _outlined(nodes: Sequence[Node]) -> Iterator[str]:
    for (_, head, below), equal in groupby(sorted(_block(node) for node in nodes)):
        times = len(list(equal))
        yield f"{head} ×{times}" if times > 1 else head
        yield from (f"  {line}" for line in below)


def _block(node: Node) -> tuple[str, str, tuple[str, ...]]:
    found = marks(node.items[0].span) if node.items else []
    head = f"{node.name} [{', '.join(found)}]" if found else node.name
    return node.name, head, tuple(_outlined(node.children))


# -- the tree ----------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A line's columns; ``name`` may be cut for room, what follows it may not."""

    name: str
    after: str = ""
    lasted: str = ""
    sum: str = ""
    where: str = ""


def _rows(nodes: Sequence[Node], indent: str = "", top: bool = True) -> Iterator[_Row]:
    for node in nodes:
        last = node is nodes[-1]
        yield _row(node, "" if top else indent + ("└─ " if last else "├─ "))
        yield from _rows(node.children, "" if top else indent + ("   " if last else "│  "), top=False)


def _row(node: Node, indent: str) -> _Row:
    if not node.items:
        return _Row(f"{indent}(parent {node.missing.hex()} not received)")
    lengths, where, error = node.lengths, _where(node.items), wrong(node.items[0].span)
    after = f" {error}" if error else ""
    if not node.folded:
        return _Row(indent + node.name, after, duration(lengths[0]), "", where)
    total = f"Σ {duration(sum(lengths))}"
    return _Row(indent + node.name, f" ×{len(lengths)}{after}", _range(lengths), total, where)


def _range(lengths: list[int]) -> str:
    shortest, longest = duration(min(lengths)), duration(max(lengths))
    if shortest == longest:
        return longest
    (amount, *unit), (_, *same) = shortest.split(), longest.split()
    return f"{amount if unit == same else shortest}–{longest}"


def _where(items: list[Received]) -> str:
    services = {str(item.resource.get(names.SERVICE_NAME, "")) for item in items}
    workers = {str(item.resource.get(names.WORKER_NAME, "")) for item in items}
    service = services.pop() if len(services) == 1 else f"{len(services)} services"
    return f"{service} {workers.pop() if len(workers) == 1 else ''}".strip()


def _aligned(rows: Sequence[_Row], width: int) -> Iterator[str]:
    timed = [row for row in rows if row.lasted]
    lasted, total, where = (max((len(row[i]) for row in timed), default=0) for i in (2, 3, 4))
    room = width - lasted - sum(2 + size for size in (total, where) if size) - 2
    label = min(max((len(row.name + row.after) for row in timed), default=0), max(20, room))
    for row in rows:
        cells = [f"{row.lasted:>{lasted}}"]
        cells += [f"{row.sum:>{total}}"] if total else []
        yield "  ".join([_cut(row, label), *cells, row.where]).rstrip()


def _cut(row: _Row, size: int) -> str:
    return (cut(row.name, size - len(row.after)) + row.after).ljust(size) if row.lasted else row.name
