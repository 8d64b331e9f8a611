"""Dask's entry in ``opentelemetry-instrument``: ``opentelemetry-instrument python app.py``.

The application's provider, set by the distro or handed to `DaskInstrumentor.instrument`, gets what this process
reports; workers in processes of their own have what their own environment says.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined, unused-ignore]

from dask_otel import process, turning_on
from dask_otel.holders import BY_PRELOAD
from dask_otel.seam import client as client_seam
from dask_otel.seam.preloads import Preloads


class DaskInstrumentor(BaseInstrumentor):  # type: ignore[misc, unused-ignore]
    """Turns dask-otel on at whatever this process makes: clients, schedulers, workers, nannies' workers too.

    Examples
    --------
    >>> DaskInstrumentor().instrument()
    >>> DaskInstrumentor().uninstrument()
    """

    _preloads: Preloads | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        return ("distributed >= 2026.1.1",)

    def _instrument(self, **kwargs: Any) -> None:
        """``tracer_provider`` and ``meter_provider`` are used instead of the global ones."""
        process.use_provider(kwargs.get("tracer_provider"))
        process.use_meter_provider(kwargs.get("meter_provider"))
        self._preloads = Preloads(turning_on.dask_setup, turning_on.dask_teardown)
        self._preloads.install()
        for client in client_seam.running():
            if not client_seam.of_worker(client) and turning_on.instrument_client(client, BY_PRELOAD):
                self._preloads.clients.add(client)

    def _uninstrument(self, **kwargs: Any) -> None:
        if self._preloads is not None:
            for client in list(self._preloads.clients):
                turning_on.forget_client(client, BY_PRELOAD)
            self._preloads.uninstall(turning_on.undo_setup, BY_PRELOAD)
            self._preloads = None
        process.use_provider(None)
        process.use_meter_provider(None)
