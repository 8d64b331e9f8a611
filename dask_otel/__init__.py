"""OpenTelemetry for Dask: one trace from ``compute()`` to the metering context of every task.

Turn it on by ``--preload dask_otel`` on ``dask scheduler`` and ``dask worker``, by `enable` on a running cluster, or
by ``opentelemetry-instrument``; say where telemetry goes by OpenTelemetry's own variables.
"""

from dask_otel import sdk_import  # noqa: F401  # First: what follows imports the SDK.
from dask_otel.cluster import disable, enable, flush
from dask_otel.turning_on import dask_setup, dask_teardown
from dask_otel.version import __version__

__all__ = ["__version__", "dask_setup", "dask_teardown", "disable", "enable", "flush"]
