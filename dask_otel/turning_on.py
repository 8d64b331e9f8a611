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
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Client, Nanny, Scheduler, Worker
from distributed.diagnostics.plugin import WorkerPlugin

from dask_otel import process
from dask_otel.client import ClientTelemetry, TaskClients
from dask_otel.guard import Guard
from dask_otel.scheduler import SchedulerOtel
from dask_otel.seam import client as client_seam
from dask_otel.settings import Settings
from dask_otel.version import __version__
from dask_otel.worker import WorkerTelemetry

logger = logging.getLogger("dask_otel")

#: Names of the worker's plugin by who registered it: two, so that neither removes the other.
BY_PRELOAD, BY_CLIENT = "dask-otel", "dask-otel-by-client"


class WorkerOtel(WorkerPlugin):
    """The worker's plugin; made with the settings of whoever registers it, used where the worker has none."""

    idempotent = True

    def __init__(self, settings: Settings | None = None, name: str = BY_CLIENT) -> None:
        self.settings = settings
        self.name = name
        self.telemetry: WorkerTelemetry | None = None
        self._task_clients: TaskClients | None = None

    def __reduce__(self) -> tuple[type[WorkerOtel], tuple[Settings | None, str]]:
        return WorkerOtel, (self.settings, self.name)

    def setup(self, worker: Worker) -> None:
        if worker in _workers:
            return
        try:
            settings = process.settings_for_server(self.settings)
            telemetry = WorkerTelemetry(worker, settings, own_process=_own_process(worker))
            self._task_clients = TaskClients(settings, telemetry.guard)
            client_seam.listen_everywhere(self._task_clients)
            telemetry.seam.install()
            telemetry.seam.tell_scheduler({"hello": __version__})
            self.telemetry = _workers[worker] = telemetry
        except Exception:
            Guard(f"worker {worker.address}").fault("setup")

    async def teardown(self, worker: Worker) -> None:
        telemetry, self.telemetry = self.telemetry, None
        if telemetry is None:
            return
        _workers.pop(worker, None)
        telemetry.flush_sums()
        telemetry.seam.uninstall()
        if self._task_clients is not None:
            client_seam.forget_everywhere(self._task_clients)
        await asyncio.to_thread(process.flush, 1.5)

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if self.telemetry is not None:
            self.telemetry.seam.transition(key, start, finish)


_workers: WeakKeyDictionary[Worker, WorkerTelemetry] = WeakKeyDictionary()


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
    elif isinstance(server, Client):
        instrument_client(server)


async def _setup_scheduler(scheduler: Scheduler) -> None:
    if SchedulerOtel.name not in scheduler.plugins:
        plugin = SchedulerOtel(process.settings_for_server(None))
        await plugin.start(scheduler)
        scheduler.add_plugin(plugin, name=plugin.name)


async def dask_teardown(server: Scheduler | Worker | Nanny | Client) -> None:
    """Send what is left: Dask calls it when the server closes."""
    if isinstance(server, Client):
        client_seam.forget(server)
        await asyncio.to_thread(process.flush, 1.5)


# -- clients ------------------------------------------------------------------------------------------------------


def instrument_client(client: Client, settings: Settings | None = None) -> ClientTelemetry:
    """Listen to one client; the second time changes nothing."""
    found = client_seam.listening(client)
    if isinstance(found, ClientTelemetry):
        return found
    if settings is None:
        settings = process.settings_for_server(None)
    telemetry = ClientTelemetry(client, settings)
    client_seam.listen(client, telemetry)
    return telemetry


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
    return client.sync(_enable, client)


async def _enable(client: Client) -> None:
    settings = process.settings_for_server(None)
    instrument_client(client, settings)
    missing = []
    try:
        await client.register_plugin(SchedulerOtel(settings, by_client=True)) if client.asynchronous else (
            await client._register_scheduler_plugin(SchedulerOtel(settings, by_client=True), SchedulerOtel.name, True)
        )
    except Exception as fault:
        missing.append(f"the scheduler ({fault})")
    try:
        await client._register_worker_plugin(WorkerOtel(settings, BY_CLIENT), BY_CLIENT, True)
    except Exception as fault:
        missing.append(f"workers ({fault})")
    if missing:
        logger.warning(
            "dask-otel could not be turned on at %s. Install dask-otel there (pip install dask-otel) and call "
            "dask_otel.enable(client) again.",
            " and at ".join(missing),
        )


def disable(client: Client) -> Any:
    """Undo `enable`: the servers and this client report no more; what they have is sent."""
    return client.sync(_disable, client)


async def _disable(client: Client) -> None:
    client_seam.forget(client)
    try:
        await client._unregister_worker_plugin(BY_CLIENT)
    except Exception as fault:
        logger.debug("No worker plugin to remove: %s", fault)
    await client._run_on_scheduler(_disable_scheduler, wait=True)
    await asyncio.to_thread(process.flush, 1.5)


async def _disable_scheduler(dask_scheduler: Scheduler) -> None:
    plugin = dask_scheduler.plugins.get(SchedulerOtel.name)
    if isinstance(plugin, SchedulerOtel) and plugin.by_client:
        dask_scheduler.remove_plugin(SchedulerOtel.name)
        await plugin.close()


def flush(client: Client, timeout: float = 10.0) -> Any:
    """Send what workers, scheduler and this client have, computations that are ending included.

    Parameters
    ----------
    timeout:
        Seconds for each step.

    Returns
    -------
    bool
        Whether everything had an answer in time.
    """
    return client.sync(_flush, client, timeout)


async def _flush(client: Client, timeout: float) -> bool:
    workers = await client._run(_flush_worker, timeout=timeout)
    scheduler = await client._run_on_scheduler(_flush_scheduler, timeout=timeout, wait=True)
    own = await asyncio.to_thread(process.flush, timeout)
    return all(workers.values()) and scheduler and own


async def _flush_worker(dask_worker: Worker, timeout: float) -> bool:
    telemetry = _workers.get(dask_worker)
    if telemetry is not None:
        telemetry.flush_sums()
    return await asyncio.to_thread(process.flush, timeout)


async def _flush_scheduler(dask_scheduler: Scheduler, timeout: float) -> bool:
    plugin = dask_scheduler.plugins.get(SchedulerOtel.name)
    telemetry = plugin.telemetry if isinstance(plugin, SchedulerOtel) else None
    if telemetry is not None:
        await telemetry.settled(timeout)
    return await asyncio.to_thread(process.flush, timeout)
