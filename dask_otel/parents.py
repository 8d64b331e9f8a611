"""What a task must know of the spans above it, packed small enough to travel with every task.

Rules
-----
1. Standard library only; no random: an id is given, or follows from others.
2. What cannot be read comes back as ``None``; nothing here raises on what a stranger sent.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from dask_otel.records import IS_REMOTE_KNOWN, Link

#: How much of a computation is told: nothing of ours (the context only travels), groups, tasks, activities.
OFF, GROUP, TASK, ACTIVITY = range(4)
DETAILS = {"group": GROUP, "task": TASK, "activity": ACTIVITY}

_HEAD_LENGTH = 16 + 8 + 8 + 1 + 1
_DETAIL_BITS = 0x03
_PEERS_BIT = 0x04
_COUNTED_BIT = 0x08
_MASK = (1 << 64) - 1
#: A `Keep` where there is one: detail, allowances of failed and of slow attempts, seconds.
_KEEP = struct.Struct(">BHHf")
_MOST = 0xFFFF


class Keep(NamedTuple):
    """Which of the attempts are sent of a group whose tasks are not, to be known only when they have ended.

    ``detail`` is how they are told; ``failed`` and ``slow`` how many of each a worker may send of the computation,
    ``slower`` how long (s) one takes that is slow: infinite while nobody knows.
    """

    detail: int
    failed: int = 0
    slow: int = 0
    slower: float = math.inf


class Parent(NamedTuple):
    """The context of a task: its trace, the group's span, the computation's span.

    Where ``detail`` is `OFF` nobody emits spans of ours below, and ``group_id`` is the span that the user's own
    code has as its parent; ``counted`` says that the scheduler counts attempts nevertheless, by what is
    ``computation_id`` then. ``peers`` says that every worker of the cluster runs dask-otel. ``keep`` is for a task that
    is not certain to be told.
    """

    trace_id: bytes
    group_id: bytes
    computation_id: bytes
    flags: int
    detail: int
    peers: bool = False
    trace_state: str = ""
    baggage: str = ""
    counted: bool = False
    keep: Keep | None = None

    @property
    def tells(self) -> bool:
        """Whether the scheduler wants to know how each attempt ended."""
        return self.counted or self.detail > OFF

    @property
    def address(self) -> bytes:
        """By what the scheduler knows the group."""
        return self.group_id if self.detail > OFF else self.computation_id


class Handed(NamedTuple):
    """What came with one task: its parent, the ordinal of the attempt, the span of the attempt before and,
    where its result had been there already, why it runs again.

    ``previous`` is a span's id, after its trace's where that is another."""

    parent: Parent
    attempt: int = 1
    previous: bytes = b""
    cause: str = ""


def pack(parent: Parent, attempt: int = 1, previous: bytes = b"", cause: str = "") -> bytes | list[object]:
    """The form that travels: 34 bytes, 43 with a `Keep`, in a list with the rest where there is a rest.

    Examples
    --------
    >>> parent = Parent(b"t" * 16, b"g" * 8, b"c" * 8, flags=3, detail=ACTIVITY)
    >>> len(pack(parent)), unpack(pack(parent)) == Handed(parent)
    (34, True)
    >>> unpack(pack(parent, attempt=2, previous=b"p" * 8)).attempt
    2
    >>> uncertain = parent._replace(detail=GROUP, keep=Keep(ACTIVITY, failed=7, slow=3, slower=0.5))
    >>> len(pack(uncertain)), unpack(pack(uncertain)) == Handed(uncertain)
    (43, True)
    """
    detail = parent.detail | (_PEERS_BIT if parent.peers else 0) | (_COUNTED_BIT if parent.counted else 0)
    head = parent.trace_id + parent.group_id + parent.computation_id + bytes((parent.flags & 0xFF, detail))
    if parent.keep is not None:
        kept, failed, slow, slower = parent.keep
        head += _KEEP.pack(kept, min(failed, _MOST), min(slow, _MOST), slower)
    if attempt == 1 and not parent.trace_state and not parent.baggage:
        return head
    return [head, attempt, previous, cause, parent.trace_state, parent.baggage]


def unpack(data: object) -> Handed | None:
    """Read what `pack` wrote; ``None`` for anything else."""
    attempt: object = 1
    previous: object = b""
    cause = trace_state = baggage = ""
    if isinstance(data, (list, tuple)) and len(data) == 6:
        data, attempt, previous, cause, trace_state, baggage = data
    if not isinstance(data, bytes) or len(data) not in (_HEAD_LENGTH, _HEAD_LENGTH + _KEEP.size):
        return None
    if not (isinstance(attempt, int) and isinstance(previous, bytes) and len(previous) in (0, 8, 24)):
        return None
    if not (isinstance(cause, str) and isinstance(trace_state, str) and isinstance(baggage, str)):
        return None
    last = data[33]
    parent = Parent(
        data[:16],
        data[16:24],
        data[24:32],
        data[32],
        last & _DETAIL_BITS,
        bool(last & _PEERS_BIT),
        trace_state,
        baggage,
        bool(last & _COUNTED_BIT),
        Keep(*_KEEP.unpack(data[_HEAD_LENGTH:])) if len(data) > _HEAD_LENGTH else None,
    )
    return Handed(parent, attempt, previous, cause)


def link_to(parent: Parent, previous: bytes) -> tuple[Link, ...]:
    """The link to the attempt before, if there is one."""
    if not previous:
        return ()
    return (Link(previous[:-8] or parent.trace_id, previous[-8:], parent.flags | IS_REMOTE_KNOWN),)


def attempt_span_id(computation_id: bytes, run_id: int) -> bytes:
    """Id of the span of one attempt: the scheduler and the worker find the same without a word.

    ``run_id`` is the scheduler's number of a dispatch, never used twice by one scheduler. The mapping is
    splitmix64's, one to one for a given computation, so that ids of one computation never collide.

    Examples
    --------
    >>> attempt_span_id(b"\\x00" * 8, 1).hex() != attempt_span_id(b"\\x00" * 8, 2).hex()
    True
    """
    z = (int.from_bytes(computation_id, "big") + run_id * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return (z or 1).to_bytes(8, "big")
