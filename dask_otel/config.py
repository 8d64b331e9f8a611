"""Everything that dask-otel can be told, from the environment and from Dask's configuration, as one record.

Rules
-----
1. `load` never raises: what is wrong becomes a sentence in `Settings.complaints` and its default is used.
2. OpenTelemetry's variables say where telemetry goes; Dask's configuration under ``otel`` has only what
   OpenTelemetry has no name for.
3. Importing this module registers the defaults of ``otel.yaml`` with Dask.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import dask.config
import yaml
from dask.utils import parse_bytes, parse_timedelta

from dask_otel.environment import parse
from dask_otel.instruments import INSTRUMENTS
from dask_otel.settings import Settings
from dask_otel.variables import quoted

DEFAULTS = Path(__file__).with_name("otel.yaml")
SCHEMA = Path(__file__).with_name("otel-schema.yaml")
DETAILS = ("auto", "activity", "task", "group")
#: What the readers of our keys raise, `parse_timedelta` among them.
_WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

dask.config.update_defaults(yaml.safe_load(DEFAULTS.read_text(encoding="utf-8")))


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the environment (``os.environ``) and Dask's configuration.

    Examples
    --------
    >>> with dask.config.set({"otel.traces.detail": "tasks"}):
    ...     settings = load({"OTEL_TRACES_EXPORTER": "console"})
    >>> settings.exporters, settings.detail
    (('console',), 'auto')
    >>> settings.complaints
    ("otel.traces.detail is 'tasks', which is not auto, activity, task or group; auto is used instead.",)

    Notes
    -----
    Never raises, whatever it is given.
    """
    try:
        settings = parse(os.environ if environ is None else environ, _installed)
        complaints = list(settings.complaints)
        values = _values(dask.config.get("otel", {}), complaints)
        if excluded := values.get("metrics", {}).get("exclude"):
            values["metrics"]["exclude"] = _excluded(excluded, complaints)
        own = values.pop("", {})
        records = {name: replace(getattr(settings, name), **fields) for name, fields in values.items()}
        return replace(settings, complaints=tuple(complaints), **own, **records)
    except Exception as error:  # Dask runs on, whatever the configuration holds
        return Settings(
            complaints=(
                f"The configuration cannot be read ({type(error).__name__}); dask-otel exports nothing.",
            )
        )


def explain() -> str:
    """What to type where nothing is exported since nobody said where to.

    Examples
    --------
    >>> print(explain())
    dask-otel exports nothing: no endpoint and no exporter is set that it can use. Set OTEL_EXPORTER_OTLP_ENDPOINT, \
for example to http://localhost:4318, or OTEL_TRACES_EXPORTER=console to see spans here.
    """
    return (
        "dask-otel exports nothing: no endpoint and no exporter is set that it can use. Set "
        "OTEL_EXPORTER_OTLP_ENDPOINT, for example to http://localhost:4318, or OTEL_TRACES_EXPORTER=console to see spans here."
    )


class _Key(NamedTuple):
    """One of our keys: the field of `Settings` or of a record in it (``record.field``), what it may be, and how it is
    read (None is its default).
    """

    field: str
    allowed: str
    read: Callable[[Any], Any]


def _values(config: object, complaints: list[str]) -> dict[str, dict[str, Any]]:
    """Fields for the keys that are set and right, by the record that has them; those of `Settings` under no name."""
    values: dict[str, dict[str, Any]] = {}
    for key, value in _leaves("otel", config):
        if key in _SECTIONS and value is None:
            continue
        if key not in _KEYS:
            complaints.append(f"{key} is not a key of dask-otel; {_nearest(key)}")
        elif value not in (None, ""):
            try:
                record, _, field = _KEYS[key].field.rpartition(".")
                values.setdefault(record, {})[field] = _KEYS[key].read(value)
            except _WRONG:
                complaints.append(_complaint(key, value))
    return values


def _leaves(prefix: str, config: object) -> Iterator[tuple[str, object]]:
    """Dotted keys and values; Dask takes ``user_spans`` and ``user-spans`` as one."""
    if not isinstance(config, Mapping):
        yield prefix, config
        return
    for key, value in config.items():
        yield from _leaves(f"{prefix}.{str(key).replace('_', '-')}", value)


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"it has {', '.join(_KEYS)}."


