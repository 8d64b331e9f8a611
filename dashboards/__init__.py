"""Grafana's dashboards and Prometheus' alert rules for dask-otel's metrics, made by code: `python -m dashboards`."""
