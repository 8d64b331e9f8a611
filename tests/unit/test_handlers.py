"""A handler that is timed is to its caller what it was, and takes the time in which it runs, not that in which it waits."""

from __future__ import annotations

import asyncio
import gc
import inspect
import weakref
from collections.abc import Callable, Coroutine, Generator
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.core import _expects_comm
from distributed.utils import has_keyword, iscoroutinefunction

from dask_otel.guard import Guard
from dask_otel.seam.handlers import HandlerSeam


class Pause:
    """What a coroutine of these tests waits for: it says what it was sent."""

    def __await__(self) -> Generator[object, object, object]:
        return (yield self)


class Comm:
    """A connection, with what is read from it, batch by batch."""

    def __init__(self, *batches: Any) -> None:
        self.batches = list(batches)

    def closed(self) -> bool:
        return not self.batches

    async def read(self, deserializers: object = None) -> Any:
        await Pause()
        return self.batches.pop(0)


def work(seconds: int) -> dict[str, Any]:
    return {"op": "work", "seconds": seconds}


class Server:
    """Handlers by whose work a clock of its own goes on."""

    def __init__(self, loop: object = None) -> None:
        self.now = 0
        self.thrown: list[object] = []
        self.handlers: dict[str, Callable[..., Any]] = {
            "read": self.read,
            "echo": self.echo,
            "register": self.register,
            "lazy": lambda comm: self.read(comm),
        }
        self.stream_handlers: dict[str, Callable[..., Any]] = {"work": self.work, "update": self.update}
        self.stream_comms: dict[str, SimpleNamespace] = {}
        self.turns: list[float] = []
        self.loop = SimpleNamespace(asyncio_loop=loop)
        self.seam = HandlerSeam(self, Guard("server", strict=True), lambda: self.now, self.turns.append)

    async def read(self, comm: object, serializers: object = None) -> object:
        """1 s until it waits, then 10 s and a handler's."""
        self.now += 1
        try:
            got = await Pause()
        except ValueError as thrown:
            self.thrown.append(thrown)
            got = await Pause()
        self.now += 10
        self.handlers["echo"](x=1)
        return got

    async def register(self, comm: Comm) -> object:
        """2 s, the message of somebody else after 4 s, then a read loop."""
        self.now += 2
        await Pause()
        self.now += 4
        await self.handle_stream(comm, extra={})
        self.now += 1000
        return "closed"

    async def handle_stream(self, comm: Comm, extra: object = None) -> None:
        """As distributed reads: 100 s for each batch, and what handlers take."""
        while not comm.closed():
            try:
                messages = await comm.read()
            except ValueError as thrown:
                self.thrown.append(thrown)
                continue
            if not isinstance(messages, (tuple, list)):
                messages = (messages,)
            self.now += 100
            for message in messages:
                if message == "OK":
                    break
                handler = self.stream_handlers[message.pop("op")]
                if inspect.iscoroutinefunction(handler):
                    await handler(**message)
                else:
                    handler(**message)
            await Pause()

    async def update(self, seconds: int) -> None:
        self.now += seconds
        raise LookupError(seconds)

    def echo(self, x: object) -> object:
        self.now += 1
        return x

    def work(self, seconds: int, key: object = None) -> None:
        self.now += seconds

    def totals(self) -> dict[str, float]:
        return self.seam.totals(self.now)


@pytest.fixture
def server() -> Server:
    server = Server()
    server.seam.install()
    return server


def step(coroutine: Coroutine[Any, Any, Any], value: object = None) -> object:
    """What a coroutine waits for next, or returns."""
    try:
        return coroutine.send(value)
    except StopIteration as stop:
        return stop.value


def finish(coroutine: Coroutine[Any, Any, Any]) -> object:
    """What a coroutine returns when it never waits for long."""
    while isinstance(waits := step(coroutine), Pause):
        pass
    return waits


def test_a_coroutine_is_timed_while_it_runs_and_exclusive_of_what_runs_inside(server: Server) -> None:
    reading = server.handlers["read"]("comm")
    assert isinstance(step(reading), Pause)
    server.now += 1000
    assert step(reading, "message") == "message"
    assert server.totals() == {"other": 1000, "read": 11, "echo": 1}


def test_a_coroutine_that_has_begun_to_read_messages_is_timed_no_more_and_their_handlers_are(
    server: Server,
) -> None:
    other = server.handlers["read"]("comm")
    registering = server.handlers["register"](Comm([work(5)], [work(6)]))
    assert isinstance(step(other), Pause)
    for _ in range(2):
        assert isinstance(step(registering), Pause)
    assert server.totals() == {"other": 0, "read": 1, "register": 6}
    assert isinstance(step(registering), Pause)
    assert server.totals() == {"other": 100, "read": 1, "register": 6, "work": 5}
    # Another that waited meanwhile is timed as before.
    assert step(other, "message") == "message"
    assert finish(registering) == "closed"
    assert server.totals() == {"other": 1200, "read": 11, "echo": 1, "register": 6, "work": 11}


