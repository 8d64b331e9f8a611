"""Queries for Prometheus from instruments.

Rules
-----
1. No metric and no label is spelled here or by who builds a query: they come from `dask_otel.instruments` and
   `dask_otel.names`, and a label that an instrument does not have is refused.
2. Nothing is divided by what may be 0: such a point is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dask_otel import names
from dask_otel.instruments import COUNTER, GAUGE, HISTOGRAM, Instrument

#: What Prometheus 3 appends for a unit (UCUM); units in braces are left out.
_UNITS = {"s": "seconds", "By": "bytes", "By/s": "bytes_per_second"}

#: The resource's keys that Prometheus renames.
_RENAMED = {names.SERVICE_NAME: "job", names.SERVICE_INSTANCE_ID: "instance"}
_RESOURCE = (
    names.CLUSTER_ID,
    names.ROLE,
    names.SERVICE_NAME,
    names.SERVICE_INSTANCE_ID,
    names.WORKER_NAME,
    names.WORKER_ADDRESS,
)


def metric(instrument: Instrument) -> str:
    """The name that Prometheus gives an OTLP metric by default (`UnderscoreEscapingWithSuffixes`).

    Examples
    --------
    >>> from dask_otel import instruments
    >>> metric(instruments.COMPUTE_SECONDS), metric(instruments.WORKER_TASKS)
    ('dask_worker_compute_time_seconds_total', 'dask_worker_task_count')
    """
    words = [re.sub(r"[^a-zA-Z0-9]+", "_", instrument.name)]
    if instrument.unit in _UNITS:
        words.append(_UNITS[instrument.unit])
    if instrument.unit == "1" and instrument.kind == GAUGE:
        words.append("ratio")
    if instrument.kind == COUNTER:
        words.append("total")
    return "_".join(words)


def label(key: str) -> str:
    """The label that Prometheus makes of an attribute.

    Examples
    --------
    >>> label(names.TASK_PREFIX), label(names.SERVICE_NAME)
    ('dask_task_prefix', 'job')
    """
    return _RENAMED.get(key, key.replace(".", "_"))


def share(part: str, whole: str) -> str:
    """``part`` by ``whole``, which has one value, or by equal labels as many as ``part``.

    Examples
    --------
    >>> share("sum(a)", "sum(b)")
    'sum(a) / (sum(b) > 0)'
    """
    return f"{part} / ({whole} > 0)"


def share_of_all(part: str, whole: str) -> str:
    """``part``, of any labels, by ``whole``, which has none.

    Examples
    --------
    >>> share_of_all("sum by (x) (a)", "sum(b)")
    'sum by (x) (a) / on () group_left () (sum(b) > 0)'
    """
    return f"{part} / on () group_left () ({whole} > 0)"


@dataclass(frozen=True, slots=True)
class Scope:
    """Which series, and over what time.

    Parameters
    ----------
    matchers:
        Of each query: an attribute's key, an operator, a value.
    window:
        Of a rate.
    always:
        Labels that every sum is by.

    Examples
    --------
    >>> from dask_otel import instruments
    >>> scope = Scope(((names.CLUSTER_ID, "=", "$cluster"),), "5m")
    >>> scope.rate(instruments.COMPUTE_SECONDS, by=[names.TASK_PREFIX])
    'sum by (dask_task_prefix) (rate(dask_worker_compute_time_seconds_total{dask_cluster_id="$cluster"}[5m]))'
    """

    matchers: tuple[tuple[str, str, str], ...] = ()
    window: str = "$__rate_interval"
    always: tuple[str, ...] = ()

    def where(self, key: str, operator: str, value: str) -> Scope:
        """The same with one matcher more."""
        return replace(self, matchers=(*self.matchers, (key, operator, value)))

    def over(self, window: str) -> Scope:
        """The same over another time."""
        return replace(self, window=window)

    def select(self, instrument: Instrument, suffix: str = "", only: Mapping[str, str] | None = None) -> str:
        """The series of an instrument; ``only`` holds regular expressions by attribute, after `!` what they are not."""
        matchers = list(self.matchers)
        for key, value in (only or {}).items():
            matchers.append((key, "!~", value[1:]) if value.startswith("!") else (key, "=~", value))
        for key, _, _ in matchers:
            _check(instrument, key)
        inner = ",".join(f'{label(key)}{operator}"{value}"' for key, operator, value in matchers)
        return f"{metric(instrument)}{suffix}" + (f"{{{inner}}}" if inner else "")

    def rate(
        self,
        instrument: Instrument,
        by: Sequence[str] = (),
        only: Mapping[str, str] | None = None,
        suffix: str = "",
    ) -> str:
        """A counter's increase a second; of a histogram with ``suffix`` `_sum`, `_count` or `_bucket`."""
        return self._summed("rate", instrument, by, only, suffix)

    def increase(
        self,
        instrument: Instrument,
        by: Sequence[str] = (),
        only: Mapping[str, str] | None = None,
        suffix: str = "",
    ) -> str:
        """A counter's increase."""
        return self._summed("increase", instrument, by, only, suffix)

    def now(
        self,
        instrument: Instrument,
        by: Sequence[str] = (),
        only: Mapping[str, str] | None = None,
        how: str = "sum",
    ) -> str:
        """A value that may fall, summed (or by ``how``: `max`, `avg`)."""
        assert instrument.kind not in (COUNTER, HISTOGRAM), instrument.name
        return f"{how}{self._by(instrument, by)}({self.select(instrument, only=only)})"

    def buckets(
        self,
        instrument: Instrument,
        by: Sequence[str] = (),
        only: Mapping[str, str] | None = None,
    ) -> str:
        """How many a second a histogram counts, by upper bound (`le`)."""
        assert instrument.kind == HISTOGRAM, instrument.name
        rate = f"rate({self.select(instrument, '_bucket', only)}[{self.window}])"
        return f"sum by ({', '.join(['le', *self._labels(instrument, by)])}) ({rate})"

    def quantile(
        self,
        q: float,
        instrument: Instrument,
        by: Sequence[str] = (),
        only: Mapping[str, str] | None = None,
    ) -> str:
        """A quantile of a histogram."""
        return f"histogram_quantile({q}, {self.buckets(instrument, by, only)})"

    def _summed(
        self,
        function: str,
        instrument: Instrument,
        by: Sequence[str],
        only: Mapping[str, str] | None,
        suffix: str,
    ) -> str:
        assert instrument.kind == COUNTER or (instrument.kind == HISTOGRAM and suffix), instrument.name
        selected = self.select(instrument, suffix, only)
        return f"sum{self._by(instrument, by)}({function}({selected}[{self.window}]))"

    def _by(self, instrument: Instrument, by: Sequence[str]) -> str:
        labels = ", ".join(self._labels(instrument, by))
        return f" by ({labels}) " if labels else ""

    def _labels(self, instrument: Instrument, by: Sequence[str]) -> list[str]:
        for key in by:
            _check(instrument, key)
        return [label(key) for key in dict.fromkeys((*self.always, *by))]


def _check(instrument: Instrument, key: str) -> None:
    allowed = (*instrument.attributes, *_RESOURCE)
    if key not in allowed:
        raise ValueError(f"{instrument.name} has no attribute {key!r}; it has {', '.join(allowed)}.")
