"""Keeps a fault of ours out of Dask: caught, said once, counted; raised under pytest.

Rules
-----
1. A hook of ours never raises into Dask, except under pytest, where hiding a fault helps nobody.
2. A hook's first fault is said in full, with what to do; later ones of the same hook are counted.
3. A hook that fails `LIMIT` times within `WITHIN` seconds is switched off at that server, with those that are worthless
   without it, and one sentence says what is missing from then on. What it takes to do so is done where a fault is told:
   a hook that works is not asked whether it is on, unless it is called seldom.
4. Who enables dask-otel anew at a server makes it a new guard: all hooks are on again.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

logger = logging.getLogger("dask_otel")

#: So many faults of one hook within so many seconds switch it off: ten exports of metrics take ten minutes.
LIMIT, WITHIN = 10, 3600.0


class Part(NamedTuple):
    """Hooks that are switched off together, how, and what is missing then; what is to be done after a fault of theirs."""

    hooks: tuple[str, ...]
    off: Callable[[], object]
    missing: str
    after: Callable[[], object]


class Guard:
    """Counts faults of one server's hooks.

    Parameters
    ----------
    server:
        What it is called in sentences.
    strict:
        Whether faults are raised; where it is not said, as the process runs under pytest.
    clock:
        Gives seconds and never goes back.

    Examples
    --------
    >>> guard = Guard("worker w1", strict=False)
    >>> try:
    ...     1 / 0
    ... except Exception:
    ...     guard.fault("execute")
    >>> guard.faults["execute"], guard.off
    (1, set())
    """

    __slots__ = ("_clock", "_latest", "_parts", "_strict", "faults", "off", "server")

    def __init__(
        self, server: str, strict: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.server = server
        self.faults: Counter[str] = Counter()
        #: Hooks that were switched off. One that is called seldom looks here, the others are taken away.
        self.off: set[str] = set()
        self._parts: dict[str, Part] = {}
        self._latest: dict[str, deque[float]] = {}
        self._strict = strict
        self._clock = clock

    def part(
        self, missing: str, off: Callable[[], object], *hooks: str, after: Callable[[], object] | None = None
    ) -> None:
        """These hooks, which are on now, are switched off together by ``off``: then ``missing`` is so.

        ``after`` is called after each fault of theirs until then: to put in order what it has left behind.
        """
        for hook in hooks:
            self._parts[hook] = Part(hooks, off, missing, after or _nothing)
            self._latest.pop(hook, None)
        self.off.difference_update(hooks)

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
        if hook not in self.off:
            self._consider(hook)
        strict = "PYTEST_CURRENT_TEST" in os.environ if self._strict is None else self._strict
        if strict:
            raise

    def each(self, hook: str, *steps: Callable[[], object]) -> None:
        """Take all of these steps, whichever of them fails."""
        raised: Exception | None = None
        for step in steps:
            try:
                step()
            except Exception:
                try:
                    self.fault(hook)
                except Exception as strict:
                    raised = strict
        if raised is not None:
            raise raised

    def _repeatedly(self, hook: str) -> bool:
        latest = self._latest.setdefault(hook, deque(maxlen=LIMIT))
        latest.append(self._clock())
        return len(latest) == LIMIT and latest[-1] - latest[0] <= WITHIN

    def _consider(self, hook: str) -> None:
        part = self._parts.get(hook) or Part(
            (hook,), _nothing, "what it tells is missing from now on", _nothing
        )
        off = self._repeatedly(hook)
        if off:
            self._switch_off(hook, part)
        try:
            (part.off if off else part.after)()
        except Exception:
            logger.exception(
                "dask-otel could not cope with the faults of its hook %r on %s", hook, self.server
            )

    def _switch_off(self, hook: str, part: Part) -> None:
        self.off.update(part.hooks)
        logger.error(
            "dask-otel has switched off its hook %r on %s, which has failed %d times: %s. Computations go on. It stays off "
            "until dask-otel is enabled there anew: by dask_otel.disable(client) and dask_otel.enable(client), or, where it "
            "is preloaded, when that process starts again.",
            hook,
            self.server,
            self.faults[hook],
            part.missing,
        )


def _nothing() -> None:
    """For a hook that asks whether it is on."""


#: For what is wrapped once in a process, whoever of its servers and clients it is for.
PROCESS = Guard("this process")
