"""Fixtures that say where the real backends listen, for tests run under `.ci/with-backends COMMAND`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dask_otel import process

VARIABLES = {
    "collector_http": "DASK_OTEL_TEST_COLLECTOR_HTTP",
    "collector_grpc": "DASK_OTEL_TEST_COLLECTOR_GRPC",
    "jaeger_http": "DASK_OTEL_TEST_JAEGER_HTTP",
    "jaeger_grpc": "DASK_OTEL_TEST_JAEGER_GRPC",
    "jaeger_api": "DASK_OTEL_TEST_JAEGER_API",
    "prometheus": "DASK_OTEL_TEST_PROMETHEUS",
    "otelcol": "DASK_OTEL_TEST_OTELCOL",
    "jaeger_binary": "DASK_OTEL_TEST_JAEGER",
}


def backend(name: str) -> str:
    """The URL or path of a backend; without it the test is skipped, or fails where backends are required."""
    value = os.environ.get(VARIABLES[name])
    if value:
        return value
    missing = f"{VARIABLES[name]} is not set: run `.ci/with-backends pytest tests/backends`"
    if os.environ.get("DASK_OTEL_TEST_REQUIRE_BACKENDS") == "1":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


def backend_fixture(name: str):
    @pytest.fixture(scope="session", name=name)
    def value() -> str:
        return backend(name)

    return value


collector_http = backend_fixture("collector_http")
collector_grpc = backend_fixture("collector_grpc")
jaeger_http = backend_fixture("jaeger_http")
jaeger_grpc = backend_fixture("jaeger_grpc")
jaeger_api = backend_fixture("jaeger_api")
prometheus = backend_fixture("prometheus")
otelcol = backend_fixture("otelcol")
jaeger_binary = backend_fixture("jaeger_binary")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No variable of OpenTelemetry's or ours; what a test has is sent and closed at its end."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "DASK_OTEL__")):
            monkeypatch.delenv(name)
    yield monkeypatch
    process.close(1.5)
