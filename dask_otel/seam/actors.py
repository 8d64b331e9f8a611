"""The seam for actors: a method call carries its caller's context to the worker that holds the actor.

Rules
-----
1. A context is added to a call's keyword arguments only after the actor's worker said that it takes it out again;
   it would reach the user's method otherwise.
2. So a worker that dask-otel was on goes on taking it out when dask-otel is turned off.
3. Methods run in a pool that drops context variables: its ``submit`` carries them over.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Any, Protocol

from dask.utils import key_split
from distributed import Actor
from distributed.protocol import pickle
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import get_current_span

from dask_otel import propagation, submission
from dask_otel.guard import PROCESS, Guard
from dask_otel.seam import METRIC, Wraps

if TYPE_CHECKING:
    from distributed import Worker

#: The keyword under which a context travels; no user's parameter is called so.
KEYWORD = "__dask_otel__"
#: Seconds after which a worker that did not run dask-otel is asked again.
ASK_AGAIN = 10.0

_EMPTY = Context()
_CALLERS = "_worker_rpc"


class Listener(Protocol):
    """What the worker's shell must offer."""

    def method_called(self, annotation: object, prefix: str, method: str) -> tuple[Context, object] | None:
        """A method is called; the context to run it in and what `method_returned` needs, ``None`` if untraced."""

    def method_returned(self, call: object, error: BaseException | None) -> None:
        """It returned, or raised."""


# -- the worker that holds the actor ------------------------------------------------------------------------------


def install_worker(worker: Worker, listener: Listener, guard: Guard, wraps: Wraps) -> None:
    """Wrap the handler of method calls and the pool that they run in."""
    handler = worker.handlers["actor_execute"]
    if isinstance(handler, _Handler):  # Left from before: it goes on with another listener.
        handler.listener, handler.guard = listener, guard
        return
    worker.handlers["actor_execute"] = _Handler(handler, listener, guard)
    pool = worker.executors["actor"]
    submit = pool.submit

    def submit_in_context(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return submit(contextvars.copy_context().run, call, *args, **kwargs)

    wraps.attribute(pool, "submit", submit_in_context)


def uninstall_worker(worker: Worker) -> None:
    """Trace no more calls; contexts are still taken out."""
    handler = worker.handlers["actor_execute"]
    if isinstance(handler, _Handler):
        handler.listener = None


class _Handler:
    """Stands in for ``Worker.actor_execute``."""

    def __init__(self, original: Callable[..., Awaitable[Any]], listener: Listener, guard: Guard) -> None:
        self._original = original
        self.listener: Listener | None = listener
        self.guard = guard
        self.__name__ = "actor_execute"

    async def __call__(
        self,
        actor: Hashable = None,
        function: str | None = None,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        annotation = kwargs.pop(KEYWORD, None)
        call = None
        try:
            call = self._begin(annotation, actor, function)
        except Exception:
            self.guard.fault("actor_execute")
        token = attach(call[0] if call else _EMPTY)
        try:
            result = await self._original(actor=actor, function=function, args=args, kwargs=kwargs)
        finally:
            detach(token)
        if call is not None and self.listener is not None:
            try:
                self._end(self.listener, call[1], result)
            except Exception:
                self.guard.fault("actor_execute")
        return result

    def _begin(
        self, annotation: object, actor: Hashable, function: str | None
    ) -> tuple[Context, object] | None:
        if annotation is None or self.listener is None:
            return None
        return self.listener.method_called(annotation, key_split(actor), function or "")

    def _end(self, listener: Listener, call: object, result: Any) -> None:
        failed = result["status"] == "error"
        listener.method_returned(call, getattr(result["exception"], "data", None) if failed else None)


# -- the caller ---------------------------------------------------------------------------------------------------


def install_callers(wraps: Wraps) -> None:
    """Wrap the way in which `Actor` objects of this process reach their worker."""
    original = Actor._worker_rpc
    own = Wraps()
    missing = "what methods of actors do is not below their callers"
    PROCESS.part(missing, own.undo, _CALLERS)

    def _worker_rpc(self: Actor) -> Any:
        rpc = original.fget(self)
        try:
            return _Caller(rpc, self._address) if get_current_span().get_span_context().is_valid else rpc
        except Exception:
            PROCESS.fault(_CALLERS)
            return rpc

    own.attribute(Actor, "_worker_rpc", property(_worker_rpc))
    wraps.also(lambda: own.undo())


class _Caller:
    """An rpc to an actor's worker that adds the caller's context to method calls."""

    def __init__(self, rpc: Any, address: str) -> None:
        self._rpc = rpc
        self._address = address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rpc, name)

    async def actor_execute(self, **message: Any) -> Any:
        try:
            carried = propagation.capture(get_current())
            if carried is not None and await self._takes_contexts():
                message["kwargs"] = {**message["kwargs"], KEYWORD: submission.pack(carried, "")}
        except Exception:
            PROCESS.fault(_CALLERS)
        return await self._rpc.actor_execute(**message)

    async def _takes_contexts(self) -> bool:
        known = _answers.get(self._address)
        if known is not None and (known[0] or time.monotonic() - known[1] < ASK_AGAIN):
            return known[0]
        try:
            answer = await self._rpc.run(function=_QUESTION)
            runs = answer["status"] == "OK" and bool(answer["result"])
        except Exception:  # The call itself will say what is wrong.
            return False
        if len(_answers) > 10_000:
            _answers.clear()
        _answers[self._address] = (runs, time.monotonic())
        return runs


_answers: dict[str, tuple[bool, float]] = {}
#: Travels by value: the worker need not have dask-otel.
_QUESTION = pickle.dumps(lambda dask_worker, metric=METRIC: metric in dask_worker.metrics)
