"""The time of a server's event loop by the message handler that it runs, as calls to a `HandlerTime`.

Rules
-----
1. A coroutine is timed each time that it is resumed, never while it waits: ``register-worker`` and ``register-client``
   hold the read loops of their connections, in which all other messages of workers and clients are handled.
2. A handler is to distributed what it was: a coroutine function or none, its first parameter ``comm`` or not.
3. A loop without a selector of its own (uvloop) has no ``idle``: its waiting is in ``other``, for it cannot be told apart.

Notes
-----
Servers may share a loop (``LocalCluster(processes=False)``): what the others do there is this one's ``other``, and
``idle`` is the time in which none of them had anything to do. A connection that was there before `install`
has its read loop in ``other``, and its messages in their handlers' time. A handler that is added later is not timed.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from dask_otel.guard import Guard
from dask_otel.handler_time import HandlerTime
from dask_otel.names import LOOP_IDLE
from dask_otel.seam import Wraps

_HOOK = "handler_time"


class HandlerSeam:
    """Hooks on one server's handlers and on its event loop, in whose thread everything here is called."""

    def __init__(self, server: Any, guard: Guard, clock: Callable[[], float]) -> None:
        self._server = server
        self._guard = guard
        self._clock = clock
        self._wraps = Wraps()
        self._times = HandlerTime(clock())

    def install(self) -> None:
        """Wrap the handlers that there are, and the loop's selector; what was counted before is forgotten."""
        server = self._server
        self._times = HandlerTime(self._clock())
        for op in server.handlers:
            self._wraps.entry(server.handlers, op, self._wrap_handler(op, server.handlers[op]))
        for op in server.stream_handlers:
            self._wraps.entry(
                server.stream_handlers, op, self._wrap_stream_handler(op, server.stream_handlers[op])
            )
        selector = getattr(getattr(server.loop, "asyncio_loop", None), "_selector", None)
        if selector is not None and hasattr(selector, "__dict__"):
            self._wraps.attribute(selector, "select", self._wrap_select(selector.select))

    def uninstall(self) -> None:
        """Put everything back."""
        self._wraps.undo()

    def totals(self, now: float) -> dict[str, float]:
        """Seconds of the loop by operation, up to now: their sum is the time since `install`."""
        return self._times.totals(now)

    # -- wrappers -----------------------------------------------------------------------------------------------
    def _wrap_handler(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """A handler that replies: what it returns is awaited if it is a coroutine."""
        if inspect.iscoroutinefunction(original):
            return self._wrap_coroutine(op, original)
        call = self._wrap_call(op, original)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            return self._drive(op, result) if type(result) is types.CoroutineType else result

        return timed

    def _wrap_stream_handler(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """A handler of a stream's messages: awaited only if it is a coroutine function."""
        wrap = self._wrap_coroutine if inspect.iscoroutinefunction(original) else self._wrap_call
        return wrap(op, original)

    def _wrap_call(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(original)(self._timed(op, original))

    def _timed(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        enter, leave, clock, fault = self._times.enter, self._times.leave, self._clock, self._guard.fault

        def timed(*args: Any, **kwargs: Any) -> Any:
            try:
                enter(op, clock())
            except Exception:
                fault(_HOOK)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    leave(clock())
                except Exception:
                    fault(_HOOK)

        return timed

    def _wrap_select(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Called more often than anything else, three times for a task that comes alone."""
        spent, clock, fault = self._times.spent, self._clock, self._guard.fault

        def select(timeout: float | None = None) -> Any:
            start = clock()
            events = original(timeout)
            try:
                spent(LOOP_IDLE, start, clock())
            except Exception:
                fault(_HOOK)
            return events

        return select

    def _wrap_coroutine(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def timed(*args: Any, **kwargs: Any) -> Any:
            return await self._sends(op, original(*args, **kwargs))

        return timed

    async def _drive(self, op: str, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await self._sends(op, coroutine)

    @types.coroutine
    def _sends(self, op: str, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """``await coroutine``, as PEP 380 spells it out, with each of its resumptions timed."""
        resume = send = self._timed(op, coroutine.send)
        value: object = None
        while True:
            try:
                awaited = resume(value)
            except StopIteration as stop:
                return stop.value
            try:
                value = yield awaited
                resume = send
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as thrown:
                value, resume = thrown, self._timed(op, coroutine.throw)
