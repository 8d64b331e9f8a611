"""``dask otel demo``."""
