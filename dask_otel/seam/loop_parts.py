"""What a server's event loop does besides running message handlers and waiting: seen in one of many of its rounds.

Rules
-----
1. A round is what asyncio does from one call of its selector to the next. Of a number of rounds one is looked at, whichever,
   and stands for all of them; the others cost a countdown.
2. In a round that is looked at the moments between callbacks are taken, by the seconds of ``other`` up to then: what a
   handler took, and waiting, is not in them. What looking itself takes is left out.
3. A callback is told by what it is, not by what it does: a socket that can be read or written, the task that writes to a
   connection, that of a connection itself, a timer, tornado's own, asyncio's own. All else is `REST`.
4. The loop's queue of callbacks is replaced by one of the same kind while anybody looks at it, in the loop's thread: one
   operation that no other thread can come between. No callback is lost, and none changes its place.
5. A loop without a selector and a queue of its own (uvloop) has no parts.

Notes
-----
What asyncio does between two callbacks is the first one's. Reading and deserializing messages are of the connection's
task.
"""

from __future__ import annotations

import functools
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tornado.ioloop import IOLoop

from dask_otel.guard import Guard
from dask_otel.instruments import ASYNCIO, CONNECTION, PERIODIC, READ, REST, TORNADO, TRANSITION, WRITE
from dask_otel.loop_parts import LoopParts, Pace
from dask_otel.seam import Wraps
from dask_otel.seam.handlers import selector_of

#: Rounds that are let pass once we have failed: for ever.
_NEVER = 1 << 62
#: Coroutines of tasks.
_COROUTINES = {"Server._handle_comm": CONNECTION, "PeriodicCallback._run": PERIODIC}
_MODULES = {"tornado": TORNADO, "asyncio": ASYNCIO, "_asyncio": ASYNCIO}
_HOOK = "loop_parts"


