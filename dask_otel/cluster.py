"""Turning dask-otel on and off for a running cluster, and having it send what it has: from a client.

Rules
-----
1. What was turned on by `enable` is turned off by `disable`; a preload stays.
2. What is missing is said once, with what to type.
3. Functions that run on servers go there by their names: a server without dask-otel raises, and its client copes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from distributed import Client, Scheduler, Worker

from dask_otel import process
from dask_otel.client import ClientTelemetry
from dask_otel.guard import PROCESS
from dask_otel.holders import BY_CLIENT
from dask_otel.scheduler import SchedulerOtel, schedulers
from dask_otel.seam import client as client_seam
from dask_otel.seam import remote
from dask_otel.turning_on import (
    WorkerOtel,
    forget_client,
    instrument_client,
    remove_scheduler_plugin,
    workers,
)

logger = logging.getLogger("dask_otel")

#: Seconds that workers have to say that they run dask-otel, after `enable` has told them to.
PATIENCE = 1.0


def enable(client: Client) -> Any:
    """Turn dask-otel on for a running cluster: its scheduler, its workers, those that join later, and this client.

    Parameters
    ----------
    client:
        A client of the cluster; an asynchronous one gets an awaitable.

    Examples
    --------
    >>> from distributed import Client
    >>> with Client(processes=False, dashboard_address=None) as client:
    ...     enable(client)
    ...     disable(client)

    Notes
    -----
    Servers that were told nothing by their own environment use this process's settings, its headers included.
    """
    return _in_sync(client, _enable)


def _in_sync(client: Any, function: Callable[..., Awaitable[object]], *args: object) -> Any:
    return client.sync(function, client, *args)


async def _enable(client: Any) -> None:
    missing, telemetry = [], None
    try:
        instrument_client(client)
        telemetry = client_seam.listening(client)
    except Exception as fault:
        missing.append(f"this client ({_shown(fault)})")
        PROCESS.fault("enable")
    settings = telemetry.settings if isinstance(telemetry, ClientTelemetry) else None
    try:
        await remote.add_to_scheduler(client, SchedulerOtel(settings, by_client=True), BY_CLIENT)
    except Exception as fault:
        if isinstance(telemetry, ClientTelemetry):
            telemetry.ask_scheduler = False  # It is told here.
        missing.append(f"the scheduler ({_shown(fault)})")
    try:
        await _enable_workers(client, WorkerOtel(settings, BY_CLIENT))
        if silent := [] if missing else await remote.on_scheduler(client, _silent):
            addresses = ", ".join(silent[:3]) + (", …" if len(silent) > 3 else "")
            missing.append(f"{len(silent)} worker{'s'[: len(silent) > 1]} ({addresses})")
    except Exception as fault:
        missing.append(f"workers ({_shown(fault)})")
    if missing:
        logger.warning(
            "dask-otel could not be turned on at %s. Install it there (pip install dask-otel) and call "
            "dask_otel.enable(client) again.",
            " and at ".join(missing),
        )


def _shown(fault: Exception) -> str:
    """What it says; a fault of another process comes as its text, in an Exception."""
    text = str(fault) if type(fault) is Exception else f"{type(fault).__name__}: {fault}"
    return text[:200]


async def _enable_workers(client: Any, plugin: WorkerOtel) -> None:
    if not await remote.add_to_workers(client, plugin, BY_CLIENT):
        # It was registered before: those that could not take it then are asked again.
        await remote.on_scheduler(client, _add_again)


async def _add_again(dask_scheduler: Scheduler) -> None:
    telemetry = schedulers.telemetry(dask_scheduler)
    silent = sorted(telemetry.silent) if telemetry is not None else []
    if silent:
        plugin = dask_scheduler.worker_plugins[BY_CLIENT]
        await dask_scheduler.broadcast(
            msg={"op": "plugin-add", "plugin": plugin, "name": BY_CLIENT}, workers=silent, on_error="ignore"
        )


async def _silent(dask_scheduler: Scheduler) -> list[str]:
    """Workers that have been told to turn dask-otel on and did not."""
    telemetry = schedulers.telemetry(dask_scheduler)
    deadline = time.monotonic() + PATIENCE
    while telemetry is not None and telemetry.silent and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    return sorted(telemetry.silent) if telemetry is not None else []


def disable(client: Client) -> Any:
    """Undo `enable`: the servers and this client report no more; what they have is sent."""
    return _in_sync(client, _disable)


async def _disable(client: Any) -> None:
    PROCESS.each("disable", lambda: forget_client(client, BY_CLIENT))
    for undo in (_disable_workers, _disable_scheduler_of):
        try:
            await undo(client)
        except Exception as fault:
            logger.debug("dask-otel was not on: %s", fault)
    await process.farewell()


async def _disable_workers(client: Any) -> None:
    try:
        registered = await remote.on_scheduler(client, _registered)
    except Exception:  # The scheduler lacks dask-otel: workers may have it all the same.
        registered = True
    if registered:
        await remote.remove_from_workers(client, BY_CLIENT)
        await remote.on_workers(client, _say_farewell, None, "ignore")


async def _say_farewell(dask_worker: Worker) -> None:
    """Send what it has: a plugin that was removed does not wait for that."""
    await process.farewell()


async def _registered(dask_scheduler: Scheduler) -> bool:
    """Whether `enable` has registered the workers' plugin: the scheduler logs an error for one that is not there."""
    return BY_CLIENT in dask_scheduler.worker_plugins


async def _disable_scheduler_of(client: Any) -> None:
    await remote.on_scheduler(client, _disable_scheduler)


async def _disable_scheduler(dask_scheduler: Scheduler) -> None:
    await remove_scheduler_plugin(dask_scheduler, BY_CLIENT)


def flush(client: Client, timeout: float = 10.0) -> Any:
    """Send what workers, scheduler and this client have, computations that are ending included.

    Parameters
    ----------
    timeout:
        Seconds in all; where a receiver does not answer each of the three still gets a tenth of one.

    Returns
    -------
    bool
        Whether everything had an answer in time.
    """
    return _in_sync(client, _flush, timeout)


async def _flush(client: Any, timeout: float) -> bool:
    deadline = time.monotonic() + timeout

    def left() -> float:
        return max(0.1, deadline - time.monotonic())

    try:
        reporting = await remote.on_scheduler(client, _reporting)
    except Exception:  # The scheduler lacks dask-otel: any worker may have it.
        reporting = None
    on_error = "ignore" if reporting is None else "return"
    results = await remote.on_workers(client, _flush_worker, reporting, on_error, timeout=left())
    flushed = [result is True for result in results.values()]
    if reporting is not None:
        flushed.append(await remote.on_scheduler(client, _flush_scheduler, timeout=left()))
    flushed.append(await process.flush_aside(left()))
    return all(flushed)


async def _reporting(dask_scheduler: Scheduler) -> list[str] | None:
    """Workers that run dask-otel, by the scheduler's knowledge; ``None`` where it does not itself."""
    telemetry = schedulers.telemetry(dask_scheduler)
    return sorted(telemetry.reporting) if telemetry is not None else None


async def _flush_worker(dask_worker: Worker, timeout: float) -> bool:
    telemetry = workers.telemetry(dask_worker)
    if telemetry is not None:
        telemetry.sums.flush()
        telemetry.metrics.meter.export()
    return await process.flush_aside(timeout)


async def _flush_scheduler(dask_scheduler: Scheduler, timeout: float) -> bool:
    telemetry = schedulers.telemetry(dask_scheduler)
    if telemetry is not None:
        await telemetry.settled(timeout)
        telemetry.metrics.meter.export()
    return await process.flush_aside(timeout)
