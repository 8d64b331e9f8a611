"""Totals that never fall, of what Dask counts from 0 again or forgets.

Rules
-----
1. Standard library only; no clock.
2. A total is the sum of what its source has risen by: what is forgotten stays in it.
3. Prefixes are folded when they rise, so that the cost is that of the prefixes that have changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

#: Dask's state of a task that it no longer knows.
FORGOTTEN = "forgotten"


class Folds(Protocol):
    """What keeps prefixes few: `folding.Folding`."""

    @property
    def rooms(self) -> int: ...

    def choose(self, busy: Mapping[str, float]) -> None: ...

    def shown(self, prefix: str) -> str: ...


class Rising:
    """Totals of sources that may begin again, by what `labels` shows each as.

    Examples
    --------
    >>> rising = Rising()
    >>> rising.update({"lock": 5}, labels={"lock": "lock"})
    >>> rising.forget("lock")
    >>> rising.update({"lock": 2}, labels={"lock": "lock"})
    >>> rising.totals
    {'lock': 7}
    """

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self._read: dict[str, int] = {}

    def update(self, values: Mapping[str, int], labels: Mapping[str, str]) -> None:
        """What the sources have now; one that has fallen has begun again."""
        for of, value in values.items():
            label = labels[of]
            self.totals[label] = self.totals.get(label, 0) + rise(value, self._read.get(of, 0))
            self._read[of] = value

    def forget(self, of: str) -> None:
        """A source begins again."""
        self._read.pop(of, None)


def rise(value: int, before: int) -> int:
    """By how much a total has risen that may have begun again.

    Examples
    --------
    >>> rise(5, 3), rise(2, 3)
    (2, 2)
    """
    return value - before if value >= before else value


class Prefix(NamedTuple):
    """What Dask's scheduler has of a task prefix.

    ``compute`` and ``transfer`` are µs, ``size`` bytes; ``tasks`` are there now, in the order of the states;
    ``entered`` counts the times that one came into a state.
    """

    name: str
    suspicious: int
    compute: int
    transfer: int
    size: int
    tasks: tuple[int, ...]
    entered: Mapping[str, int]


class PrefixTotals:
    """Totals over a scheduler's prefixes, told of those that have changed; ``states`` are those of tasks.

    Examples
    --------
    >>> from dask_otel.folding import Folding
    >>> totals = PrefixTotals(Folding(limit=1), ["memory"])
    >>> totals.update([Prefix("inc", 0, 2_000_000, 0, 28, (1,), {"memory": 1})])
    >>> totals.forget()
    >>> totals.update([Prefix("add", 0, 500_000, 0, 8, (1,), {"memory": 1})])
    >>> totals.compute, totals.size, totals.tasks
    ({'inc': 2.0, 'other': 0.5}, {'inc': 0, 'other': 8}, {'memory': 1})
    """

    def __init__(self, folding: Folds, states: Sequence[str]) -> None:
        self._folding = folding
        self._states = states
        self._nothing = Prefix("", 0, 0, 0, 0, (0,) * len(states), {})
        self._read: dict[str, Prefix] = {}
        self._busy: dict[str, float] = {}
        #: What prefixes are shown as, and the bytes that are shown so.
        self._labels: dict[str, str] = {}
        self._sizes: defaultdict[str, int] = defaultdict(int)
        self._compute: defaultdict[str, int] = defaultdict(int)
        self._transfer: defaultdict[str, int] = defaultdict(int)
        #: Times that tasks were suspected, by prefix; that they came into a state, by prefix and state.
        self.suspicious: defaultdict[str, int] = defaultdict(int)
        self.entered: defaultdict[tuple[str, str], int] = defaultdict(int)
        #: Tasks by state.
        self.tasks = dict.fromkeys(states, 0)
        self.forgotten = 0

    @property
    def compute(self) -> dict[str, float]:
        """Seconds by prefix."""
        return {of: value / 1e6 for of, value in self._compute.items()}

    @property
    def transfer(self) -> dict[str, float]:
        """Seconds by prefix."""
        return {of: value / 1e6 for of, value in self._transfer.items()}

    @property
    def size(self) -> dict[str, int]:
        """Bytes by prefix; 0 where there were some."""
        return dict(self._sizes)

    def update(self, prefixes: Iterable[Prefix]) -> None:
        """These are new or have changed."""
        changed = list(prefixes)
        new = {prefix.name: prefix.compute / 1e6 for prefix in changed if prefix.name not in self._busy}
        self._busy |= new
        rooms = self._folding.rooms
        self._folding.choose(self._busy)
        if new or self._folding.rooms != rooms:
            self._relabel()
        for prefix in changed:
            self._add(prefix, self._read.get(prefix.name, self._nothing))
            self._read[prefix.name] = prefix

    def forget(self) -> None:
        """All prefixes begin again; of those that have no series of their own nothing is kept."""
        self._read.clear()
        self._labels = {name: label for name, label in self._labels.items() if name == label}
        self._busy = {name: self._busy[name] for name in self._labels}
        self._sizes = defaultdict(int, dict.fromkeys(self._sizes, 0))
        self.tasks = dict.fromkeys(self.tasks, 0)

    def _relabel(self) -> None:
        """Which prefixes have series of their own is known anew; totals stay where they are, bytes move along."""
        shown, labels = self._folding.shown, self._labels
        for name in self._busy:
            label, before = shown(name), labels.get(name)
            if label != before:
                labels[name] = label
                if before is not None and (read := self._read.get(name)) is not None:
                    self._sizes[before] -= read.size
                    self._sizes[label] += read.size

    def _add(self, now: Prefix, before: Prefix) -> None:
        # Some 5 µs for each prefix that has changed, on the event loop.
        label = self._labels[now.name]
        if now.compute != before.compute:
            more = rise(now.compute, before.compute)
            self._compute[label] += more
            self._busy[now.name] += more / 1e6
        elif label not in self._compute:
            self._compute[label] = 0
        if now.transfer != before.transfer:
            self._transfer[label] += rise(now.transfer, before.transfer)
        if now.suspicious != before.suspicious:
            self.suspicious[label] += rise(now.suspicious, before.suspicious)
        self._sizes[label] += now.size - before.size
        entered, known = self.entered, before.entered
        for state, times in now.entered.items():
            if times != (seen := known.get(state, 0)):
                entered[label, state] += rise(times, seen)
                if state == FORGOTTEN:
                    self.forgotten += rise(times, seen)
        if now.tasks != before.tasks:
            for state, there, were in zip(self._states, now.tasks, before.tasks):
                if there != were:
                    self.tasks[state] += there - were
