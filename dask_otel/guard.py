"""Keeps a fault of ours out of Dask: caught, said once, counted; raised under pytest.

Rules
-----
1. A hook of ours never raises into Dask, except under pytest, where hiding a fault helps nobody.
2. A hook's first fault is said in full, with what to do; later ones of the same hook are counted.
"""

from __future__ import annotations

import logging
import os
from collections import Counter

logger = logging.getLogger("dask_otel")


class Guard:
    """Counts faults of one server's hooks.

    Examples
    --------
    >>> guard = Guard("worker w1", strict=False)
    >>> try:
    ...     1 / 0
    ... except Exception:
    ...     guard.fault("execute")
    >>> guard.faults["execute"]
    1
    """

    __slots__ = ("_strict", "faults", "server")

    def __init__(self, server: str, strict: bool | None = None) -> None:
        self.server = server
        self.faults: Counter[str] = Counter()
        self._strict = strict

    def fault(self, hook: str) -> None:
        """To be called in the ``except`` block of a hook: say and count the exception that is being handled."""
        self.faults[hook] += 1
        if self.faults[hook] == 1:
            logger.exception(
                "dask-otel failed in its hook %r on %s. The computation goes on, its telemetry may be incomplete. "
                "Please report this; to run without, remove the preload or call dask_otel.disable(client).",
                hook,
                self.server,
            )
        strict = "PYTEST_CURRENT_TEST" in os.environ if self._strict is None else self._strict
        if strict:
            raise
