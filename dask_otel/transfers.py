"""Transfers and spills as spans; standard library only, no clock, no random.

A transfer hangs below the computation of the most urgent task that waits for it and is linked to all tasks that
do; one that no task waits for (a replica that is moved) is a trace of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from dask_otel import names
from dask_otel.parents import TASK, Parent, attempt_span_id
from dask_otel.records import (
    CLIENT,
    ERROR,
    INTERNAL,
    IS_REMOTE,
    IS_REMOTE_KNOWN,
    SERVER,
    UNSET,
    Attributes,
    Link,
    Span,
    Value,
)

#: Episodes of spilling that are shorter (s) are not told.
SHORTEST_SPILL = 0.010
MAX_LINKS = 128
_NS = 1e9
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:;([ -~]*))?")


class TransferContext(NamedTuple):
    """Where a transfer's span belongs; ``fragment`` is what the sender is told, empty where it must not be;
    ``attributes`` are what the sampler wants on a root, ``owner`` the run with whose task it is told, if that is at all."""

    parent: Parent
    span_id: bytes
    links: tuple[Link, ...]
    fragment: str
    attributes: Attributes = ()
    owner: int | None = None


class Root(NamedTuple):
    """A trace that starts here, and what the sampler wants on its span."""

    parent: Parent
    attributes: Attributes = ()


class Measured(Protocol):
    """What is known of a transfer that ended; moments in seconds since the epoch."""

    host: str
    port: int | None
    keys: int
    size: int | None
    start: float
    end: float
    outcome: str
    error_type: str | None


def context_of_transfer(
    waiting: Sequence[tuple[Parent, int]],
    alone: bool,
    new_span_id: Callable[[], bytes],
    new_root: Callable[[], Root | None],
) -> TransferContext | None:
    """Where the transfer belongs for which ``waiting`` tasks (parent and run id, the most urgent first) wait.

    ``None`` where it is not to be told: the tasks that wait are not traced, or the sampler says so.
    """
    if waiting:
        root: Root | None = Root(waiting[0][0])
    elif alone:
        root = new_root()
    else:
        root = None
    if root is None:
        return None
    parent, attributes = root
    links = tuple(dict.fromkeys(_link(p, run_id) for p, run_id in waiting[:MAX_LINKS]))
    span_id = new_span_id()
    return TransferContext(parent, span_id, links, _fragment(parent, span_id), attributes)


def _fragment(parent: Parent, span_id: bytes) -> str:
    """A ``traceparent``, and the ``tracestate`` after a semicolon where there is one."""
    if not parent.peers:
        return ""
    traceparent = f"00-{parent.trace_id.hex()}-{span_id.hex()}-{parent.flags & 0xFF:02x}"
    return f"{traceparent};{parent.trace_state}" if parent.trace_state else traceparent


def _link(parent: Parent, run_id: int) -> Link:
    """To the span of a task that waits; to that of its group where tasks have none."""
    tells = parent.detail >= TASK
    span_id = attempt_span_id(parent.computation_id, run_id) if tells else parent.group_id
    return Link(parent.trace_id, span_id, parent.flags | IS_REMOTE_KNOWN, parent.trace_state)


def gather_dep_span(context: TransferContext, transfer: Measured, offset: float) -> Span:
    """The receiving side's span."""
    parent = context.parent
    attributes: list[tuple[str, Value]] = [(names.TRANSFER_KEYS, transfer.keys)]
    if transfer.size is not None:
        attributes.append((names.TRANSFER_SIZE, transfer.size))
    attributes += [(names.TRANSFER_OUTCOME, transfer.outcome), (names.SERVER_ADDRESS, transfer.host)]
    if transfer.port is not None:
        attributes.append((names.SERVER_PORT, transfer.port))
    if transfer.error_type is not None:
        attributes.append((names.ERROR_TYPE, transfer.error_type))
    return Span(
        names.GATHER_DEP,
        CLIENT,
        parent.trace_id,
        context.span_id,
        parent.computation_id,
        parent.flags | IS_REMOTE_KNOWN | (IS_REMOTE if parent.computation_id else 0),
        parent.trace_state,
        int(transfer.start * _NS),
        int(transfer.end * _NS),
        _COMMON,
        tuple(attributes) + _offset(offset) + context.attributes,
        links=context.links,
        status=ERROR if transfer.outcome == names.FAILED else UNSET,
    )


def get_data_span(
    fragment: str,
    span_id: bytes,
    keys: int,
    size: int | None,
    start: float,
    end: float,
    outcome: str,
    offset: float,
) -> Span | None:
    """The sending side's span, below the receiver's that ``fragment`` names; ``None`` if it names none."""
    match = _TRACEPARENT.fullmatch(fragment)
    if match is None or not int(match[3], 16) & 1:
        return None
    attributes: Attributes = (
        (names.TRANSFER_KEYS, keys),
        *(((names.TRANSFER_SIZE, size),) if size is not None else ()),
        (names.TRANSFER_OUTCOME, outcome),
    )
    return Span(
        names.GET_DATA,
        SERVER,
        bytes.fromhex(match[1]),
        span_id,
        bytes.fromhex(match[2]),
        int(match[3], 16) | IS_REMOTE_KNOWN | IS_REMOTE,
        match[4] or "",
        int(start * _NS),
        int(end * _NS),
        _COMMON,
        attributes + _offset(offset),
        status=ERROR if outcome == names.FAILED else UNSET,
    )


def spill_span(
    root: Root,
    span_id: bytes,
    running: Sequence[Parent],
    start: float,
    end: float,
    size: int,
    count: int,
    offset: float,
) -> Span:
    """An episode of the memory monitor's spilling, linked to the computations whose tasks ran meanwhile."""
    computations = {(p.trace_id, p.computation_id): p for p in running}
    return Span(
        names.SPILL,
        INTERNAL,
        root.parent.trace_id,
        span_id,
        b"",
        root.parent.flags,
        root.parent.trace_state,
        int(start * _NS),
        int(end * _NS),
        ((names.OPERATION, names.OP_SPILL),),
        ((names.TRANSFER_SIZE, size), (names.TRANSFER_KEYS, count), *_offset(offset), *root.attributes),
        links=tuple(
            Link(p.trace_id, p.computation_id, p.flags | IS_REMOTE_KNOWN, p.trace_state)
            for p in list(computations.values())[:MAX_LINKS]
        ),
    )


_COMMON: Attributes = ((names.OPERATION, names.OP_TRANSFER),)


def _offset(offset: float) -> Attributes:
    return ((names.CLOCK_OFFSET, offset),) if abs(offset) > 1e-3 else ()