def test_each_message_of_a_batch_is_timed_from_when_it_is_taken_until_the_next_is(server: Server) -> None:
    server.stream_handlers["later"] = server.work  # It came after us.
    messages = [work(1), {"op": "later", "seconds": 20}, work(300), "OK", work(4000)]
    finish(server.handle_stream(Comm(messages, work(50_000))))
    server.now += 7
    assert server.totals() == {"other": 207, "work": 50_301, "later": 20}


def test_while_a_streams_coroutine_waits_others_are_timed(server: Server) -> None:
    async def slow(seconds: int) -> None:
        server.now += seconds
        await Pause()
        server.now += seconds

    server.seam.uninstall()
    server.stream_handlers["slow"] = slow
    server.seam.install()
    reading = server.handle_stream(Comm([work(1), {"op": "slow", "seconds": 10}, work(2)]))
    for _ in range(2):
        assert isinstance(step(reading), Pause)
    server.now += 1000
    finish(server.handle_stream(Comm([work(4)])))
    assert server.totals() == {"other": 1200, "work": 5, "slow": 10}
    assert finish(reading) is None
    assert server.totals() == {"other": 1200, "work": 7, "slow": 20}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"op": "work"}, TypeError),
        ({"op": "unknown"}, KeyError),
        ({"op": []}, TypeError),
        ({}, KeyError),
        (1, AttributeError),
    ],
)
def test_a_message_that_nobody_can_handle_is_the_readers_own_trouble(
    message: object, error: type[Exception]
) -> None:
    server = Server()
    server.seam = HandlerSeam(server, Guard("server"), lambda: server.now)
    server.seam.install()
    with pytest.raises(error):
        finish(server.handle_stream(Comm([work(1), message])))
    server.now += 1
    assert server.totals() == {"other": 101, "work": 1}
    assert server.seam._operations.keys() == {"work"}, "nothing is kept of what peers make up"


def test_what_is_thrown_into_a_read_loop_arrives_there(server: Server) -> None:
    for registering in (server.handlers["register"](Comm([])), server.handlers["register"](Comm([]))):
        for _ in range(2):
            step(registering)
        thrown = ValueError()
        assert isinstance(registering.throw(thrown), Pause)
        assert server.thrown.pop() is thrown
        with pytest.raises(KeyError):
            registering.throw(KeyError())
    registering = server.handlers["register"](Comm([], []))
    for _ in range(3):
        step(registering)
    with pytest.raises(KeyError):
        registering.throw(KeyError())


def test_a_connection_that_was_there_before_is_timed_too_and_is_as_it_was_in_the_end() -> None:
    server, comm, new = Server(), Comm([work(1)], [work(2)], [work(4)]), Comm([work(8)], [work(16)])
    server.stream_comms["worker"] = SimpleNamespace(comm=comm, closed=lambda: False)
    reading = server.handle_stream(comm)
    step(reading)
    server.seam.install()
    for _ in range(3):
        step(reading)
    assert server.totals() == {"other": 201, "work": 2}
    later = server.handle_stream(new)
    for _ in range(2):
        step(later)
    assert server.totals() == {"other": 301, "work": 10}
    server.seam.uninstall()
    assert "read" not in {**vars(comm), **vars(new)}
    assert (finish(reading), finish(later)) == (None, None)


@pytest.mark.parametrize("first", [0, 1])
def test_two_that_time_the_same_connection_are_undone_in_any_order(first: int) -> None:
    server, comm = Server(), Comm([work(1)], [work(2)])
    seams = server.seam, HandlerSeam(server, Guard("server", strict=True), lambda: server.now)
    for seam in seams:
        seam.install()
    reading = server.handle_stream(comm)
    for _ in range(2):
        step(reading)
    assert [seam.totals(server.now) for seam in seams] == [{"other": 100, "work": 1}] * 2
    seams[first].uninstall()
    before = seams[first].totals(0)["work"]
    for _ in range(2):
        step(reading)
    assert seams[1 - first].totals(server.now) == {"other": 200, "work": 3}
    assert seams[first].totals(0)["work"] == before
    seams[1 - first].uninstall()
    assert "read" not in vars(comm)
    assert finish(reading) is None
    assert {"read", "handle_stream"}.isdisjoint(vars(comm)), vars(comm)


