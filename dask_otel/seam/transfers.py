"""The worker's seam for data: transfers seen from both ends, spilling by the memory monitor.

Rules
-----
1. The sender learns of the receiver's span by a fragment on ``who``, the only field of a request for data that an
   other worker takes as text; only where every worker of the cluster is known to strip it.
2. ``get_data_from_worker`` is wrapped for the process, and does nothing outside of a transfer that is followed:
   clients call it too.
3. A transfer that a task waits for is an instruction of the worker's state machine, ``gather_dep``, with a ledger of
   its own. What `Client.replicate` and `Client.rebalance` have a worker fetch is neither: see ``gather``.
4. The size is of what is known to have come: of a transfer that succeeded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import distributed.worker
from distributed.comm.addressing import get_address_host_port
from distributed.metrics import context_meter
from distributed.worker_state_machine import (
    GatherDepBusyEvent,
    GatherDepFailureEvent,
    GatherDepNetworkFailureEvent,
    GatherDepSuccessEvent,
)
from opentelemetry.context import Context, attach, detach

from dask_otel import names
from dask_otel.current import class_name
from dask_otel.guard import Guard
from dask_otel.seam import ANNOTATION, Wraps

if TYPE_CHECKING:
    from distributed import Worker

_EMPTY = Context()
_SEPARATOR = "#"
#: What the request for data that is being sent adds to its ``who``.
_fragment: ContextVar[str] = ContextVar("dask_otel_fragment", default="")
#: Whose ``gather`` a request for data is part of.
_gathering: ContextVar[_Gather | None] = ContextVar("dask_otel_gathering", default=None)

#: What Dask closes the ledger of a transfer with, where it is not a success.
_OUTCOMES = {
    "missing": names.MISSING,
    "cancelled": names.CANCELLED,
    "busy": names.BUSY,
    "failed": names.FAILED,
}


class Transfer:
    """One request of this worker for data of another; moments are seconds since the epoch."""

    __slots__ = (
        "end",
        "error_type",
        "followed",
        "fragment",
        "host",
        "keys",
        "listener",
        "outcome",
        "port",
        "size",
        "start",
    )

    def __init__(self, address: str, keys: int, start: float) -> None:
        self.host, self.port = _host_port(address)
        self.keys = keys
        self.start = self.end = start
        self.outcome = names.SUCCESS
        self.size: int | None = None
        self.error_type: str | None = None
        self.fragment = ""
        #: Whether its end is to be told; what the listener wants to keep with it.
        self.followed = False
        self.listener: Any = None


class Listener(Protocol):
    """What the worker's shell must offer."""

    @property
    def measuring(self) -> bool:
        """Whether all that happens is to be told, traced or not."""

    def transfer_started(self, transfer: Transfer, waiting: Iterator[tuple[object, int]], alone: bool) -> str:
        """A transfer starts; ``waiting`` gives annotation and run id of the tasks that wait for it, the most urgent
        first; ``alone`` says that no task of the worker does. Sets ``transfer.followed`` if its end is to be told
        and returns the fragment for the sender, if any."""

    def transfer_ended(self, transfer: Transfer) -> None:
        """It ended."""

    def sent(
        self, fragment: str, keys: int, size: int | None, start: float, end: float, outcome: str
    ) -> None:
        """This worker answered a request; ``fragment`` is empty where none came with it."""

    def spilled(
        self, start: float, end: float, size: int, count: int, annotations: list[tuple[object, int]]
    ) -> None:
        """The memory monitor spilled ``count`` values; tasks that ran meanwhile by annotation and run id."""


