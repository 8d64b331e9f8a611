"""Turning dask-otel on in a process: for a worker, a scheduler, a client.

Rules
-----
1. Whoever comes second finds it on and changes nothing: a server reports once.
2. What was turned on by one way is not turned off by another.
"""

from __future__ import annotations

import asyncio
from typing import Any

from distributed import Client, Nanny, Scheduler, Worker
from distributed.diagnostics.plugin import WorkerPlugin

from dask_otel import process
from dask_otel.client import ClientTelemetry
from dask_otel.guard import PROCESS, Guard
from dask_otel.holders import BY_CLIENT, BY_PRELOAD, Holders
from dask_otel.scheduler import SchedulerOtel
from dask_otel.seam import arrival
from dask_otel.seam import client as client_seam
from dask_otel.seam.worker import TOLD
from dask_otel.settings import Settings
from dask_otel.worker import WorkerTelemetry


class WorkerOtel(WorkerPlugin):
    """The worker's plugin; made with the settings of whoever registers it, used where the worker has none."""

    idempotent = True

    def __init__(self, settings: Settings | None = None, name: str = BY_CLIENT) -> None:
        self.settings = settings
        self.name = name
        self.telemetry: WorkerTelemetry | None = None
        self.leaving = False
        self._left: asyncio.Task[None] | None = None
        self._worker: Worker | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return arrival.reduced(WorkerOtel, self.settings, self.name)

    def setup(self, worker: Worker) -> None:
        self._worker = worker
        try:
            workers.join(worker, self, self._report)
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
        """Report no more.

        A worker that joins while the plugin is registered gets it twice: Dask tears the first down and sets up the second before
        anything else happens. Hence on a worker that goes on it leaves only then, and what reports goes on.
        """
        if self._closing():
            await self._leave(worker)
        else:
            self.leaving = True
            self._left = asyncio.get_running_loop().create_task(self._leave(worker))

    def _closing(self) -> bool:
        """Whether the worker goes, or nothing is known of it."""
        try:
            return self.telemetry is None or self.telemetry.seam.closing
        except Exception:
            PROCESS.fault("close")
            return True

    async def _leave(self, worker: Worker) -> None:
        telemetry = self.telemetry
        try:
            telemetry = workers.leave(worker, self)
        except Exception:
            PROCESS.fault("close")
        if telemetry is not None:
            try:
                telemetry.guard.each("close", telemetry.stop)
            finally:
                await process.farewell()

    async def left(self) -> None:
        """Wait until what it had is sent."""
        if self._left is not None:
            await self._left

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        telemetry = self.telemetry
        if finish in TOLD and telemetry is not None:
            try:
                telemetry.seam.transition(key, start, finish)
            except Exception:
                telemetry.guard.fault("transition")


#: The workers of this process that report.
workers: Holders[WorkerTelemetry] = Holders()


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
        await remove_scheduler_plugin(server, BY_PRELOAD)
    elif BY_PRELOAD in server.plugins:
        plugin = server.plugins[BY_PRELOAD]
        await server.plugin_remove(BY_PRELOAD)
        if isinstance(plugin, WorkerOtel):
            await plugin.left()


async def remove_scheduler_plugin(scheduler: Scheduler, name: str) -> None:
    """Take ours off a scheduler that goes on."""
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
