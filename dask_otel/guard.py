"""Keeps a fault of ours out of Dask: caught, said once, counted, switched off; raised under pytest.

Rules
-----
1. A hook of ours never raises into Dask, except under pytest, where hiding a fault helps nobody.
2. A fault is said in full the first time, with what to do; afterwards it is counted.
3. A hook that failed `MAX_FAULTS` times is switched off on that server.
"""

from __future__ import annotations

import logging
import os
from collections import Counter

logger = logging.getLogger("dask_otel")

MAX_FAULTS = 5


class Guard:
    """Counts faults of one server's hooks.

    Examples
    --------
    >>> guard = Guard("worker w1", strict=False)
    >>> try:
    ...     1 / 0
    ... except Exception:
    ...     guard.fault("execute")
    >>> guard.faults["execute"], guard.off("execute")
    (1, False)
    """

    __slots__ = ("_strict", "faults", "server", "switched_off")

    def __init__(self, server: str, strict: bool | None = None) -> None:
        self.server = server
        self.faults: Counter[str] = Counter()
        self.switched_off: set[str] = set()
        self._strict = strict

    def off(self, hook: str) -> bool:
        """Whether the hook was switched off."""
        return hook in self.switched_off

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
        elif self.faults[hook] == MAX_FAULTS:
            self.switched_off.add(hook)
            logger.warning(
                "dask-otel's hook %r on %s failed %d times and is switched off.",
                hook,
                self.server,
                MAX_FAULTS,
            )
        strict = "PYTEST_CURRENT_TEST" in os.environ if self._strict is None else self._strict
        if strict:
            raise
