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

from collections.abc import Hashable, Sequence

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


class Interval:
    """One metering context: label, begin and end (s), bytes and count metered under the same label.

    ``depth`` is the number of contexts that were open around it.
    """

    __slots__ = ("children", "count", "cpu", "depth", "end", "label", "noncpu", "size", "start")

    def __init__(self, label: str, start: float, end: float, depth: int) -> None:
        self.label = label
        self.start = start
        self.end = end
        self.depth = depth
        self.children: list[Interval] = []
        self.size: float | None = None
        self.count: float | None = None
        self.cpu: float | None = None
        self.noncpu: float | None = None

    def __repr__(self) -> str:
        inside = f", {self.children}" if self.children else ""
        return f"{self.label}[{self.start:g}, {self.end:g}{inside}]"


def nest(
    posts: Sequence[tuple[Hashable, float, str]],
    moments: Sequence[float],
    depths: Sequence[int],
    compute: float | None = None,
) -> list[Interval]:
    """The outermost intervals, in the order of their ends.

    Parameters
    ----------
    posts:
        ``(label, amount, unit)`` as the metering contexts posted them.
    moments:
        When each was posted (s).
    depths:
        How many metering contexts were open around each.
    compute:
        How long (s) the task's function took, where Dask tells it: its two amounts may be cut at zero.

    Examples
    --------
    A user's own context of 2 s within a task function of 10 s:

    >>> nest([("mine", 2.0, "seconds"), ("thread-cpu", 5.0, "seconds"), ("thread-noncpu", 3.0, "seconds")],
    ...      [4.0, 11.0, 11.0], [2, 1, 0])
    [compute[1, 11, [mine[2, 4]]]]
    """
    open_: list[Interval] = []
    cpu: float | None = None
    pending: dict[str, list[tuple[float, str]]] = {}
    for (label, value, unit), moment, depth in zip(posts, moments, depths):
        name = text(label)
        if unit != "seconds":
            _attach(open_, name, value, unit, pending)
        elif name == _THREAD_CPU:
            cpu = value
        elif name == _THREAD_NONCPU:
            interval = _close(open_, ACTIVITY_COMPUTE, value + (cpu or 0.0), moment, depth, compute)
            interval.cpu, interval.noncpu = cpu, value
            cpu = None
        else:
            interval = _close(open_, name, value, moment, depth, None)
            for amount, its_unit in pending.pop(name, ()):
                _add(interval, amount, its_unit)
    return open_


def _close(
    open_: list[Interval], label: str, amount: float, end: float, depth: int, exact: float | None
) -> Interval:
    children: list[Interval] = []
    while open_ and open_[-1].depth > depth:
        children.append(open_.pop())
    children.reverse()
    length = sum([child.end - child.start for child in children], amount) if exact is None else exact
    start = end - length
    if children and children[0].start < start:  # Its end was noted late.
        start = children[0].start
        end = max(start + length, children[-1].end)
    interval = Interval(label, start, end, depth)
    for child in children:
        _clamp(child, start, end)
    interval.children = children
    open_.append(interval)
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


def _attach(
    open_: list[Interval], label: str, value: float, unit: str, pending: dict[str, list[tuple[float, str]]]
) -> None:
    """Bytes and counts belong to the interval of the same label that has just ended, else to the next one."""
    if unit not in ("bytes", "count"):
        return
    for interval in reversed(open_[-3:]):
        if interval.label == label:
            _add(interval, value, unit)
            return
    pending.setdefault(label, []).append((value, unit))


def _add(interval: Interval, value: float, unit: str) -> None:
    if unit == "bytes":
        interval.size = (interval.size or 0) + value
    else:
        interval.count = (interval.count or 0) + value
