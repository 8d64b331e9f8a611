"""From amounts to intervals: what was metered inside what, and when.

Dask's metering contexts say, when they end, how long they lasted *without* what was metered inside them. So the
end of each is known, and its begin is its end minus its amount minus all that ended inside it. What ended inside it is
what came before it and deeper: how many contexts were open around each is known too. Times cannot tell, since a thread
may have to wait between the end of its context and the moment in which that is noted.

Rules
-----
1. Standard library only; no clock: the moments (s, any clock) come with the posts.
2. An interval lies within its parent, and a leaf lasts for exactly its amount.
3. Dask's ``thread-cpu`` and ``thread-noncpu`` are two amounts of one interval, ``compute``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from math import isfinite
from operator import index
from typing import Any, NamedTuple

from dask_otel.names import ACTIVITY_COMPUTE

_THREAD_CPU, _THREAD_NONCPU = "thread-cpu", "thread-noncpu"


def text(label: Hashable) -> str:
    """A label as text: Dask's own are strings, users may meter under any tuple.

    Examples
    --------
    >>> text("disk-read"), text(("shards", 3))
    ('disk-read', 'shards.3')
    """
    if isinstance(label, tuple):
        return ".".join(map(str, label))
    return str(label)


def number(value: Any) -> float | None:
    """An amount as a plain number, an integer in 64 bits; ``None`` where it is none.

    Users may meter what they like, and NumPy's integers often: they add up, but msgpack and OTLP do not take them.

    Examples
    --------
    >>> import decimal
    >>> number(3), number(True), number(decimal.Decimal("1.5")), number(2**63)
    (3, 1, 1.5, 9.223372036854776e+18)
    >>> number(float("nan")), number(1j), number("3")
    (None, None, None)
    """
    if type(value) is float:
        return value if isfinite(value) else None
    if isinstance(value, (str, bytes)):
        return None
    try:
        whole = index(value)
        return whole if -(2**63) <= whole < 2**63 else float(whole)
    except (TypeError, OverflowError):
        pass
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if isfinite(found) else None


class Amounts(NamedTuple):
    """What was metered, side by side: labels, values and units of the same length.

    In such tuples of plain values the garbage collector has nothing to follow.
    """

    labels: tuple[Hashable, ...] = ()
    values: tuple[float, ...] = ()
    units: tuple[str, ...] = ()

    @classmethod
    def of(cls, posts: Sequence[tuple[Hashable, float, str]]) -> Amounts:
        """From ``(label, value, unit)`` of each.

        Examples
        --------
        >>> Amounts.of([("disk-read", 8, "bytes"), ("other", 0.5, "seconds")]).units
        ('bytes', 'seconds')
        """
        return cls(*zip(*posts)) if posts else cls()

    @property
    def posts(self) -> Iterator[tuple[Hashable, float, str]]:
        """``(label, value, unit)`` of each."""
        return zip(self.labels, self.values, self.units)


class Outline:
    """An interval without its times: where its amounts stand among the posts, its children among the outlines.

    ``depth`` is the number of contexts that were open around it.
    """

    __slots__ = ("children", "counts", "cpu", "depth", "label", "noncpu", "post", "sizes")

    def __init__(self, label: str, post: int, depth: int, children: list[int]) -> None:
        self.label = label
        self.post = post
        self.depth = depth
        self.children = children
        self.sizes: list[int] = []
        self.counts: list[int] = []
        self.cpu: int | None = None
        self.noncpu: int | None = None

    def __repr__(self) -> str:
        return f"{self.label}{self.children or ''}"


def outline(labels: Iterable[Hashable], units: Iterable[str], depths: Iterable[int]) -> list[Outline]:
    """What was metered inside what, in the order of the ends: it follows from labels, units and depths alone.

    Examples
    --------
    >>> outline(["mine", "thread-cpu", "thread-noncpu"], ["seconds"] * 3, [2, 1, 0])
    [mine, compute[0]]
    """
    made: list[Outline] = []
    open_: list[int] = []
    cpu: int | None = None
    pending: dict[str, list[tuple[int, str]]] = {}
    for i, (label, unit, depth) in enumerate(zip(labels, units, depths)):
        name = text(label)
        if unit != "seconds":
            _attach([made[index] for index in open_[-3:]], name, i, unit, pending)
        elif name == _THREAD_CPU:
            cpu = i
        else:
            children: list[int] = []
            while open_ and made[open_[-1]].depth > depth:
                children.append(open_.pop())
            open_.append(len(made))
            one = Outline(ACTIVITY_COMPUTE if name == _THREAD_NONCPU else name, i, depth, children[::-1])
            made.append(one)
            if name == _THREAD_NONCPU:
                one.cpu, one.noncpu = cpu, i
                cpu = None
            else:
                for amount, its_unit in pending.pop(name, ()):
                    _add(one, amount, its_unit)
    return made


def _attach(
    open_: list[Outline], label: str, post: int, unit: str, pending: dict[str, list[tuple[int, str]]]
) -> None:
    """Bytes and counts belong to the interval of the same label that has just ended, else to the next one."""
    if unit not in ("bytes", "count"):
        return
    for one in reversed(open_):
        if one.label == label:
            _add(one, post, unit)
            return
    pending.setdefault(label, []).append((post, unit))


def _add(one: Outline, post: int, unit: str) -> None:
    (one.sizes if unit == "bytes" else one.counts).append(post)


class Interval:
    """One metering context: label, begin and end (s), bytes and count metered under the same label."""

    __slots__ = ("children", "count", "cpu", "end", "label", "noncpu", "size", "start")

    def __init__(self, label: str, start: float, end: float) -> None:
        self.label = label
        self.start = start
        self.end = end
        self.children: list[Interval] = []
        self.size: float | None = None
        self.count: float | None = None
        self.cpu: float | None = None
        self.noncpu: float | None = None

    def __repr__(self) -> str:
        inside = f", {self.children}" if self.children else ""
        return f"{self.label}[{self.start:g}, {self.end:g}{inside}]"


def nest(
    posts: Amounts,
    moments: Sequence[float],
    depths: Sequence[int],
    compute: float | None = None,
) -> list[Interval]:
    """The outermost intervals, in the order of their ends.

    Parameters
    ----------
    posts:
        What the metering contexts posted, in that order.
    moments:
        When each was posted (s).
    depths:
        How many metering contexts were open around each; any number that grows with them will do.
    compute:
        How long (s) the task's function took, where Dask tells it: its two amounts may be cut at zero.

    Examples
    --------
    A user's own context of 2 s within a task function of 10 s:

    >>> posts = Amounts(("mine", "thread-cpu", "thread-noncpu"), (2.0, 5.0, 3.0), ("seconds",) * 3)
    >>> nest(posts, [4.0, 11.0, 11.0], [2, 1, 0])
    [compute[1, 11, [mine[2, 4]]]]
    """
    labels, values, units = posts
    made: list[Interval] = []
    inside: set[int] = set()
    for one in outline(labels, units, depths):
        made.append(_interval(one, values, moments[one.post], [made[i] for i in one.children], compute))
        inside.update(one.children)
    return [interval for i, interval in enumerate(made) if i not in inside]


def _interval(
    one: Outline, values: Sequence[float], end: float, children: list[Interval], compute: float | None
) -> Interval:
    own, cpu = values[one.post], None if one.cpu is None else values[one.cpu]
    if one.noncpu is not None and compute is not None:
        length = compute
    else:
        length = sum([child.end - child.start for child in children], own + (cpu or 0.0))
    start = end - length
    if children and children[0].start < start:  # Its end was noted late.
        start = children[0].start
        end = max(start + length, children[-1].end)
    interval = Interval(one.label, start, end)
    for child in children:
        _clamp(child, start, end)
    interval.children = children
    if one.noncpu is not None:
        interval.cpu, interval.noncpu = cpu, own
    interval.size = sum([values[i] for i in one.sizes]) if one.sizes else None
    interval.count = sum([values[i] for i in one.counts]) if one.counts else None
    return interval


def _clamp(interval: Interval, start: float, end: float) -> None:
    if interval.start >= start and interval.end <= end:
        return
    interval.start = min(max(interval.start, start), end)
    interval.end = max(min(interval.end, end), interval.start)
    for child in interval.children:
        _clamp(child, interval.start, interval.end)


def clamp(intervals: Sequence[Interval], start: float, end: float) -> None:
    """Cut intervals to a parent's: a user may post seconds that no interval stands behind."""
    for interval in intervals:
        _clamp(interval, start, end)
