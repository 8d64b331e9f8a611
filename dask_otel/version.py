"""The version of this package, from its metadata."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("dask-otel")
except PackageNotFoundError:  # A checkout that is not installed.
    __version__ = "0+unknown"
