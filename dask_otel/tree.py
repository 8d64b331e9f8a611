"""Spans as text: a tree to read, an outline to compare.

Rules
-----
1. Standard library, `records` and `names` only: text comes out, nothing is printed.
2. No span is left out: what is folded is counted, what lacks its parent stands under a line that says so, and a
   span that was sent twice is there twice.
3. `outline` depends on names, parents, outcomes and attempts alone: no id, time, order of arrival or process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeAlias

from dask_otel import names
from dask_otel.records import ERROR, Span, Value

__all__ = ["Received", "Spans", "duration", "outline", "tree"]


class Received(NamedTuple):
    """A span and who sent it: its resource, the name and version of its scope."""

    resource: dict[str, Value]
    scope: tuple[str, str]
    span: Span


#: What can be shown: spans alone, or with who sent them.
Spans: TypeAlias = Iterable["Span | Received"]


@dataclass(slots=True)
class _Node:
    """A line: one span, several that were folded, or none where a parent is not there."""

    items: list[Received] = field(default_factory=list)
    children: list[_Node] = field(default_factory=list)
    missing: bytes = b""
    folded: bool = False

    @property
    def name(self) -> str:
        return self.items[0].span.name if self.items else "(parent not received)"

    @property
    def start(self) -> int:
        return min(item.span.start for item in self.items or [n.items[0] for n in self.children])


def tree(spans: Spans, *, fold: int = 3, width: int = 100) -> str:
    """The spans as a tree with durations, who sent them, and what went wrong; the first to start stand first.

    More than `fold` siblings of one name, kind and outcome, with the same wrong below them if anything, are one
    line: their number, the shortest and the longest, and the sum. What is below them is summed up in the same way.
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
    for item in _received(spans):
        traces[item.span.trace_id].append(item)
    rows: list[_Row] = []
    for trace_id, items in sorted(traces.items(), key=lambda pair: min(item.span.start for item in pair[1])):
        rows += [_Row(f"trace {trace_id.hex()}")] if len(traces) > 1 else []
        rows += _rows(_folded(_roots(items), fold))
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
    return "\n".join(_outlined(_roots(list(_received(spans)))))


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


# -- from spans to nodes -----------------------------------------------------------------------------------------


def _received(spans: Spans) -> Iterator[Received]:
    for item in spans:
        yield item if isinstance(item, Received) else Received({}, ("", ""), item)


def _roots(items: list[Received]) -> list[_Node]:
    nodes = [_Node([item]) for item in items]
    first: dict[tuple[bytes, bytes], _Node] = {}
    for node in nodes:
        first.setdefault((node.items[0].span.trace_id, node.items[0].span.span_id), node)
    roots: list[_Node] = []
    missing: dict[tuple[bytes, bytes], _Node] = {}
    for node in nodes:
        span = node.items[0].span
        parent = first.get((span.trace_id, span.parent_id))
        if not span.parent_id:
            roots.append(node)
        elif parent is None or parent is node:
            missing.setdefault(
                (span.trace_id, span.parent_id), _Node(missing=span.parent_id)
            ).children.append(node)
        else:
            parent.children.append(node)
    return roots + list(missing.values())


def _marks(span: Span) -> list[str]:
    """What is out of the ordinary about a span."""
    attributes = dict(span.common + span.attributes)
    outcome = attributes.get(names.OUTCOME, attributes.get(names.TRANSFER_OUTCOME))
    attempt = attributes.get(names.ATTEMPT, 1)
    marks = [] if outcome in (None, names.SUCCESS) else [str(outcome)]
    if span.status == ERROR and not marks:
        marks = ["error"]
    return marks if attempt == 1 else [*marks, f"attempt {attempt}"]


# -- the outline -------------------------------------------------------------------------------------------------


def _outlined(nodes: Sequence[_Node]) -> Iterator[str]:
    for (_, head, below), equal in groupby(sorted(_block(node) for node in nodes)):
        times = len(list(equal))
        yield f"{head} ×{times}" if times > 1 else head
        yield from (f"  {line}" for line in below)


def _block(node: _Node) -> tuple[str, str, tuple[str, ...]]:
    marks = _marks(node.items[0].span) if node.items else []
    head = f"{node.name} [{', '.join(marks)}]" if marks else node.name
    return node.name, head, tuple(_outlined(node.children))


# -- the tree ----------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    label: str
    lasted: str = ""
    sum: str = ""
    where: str = ""
    wrong: str = ""


def _folded(nodes: Sequence[_Node], fold: int) -> list[_Node]:
    alike: defaultdict[object, list[_Node]] = defaultdict(list)
    for node in nodes:
        alike[node.missing or (node.name, node.items[0].span.kind, _trouble(node))].append(node)
    result: list[_Node] = []
    for group in alike.values():
        if len(group) > fold and not group[0].missing:
            below = [child for node in group for child in node.children]
            # Fold 0: what is below several is told once for all of them, be it below one of them only.
            result.append(_Node([node.items[0] for node in group], _folded(below, 0), folded=True))
        else:
            result += [_Node(node.items, _folded(node.children, fold), node.missing) for node in group]
    return sorted(result, key=lambda node: (node.start, node.name))


def _trouble(node: _Node) -> frozenset[tuple[str, str]]:
    """What is wrong with a span and below it: only siblings that share it are told as one."""
    wrong = _wrong(node.items[0].span)
    here = {(node.name, wrong)} if wrong else set()
    return frozenset(here.union(*map(_trouble, node.children)))


def _rows(nodes: Sequence[_Node], indent: str = "", top: bool = True) -> Iterator[_Row]:
    for node in nodes:
        last = node is nodes[-1]
        yield _row(node, "" if top else indent + ("└─ " if last else "├─ "))
        yield from _rows(node.children, "" if top else indent + ("   " if last else "│  "), top=False)


def _row(node: _Node, indent: str) -> _Row:
    if not node.items:
        return _Row(f"{indent}(parent {node.missing.hex()} not received)")
    where = _where(node.items)
    lengths = [max(0, item.span.end - item.span.start) for item in node.items]
    wrong = _wrong(node.items[0].span)
    if not node.folded:
        return _Row(indent + node.name, duration(lengths[0]), "", where, wrong)
    total = f"Σ {duration(sum(lengths))}"
    return _Row(f"{indent}{node.name} ×{len(lengths)}", _range(lengths), total, where, wrong)


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


def _wrong(span: Span) -> str:
    marks = _marks(span)
    if span.status == ERROR:
        marks = [f"✗ {_error_type(span)}", *(mark for mark in marks if mark not in ("error", names.FAILED))]
    return ", ".join(marks)


def _error_type(span: Span) -> str:
    events = [dict(event.attributes).get(names.EXCEPTION_TYPE) for event in span.events]
    known = [dict(span.common + span.attributes).get(names.ERROR_TYPE), *events, span.message, "error"]
    return next(str(name) for name in known if name)


def _aligned(rows: Sequence[_Row], width: int) -> Iterator[str]:
    timed = [row for row in rows if row.lasted]
    label, lasted, *others = (
        max((len(row[i]) for row in timed), default=0) for i in range(len(_Row._fields))
    )
    label = min(label, max(20, width - lasted - sum(2 + other for other in others if other) - 2))
    for row in rows:
        name = row.label if len(row.label) <= label or not row.lasted else row.label[: label - 1] + "…"
        cells = (
            f"  {text:{side}{size}}" for text, side, size in zip(row[2:], "><<", others, strict=True) if size
        )
        yield f"{name:{label}}  {row.lasted:>{lasted}}{''.join(cells)}".rstrip()
