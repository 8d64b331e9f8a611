"""The three ways to turn dask-otel on, and off: preload, `enable`, the instrumentor.

Rules
-----
1. Whoever comes second finds it on and changes nothing: a server reports once.
2. What was turned on by `enable` is turned off by `disable`; a preload stays.
3. What is missing is said once, with what to type.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from distributed import Client, Nanny, Scheduler, Worker
from distributed.diagnostics.plugin import WorkerPlugin

from dask_otel import process
from dask_otel.client import ClientTelemetry
from dask_otel.guard import Guard
from dask_otel.holders import BY_CLIENT, BY_PRELOAD, Holders
from dask_otel.scheduler import SchedulerOtel, schedulers
from dask_otel.seam import arrival
from dask_otel.seam import client as client_seam
from dask_otel.settings import Settings
from dask_otel.worker import WorkerTelemetry

logger = logging.getLogger("dask_otel")

#: Seconds that workers have to say that they run dask-otel, after `enable` has told them to.
PATIENCE = 1.0


class WorkerOtel(WorkerPlugin):
    """The worker's plugin; made with the settings of whoever registers it, used where the worker has none."""

    idempotent = True

    def __init__(self, settings: Settings | None = None, name: str = BY_CLIENT) -> None:
        self.settings = settings
        self.name = name
        self.telemetry: WorkerTelemetry | None = None
        self._worker: Worker | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return arrival.reduced(WorkerOtel, self.settings, self.name)

    def setup(self, worker: Worker) -> None:
        self._worker = worker
        try:
            _workers.join(worker, self, self._report)
        except Exception:
            Guard(f"worker {worker.address}").fault("setup")

    def _report(self, settings: Settings) -> WorkerTelemetry:
        worker = self._worker
        assert worker is not None
        telemetry = WorkerTelemetry(
            worker, settings, own_process=_own_process(worker), asked_here=self.name == BY_PRELOAD
        )
        telemetry.start()
        return telemetry

    async def teardown(self, worker: Worker) -> None:
        telemetry = _workers.leave(worker, self)
        if telemetry is not None:
            telemetry.stop()
            await process.farewell()

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if self.telemetry is not None:
            self.telemetry.seam.transition(key, start, finish)


_workers: Holders[WorkerTelemetry] = Holders()


def _own_process(worker: Worker) -> bool:
    """Whether the process is there for the worker alone: a nanny's child, or ``dask worker``."""
    import __main__

    if worker.nanny is not None:
        return True
    name = getattr(getattr(__main__, "__spec__", None), "name", "") or ""
    file = getattr(__main__, "__file__", "") or ""
    return name.startswith(("dask.", "distributed.cli")) or file.rsplit("/", 1)[-1] in ("dask", "dask-worker")


# -- preload ------------------------------------------------------------------------------------------------------


async def dask_setup(server: Scheduler | Worker | Nanny | Client) -> None:
    """Turn dask-otel on in the process of a server or client: Dask calls it for ``--preload dask_otel``."""
    if isinstance(server, Scheduler):
        await _setup_scheduler(server)
    elif isinstance(server, Worker):
        if BY_PRELOAD not in server.plugins:
            await server.plugin_add(WorkerOtel(name=BY_PRELOAD), name=BY_PRELOAD)
    elif isinstance(server, Client) and not client_seam.of_worker(server):
        instrument_client(server, BY_PRELOAD)


async def _setup_scheduler(scheduler: Scheduler) -> None:
    if BY_PRELOAD not in scheduler.plugins:
        plugin = SchedulerOtel()
        await plugin.start(scheduler)
        scheduler.add_plugin(plugin, name=plugin.name)


async def dask_teardown(server: Scheduler | Worker | Nanny | Client) -> None:
    """Send what is left: Dask calls it when the server closes."""
    if isinstance(server, Client) and client_seam.listening(server) is not None:
        client_seam.forget(server)
        await process.farewell()


async def undo_setup(server: Scheduler | Worker) -> None:
    """Undo `dask_setup` on a server that goes on."""
    if isinstance(server, Scheduler):
        await _remove_scheduler_plugin(server, BY_PRELOAD)
    elif BY_PRELOAD in server.plugins:
        await server.plugin_remove(BY_PRELOAD)


