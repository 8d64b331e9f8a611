"""What a loop's other time is made of: the estimate, and what is seen of real loops by a clock that callbacks turn."""

from __future__ import annotations

import asyncio
import functools
import random
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.ioloop import IOLoop, PeriodicCallback

from dask_otel.guard import LIMIT, Guard
from dask_otel.loop_parts import CALLBACKS, LOOKS, LoopParts, Pace
from dask_otel.seam.loop_parts import LoopPartsSeam

# -- the estimate ---------------------------------------------------------------------------------------------------

seen = st.lists(st.tuples(st.sampled_from(["read", "write", "rest"]), st.floats(0, 10)), max_size=4)


@given(st.lists(st.tuples(seen, st.floats(0, 1000)), max_size=8))
def test_parts_add_up_to_the_total_and_none_ever_falls(
    intervals: list[tuple[list[tuple[str, float]], float]],
) -> None:
    parts, total, before = LoopParts(), 0.0, {}
    for samples, seconds in intervals:
        for part, sampled in samples:
            parts.sampled(part, sampled)
        total += seconds
        found = parts.totals(total)
        assert sum(found.values()) == pytest.approx(total, rel=1e-9, abs=1e-9)
        assert {part for part in before if found[part] < before[part]} == set()
        before = found


def test_a_total_is_shared_out_by_the_samples_that_came_while_it_grew() -> None:
    parts, found = LoopParts(), []
    found.append(parts.totals(1))
    parts.sampled("read", 1)
    found.append(parts.totals(11))
    parts.sampled("write", 0.5)
    parts.sampled("read", 0.5)
    found.append(parts.totals(31))
    found.append(parts.totals(31))
    # Nothing was seen since: by all that was.
    found.append(parts.totals(51))
    assert found == [
        {"rest": 1},
        {"rest": 1, "read": 10},
        {"rest": 1, "read": 20, "write": 10},
        {"rest": 1, "read": 20, "write": 10},
        {"rest": 1, "read": 35, "write": 15},
    ]


# -- the pace -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1e-5, 1e-3, 0.049, 0.051, 1.0])
def test_a_loop_is_looked_at_some_twenty_times_a_second_be_its_rounds_long_or_short(seconds: float) -> None:
    pace, dice, now, rounds, looks = Pace(0.0), random.Random(7), 0.0, 0, 0
    weights = []
    while looks < 3000:
        now += seconds
        rounds, looks = rounds + 1, looks + 1
        weights.append(pace.weight)
        pause = pace.pause(now, dice.random())
        rounds, now = rounds + pause, now + pause * seconds
    assert looks / now == pytest.approx(min(LOOKS, 1 / seconds), rel=0.1)
    assert sum(weights) == pytest.approx(rounds, rel=0.1)


@pytest.mark.parametrize(("callbacks", "a_second"), [(5, LOOKS), (10, LOOKS), (100, 2), (1000, 0.2)])
def test_no_more_than_so_many_callbacks_are_looked_at_in_a_second(callbacks: int, a_second: float) -> None:
    assert a_second == min(LOOKS, CALLBACKS / callbacks)
    pace, dice, now, rounds, looks = Pace(0.0), random.Random(7), 0.0, 0, 0
    weights = []
    while looks < 3000:
        now += 1e-3
        rounds, looks = rounds + 1, looks + 1
        weights.append(pace.weight)
        pause = pace.pause(now, dice.random(), callbacks)
        rounds, now = rounds + pause, now + pause * 1e-3
    assert looks / now == pytest.approx(a_second, rel=0.1)
    assert sum(weights) == pytest.approx(rounds, rel=0.1)


def test_each_number_of_rounds_is_as_likely_to_be_let_pass() -> None:
    dice = random.Random(7)
    found = []
    for _ in range(7000):
        pace = Pace(0.0)
        found.append(pace.pause(1 / LOOKS / 4, dice.random()))
    assert set(found) == {0, 1, 2, 3, 4, 5, 6}
    assert sum(found) / len(found) == pytest.approx(3, rel=0.05)


def test_a_clock_that_stands_still_is_no_fault() -> None:
    assert Pace(5.0).pause(5.0, 0.9) == 0


