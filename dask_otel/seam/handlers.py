"""The time of a server's event loop by the message handler that it runs, as a `HandlerTime`.

Rules
-----
1. A coroutine is timed each time that it is resumed, never while it waits, and no more once it has become the read loop
   of its connection: reading is the loop's own work, ``other``, and the messages' handlers are timed by themselves.
2. A handler is to distributed what it was: a coroutine function or none, its first parameter ``comm`` or not.
3. A loop without a selector of its own (uvloop) has no ``idle``: its waiting is in ``other``, for it cannot be told apart.
4. A stream's messages are timed from one to the next, as whoever reads them goes through them: a look at the clock for
   each, and no call between the reader and a handler. When the loop waits it costs two looks, a turn of a busy loop none.

Notes
-----
Servers may share a loop (``LocalCluster(processes=False)``): what the others do there is this one's ``other``, and
``idle`` is the time in which the loop waited, since none of them had anything to do. What ``register-worker`` and
``register-client`` do when their connection has ended is in ``other``, and so is what a connection that was there before
us reads first. What a stream's reader does to call a handler is the handler's. One that replies and is added later is not
timed.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any

from dask_otel.guard import Guard
from dask_otel.handler_time import HandlerTime
from dask_otel.names import LOOP_IDLE, LOOP_OTHER
from dask_otel.seam import Wraps
from dask_otel.seam.streams import Reading, streams_of

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
        #: What is nobody's.
        self._rest = self._times.tally(LOOP_OTHER)
        #: What the messages of a stream are timed as, by their operation.
        self._operations: dict[Any, list[float]] = {}
        self._reading = Reading(guard, _HOOK, self._each)

    def install(self) -> None:
        """Wrap the handlers that there are, and the loop's selector; what was counted before is forgotten."""
        server = self._server
        self._times = HandlerTime(self._clock())
        for op in server.handlers:
            self._wraps.entry(server.handlers, op, self._wrap_handler(op, server.handlers[op]))
        self._operations = {}
        self._rest = self._times.tally(LOOP_OTHER)
        for op, handler in server.stream_handlers.items():
            if inspect.iscoroutinefunction(handler):
                self._wraps.entry(server.stream_handlers, op, self._wrap_coroutine(op, handler))
        self._wraps.attribute(server, "handle_stream", self._wrap_handle_stream(server.handle_stream))
        for comm in streams_of(server):
            self._reading.begin(comm)
        selector = selector_of(server)
        if selector is not None:
            self._wraps.attribute(selector, "select", self._wrap_select(selector.select))

    def uninstall(self) -> None:
        """Put everything back."""
        try:
            self._reading.undo()
        finally:
            self._wraps.undo()

    def totals(self, now: float) -> dict[str, float]:
        """Seconds of the loop by operation, up to now: their sum is the time since `install`."""
        return self._times.totals(now)

    def total(self, operation: str, now: float) -> float:
        """Seconds of one operation, as `totals` has them."""
        return self._times.total(operation, now)

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

    def _wrap_call(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        tally = self._times.tally(op)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            return self._run(tally, original, *args, **kwargs)

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
                awaited = self._run(tally, resume, value)
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

    def _run(self, tally: list[float], call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        times, clock, fault, before = self._times, self._clock, self._guard.fault, self._times.running
        try:
            times.enter(tally, clock())
        except Exception:
            fault(_HOOK)
        try:
            return call(*args, **kwargs)
        finally:
            try:
                times.leave(before, clock())
            except Exception:
                fault(_HOOK)

    # -- streams ------------------------------------------------------------------------------------------------
    def _wrap_handle_stream(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def handle_stream(comm: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                self._streams += 1
                self._reading.begin(comm)
            except Exception:
                self._guard.fault(_HOOK)
            try:
                return await original(comm, *args, **kwargs)
            finally:
                try:
                    self._reading.end(comm)
                except Exception:
                    self._guard.fault(_HOOK)

        return handle_stream

    def _each(self, messages: Iterator[Any]) -> Iterator[Any]:
        """The messages, and between them whoever asks for the next: `HandlerTime.enter` and `leave`, spelt out.

        While a coroutine is awaited others run: it is timed by itself.
        """
        times, clock, operations, rest = self._times, self._clock, self._operations, self._rest
        try:
            for message in messages:
                try:
                    op = message["op"] if type(message) is dict else None
                    tally = operations.get(op) or self._operation(op)
                    now = clock()
                    times.running[0] += now - times.since
                    times.since = now
                    times.running = tally
                except Exception:
                    self._guard.fault(_HOOK)
                yield message
        finally:
            now = clock()
            times.running[0] += now - times.since
            times.since = now
            times.running = rest

    def _operation(self, op: Any) -> list[float]:
        """The tally of a stream's handler that is a plain function; else that of what is nobody's."""
        handler = self._server.stream_handlers.get(op)
        if handler is None:
            return self._rest
        tally = self._rest if inspect.iscoroutinefunction(handler) else self._times.tally(op)
        return self._operations.setdefault(op, tally)


def selector_of(server: Any) -> Any:
    """What a server's loop waits in; ``None`` where it cannot be wrapped."""
    selector = getattr(getattr(server.loop, "asyncio_loop", None), "_selector", None)
    return selector if hasattr(selector, "__dict__") else None