async def _remove_scheduler_plugin(scheduler: Scheduler, name: str) -> None:
    plugin = scheduler.plugins.get(name)
    if isinstance(plugin, SchedulerOtel):
        scheduler.remove_plugin(name)
        await plugin.close()


# -- clients ------------------------------------------------------------------------------------------------------


def instrument_client(client: Client, asked_by: str = BY_CLIENT) -> bool:
    """Listen to one client; the second time changes nothing. Whether nobody had asked by that name before."""
    telemetry = client_seam.listening(client)
    if not isinstance(telemetry, ClientTelemetry):
        telemetry = ClientTelemetry(client, process.settings_for_server(None))
        client_seam.listen(client, telemetry)
    news = asked_by not in telemetry.asked_by
    telemetry.asked_by.add(asked_by)
    return news


def forget_client(client: Client, asked_by: str) -> None:
    """Listen to it no more, unless somebody else asked for it too."""
    telemetry = client_seam.listening(client)
    if isinstance(telemetry, ClientTelemetry):
        telemetry.asked_by.discard(asked_by)
        if not telemetry.asked_by:
            client_seam.forget(client)


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
    instrument_client(client)
    telemetry = client_seam.listening(client)
    assert isinstance(telemetry, ClientTelemetry)
    missing = []
    try:
        await client._register_scheduler_plugin(
            SchedulerOtel(telemetry.settings, by_client=True), BY_CLIENT, True
        )
    except Exception as fault:
        telemetry.ask_scheduler = False  # It is told here.
        missing.append(f"the scheduler ({_shown(fault)})")
    try:
        await _enable_workers(client, WorkerOtel(telemetry.settings, BY_CLIENT))
        if silent := [] if missing else await client._run_on_scheduler(_silent, wait=True):
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
    if not await client._register_worker_plugin(plugin, BY_CLIENT, True):
        # It was registered before: those that could not take it then are asked again.
        await client._run_on_scheduler(_add_again, wait=True)


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
    forget_client(client, BY_CLIENT)
    for undo in (_disable_workers, _disable_scheduler_of):
        try:
            await undo(client)
        except Exception as fault:
            logger.debug("dask-otel was not on: %s", fault)
    await process.farewell()


async def _disable_workers(client: Any) -> None:
    try:
        registered = await client._run_on_scheduler(_registered, wait=True)
    except Exception:  # The scheduler lacks dask-otel: workers may have it all the same.
        registered = True
    if registered:
        await client._unregister_worker_plugin(BY_CLIENT)


async def _registered(dask_scheduler: Scheduler) -> bool:
    """Whether `enable` has registered the workers' plugin: the scheduler logs an error for one that is not there."""
    return BY_CLIENT in dask_scheduler.worker_plugins


async def _disable_scheduler_of(client: Any) -> None:
    await client._run_on_scheduler(_disable_scheduler, wait=True)


async def _disable_scheduler(dask_scheduler: Scheduler) -> None:
    await _remove_scheduler_plugin(dask_scheduler, BY_CLIENT)


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
        reporting = await client._run_on_scheduler(_reporting, wait=True)
    except Exception:  # The scheduler lacks dask-otel: any worker may have it.
        reporting = None
    on_error = "ignore" if reporting is None else "return"
    workers = await client._run(_flush_worker, timeout=left(), workers=reporting, on_error=on_error)
    flushed = [result is True for result in workers.values()]
    if reporting is not None:
        flushed.append(await client._run_on_scheduler(_flush_scheduler, timeout=left(), wait=True))
    flushed.append(await process.flush_aside(left()))
    return all(flushed)


async def _reporting(dask_scheduler: Scheduler) -> list[str] | None:
    """Workers that run dask-otel, by the scheduler's knowledge; ``None`` where it does not itself."""
    telemetry = schedulers.telemetry(dask_scheduler)
    return sorted(telemetry.reporting) if telemetry is not None else None


async def _flush_worker(dask_worker: Worker, timeout: float) -> bool:
    telemetry = _workers.telemetry(dask_worker)
    if telemetry is not None:
        telemetry.flush_sums()
    return await process.flush_aside(timeout)


async def _flush_scheduler(dask_scheduler: Scheduler, timeout: float) -> bool:
    telemetry = schedulers.telemetry(dask_scheduler)
    if telemetry is not None:
        await telemetry.settled(timeout)
    return await process.flush_aside(timeout)