def _excluded(patterns: Iterable[str], complaints: list[str]) -> tuple[str, ...]:
    """The metrics that are named, or that a pattern like ``dask.worker.*`` is of."""
    names = [instrument.name for instrument in INSTRUMENTS]
    found: dict[str, None] = {}
    for pattern in patterns:
        meant = fnmatch.filter(names, pattern.lower())
        found.update(dict.fromkeys(meant))
        if not meant:
            near = difflib.get_close_matches(pattern.lower(), _alike(pattern, names), n=3, cutoff=0.6)
            told = (
                f"did you mean {' or '.join(near)}?"
                if near
                else "they look like dask.worker.activity.time, and patterns like dask.worker.*."
            )
            complaints.append(
                f"otel.metrics.exclude names {quoted(pattern)}, which is no metric of dask-otel; {told}"
            )
    return tuple(found)


def _alike(pattern: str, names: Iterable[str]) -> Iterable[str]:
    """What may have been meant: names, or patterns of all names that begin alike."""
    if not pattern.endswith(".*"):
        return names
    return {f"{name[:end]}.*" for name in names for end, sign in enumerate(name) if sign == "."}


def _complaint(key: str, value: object) -> str:
    default = attrgetter(_KEYS[key].field)(Settings())
    used = (
        "none"
        if default in (None, ())
        else f"{default:g} s"
        if isinstance(default, float)
        else str(default).lower()
    )
    return f"{key} is {quoted(value)}, which is not {_KEYS[key].allowed}; {used} is used instead."


def _detail(value: Any) -> str:
    return DETAILS[DETAILS.index(value.strip().lower())]


def _boolean(value: Any) -> bool:
    return {"true": True, "false": False}[str(value).strip().lower()]


def _url(value: Any) -> str:
    if not re.fullmatch(r"https?://\S*\{trace_id\}\S*", value.strip()):
        raise ValueError
    return str(value.strip())


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        value = re.sub(r"mins?\s*$", "m", value.strip())  # Dask itself knows only "m" and "minutes"
    seconds = float(parse_timedelta(value, default="s"))
    if not 0 < seconds < math.inf:
        raise ValueError
    return seconds


def _count(value: Any) -> int:
    number = float(value)
    if isinstance(value, bool) or not 1 <= number < math.inf or number != int(number):
        raise ValueError
    return int(number)


def _bytes(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return _count(parse_bytes(value))


def _name(value: Any) -> str | None:
    """Dask reads a name like ``12`` in its environment variables as a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    return str(value).strip() or None


def _names(value: Any) -> tuple[str, ...]:
    """A list; text, as a variable of the environment may be, is one with commas."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple):
        raise TypeError
    return tuple(dict.fromkeys(name for name in map(_name, value) if name))


_KEYS = {
    "otel.traces.detail": _Key("detail", "auto, activity, task or group", _detail),
    "otel.traces.budget.spans": _Key("budget.spans", "a number of spans above 0", _count),
    "otel.traces.budget.size": _Key("budget.size", "a number of bytes above 0, like 4 MB", _bytes),
    "otel.traces.user-spans": _Key("user_spans", "true or false", _boolean),
    "otel.traces.url": _Key("traces_url", "a URL with {trace_id} in it", _url),
    "otel.traces.computation.max-age": _Key("max_age", "a time above 0, like 10 min", _seconds),
    "otel.metrics.enabled": _Key("metrics.enabled", "true or false", _boolean),
    "otel.metrics.span-names": _Key("metrics.span_names", "a list of names", _names),
    "otel.metrics.exclude": _Key("metrics.exclude", "a list of names of metrics", _names),
    "otel.cluster.name": _Key("cluster_name", "a name", _name),
}
#: An empty section of a YAML file is None.
_SECTIONS = {
    "otel",
    "otel.traces",
    "otel.traces.budget",
    "otel.traces.computation",
    "otel.metrics",
    "otel.cluster",
}


def _installed(group: str) -> Iterable[str]:
    return {entry.name for entry in entry_points(group=group)}
