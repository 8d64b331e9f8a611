"""A server's resource: what comes before what."""

from __future__ import annotations

import os
import sys
import threading

import distributed
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.version import __version__ as sdk_version

import dask_otel
from dask_otel import resource
from dask_otel.environment import parse
from dask_otel.resource import build, to_sdk
from dask_otel.settings import Settings

FAKE = """
import threading
from opentelemetry.sdk.resources import Resource

class First:
    calls = 0
    def detect(self):
        First.calls += 1
        return Resource({"service.name": "pod", "service.instance.id": "i", "dask.cluster.id": "c", "x": 1, "y": 1})

class Second:
    def detect(self):
        return Resource({"y": 2})

class Raises:
    def detect(self):
        raise OSError("no metadata service")

class Hangs:
    release = threading.Event()
    def detect(self):
        Hangs.release.wait(10)
        return Resource({"late": 1})
"""
ENTRY_POINTS = """
[opentelemetry_resource_detector]
first = fake_detectors:First
second = fake_detectors:Second
raises = fake_detectors:Raises
hangs = fake_detectors:Hangs
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A distribution with detectors of its own."""
    info = tmp_path / "fake_detectors-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: fake-detectors\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "fake_detectors.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fake_detectors", raising=False)
    import fake_detectors

    resource._detected.cache_clear()
    yield fake_detectors
    fake_detectors.Hangs.release.set()
    resource._detected.cache_clear()


NOTHING_SET = Settings()
DEFAULTS = {
    "service.name": "dask-worker",
    "service.instance.id": "Worker-1",
    "dask.role": "worker",
    "dask.version": distributed.__version__,
    "process.pid": os.getpid(),
    "telemetry.sdk.language": "python",
    "telemetry.sdk.name": "opentelemetry",
    "telemetry.sdk.version": sdk_version,
    "telemetry.distro.name": "dask-otel",
    "telemetry.distro.version": dask_otel.__version__,
}


def worker(settings: Settings = NOTHING_SET, **extra: object) -> dict[str, object]:
    attributes = build(
        "worker", "Worker-1", settings, {key.replace("_", "."): value for key, value in extra.items()}
    )
    assert len(attributes) == len(dict(attributes))
    return dict(attributes)


def test_a_servers_resource_says_who_it_is():
    assert worker() == DEFAULTS


@pytest.mark.parametrize("role", ["scheduler", "worker", "client"])
def test_the_service_is_named_by_the_role(role):
    attributes = dict(build(role, "id", Settings(), {}))
    assert (attributes["service.name"], attributes["dask.role"]) == (f"dask-{role}", role)


def test_what_the_caller_knows_is_added_and_what_nobody_knows_left_out():
    extra = worker(
        Settings(cluster_name="blue"), dask_cluster_id="S-1", dask_worker_name="w", dask_worker_address=None
    )
    assert extra == DEFAULTS | {
        "dask.cluster.name": "blue",
        "dask.cluster.id": "S-1",
        "dask.worker.name": "w",
    }


def test_the_users_environment_comes_before_ours_but_for_the_instances_id():
    environ = {
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=a,service.instance.id=pod,dask.worker.name=mine,team=x",
        "OTEL_SERVICE_NAME": "shop",
    }
    assert worker(parse(environ), dask_worker_name="w") == DEFAULTS | {
        "service.name": "shop",
        "dask.worker.name": "mine",
        "team": "x",
    }


def test_detectors_come_before_our_defaults_and_after_what_the_caller_knows(fake):
    settings = Settings(resource_detectors=("first", "second"))
    found = {"service.name": "pod", "x": 1, "y": 2}
    assert worker(settings, dask_cluster_id="S-1") == DEFAULTS | found | {"dask.cluster.id": "S-1"}


def test_detectors_run_once_for_all_servers_of_a_process(fake):
    settings = Settings(resource_detectors=("first",))
    assert worker(settings) == worker(settings)
    assert fake.First.calls == 1


def test_a_detector_that_fails_or_is_not_installed_costs_its_attributes_and_a_line(fake, caplog):
    settings = Settings(resource_detectors=("raises", "missing", "second"))
    assert worker(settings) == worker(settings) == DEFAULTS | {"y": 2}
    assert caplog.messages == [
        f"The resource detector {name!r} of OTEL_EXPERIMENTAL_RESOURCE_DETECTORS failed with {error}; what it would "
        "add is left out."
        for name, error in [("raises", "OSError"), ("missing", "StopIteration")]
    ]


def test_a_detector_that_hangs_is_not_waited_for(fake, caplog, monkeypatch):
    monkeypatch.setattr(resource, "PATIENCE", 0.2)
    assert worker(Settings(resource_detectors=("hangs", "second"))) == DEFAULTS | {"y": 2}
    assert caplog.messages == [
        (
            "The resource detector 'hangs' of OTEL_EXPERIMENTAL_RESOURCE_DETECTORS took longer than 0.2 s; what it would "
            "add is left out."
        )
    ]


def test_without_detectors_no_thread_is_started(monkeypatch):
    monkeypatch.setattr(threading, "Thread", None)
    resource._detected.cache_clear()
    assert worker() == DEFAULTS


def test_a_star_means_all_but_the_one_that_reads_the_environment_again(monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "from=the-environment")
    assert resource._expand(("*", "otel")) == ["host", "os", "process", "service_instance"]
    assert resource._expand(("process", "*", "os")) == ["process", "host", "os", "service_instance"]


def test_the_sdks_own_detectors_run():
    attributes = worker(Settings(resource_detectors=("os", "service_instance")))
    assert set(attributes) - set(DEFAULTS) == {"os.type", "os.version"}
    assert attributes["service.instance.id"] == "Worker-1"


def test_the_sdks_attributes_are_as_the_sdk_writes_them():
    written = Resource.create().attributes
    ours = worker()
    keys = [key for key in written if key.startswith("telemetry.sdk.")]
    assert len(keys) == 3
    assert {key: ours[key] for key in keys} == {key: written[key] for key in keys}


def test_the_sdks_object_holds_the_same_and_detects_nothing(monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "from=the-environment")
    attributes = (("service.name", "dask-worker"), ("n", 1), ("list", ("a", "b")))
    assert to_sdk(attributes) == Resource({"service.name": "dask-worker", "n": 1, "list": ("a", "b")})
