"""What the readers of a server's streams read, gone through by somebody of ours between them and each message.

Rules
-----
1. A reader gets what was read, a list, whoever wraps its connection's reading and in whatever order that is undone.
2. Nothing is called between a reader and the handlers that it calls.
3. A connection is not held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

from dask_otel.guard import Guard


class Reading:
    """The connections of one server whose `read` is wrapped.

    Parameters
    ----------
    hook
        What a fault of ours is told as.
    each
        Is given the messages that were read at once, and gives them to the reader, one by one.
    """

    def __init__(self, guard: Guard, hook: str, each: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._guard = guard
        self._hook = hook
        self._each = each
        self._comms: WeakSet[Any] = WeakSet()

    def begin(self, comm: Any) -> None:
        """A stream's reader reads from it, from its next `read` on."""
        comm.read = _Read(self, comm.read)
        self._comms.add(comm)

    def end(self, comm: Any) -> None:
        """Its `read` is what it was. Somebody else's around ours stays, and calls it."""
        self._comms.discard(comm)
        ours = vars(comm).get("read")
        if isinstance(ours, _Read) and ours.by is self:
            del comm.read
            if comm.read != ours.original:
                comm.read = ours.original
        elif isinstance(ours, _Read):
            ours.skip(self)

    def undo(self) -> None:
        """End all."""
        for comm in list(self._comms):
            self.end(comm)

    def fault(self) -> None:
        """Tell the exception that is being handled."""
        self._guard.fault(self._hook)

    def each(self, messages: Any) -> Iterator[Any]:
        """What goes through the messages."""
        return self._each(iter(messages))


class _Read:
    """A connection's `read`, for a stream's reader."""

    def __init__(self, by: Reading, original: Callable[..., Any]) -> None:
        self.by = by
        self.original = original

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        read = await self.original(*args, **kwargs)
        try:
            return _Messages(read, self.by)
        except Exception:
            self.by.fault()
            return read

    def skip(self, by: Reading) -> None:
        """Leave out another below."""
        below = self.original
        if isinstance(below, _Read):
            if below.by is by:
                self.original = below.original
            else:
                below.skip(by)


class _Messages(list[Any]):
    """What was read at once."""

    __slots__ = ("_by", "_read")

    def __init__(self, read: Any, by: Reading) -> None:
        # It may be another's of ours: not to be gone through before its reader does.
        self._read = read if isinstance(read, (list, tuple)) else (read,)
        super().__init__(self._read[:])
        self._by = by

    def __iter__(self) -> Iterator[Any]:
        try:
            return self._by.each(self._read)
        except Exception:
            self._by.fault()
            return iter(self._read)


def streams_of(server: Any) -> list[Any]:
    """The open connections of a scheduler from which messages are read already."""
    streams = [*getattr(server, "stream_comms", {}).values(), *getattr(server, "client_comms", {}).values()]
    return [stream.comm for stream in streams if stream.comm is not None and not stream.closed()]