class TransferSeam:
    """Hooks on one worker's transfers and spilling."""

    def __init__(self, worker: Worker, listener: Listener, guard: Guard) -> None:
        self._worker = worker
        self._listener = listener
        self._guard = guard
        self._wraps = Wraps()

    def install(self) -> None:
        """Wrap the worker's methods."""
        worker = self._worker
        self._wraps.attribute(worker, "gather_dep", self._wrap_gather_dep(worker.gather_dep))
        self._wraps.entry(worker.handlers, "gather", self._wrap_gather(worker.handlers["gather"]))
        self._wraps.entry(worker.handlers, "get_data", self._wrap_get_data(worker.handlers["get_data"]))
        manager = worker.memory_manager
        if hasattr(manager, "_spill"):
            self._wraps.attribute(manager, "_spill", self._wrap_spill(manager._spill))
        _requests.install()
        self._wraps.also(_requests.uninstall)

    def uninstall(self) -> None:
        """Put everything back."""
        self._wraps.undo()

    # -- the receiving end --------------------------------------------------------------------------------------
    def _wrap_gather_dep(self, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def gather_dep(
            worker: str, to_gather: Collection[Hashable], total_nbytes: int, **kwargs: Any
        ) -> Any:
            token = attach(_EMPTY)
            try:
                fragment = self._begin(worker, to_gather)
            except Exception:
                fragment = ""
                self._guard.fault("gather_dep")
            reset = _fragment.set(fragment)
            try:
                return await original(worker, to_gather, total_nbytes, **kwargs)
            finally:
                _fragment.reset(reset)
                detach(token)

        return gather_dep

    def _begin(self, address: str, keys: Collection[Hashable]) -> str:
        callback: Any = context_meter._callbacks.get()["async-instruction"]
        ledger = callback.__self__
        start = time.time() - time.perf_counter() + ledger.start
        transfer = Transfer(address, len(keys), start)
        tasks = self._worker.state.tasks
        dependents = {
            d.key: d for key in keys if key in tasks for d in tasks[key].dependents if d.state == "waiting"
        }
        urgent = sorted(dependents.values(), key=lambda ts: ts.priority or ())
        waiting = (
            (ts.annotations[ANNOTATION], ts.run_id)
            for ts in urgent
            if ts.annotations and ANNOTATION in ts.annotations
        )
        fragment = self._listener.transfer_started(transfer, waiting, not dependents)
        if transfer.followed:
            ledger.transfer = transfer
        return fragment

    def close(self, stim: Any, ledger: Any, amounts: list[tuple[Hashable, float, str]]) -> None:
        """The ledger of a transfer was closed with ``amounts``."""
        transfer: Transfer = ledger.transfer
        total = sum([value for _, value, unit in amounts if unit == "seconds"])
        transfer.end = transfer.start + total
        label = amounts[-1][0] if amounts else "other"
        transfer.outcome = _OUTCOMES.get(str(label), names.SUCCESS)
        if isinstance(stim, GatherDepSuccessEvent):
            tasks = self._worker.state.tasks
            transfer.size = sum(tasks[key].get_nbytes() for key in stim.data if key in tasks)
        elif isinstance(stim, GatherDepNetworkFailureEvent):
            transfer.error_type = "OSError"
        elif isinstance(stim, GatherDepFailureEvent):
            transfer.error_type = names.OTHER_ERROR
        else:
            assert isinstance(stim, GatherDepBusyEvent), stim
        self._listener.transfer_ended(transfer)

    def _wrap_gather(self, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def gather(**kwargs: Any) -> Any:
            gather = None
            try:
                gather = _Gather(self._listener, self._guard)
            except Exception:
                self._guard.fault("gather")
            token = _gathering.set(gather)
            try:
                return await original(**kwargs)
            finally:
                _gathering.reset(token)
                try:
                    if gather is not None:
                        gather.close(self._worker.state.tasks)
                except Exception:
                    self._guard.fault("gather")

        return gather

    # -- the sending end ----------------------------------------------------------------------------------------
    def _wrap_get_data(self, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def get_data(
            comm: Any, keys: Collection[Hashable], who: str | None = None, **kwargs: Any
        ) -> Any:
            who, separator, fragment = who.partition(_SEPARATOR) if isinstance(who, str) else (who, "", "")
            size, start, outcome, told = None, time.time(), names.FAILED, False
            try:
                told = bool(separator) or self._listener.measuring
                size = self._size(keys) if told else None
            except Exception:
                self._guard.fault("get_data")
            if not told:
                return await original(comm, keys=keys, who=who, **kwargs)
            try:
                result = await original(comm, keys=keys, who=who, **kwargs)
                outcome = names.BUSY if isinstance(result, dict) else names.MISSING
                if outcome == names.MISSING and size is not None:
                    outcome = names.SUCCESS
                return result
            except asyncio.CancelledError:
                outcome = names.CANCELLED
                raise
            finally:
                try:
                    came = size if outcome == names.SUCCESS else None
                    self._listener.sent(fragment, len(keys), came, start, time.time(), outcome)
                except Exception:
                    self._guard.fault("get_data")

        return get_data

    def _size(self, keys: Collection[Hashable]) -> int | None:
        """Bytes of what is here of ``keys``; ``None`` if nothing is."""
        data, actors, tasks = self._worker.data, self._worker.state.actors, self._worker.state.tasks
        here = [key for key in keys if key in data or key in actors]
        return sum(tasks[key].nbytes or 0 for key in here if key in tasks) if here else None

    # -- spilling -----------------------------------------------------------------------------------------------
    def _wrap_spill(self, original: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def _spill(worker: Worker, memory: int) -> None:
            written = {"bytes": 0, "count": 0}

            def add(label: Hashable, value: float, unit: str) -> None:
                if label == "disk-write" and unit in written:
                    written[unit] += int(value)

            start = time.time()
            try:
                with context_meter.add_callback(add):
                    await original(worker, memory)
            finally:
                try:
                    self._spilled(start, written)
                except Exception:
                    self._guard.fault("_spill")

        return _spill

    def _spilled(self, start: float, written: dict[str, int]) -> None:
        running = [
            (ts.annotations[ANNOTATION], ts.run_id)
            for ts in self._worker.state.all_running_tasks
            if ts.annotations and ANNOTATION in ts.annotations
        ]
        self._listener.spilled(start, time.time(), written["bytes"], written["count"], running)


class _Gather:
    """The transfers of one call of a worker's ``gather``."""

    def __init__(self, listener: Listener, guard: Guard) -> None:
        self._listener = listener
        self._guard = guard
        self._transfers: list[tuple[Transfer, Collection[Hashable]]] = []

    def begin(self, keys: Collection[Hashable], address: str) -> Transfer | None:
        """One request starts; ``None`` if it is not followed."""
        transfer = Transfer(address, len(keys), time.time())
        transfer.fragment = self._listener.transfer_started(transfer, iter(()), True)
        return transfer if transfer.followed else None

    def fault(self) -> None:
        """Tell the exception that is being handled."""
        self._guard.fault("gather")

    async def follow(self, transfer: Transfer, request: Awaitable[Any]) -> Any:
        """The request, its outcome written on ``transfer``."""
        received: Collection[Hashable] = ()
        transfer.outcome = names.FAILED
        try:
            response = await request
            received = response.get("data", ())
            transfer.outcome = (
                names.BUSY if response["status"] == "busy" else names.SUCCESS if received else names.MISSING
            )
            return response
        except asyncio.CancelledError:
            transfer.outcome = names.CANCELLED
            raise
        except Exception as error:
            transfer.error_type = class_name(type(error))
            raise
        finally:
            transfer.end = time.time()
            self._transfers.append((transfer, received))

    def close(self, tasks: Mapping[Any, Any]) -> None:
        """What was received is stored now, and its size known."""
        for transfer, received in self._transfers:
            if transfer.outcome == names.SUCCESS:
                transfer.size = sum(tasks[key].get_nbytes() for key in received if key in tasks)
            try:
                self._listener.transfer_ended(transfer)
            except Exception:
                self._guard.fault("gather")


class _Requests:
    """The process-wide wrapper of ``get_data_from_worker``, there while any worker of the process is hooked."""

    def __init__(self) -> None:
        self._users = 0
        self._wraps = Wraps()

    def install(self) -> None:
        if not self._users:
            self._wrap()
        self._users += 1

    def _wrap(self) -> None:
        original = distributed.worker.get_data_from_worker

        async def get_data_from_worker(
            rpc: Any, keys: Collection[Any], worker: str, *, who: str | None = None, **kwargs: Any
        ) -> Any:
            gather, transfer = _gathering.get(), None
            try:
                transfer = gather.begin(keys, worker) if gather is not None else None
            except Exception:
                if gather is not None:
                    gather.fault()
            fragment = transfer.fragment if transfer is not None else _fragment.get()
            if fragment:
                who = f"{who}{_SEPARATOR}{fragment}"
            request = original(rpc, keys, worker, who=who, **kwargs)
            if gather is None or transfer is None:
                return await request
            return await gather.follow(transfer, request)

        self._wraps.attribute(distributed.worker, "get_data_from_worker", get_data_from_worker)

    def uninstall(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._wraps.undo()


_requests = _Requests()


def _host_port(address: str) -> tuple[str, int | None]:
    try:
        host, port = get_address_host_port(address)
        return str(host), int(port)
    except Exception:  # An address without a port, like ``inproc://``.
        return address, None
