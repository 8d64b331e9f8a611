"""What a client has done on its cluster: coroutines of `distributed.Client`, called as they are on its event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin


async def add_to_scheduler(client: Any, plugin: SchedulerPlugin, name: str) -> None:
    """Add a plugin to the scheduler, unless it has one of that name."""
    await client._register_scheduler_plugin(plugin, name, True)


async def add_to_workers(client: Any, plugin: WorkerPlugin, name: str) -> bool:
    """Add a plugin to all workers, those that join later too; ``False`` if one of that name was there already."""
    return bool(await client._register_worker_plugin(plugin, name, True))


async def remove_from_workers(client: Any, name: str) -> None:
    """Take a plugin away from all workers, and from those that join later."""
    await client._unregister_worker_plugin(name)


async def on_scheduler(client: Any, function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function with ``dask_scheduler`` in the scheduler's process; what it returns, or raises."""
    return await client._run_on_scheduler(function, wait=True, **arguments)


async def on_workers(
    client: Any, function: Callable[..., Any], workers: list[str] | None, on_error: str, **arguments: Any
) -> dict[str, Any]:
    """Call a function with ``dask_worker`` in each of the workers' processes (``None``: all); results by address."""
    results: dict[str, Any] = await client._run(function, workers=workers, on_error=on_error, **arguments)
    return results
