"""How long attempts and transfers took, every one of them, as histograms.

Rules
-----
1. Standard library only; no clock: moments are handed in (s since the epoch).
2. An attempt's duration is that of its span, sampled or not; what an attempt costs on the event loop is to be noted.
3. There are few series: of one prefix there are about `MAX_KINDS`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from dask_otel import names
from dask_otel.distributions import Distributions, Exemplar, Histogram, Histograms
from dask_otel.instruments import TASK_DURATION, TRANSFER_BANDWIDTH, TRANSFER_BYTES, TRANSFER_SECONDS

#: Attempts that are noted and not yet counted.
MAX_NOTED = 1_000
#: Of what is counted at once the last that are pointed at, and the longest of each kind; of a bucket's the last is kept.
POINTED_AT = 50
#: Series of a prefix; in what comes after them error types are `_OTHER`, and the user's spans are left out.
MAX_KINDS = 25


class Kept(NamedTuple):
    """A span that is on its way, for exemplars: its trace, its own id, its end (s since the epoch)."""

    trace_id: bytes
    span_id: bytes
    end: float

    def exemplar(self, value: float) -> Exemplar:
        """What was measured in it."""
        return Exemplar(value, self.end, self.trace_id, self.span_id)


class TaskDurations:
    """Durations of attempts by prefix, outcome, error type and name of the user's span.

    Examples
    --------
    >>> durations = TaskDurations(Histograms())
    >>> durations.add("inc", "success", 0.2, "", None)
    >>> durations.add("inc", "failed", 0.1, "ValueError", None)
    >>> durations.count()
    >>> [(of, histogram.sum) for of, histogram in durations.snapshots().items()]
    [(('inc', 'success', '', ''), 0.2), (('inc', 'failed', 'ValueError', ''), 0.1)]
    """

    def __init__(self, histograms: Histograms) -> None:
        self._noted: list[tuple[str, str, float, str, Kept | None, str]] = []
        self._found = histograms.of(TASK_DURATION)
        self._kinds: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)

    def add(
        self,
        prefix: str,
        outcome: str,
        seconds: float,
        error_type: str,
        kept: Kept | None,
        span_name: str = "",
    ) -> None:
        """Note an attempt that has ended; ``kept`` if its span is sent. Texts are empty where there is none."""
        self._noted.append((prefix, outcome, seconds, error_type, kept, span_name))
        if len(self._noted) >= MAX_NOTED:
            self.count()

    def begin(self) -> None:
        """Forget what was noted."""
        self._noted = []

    def count(self) -> None:
        """Count what was noted: in the thread that notes."""
        noted, self._noted = self._noted, []
        values: defaultdict[tuple[str, str, str, str], list[float]] = defaultdict(list)
        longest: dict[tuple[str, str, str, str], tuple[float, Kept]] = {}
        for prefix, outcome, seconds, error_type, kept, span_name in noted:
            kind = prefix, outcome, error_type, span_name
            values[kind].append(seconds)
            if kept is not None and (kind not in longest or seconds > longest[kind][0]):
                longest[kind] = seconds, kept
        within = {kind: self._within(*kind) for kind in values}
        for kind, of in within.items():
            self._found.record_all(of, values[kind])
        for kind, (seconds, span) in longest.items():
            self._found.attach(within[kind], span.exemplar(seconds))
        for prefix, outcome, seconds, error_type, kept, span_name in noted[-POINTED_AT:]:
            if kept is not None:
                of = within[prefix, outcome, error_type, span_name]
                self._found.attach(of, kept.exemplar(seconds))

    def _within(self, prefix: str, outcome: str, error_type: str, span_name: str) -> tuple[str, ...]:
        """The series, while there are few of its prefix."""
        of = (prefix, outcome, error_type, span_name)
        kinds = self._kinds[prefix]
        if of not in kinds:
            if len(kinds) >= MAX_KINDS:
                return prefix, outcome, names.OTHER_ERROR if error_type else "", ""
            kinds.add(of)
        return of

    @property
    def beginnings(self) -> int:
        """How often counting has begun."""
        return self._found.beginnings

    def snapshots(self) -> dict[tuple[str, ...], Histogram]:
        """What was counted."""
        return self._found.snapshots()


class TransferDurations:
    """Durations and sizes of transfers by direction and outcome, bandwidth by direction.

    Examples
    --------
    >>> transfers = TransferDurations(Histograms())
    >>> transfers.add("incoming", "success", 0.5, 1000, None)
    >>> transfers.add("incoming", "busy", 0.1, None, None)
    >>> [(of, histogram.sum) for of, histogram in transfers.seconds.snapshots().items()]
    [(('incoming', 'success'), 0.5), (('incoming', 'busy'), 0.1)]
    >>> [(of, histogram.sum) for of, histogram in transfers.bandwidth.snapshots().items()]
    [(('incoming',), 2000.0)]
    """

    def __init__(self, histograms: Histograms) -> None:
        self.seconds = histograms.of(TRANSFER_SECONDS)
        self.bytes = histograms.of(TRANSFER_BYTES)
        self.bandwidth = histograms.of(TRANSFER_BANDWIDTH)

    def add(self, direction: str, outcome: str, seconds: float, size: int | None, kept: Kept | None) -> None:
        """Count a transfer that has ended; ``size`` in bytes, if any came."""
        self._record(self.seconds, (direction, outcome), seconds, kept)
        if size:
            self._record(self.bytes, (direction, outcome), float(size), kept)
            if outcome == names.SUCCESS and seconds > 0:
                self._record(self.bandwidth, (direction,), size / seconds, kept)

    def _record(self, into: Distributions, of: tuple[str, ...], value: float, kept: Kept | None) -> None:
        into.record(of, value, kept.exemplar(value) if kept is not None else None)
