"""Who turned dask-otel on at a server: the first reports, the next takes over, settings are the first known ones."""

from __future__ import annotations

import pytest

from dask_otel import config
from dask_otel.holders import Holders
from dask_otel.settings import Metrics, Otlp, Settings

NOT_SET, CLIENTS = Settings(), Settings(exporters=("otlp",))


class Server:
    """A server."""


class Telemetry:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.used: list[Settings] = []

    def use(self, settings: Settings) -> None:
        self.settings = settings
        self.used.append(settings)


class Plugin:
    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings
        self.telemetry: Telemetry | None = None
        self.leaving = False


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process was told nothing by its own environment."""
    monkeypatch.setattr(config, "load", lambda: NOT_SET)


@pytest.fixture
def holders() -> Holders[Telemetry]:
    return Holders()


def test_the_first_reports_and_the_second_changes_nothing(holders: Holders[Telemetry]) -> None:
    server, first, second = Server(), Plugin(CLIENTS), Plugin(CLIENTS)
    for plugin in (first, second, first):
        holders.join(server, plugin, Telemetry)
    assert holders.telemetry(server) is first.telemetry is not None
    assert (second.telemetry, first.telemetry.used) == (None, [])


def test_one_that_is_about_to_leave_does_so_when_another_comes(holders: Holders[Telemetry]) -> None:
    server, first, second = Server(), Plugin(CLIENTS), Plugin(CLIENTS)
    holders.join(server, first, Telemetry)
    telemetry = first.telemetry
    first.leaving = True
    holders.join(server, second, Telemetry)
    assert (first.telemetry, second.telemetry, holders.telemetry(server)) == (None, telemetry, telemetry)
    assert holders.leave(server, first) is None
    assert holders.leave(server, second) is telemetry


def test_the_next_takes_over_from_the_first_and_the_last_gives_it_back(holders: Holders[Telemetry]) -> None:
    server, first, second = Server(), Plugin(CLIENTS), Plugin(CLIENTS)
    holders.join(server, first, Telemetry)
    holders.join(server, second, Telemetry)
    telemetry = first.telemetry
    assert holders.leave(server, first) is None
    assert (first.telemetry, second.telemetry, holders.telemetry(server)) == (None, telemetry, telemetry)
    assert holders.leave(server, first) is None
    assert holders.leave(server, second) is telemetry
    assert (second.telemetry, holders.telemetry(server)) == (None, None)
    assert holders.leave(server, second) is None


def test_settings_that_come_with_a_plugin_are_used_while_it_stays(holders: Holders[Telemetry]) -> None:
    server, preload, client = Server(), Plugin(), Plugin(CLIENTS)
    holders.join(server, preload, Telemetry)
    assert preload.telemetry is not None
    assert preload.telemetry.settings == NOT_SET
    holders.join(server, client, Telemetry)
    holders.leave(server, client)
    assert preload.telemetry.used == [CLIENTS, NOT_SET]


def test_what_the_process_itself_was_told_comes_first(
    holders: Holders[Telemetry], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Settings(exporters=("console",))
    monkeypatch.setattr(config, "load", lambda: own)
    server, client = Server(), Plugin(CLIENTS)
    holders.join(server, client, Telemetry)
    assert client.telemetry is not None
    assert client.telemetry.settings == own


@pytest.mark.parametrize(
    ("told", "exporters", "metrics"),
    [
        (Settings(), ("otlp",), "the client's"),
        (Settings(exporters=("console",)), ("console",), "the client's"),
        (Settings(metrics=Metrics(exporters=("none",))), ("otlp",), "its own"),
        (Settings(metrics=Metrics(enabled=False)), ("otlp",), "its own"),
        (Settings(exporters=("none",), metrics=Metrics(exporters=("console",))), ("none",), "its own"),
        (Settings(disabled=True), (), "its own"),
    ],
)
def test_what_the_process_itself_was_told_about_one_signal_leaves_the_other_to_the_client(
    holders: Holders[Telemetry],
    monkeypatch: pytest.MonkeyPatch,
    told: Settings,
    exporters: tuple[str, ...],
    metrics: str,
) -> None:
    clients = Settings(
        exporters=("otlp",), metrics=Metrics(exporters=("otlp",), otlp=Otlp(endpoint="http://c/"))
    )
    monkeypatch.setattr(config, "load", lambda: told)
    plugin = Plugin(clients)
    holders.join(Server(), plugin, Telemetry)
    assert plugin.telemetry is not None
    expected = {"its own": told.metrics, "the client's": clients.metrics}[metrics]
    assert plugin.telemetry.settings == Settings(
        disabled=told.disabled, exporters=exporters, metrics=expected
    )


def test_servers_are_apart_and_forgotten_with_their_last_plugin(holders: Holders[Telemetry]) -> None:
    one, other, plugins = Server(), Server(), [Plugin(), Plugin()]
    for server, plugin in zip((one, other), plugins):
        holders.join(server, plugin, Telemetry)
    assert plugins[0].telemetry is not plugins[1].telemetry
    holders.leave(one, plugins[0])
    assert (holders.telemetry(one), holders.telemetry(other)) == (None, plugins[1].telemetry)
    assert len(holders._plugins) == 1
