"""Who has turned dask-otel on at a server: however many there are, it reports once.

Rules
-----
1. Of a server's plugins the first has the telemetry, the others wait: if it goes, the next takes over.
   One that is about to leave does so when another comes.
2. The process's own settings count; where it was told nothing about a signal, those that came with a plugin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from dask_otel import process
from dask_otel.settings import Settings

#: Names of our plugins on a server by who turned dask-otel on there.
BY_PRELOAD, BY_CLIENT = "dask-otel", "dask-otel-by-client"


class Telemetry(Protocol):
    """dask-otel on one server."""

    settings: Settings

    def use(self, settings: Settings) -> None:
        """Go on by other settings."""


T = TypeVar("T", bound=Telemetry)


class Plugin(Protocol[T]):
    """A plugin of ours; ``settings`` came with it, ``telemetry`` is there while it reports, ``leaving`` says that it leaves soon."""

    settings: Settings | None
    telemetry: T | None
    leaving: bool


class Holders(Generic[T]):
    """The plugins of each server of one kind in this process."""

    def __init__(self) -> None:
        self._plugins: WeakKeyDictionary[Any, list[Plugin[T]]] = WeakKeyDictionary()

    def telemetry(self, server: Any) -> T | None:
        """What reports for a server."""
        plugins = self._plugins.get(server)
        return plugins[0].telemetry if plugins else None

    def join(self, server: Any, plugin: Plugin[T], start: Callable[[Settings], T]) -> None:
        """A plugin has come; the first starts to report. A second time changes nothing."""
        plugins = self._plugins.setdefault(server, [])
        if plugin in plugins:
            return
        plugins.append(plugin)
        if plugins[0] is plugin:
            plugin.telemetry = start(_settings(plugins))
        else:
            _adapt(plugins)
            for other in [other for other in plugins if other.leaving]:
                self.leave(server, other)

    def leave(self, server: Any, plugin: Plugin[T]) -> T | None:
        """A plugin goes; returns what nobody reports by any more, to be stopped."""
        plugins = self._plugins.get(server, [])
        if plugin not in plugins:
            return None
        plugins.remove(plugin)
        telemetry, plugin.telemetry = plugin.telemetry, None
        if not plugins:
            del self._plugins[server]
            return telemetry
        if telemetry is not None:
            plugins[0].telemetry = telemetry
        _adapt(plugins)
        return None


def _adapt(plugins: list[Plugin[T]]) -> None:
    telemetry, settings = plugins[0].telemetry, _settings(plugins)
    if telemetry is not None and telemetry.settings != settings:
        telemetry.use(settings)


def _settings(plugins: list[Plugin[T]]) -> Settings:
    shipped = (plugin.settings for plugin in plugins if plugin.settings is not None)
    return process.settings_for_server(next(shipped, None))
