"""Every server and client that this process makes, as it starts and closes: as if each were told to preload us.

Rules
-----
1. ``distributed.preloading.process_preloads`` is wrapped once a process.
2. A nanny's worker, which another process makes, is told by the nanny's own word for it; the nanny itself is left alone.
3. What is told to preload us by somebody else is left to them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakSet

import distributed.preloading
from distributed import Client, Nanny
from distributed.utils import sync

from dask_otel.guard import PROCESS
from dask_otel.seam import Wraps

logger = logging.getLogger("dask_otel")

_PRELOAD = "dask_otel"
_HOOK = "process_preloads"

Hook = Callable[[Any], Awaitable[None]]


class _Silent:
    """A preload of Dask's that says nothing in the log."""

    name = _PRELOAD

    def __init__(self, server: Any, setup: Hook, teardown: Hook) -> None:
        self._server, self._setup, self._teardown = server, setup, teardown

    async def start(self) -> None:
        await self._setup(self._server)

    async def teardown(self) -> None:
        await self._teardown(self._server)


class Preloads:
    """Calls ``setup`` with each scheduler, worker and client when it starts, ``teardown`` when it closes."""

    def __init__(self, setup: Hook, teardown: Hook) -> None:
        self._setup, self._teardown = setup, teardown
        self._wraps = Wraps()
        #: Clients for which nobody else asked.
        self.clients: WeakSet[Client] = WeakSet()
        self._servers: WeakSet[Any] = WeakSet()
        self._nannies: WeakSet[Nanny] = WeakSet()

    def install(self) -> None:
        """From now on."""
        original = distributed.preloading.process_preloads

        def process_preloads(server: Any, *args: Any, **kwargs: Any) -> Any:
            manager: Any = original(server, *args, **kwargs)
            try:
                self._add_to(manager, server)
            except Exception:
                PROCESS.fault(_HOOK)
            return manager

        missing = "what this process makes from now on is without dask-otel"
        PROCESS.part(missing, self._wraps.undo, _HOOK)
        self._wraps.attribute(distributed.preloading, "process_preloads", process_preloads)

    def uninstall(self, undo: Hook, undo_worker: str) -> None:
        """No more; ``undo`` is called with the servers that were made and still run.

        ``undo_worker`` is the name of the plugin that workers of nannies are to remove.
        """
        self._wraps.undo()
        for server in list(self._servers):
            if _runs(server):
                _in_its_loop(server, undo, server)
        for nanny in list(self._nannies):
            nanny.preload = [name for name in _listed(nanny.preload) if name != _PRELOAD]
            if _runs(nanny) and nanny.worker_address:
                _in_its_loop(nanny, _remove_plugin, nanny, undo_worker)

    def _add_to(self, manager: Any, server: Any) -> None:
        if isinstance(server, Nanny):
            self._tell_nanny(server)
        elif not any(preload.name == _PRELOAD for preload in manager):
            (self.clients if isinstance(server, Client) else self._servers).add(server)
            manager._preloads.append(_Silent(server, self._setup, self._teardown))

    def _tell_nanny(self, nanny: Nanny) -> None:
        names = _listed(nanny.preload)
        if _PRELOAD in names:
            return
        self._nannies.add(nanny)
        nanny.preload = [*names, _PRELOAD]
        argv = nanny.preload_argv
        if argv and not isinstance(argv[0], str):  # One list for each preload.
            nanny.preload_argv = [*argv, []]


def _listed(preload: Any) -> list[str]:
    return [preload] if isinstance(preload, str) else list(preload or ())


def _runs(server: Any) -> bool:
    return bool(server.status.name == "running")


async def _remove_plugin(nanny: Nanny, name: str) -> None:
    await getattr(nanny.rpc(nanny.worker_address), "plugin-remove")(name=name)


def _in_its_loop(server: Any, function: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Call it where the server lives, and wait for its end unless that would hold up a loop of this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        try:
            sync(server.loop, function, *args, callback_timeout=10)
        except Exception as fault:  # It has closed meanwhile, or does not answer.
            logger.debug("dask-otel was not undone at %s: %s", server, fault)
    else:
        server.loop.add_callback(function, *args)
