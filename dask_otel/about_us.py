"""What dask-otel counts of itself: the spans and points of this process's pipelines, each told once.

Rules
-----
1. Of the servers of a process one tells, the first that exports; when it goes, the next goes on from there: the sum
   over servers is exact.
2. What a server has told never falls, also where it tells again after another one.
3. What became of spans after the last export of a process's last server is not told.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from dask_otel import instruments, names
from dask_otel.export.fates import UNANSWERED
from dask_otel.export.metrics import MetricExporter
from dask_otel.export.pipeline import Pipeline
from dask_otel.guard import PROCESS
from dask_otel.instruments import COUNTER
from dask_otel.series import Measured, measured

#: A counter's total by metric and attributes.
Totals = dict[tuple[str, tuple[str, ...]], float]
#: What a pipeline is called; the order of their beginning.
_numbers = count()
_names: weakref.WeakKeyDictionary[Pipeline | MetricExporter, str] = weakref.WeakKeyDictionary()


class Duty:
    """Who tells what is the process's own.

    Examples
    --------
    >>> class Server: pass
    >>> one, other, duty = Server(), Server(), Duty()
    >>> told = lambda who, total: [
    ...     found.points[0].value for found in duty.told(who, [measured(instruments.LOOP_TICKS, {(): total})])
    ... ]
    >>> told(one, 5), told(other, 6), duty.leave(one), told(other, 7)
    ([5], [], None, [2])
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: Callable[[], object | None] = _nobody
        #: What each has told; `_gone` what those have that are no more.
        self._shares: dict[int, Totals] = {}
        self._gone: defaultdict[tuple[str, tuple[str, ...]], float] = defaultdict(int)
        #: Whose life has ended since: the garbage collector ends it at any moment, and may change nothing that is being read.
        self._ended: deque[int] = deque()

    def told(self, who: object, values: Iterable[Measured]) -> list[Measured]:
        """What one server tells of these totals: nothing, where another one does."""
        with self._lock:
            # First, since another may have come to have the number of one that is gone.
            while self._ended:
                self._forget(self._ended.popleft())
            if self._holder() is None:
                self._holder = weakref.ref(who)
                if id(who) not in self._shares:
                    self._shares[id(who)] = {}
                    weakref.finalize(who, self._ended.append, id(who)).atexit = False
            if self._holder() is not who:
                return []
            return [self._share(id(who), one) for one in values]

    def leave(self, who: object) -> None:
        """A server tells no more."""
        with self._lock:
            if self._holder() is who:
                self._holder = _nobody

    def _share(self, who: int, total: Measured) -> Measured:
        if total.instrument.kind != COUNTER:
            return total
        share, values = self._shares[who], {}
        for attributes, value in total.values.items():
            assert not isinstance(value, tuple), "no histograms"
            of = total.instrument.name, attributes
            others = sum(found.get(of, 0) for one, found in self._shares.items() if one != who)
            values[attributes] = share[of] = max(value - others - self._gone[of], share.get(of, 0))
        return measured(total.instrument, values)

    def _forget(self, who: int) -> None:
        for of, value in self._shares.pop(who).items():
            self._gone[of] += value


def _nobody() -> None:
    """Who has the duty where nobody has."""


def totals(components: Iterable[Pipeline | MetricExporter]) -> list[Measured]:
    """What these have counted, by name; those that send nothing are left out."""
    found: defaultdict[instruments.Instrument, dict[tuple[str, ...], float]] = defaultdict(dict)
    unknown = 0
    components = list(components)
    for component in components:
        of = names.SCOPE, _names.setdefault(component, f"{names.SCOPE}/{next(_numbers)}")
        if isinstance(component, MetricExporter):
            found[instruments.POINTS_EXPORTED] |= _by_error(of, component.settled)
        elif component.sending:
            found[instruments.SPANS_PROCESSED] |= _by_error(of, component.processed)
            found[instruments.SPANS_QUEUED][of] = component.queued
            found[instruments.QUEUE_CAPACITY][of] = component.capacity
            found[instruments.SPANS_EXPORTED] |= _by_error(of, component.settled)
            unknown += component.settled.get(UNANSWERED, 0)
    faults = sum([component.faults for component in components], PROCESS.faults)
    if faults:
        found[instruments.FAULTS] = {(hook,): n for hook, n in faults.items()}
    found[instruments.OVERHEAD_SECONDS][()] = sum([component.cpu for component in components])
    if unknown:
        found[instruments.SPANS_BY_FATE][instruments.FATE_UNKNOWN,] = unknown
    return [measured(instrument, values) for instrument, values in found.items()]


def _by_error(of: tuple[str, str], values: dict[str, int]) -> dict[tuple[str, ...], float]:
    """By name and error; an error that never came has no series."""
    return {(*of, error): value for error, value in values.items() if value or not error}


_duty = Duty()


def told(who: object, components: Iterable[Pipeline | MetricExporter]) -> Iterator[Measured]:
    """What a server tells of its process."""
    yield from _duty.told(who, totals(components))


def leave(who: object) -> None:
    """A server tells no more."""
    _duty.leave(who)


def _after_fork() -> None:
    """In a forked child: another thread may have had the lock."""
    global _duty
    _duty = Duty()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
