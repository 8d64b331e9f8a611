"""Who sends: the attributes of a server's resource.

Rules
-----
1. The user's environment comes before what we know, that before what detectors find, that before our defaults.
2. ``service.instance.id`` is the server's id, always: several servers of one process stay apart.
3. What is not known is left out. A detector that fails or hangs costs its attributes and a line of the log.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points, version
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.version import __version__ as sdk_version

from dask_otel import names
from dask_otel.records import Attributes, Value
from dask_otel.settings import Settings
from dask_otel.version import __version__

logger = logging.getLogger(__name__)

DASK_VERSION = version("distributed")
DETECTOR_GROUP = "opentelemetry_resource_detector"
#: How long (s) the detectors may take together; the SDK gives each as much.
PATIENCE = 5.0


def build(role: str, instance_id: str, settings: Settings, extra: Mapping[str, Value]) -> Attributes:
    """The resource of one server; `extra` is what only the caller knows (cluster id, worker name and address).

    Examples
    --------
    >>> resource = dict(build("worker", "Worker-1", Settings(), {"dask.worker.name": "w0"}))
    >>> resource["service.name"], resource["service.instance.id"], resource["dask.worker.name"]
    ('dask-worker', 'Worker-1', 'w0')

    Notes
    -----
    Runs the detectors of ``OTEL_EXPERIMENTAL_RESOURCE_DETECTORS`` when it is first called in a process, and waits
    for them for at most `PATIENCE`: not for an event loop where there are any.
    """
    attributes: dict[str, Any] = _defaults(role, settings)
    attributes.update(_detected(settings.resource_detectors, os.getpid()))
    attributes.update(extra)
    attributes.update(settings.resource)
    if settings.service_name:
        attributes[names.SERVICE_NAME] = settings.service_name
    attributes[names.SERVICE_INSTANCE_ID] = instance_id
    return tuple((key, value) for key, value in attributes.items() if value is not None)


def to_sdk(attributes: Attributes) -> Resource:
    """The same as the SDK's object, without its detectors.

    Examples
    --------
    >>> dict(to_sdk((("service.name", "dask-worker"),)).attributes)
    {'service.name': 'dask-worker'}
    """
    return Resource(dict(attributes))


def _defaults(role: str, settings: Settings) -> dict[str, Any]:
    return {
        names.SERVICE_NAME: f"dask-{role}",
        names.SERVICE_INSTANCE_ID: None,
        names.ROLE: role,
        names.DASK_VERSION: DASK_VERSION,
        names.CLUSTER_NAME: settings.cluster_name,
        names.PROCESS_PID: os.getpid(),
        # As the SDK writes them: one that differs breaks every join on `target_info`.
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.version": sdk_version,
        names.DISTRO_NAME: "dask-otel",
        names.DISTRO_VERSION: __version__,
    }


@functools.lru_cache(maxsize=1)
def _detected(detectors: tuple[str, ...], pid: int) -> dict[str, Any]:
    """What the detectors find, once a process; a later detector has precedence over an earlier one."""
    found: dict[str, dict[str, Any] | Exception] = {}
    threads = {
        name: threading.Thread(target=_detect, args=(name, found), daemon=True) for name in _expand(detectors)
    }
    for thread in threads.values():
        thread.start()
    _join(threads.values())
    return {key: value for name in threads for key, value in _outcome(name, found.get(name)).items()}


def _expand(detectors: tuple[str, ...]) -> list[str]:
    """``*`` means all; ``otel`` reads the variables that `environment` has read."""
    every = sorted({entry.name for entry in entry_points(group=DETECTOR_GROUP)}) if "*" in detectors else []
    listed = [name for item in detectors for name in (every if item == "*" else [item])]
    return [name for name in dict.fromkeys(listed) if name != "otel"]


def _detect(name: str, found: dict[str, dict[str, Any] | Exception]) -> None:
    try:
        entry = next(iter(entry_points(group=DETECTOR_GROUP, name=name)))
        found[name] = dict(entry.load()().detect().attributes)
    except Exception as error:  # A detector is anybody's code
        found[name] = error


def _join(threads: Iterable[threading.Thread]) -> None:
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _outcome(name: str, result: dict[str, Any] | Exception | None) -> dict[str, Any]:
    if isinstance(result, dict):
        return result
    why = f"failed with {type(result).__name__}" if result else f"took longer than {PATIENCE:g} s"
    logger.warning(
        "The resource detector %r of OTEL_EXPERIMENTAL_RESOURCE_DETECTORS %s; what it would add is left out.",
        name,
        why,
    )
    return {}