class LoopPartsSeam:
    """Looks at the event loop of one server, in whose thread everything here is called.

    Parameters
    ----------
    other
        Gives the seconds that the loop has spent on neither handlers nor waiting, up to now.
    clock
        Gives moments (s) that never fall.
    pace
        Makes what says how many rounds to let pass before the next look.
    """

    def __init__(
        self,
        server: Any,
        guard: Guard,
        other: Callable[[], float],
        clock: Callable[[], float] = time.perf_counter,
        pace: Callable[[float], Pace] = Pace,
    ) -> None:
        self._server = server
        self._guard = guard
        self._other = other
        self._clock = clock
        self._make_pace = pace
        self._pace = pace(clock())
        # Nobody who seeds the program's own changes what we look at, nor we what they get.
        self._dice = random.Random()
        self._wraps = Wraps()
        self._parts = LoopParts()
        self._queue: _Queue | None = None
        self._looking = False
        #: Callbacks of the round that is looked at.
        self._callbacks = 0
        #: What goes on now, and since when.
        self._part = ASYNCIO
        self._since = 0.0

    def install(self) -> None:
        """Look from now on; what was seen before is forgotten."""
        self._parts = LoopParts()
        self._pace = self._make_pace(self._clock())
        server = self._server
        loop = getattr(server.loop, "asyncio_loop", None)
        selector = selector_of(server)
        queue = getattr(loop, "_ready", None)
        if selector is None or not isinstance(queue, deque):
            return
        self._queue = _Queue.of(loop)
        self._wraps.attribute(selector, "select", self._wrap_select(selector.select))
        if hasattr(server, "_transitions"):
            self._wraps.attribute(server, "_transitions", self._wrap_transitions(server._transitions))

    def uninstall(self) -> None:
        """Put everything back."""
        queue, self._queue = self._queue, None
        if queue is not None:
            try:
                if self._looking:
                    self._looking = False
                    queue.remove(self)
                self._wraps.undo()
            finally:
                queue.release()

    def totals(self, other: float) -> dict[str, float]:
        """Seconds by part, of so many that were ``other`` since `install`; they add up to it, ``rest`` included."""
        return self._parts.totals(other)

    # -- rounds -------------------------------------------------------------------------------------------------
    def _wrap_select(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Called once a round."""
        left = 1
        turn, parts = self._turn, self._parts

        def select(timeout: float | None = None) -> Any:
            nonlocal left
            left -= 1
            if not left:
                left = turn(parts)
            return original(timeout)

        return select

    def _turn(self, parts: LoopParts) -> int:
        """A round ends, and the next is looked at or not; returns after how many to ask again."""
        queue = self._queue
        if queue is None or self._parts is not parts:
            return _NEVER  # Uninstalled beneath another wrapper, which calls on.
        try:
            if self._looking:
                self.ended()
                self._stop()
                pause = self._pace.pause(self._clock(), self._dice.random(), self._callbacks)
                if pause:
                    return pause
            self._look(queue)
            return 1
        except Exception:
            self._guard.each(_HOOK, self._stop)
            self._guard.fault(_HOOK)
            return _NEVER if _HOOK in self._guard.off else 1

    def _look(self, queue: _Queue) -> None:
        """Waiting is not ``other``: what passes until the first callback is asyncio's own."""
        self._part, self._since = ASYNCIO, self._other()
        self._looking = True
        self._callbacks = 0
        queue.add(self)

    def _stop(self) -> None:
        if self._looking and self._queue is not None:
            self._looking = False
            self._queue.remove(self)

    # -- callbacks ----------------------------------------------------------------------------------------------
    def ended(self) -> None:
        """What went on until now has ended; nothing has begun."""
        try:
            self._turn_to(ASYNCIO)
        except Exception:
            self._guard.fault(_HOOK)

    def begins(self, handle: Any) -> None:
        """A callback is to run."""
        try:
            self._callbacks += 1
            self._part = _part(handle._callback, handle._args)
            self._since = self._other()
        except Exception:
            self._guard.fault(_HOOK)

    def _turn_to(self, part: str) -> str:
        """Returns what went on until now."""
        now = self._other()
        self._parts.sampled(self._part, (now - self._since) * self._pace.weight)
        before, self._part, self._since = self._part, part, now
        return before

    def _wrap_transitions(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _transitions(*args: Any, **kwargs: Any) -> Any:
            # Those of a connection are in the handlers of its messages.
            if not self._looking or self._part is CONNECTION:
                return original(*args, **kwargs)
            before = REST
            try:
                before = self._turn_to(TRANSITION)
            except Exception:
                self._guard.fault(_HOOK)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    self._turn_to(before)
                except Exception:
                    self._guard.fault(_HOOK)

        return _transitions


class _Queue(deque[Any]):
    """Stands in for a loop's ``_ready``; several may look at it. It costs what a deque does while nobody looks."""

    __slots__ = ("_lookers", "_loop", "_users")

    _loop: Any
    _lookers: tuple[LoopPartsSeam, ...]
    _users: int

    @classmethod
    def of(cls, loop: Any) -> _Queue:
        """That of a loop, to be given back by `release`."""
        queue = loop._ready
        if not isinstance(queue, _Queue):
            queue = _Queue()
            queue._loop, queue._lookers, queue._users = loop, (), 0
            _replace(loop, queue)
        queue._users += 1
        return queue

    def release(self) -> None:
        """The last one puts back what there was."""
        self._users -= 1
        if not self._users:
            _replace(self._loop, deque())
            self._loop = None

    def add(self, looker: LoopPartsSeam) -> None:
        self._lookers = (*self._lookers, looker)
        self.__class__ = _WatchedQueue

    def remove(self, looker: LoopPartsSeam) -> None:
        self._lookers = tuple([one for one in self._lookers if one is not looker])
        if not self._lookers:
            self.__class__ = _Queue


class _WatchedQueue(_Queue):
    """The same while somebody looks: asyncio takes each callback out of it, then runs it."""

    __slots__ = ()

    def popleft(self) -> Any:
        for looker in self._lookers:
            looker.ended()  # Raises nothing.
        handle = deque.popleft(self)
        for looker in self._lookers:
            looker.begins(handle)
        return handle


def _replace(loop: Any, queue: deque[Any]) -> None:
    """Whatever comes from now on goes to the new one, behind what was in the old."""
    old, loop._ready = loop._ready, queue
    queue.extendleft(reversed(old))
    old.clear()


def _part(callback: Any, args: Any) -> str:
    """What a callback of asyncio's is part of."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, IOLoop):
        if callback.__name__ == "_handle_events":
            return WRITE if args[1] == IOLoop.WRITE else READ
        if callback.__name__ == "_run_callback":
            return _part_of_function(args[0])
    get_coro = getattr(owner, "get_coro", None)
    return _part_of_function(callback) if get_coro is None else _part_of_coroutine(get_coro())


def _part_of_coroutine(coroutine: Any) -> str:
    name = getattr(coroutine, "__qualname__", "")
    return WRITE if name.endswith(".write") else _COROUTINES.get(name, REST)


def _part_of_function(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    part = _COROUTINES.get(getattr(function, "__qualname__", ""))
    if part is not None:
        return part
    module = getattr(function, "__module__", None) or ""
    return _MODULES.get(module.partition(".")[0], REST)
