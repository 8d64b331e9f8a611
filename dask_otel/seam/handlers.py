"""The time of a server's event loop by the message handler that it runs, as a `HandlerTime`.

Rules
-----
1. A coroutine is timed each time that it is resumed, never while it waits, and no more once it has become the read loop
   of its connection: reading is the loop's own work, ``other``, and the messages' handlers are timed by themselves.
2. A handler is to distributed what it was: a coroutine function or none, its first parameter ``comm`` or not.
3. A loop without a selector of its own (uvloop) has no ``idle``: its waiting is in ``other``, for it cannot be told apart.
4. What is called for each message, and when the loop waits, costs two looks at the clock; a turn of a busy loop none.

Notes
-----
Servers may share a loop (``LocalCluster(processes=False)``): what the others do there is this one's ``other``, and
``idle`` is the time in which the loop waited, since none of them had anything to do. What ``register-worker`` and
``register-client`` do when their connection has ended is in ``other``. A handler that is added later is not timed.
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
#: Seconds between two turns of the loop that are told, at least, unless it has waited for longer.
_BUSY = 0.001


class HandlerSeam:
    """Hooks on one server's handlers and on its event loop, in whose thread everything here is called.

    ``turn`` is told the moment since when nothing has happened: after each wait of a millisecond, else once a
    millisecond. While the loop is busy it is the last that is known, that in which a handler ended.
    """

    def __init__(
        self,
        server: Any,
        guard: Guard,
        clock: Callable[[], float],
        turn: Callable[[float], None] = lambda now: None,
    ) -> None:
        self._server = server
        self._guard = guard
        self._clock = clock
        self._turn = turn
        self._wraps = Wraps()
        self._times = HandlerTime(clock())
        #: Read loops that have begun.
        self._streams = 0

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
        self._wraps.attribute(server, "handle_stream", self._wrap_handle_stream(server.handle_stream))
        selector = selector_of(server)
        if selector is not None:
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
        call, tally = self._wrap_call(op, original), self._times.tally(op)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            return self._drive(tally, result) if type(result) is types.CoroutineType else result

        return timed

    def _wrap_stream_handler(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """A handler of a stream's messages: awaited only if it is a coroutine function."""
        wrap = self._wrap_coroutine if inspect.iscoroutinefunction(original) else self._wrap_call
        return wrap(op, original)

    def _wrap_call(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """`HandlerTime.enter` and `leave`, spelt out: this is called for each task that ends."""
        times, clock, fault, tally = self._times, self._clock, self._guard.fault, self._times.tally(op)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            before = times.running
            try:
                now = clock()
                before[0] += now - times.since
                times.since = now
                times.running = tally
            except Exception:
                fault(_HOOK)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    now = clock()
                    tally[0] += now - times.since
                    times.since = now
                    times.running = before
                except Exception:
                    fault(_HOOK)

        return timed

    def _wrap_select(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Called more often than anything else, four times a task; nothing else runs in it.

        Three times of the four the loop has more to do and only asks what is new: that is its own work.
        """
        times, clock, turn, fault = self._times, self._clock, self._turn, self._guard.fault
        idle = times.tally(LOOP_IDLE)
        due = times.since

        def select(timeout: float | None = None) -> Any:
            nonlocal due
            if timeout == 0:
                if times.since > due:
                    try:
                        turn(times.since)
                        due = times.since + _BUSY
                    except Exception:
                        fault(_HOOK)
                return original(timeout)
            start = clock()
            events = original(timeout)
            try:
                end = clock()
                times.running[0] += start - times.since
                idle[0] += end - start
                times.since = end
                if start > due or end - start > _BUSY:
                    turn(start)  # Nothing has happened since.
                    due = start + _BUSY
            except Exception:
                fault(_HOOK)
            return events

        return select

    def _wrap_handle_stream(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def handle_stream(*args: Any, **kwargs: Any) -> Any:
            self._streams += 1
            return original(*args, **kwargs)

        return handle_stream

    def _wrap_coroutine(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        tally = self._times.tally(op)

        @functools.wraps(original)
        async def timed(*args: Any, **kwargs: Any) -> Any:
            return await self._sends(tally, original(*args, **kwargs))

        return timed

    async def _drive(self, tally: list[float], coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await self._sends(tally, coroutine)

    @types.coroutine
    def _sends(self, tally: list[float], coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """``await coroutine``, as PEP 380 spells it out, with its resumptions timed until it reads messages."""
        resume: Callable[[Any], Any] = coroutine.send
        value: Any = None
        reads = False
        while True:
            begun = self._streams
            try:
                awaited = self._resume(tally, resume, value)
            except StopIteration as stop:
                return stop.value
            reads = reads or self._streams != begun
            try:
                value = yield awaited
                resume = coroutine.send
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as thrown:
                value, resume = thrown, coroutine.throw
            if reads and value is None:
                return (yield from coroutine)

    def _resume(self, tally: list[float], resume: Callable[[Any], Any], value: Any) -> Any:
        times, clock, fault, before = self._times, self._clock, self._guard.fault, self._times.running
        try:
            times.enter(tally, clock())
        except Exception:
            fault(_HOOK)
        try:
            return resume(value)
        finally:
            try:
                times.leave(before, clock())
            except Exception:
                fault(_HOOK)


def selector_of(server: Any) -> Any:
    """What a server's loop waits in; ``None`` where it cannot be wrapped."""
    selector = getattr(getattr(server.loop, "asyncio_loop", None), "_selector", None)
    return selector if hasattr(selector, "__dict__") else None