def test_a_connection_that_has_ended_is_not_held(server: Server) -> None:
    comm = Comm([work(1)])
    finish(server.handle_stream(comm))
    assert "read" not in vars(comm)
    ended = weakref.ref(comm)
    gc.disable()
    try:
        del comm
        assert ended() is None
    finally:
        gc.enable()


def test_a_coroutine_from_a_plain_function_is_timed_too(server: Server) -> None:
    reading = server.handlers["lazy"]("comm")
    assert inspect.iscoroutine(reading)
    step(reading)
    step(reading)
    assert server.totals() == {"other": 0, "lazy": 11, "echo": 1}


def test_what_is_thrown_into_a_coroutine_arrives_there(server: Server) -> None:
    reading, thrown = server.handlers["read"]("comm"), ValueError()
    step(reading)
    assert isinstance(reading.throw(thrown), Pause)
    assert server.thrown == [thrown]
    with pytest.raises(KeyError):
        reading.throw(KeyError())
    assert server.totals() == {"other": 0, "read": 1}


def test_a_coroutine_that_is_closed_closes_the_handlers() -> None:
    server = Server()
    handlers = server.read("comm")
    server.handlers["read"] = lambda comm: handlers
    server.seam.install()
    reading = server.handlers["read"]("comm")
    step(reading)
    reading.close()
    assert inspect.getcoroutinestate(handlers) == inspect.CORO_CLOSED
    server.now += 5
    assert server.totals() == {"other": 5, "read": 1}


def test_a_task_that_is_cancelled_cancels_the_handler(server: Server) -> None:
    async def sleep() -> None:
        await asyncio.sleep(1e6)

    server.handlers["read"] = sleep
    server.seam.install()

    async def run() -> bool:
        task = asyncio.ensure_future(server.handlers["read"]())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert asyncio.run(run())


def test_a_handler_that_raises_is_left(server: Server) -> None:
    with pytest.raises(LookupError, match="7"):
        step(server.stream_handlers["update"](seconds=7))
    with pytest.raises(TypeError):
        server.handlers["echo"]()
    server.now += 1
    assert server.totals() == {"other": 1, "update": 7}


def test_distributed_finds_what_it_looks_for_in_a_handler(server: Server) -> None:
    before = Server()

    def seen(handler: Callable[..., Any]) -> tuple[object, ...]:
        asynchronous, keyword = iscoroutinefunction(handler), has_keyword(handler, "serializers")
        return handler.__name__, asynchronous, _expects_comm(handler), keyword, inspect.signature(handler)

    for handlers, originals in (
        (server.handlers, before.handlers),
        (server.stream_handlers, before.stream_handlers),
    ):
        assert {op: seen(h) for op, h in handlers.items()} == {op: seen(h) for op, h in originals.items()}


def test_everything_is_put_back(server: Server) -> None:
    server.seam.uninstall()
    assert server.handlers["read"] == server.read
    assert server.stream_handlers == {"work": server.work, "update": server.update}
    assert "handle_stream" not in vars(server)


def test_waiting_in_the_selector_is_idle() -> None:
    class Selector:
        def select(self, timeout: int) -> list[int]:
            server.now += timeout
            return [timeout]

    selector = Selector()
    server = Server(SimpleNamespace(_selector=selector))
    server.seam.install()
    assert selector.select(5) == [5]
    server.now += 1
    assert server.turns == [0]
    # It has more to do, and only asks what is new: what that takes is its own work, the moment the last that is known.
    assert selector.select(0) == [0]
    server.handlers["echo"](1)
    server.now += 2
    assert (selector.select(0), selector.select(0)) == ([0], [0])
    assert server.turns == [0, 5, 7]
    assert server.totals() == {"other": 3, "idle": 5, "echo": 1}
    server.seam.uninstall()
    assert vars(selector) == {}


def test_a_loop_that_waits_often_and_never_long_tells_a_turn_once_a_millisecond() -> None:
    class Selector:
        def select(self, timeout: float) -> None:
            server.now += timeout  # type: ignore[assignment]

    selector = Selector()
    server = Server(SimpleNamespace(_selector=selector))
    server.seam.install()
    for eighths in (3, 3, 3, 3, 8, 9, 9):
        selector.select(eighths / 8192)
    assert [turn * 8192 for turn in server.turns] == [3, 12, 20, 29]


@pytest.mark.parametrize("loop", [None, SimpleNamespace(), SimpleNamespace(_selector=object())])
def test_a_loop_that_has_no_selector_of_its_own_has_no_idle(loop: object) -> None:
    server = Server(loop)
    server.seam.install()
    server.now += 2
    assert server.totals() == {"other": 2}
