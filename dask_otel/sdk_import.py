"""Imports OpenTelemetry's SDK whatever the environment holds.

The SDK reads ``OTEL_*_LIMIT`` when `opentelemetry.sdk.trace` is imported, and the import raises where one is not a
number. A preload that cannot be imported takes its server down, so the import is tried again with these variables
out of sight; `config.load` then says which of them is wrong.
"""

from __future__ import annotations

import importlib
import os

_MODULE = "opentelemetry.sdk.trace"


def import_sdk() -> None:
    """Import the SDK's tracing; afterwards every import of it works."""
    try:
        importlib.import_module(_MODULE)
    except ValueError:
        hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.endswith("_LIMIT")}
        try:
            importlib.import_module(_MODULE)
        finally:
            os.environ.update(hidden)


import_sdk()
