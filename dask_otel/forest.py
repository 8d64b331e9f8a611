"""Spans put below their parents, and what is alike put together: what a tree is drawn from.

Rules
-----
1. Standard library, `records` and `names` only.
2. No span is left out: what is folded is in a node with others, what lacks its parent stands below a node without a
   span, one that was sent twice is there twice, and what is pruned is counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from dask_otel import names
from dask_otel.records import ERROR, Span, Value

__all__ = ["Node", "Received", "Spans", "cut", "fold", "marks", "prune", "received", "roots", "wrong"]


class Received(NamedTuple):
    """A span and who sent it: its resource, the name and version of its scope."""

    resource: dict[str, Value]
    scope: tuple[str, str]
    span: Span


#: What can be shown: spans alone, or with who sent them.
Spans: TypeAlias = Iterable["Span | Received"]

#: How a computation was done in detail, whose names say little before one looks for them.
_DETAILS = (names.GRAPH_MATERIALIZE, names.GRAPH_ORDER, names.GRAPH_INIT)


@dataclass(slots=True, eq=False)
class Node:
    """One span, several that were folded, or none where a parent is not there."""

    items: list[Received] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    missing: bytes = b""
    folded: bool = False

    @property
    def name(self) -> str:
        """The span's name, or what stands in its place."""
        return self.items[0].span.name if self.items else "(parent not received)"

    @property
    def start(self) -> int:
        """When it starts to matter: a group with its first task, a parent that is not there with its first child."""
        waits = not self.items or operation(self.items[0].span) == names.OP_GROUP
        if waits and self.children:
            return min(child.start for child in self.children)
        return min(item.span.start for item in self.items)

    @property
    def lengths(self) -> list[int]:
        """How long each span lasted (ns)."""
        return [max(0, item.span.end - item.span.start) for item in self.items]


def received(spans: Spans) -> Iterator[Received]:
    """Spans with who sent them, where that is known."""
    for item in spans:
        yield item if isinstance(item, Received) else Received({}, ("", ""), item)


def roots(items: Sequence[Received]) -> list[Node]:
    """The spans without a parent, each with all that is below it, and a node for each parent that is not there."""
    nodes = [Node([item]) for item in items]
    first: dict[tuple[bytes, bytes], Node] = {}
    for item, node in zip(items, nodes, strict=True):
        first.setdefault((item.span.trace_id, item.span.span_id), node)
    result: list[Node] = []
    missing: dict[tuple[bytes, bytes], Node] = {}
    for item, node in zip(items, nodes, strict=True):
        key = item.span.trace_id, item.span.parent_id
        parent = first.get(key)
        if not item.span.parent_id:
            result.append(node)
        elif parent is None or parent is node:
            missing.setdefault(key, Node(missing=item.span.parent_id)).children.append(node)
        else:
            parent.children.append(node)
    return result + list(missing.values())


# -- what is said of a span --------------------------------------------------------------------------------------


def operation(span: Span) -> Value:
    """Of ours, what it is about."""
    return dict(span.common + span.attributes).get(names.OPERATION)


def marks(span: Span) -> list[str]:
    """What is out of the ordinary: an outcome that is no success, an error without outcome, a later attempt."""
    attributes = dict(span.common + span.attributes)
    outcome = attributes.get(names.OUTCOME, attributes.get(names.TRANSFER_OUTCOME))
    attempt = attributes.get(names.ATTEMPT, 1)
    found = [] if outcome in (None, names.SUCCESS) else [str(outcome)]
    if span.status == ERROR and not found:
        found = ["error"]
    return found if attempt == 1 else [*found, f"attempt {attempt}"]


def wrong(span: Span) -> str:
    """The same to read: the error's type where there is one."""
    found = marks(span)
    if span.status != ERROR:
        return f"[{', '.join(found)}]" if found else ""
    rest = [mark for mark in found if mark not in ("error", names.FAILED)]
    return f"✗ {_error_type(span)} [{', '.join(rest)}]" if rest else f"✗ {_error_type(span)}"


def _error_type(span: Span) -> str:
    events = [dict(event.attributes).get(names.EXCEPTION_TYPE) for event in span.events]
    known = [dict(span.common + span.attributes).get(names.ERROR_TYPE), *events, span.message, "error"]
    return next(str(name) for name in known if name)


# -- less to read ------------------------------------------------------------------------------------------------


def fold(nodes: Sequence[Node], most: int) -> list[Node]:
    """More than `most` siblings that are alike as one; siblings in the order in which they started."""
    alike: defaultdict[object, list[Node]] = defaultdict(list)
    for node in nodes:
        alike[node.missing or (node.name, node.items[0].span.kind, _trouble(node))].append(node)
    result: list[Node] = []
    for group in alike.values():
        if len(group) > most and not group[0].missing:
            below = [child for node in group for child in node.children]
            # At most 0: what is below several is told once for all of them, be it below one of them only.
            result.append(Node([node.items[0] for node in group], fold(below, 0), folded=True))
        else:
            result += [Node(node.items, fold(node.children, most), node.missing) for node in group]
    return sorted(result, key=lambda node: (node.start, node.name))


def _trouble(node: Node) -> frozenset[tuple[str, str]]:
    """What is wrong with a span and below it: only siblings that share it are told as one."""
    here = wrong(node.items[0].span) if node.items else ""
    return frozenset({(node.name, here)} if here else ()).union(*map(_trouble, node.children))


def prune(nodes: Sequence[Node], floor: int) -> int:
    """Take out activities and phases of graphs below `floor` (ns, in sum) with nothing wrong; how many spans went."""
    gone = 0
    for node in nodes:
        small = [child for child in node.children if _detail(child) and sum(child.lengths) < floor]
        gone += sum(map(_size, small))
        node.children = [child for child in node.children if child not in small]
        gone += prune(node.children, floor)
    return gone


def _detail(node: Node) -> bool:
    return (
        bool(node.items)
        and not _trouble(node)
        and (operation(node.items[0].span) == names.OP_ACTIVITY or node.name in _DETAILS)
        and all(map(_detail, node.children))
    )


def _size(node: Node) -> int:
    return len(node.items) + sum(map(_size, node.children))


def cut(text: str, size: int) -> str:
    """`text` within `size` characters, with an ellipsis for what was cut."""
    return text if len(text) <= size else text[: max(0, size - 1)] + "…"