# -- a loop ---------------------------------------------------------------------------------------------------------


def every(pause: int) -> Callable[[float], Pace]:
    """One round is looked at, so many are let pass."""

    class Fixed(Pace):
        def pause(self, now: float, dice: float, callbacks: int = 0) -> int:
            return pause

    return Fixed


class Server:
    """A server on the loop that runs; its clock goes on where a test says so."""

    def __init__(self, pause: int = 0, strict: bool = True) -> None:
        self.other = 0.0
        self.loop = IOLoop.current()
        self.guard = Guard("server", strict=strict)
        self.seam = LoopPartsSeam(self, self.guard, lambda: self.other, pace=every(pause))

    def spend(self, seconds: float) -> None:
        self.other += seconds

    def _transitions(self, recommendations: dict[str, str], stimulus_id: str) -> dict[str, str]:
        self.other += 100
        return recommendations

    def found(self) -> dict[str, float]:
        return {part: round(seconds, 6) for part, seconds in self.seam.totals(self.other).items() if seconds}


class TCP:
    """Bears the name of distributed's."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def write(self) -> None:
        self.server.spend(1)
        await asyncio.sleep(0)
        self.server.spend(2)


async def rounds(n: int = 3) -> None:
    """Let the loop go round."""
    for _ in range(n):
        await asyncio.sleep(0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        loop: Any = asyncio.get_running_loop()
        await test()
        assert type(loop._ready) is deque
        assert "select" not in vars(loop._selector)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_the_pace_is_told_how_many_callbacks_each_round_had() -> None:
    told: list[int] = []

    class Counting(Pace):
        def pause(self, now: float, dice: float, callbacks: int = 0) -> int:
            told.append(callbacks)
            return 0

    async def test() -> None:
        server = Server()
        server.seam = LoopPartsSeam(server, server.guard, lambda: server.other, pace=Counting)
        server.seam.install()
        await rounds()
        told.clear()
        for more in (0, 2, 5):
            for _ in range(more):
                asyncio.get_running_loop().call_soon(int)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        server.seam.uninstall()

    run(test)
    # This test's own task is one of each.
    assert told == [1, 1, 3, 6]


def test_callbacks_are_told_apart_by_what_they_are() -> None:
    async def test() -> None:
        server = Server()
        server.seam.install()
        await rounds()
        await asyncio.ensure_future(TCP(server).write())
        asyncio.get_running_loop().call_soon(server.spend, 10)
        asyncio.get_running_loop().call_soon(functools.partial(server._transitions, {}, stimulus_id="x"))
        IOLoop.current().add_callback(server.spend, 20)
        await rounds()
        timer = PeriodicCallback(lambda: server.spend(1000), 1)
        timer.start()
        while server.other < 1000:
            await rounds(1)
        timer.stop()
        await rounds()
        found = server.found()
        periodic = found.pop("periodic")
        assert periodic % 1000 == 0
        assert found == {"write": 3, "rest": 30, "transition": 100}
        server.seam.uninstall()

    run(test)


def test_sockets_that_can_be_read_are_reads_and_connections_are_connections() -> None:
    async def test() -> None:
        server = Server()
        loop, io_loop = asyncio.get_running_loop(), IOLoop.current()
        left, right = socket.socketpair()
        server.seam.install()
        await rounds()
        done = loop.create_future()

        def readable(fd: int, events: int) -> None:
            server.spend(4)
            io_loop.remove_handler(right.fileno())
            done.set_result(events)

        def writable(fd: int, events: int) -> None:
            server.spend(8)
            io_loop.remove_handler(left.fileno())
            left.send(b"x")

        io_loop.add_handler(right.fileno(), readable, IOLoop.READ)
        io_loop.add_handler(left.fileno(), writable, IOLoop.WRITE)
        assert await done == IOLoop.READ

        async def connection() -> None:
            server.spend(16)
            # In a handler, for all that is known: a handler's time is not in `other`.
            server._transitions({}, stimulus_id="x")

        coroutine = connection()
        coroutine.__qualname__ = "Server._handle_comm"
        await asyncio.ensure_future(coroutine)
        await rounds()
        assert server.found() == {"read": 4, "write": 8, "connection": 116}
        server.seam.uninstall()
        left.close(), right.close()

    run(test)


def test_transitions_in_a_round_that_nobody_looks_at_are_as_they_were() -> None:
    async def test() -> None:
        server = Server(pause=1000)
        server.seam.install()
        assert server._transitions({"x": "memory"}, stimulus_id="s") == {"x": "memory"}
        server.seam.uninstall()
        assert "_transitions" not in vars(server)

    run(test)


def test_what_waiting_takes_and_looking_is_not_asyncios() -> None:
    """By a clock that goes on at each look at it."""

    async def test() -> None:
        server = Server()

        def other() -> float:
            server.other += 1
            return server.other

        seam = LoopPartsSeam(server, server.guard, other, pace=every(0))
        seam.install()
        await rounds(15)
        # A look as the round begins, two at its only callback, one at its end: of these three seconds the middle one is ours.
        found = dict(seam._parts._new)
        assert found.keys() == {"asyncio", "rest"}
        assert found["asyncio"] - found["rest"] in (0, 1)
        assert found["rest"] >= 10
        assert server.other - sum(found.values()) >= 20
        seam.uninstall()

    run(test)


def test_two_servers_of_a_loop_each_have_their_own() -> None:
    async def test() -> None:
        first, second = Server(), Server(pause=1)
        loop: Any = asyncio.get_running_loop()
        first.seam.install()
        second.seam.install()
        await rounds()
        for _ in range(20):
            loop.call_soon(first.spend, 1)
            loop.call_soon(second.spend, 2)
            await rounds(1)
        await rounds()
        assert (first.found(), second.found()) == ({"rest": 20}, {"rest": 40})
        first.seam.uninstall()
        assert type(loop._ready) is not deque
        loop.call_soon(second.spend, 2)
        await rounds()
        assert second.found() == {"rest": 42}
        # Beneath the other's wrapper, where its first one still is: nothing is seen twice.
        first.other = 0
        first.seam.install()
        await rounds()
        loop.call_soon(first.spend, 1)
        await rounds()
        assert dict(first.seam._parts._new) == {"rest": 1}
        assert first.seam._turn(LoopParts()) > 1e9
        second.seam.uninstall()
        first.seam.uninstall()

    run(test)


def test_no_callback_is_lost_or_changes_its_place_whoever_comes_and_goes() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        servers = [Server(), Server(pause=2)]
        called: list[int] = []
        threads: list[int] = []

        def from_outside() -> None:
            for n in range(3000):
                loop.call_soon_threadsafe(threads.append, n)

        outside = threading.Thread(target=from_outside)
        outside.start()
        for n in range(300):
            loop.call_soon(called.append, 4 * n)
            loop.call_soon(called.append, 4 * n + 1)
            server = servers[n % 2]
            if n % 4 < 2:
                server.seam.install()
            else:
                server.seam.uninstall()
            loop.call_soon(called.append, 4 * n + 2)
            loop.call_soon(called.append, 4 * n + 3)
            await rounds(1)
        for server in servers:
            server.seam.uninstall()
        while outside.is_alive() or len(threads) < 3000:
            await asyncio.sleep(0.001)
        assert called == list(range(1200))
        assert threads == list(range(3000))

    run(test)


def test_faults_of_ours_end_the_looking_and_nothing_else() -> None:
    async def test() -> None:
        server = Server(strict=False)
        seam = LoopPartsSeam(server, server.guard, lambda: 1 / 0, pace=every(0))
        seam.install()
        await rounds(2 * LIMIT)
        assert server._transitions({}, stimulus_id="s") == {}
        assert server.guard.faults == {"loop_parts": LIMIT}
        seam.uninstall()

    run(test)


@pytest.mark.parametrize(
    "loop",
    [
        None,
        SimpleNamespace(),
        SimpleNamespace(_selector=object()),
        SimpleNamespace(_selector=SimpleNamespace()),
    ],
)
def test_a_loop_of_another_kind_has_no_parts(loop: object) -> None:
    server = SimpleNamespace(loop=SimpleNamespace(asyncio_loop=loop))
    seam = LoopPartsSeam(server, Guard("server", strict=True), lambda: 5.0)
    seam.install()
    seam.uninstall()
    assert seam._queue is None
