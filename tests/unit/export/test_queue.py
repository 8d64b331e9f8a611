"""The queue between emitters and the thread: its bound, its counts, what wakes it, and what leaves it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dask_otel.export.bodies import Source
from dask_otel.export.complaints import INTERVAL, Complaints
from dask_otel.export.fates import Tally
from dask_otel.export.intake import Intake
from dask_otel.export.queue import NEVER, Bell, Emitter, Line
from dask_otel.records import Scope, Span
from dask_otel.settings import Limits

from .spans import numbered, span

WORKER, USERS = Source((), Scope("worker")), Source((), Scope("users"))


class Several:
    """Stands for some spans."""

    def __init__(self, *spans: Any, weight: int | None = None) -> None:
        self._spans = spans
        self.weight = len(spans) if weight is None else weight

    def spans(self) -> Iterator[Span]:
        yield from self._spans


class Broken:
    """Cannot say its spans."""

    weight = 3

    def spans(self) -> Iterator[Span]:
        yield span(1)
        raise RuntimeError("broken")


def line(size: int = 100, wake_at: int = NEVER) -> Line:
    made = Line(size, lambda: rung.append(1))
    rung: list[int] = []
    made.wake_at = wake_at
    return made


def intake(of: Line, said: list[str] | None = None) -> Intake:
    return Intake(of, Limits(attributes=2), Complaints(say=(said if said is not None else []).append))


# -- emitting ------------------------------------------------------------------------------------------------


def test_the_queue_holds_as_many_spans_as_its_size_and_counts_the_rest() -> None:
    queue = line(size=3)
    emitter = Emitter(queue, WORKER)
    for made in numbered(1, 5):
        emitter.emit(made)
    assert intake(queue).batch(100) == [(WORKER, numbered(1, 3))]
    assert queue.dropped.value() == 2


def test_what_stands_for_several_spans_fills_the_queue_by_all_of_them() -> None:
    queue = line(size=4)
    emitter = Emitter(queue, WORKER)
    emitter.emit(Several(*numbered(1, 3)))
    emitter.emit(Several(*numbered(4, 5)))  # Two do not fit any more,
    emitter.emit(span(6))  # one does.
    emitter.emit(span(7))
    assert len(queue.entries) == 4
    assert intake(queue).batch(100) == [(WORKER, [*numbered(1, 3), span(6)])]
    assert (len(queue.entries), queue.dropped.value()) == (0, 3)


@pytest.mark.parametrize("item", [None, "a span", object(), Several(weight="two")])  # type: ignore[arg-type]
def test_what_is_no_item_is_dropped_and_never_raises(item: object) -> None:
    queue = line()
    Emitter(queue, WORKER).emit(item)  # type: ignore[arg-type]
    assert (len(queue.entries), queue.dropped.value()) == (0, 1)


def test_a_wake_that_fails_does_not_raise_either() -> None:
    def fail() -> None:
        raise RuntimeError("no thread")

    queue = Line(100, fail)
    Emitter(queue, WORKER).emit(span(1))
    assert len(queue.entries) == 1


def test_the_thread_is_woken_from_the_threshold_on() -> None:
    woken: list[int] = []
    queue = Line(100, lambda: woken.append(len(queue.entries)))
    queue.wake_at = 3
    for made in numbered(1, 5):
        Emitter(queue, WORKER).emit(made)
    assert woken == [4, 5]


def test_a_negative_size_takes_nothing() -> None:
    queue = line(size=-1)
    Emitter(queue, WORKER).emit(span(1))
    Emitter(queue, WORKER).emit(Several(*numbered(1, 2)))
    assert (len(queue.entries), queue.dropped.value()) == (0, 3)


def test_threads_that_emit_at_once_lose_no_span_and_no_count() -> None:
    queue = line(size=5_000)
    reader = intake(queue)
    taken: list[str] = []

    def emit() -> None:
        emitter = Emitter(queue, WORKER)
        for number in range(1, 2_001):
            emitter.emit(Several(*numbered(number, number + 2)) if number % 2 else span(number))

    threads = [threading.Thread(target=emit) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or queue.entries:
        taken += [made.name for _, spans in reader.batch(500) for made in spans]
    assert len(taken) + queue.dropped.value() == 4 * (1_000 + 3 * 1_000)
    assert reader.taken == len(taken)


# -- taking --------------------------------------------------------------------------------------------------


def test_a_batch_has_about_the_size_that_was_asked_for_and_tears_no_item_apart() -> None:
    queue = line()
    emitter = Emitter(queue, WORKER)
    for made in (span(1), Several(*numbered(2, 5)), span(6)):
        emitter.emit(made)
    reader = intake(queue)
    assert [len(spans) for _, spans in reader.batch(2)] == [5]
    assert (reader.taken, len(queue.entries)) == (5, 1)


def test_a_batch_is_grouped_by_who_made_the_spans_in_their_order() -> None:
    queue = line()
    workers, users = Emitter(queue, WORKER), Emitter(queue, USERS)
    for emitter, number in ((workers, 1), (users, 2), (workers, 3), (users, 4)):
        emitter.emit(span(number))
    assert intake(queue).batch(9) == [(WORKER, [span(1), span(3)]), (USERS, [span(2), span(4)])]


def test_an_item_that_raises_costs_its_own_spans_and_is_said_once() -> None:
    queue, said = line(), []
    emitter = Emitter(queue, WORKER)
    for item in (span(1), Broken(), Broken(), span(2)):
        emitter.emit(item)
    reader = intake(queue, said)
    assert reader.batch(9) == [(WORKER, numbered(1, 2))]
    assert (reader.taken, reader.failed) == (8, 6)
    assert said == ["dask-otel: Broken.spans(): RuntimeError: broken; 3 spans lost so far."]


def test_an_item_that_becomes_more_or_fewer_spans_than_it_weighs_is_counted_by_its_spans() -> None:
    queue = line()
    emitter = Emitter(queue, WORKER)
    emitter.emit(Several(*numbered(1, 5), weight=2))
    emitter.emit(Several(span(6), weight=4))
    emitter.emit(Several(weight=0))
    reader = intake(queue)
    assert reader.batch(99) == [(WORKER, numbered(1, 6))]
    assert (reader.taken, len(queue.entries)) == (6, 0)


def test_a_stopped_intake_takes_nothing_any_more() -> None:
    queue = line()
    Emitter(queue, WORKER).emit(span(1))
    reader = intake(queue)
    reader.stop(timeout=1.0)
    assert (reader.batch(9), reader.taken, len(queue.entries)) == ([], 0, 1)


def test_stopping_waits_for_the_batch_that_is_being_taken() -> None:
    queue, began, let_go = line(), threading.Event(), threading.Event()

    class Slow(Several):
        def spans(self) -> Iterator[Span]:
            began.set()
            let_go.wait(10)
            return super().spans()

    Emitter(queue, WORKER).emit(Slow(*numbered(1, 2)))
    reader = intake(queue)
    thread = threading.Thread(target=reader.batch, args=(9,))
    thread.start()
    assert began.wait(10)
    reader.stop(timeout=0.01)  # In vain,
    assert reader.taken == 0
    let_go.set()
    reader.stop(timeout=10.0)
    assert reader.taken == 2
    thread.join()


def test_limits_are_applied_to_what_is_taken() -> None:
    queue = line()
    Emitter(queue, WORKER).emit(span(1, attributes=(("a", 1), ("b", 2), ("c", 3))))
    assert intake(queue).batch(9) == [
        (WORKER, [span(1, attributes=(("a", 1), ("b", 2)), dropped_attributes=1)])
    ]


def test_a_span_that_limits_cannot_read_costs_itself_only() -> None:
    queue, said = line(), []
    for made in (span(1), span(2, attributes=None), span(3)):
        Emitter(queue, WORKER).emit(made)
    reader = intake(queue, said)
    assert reader.batch(9) == [(WORKER, [span(1), span(3)])]
    assert (reader.taken, reader.failed, len(said)) == (3, 1, 1)


# -- small things --------------------------------------------------------------------------------------------


def test_a_tally_that_threads_raise_at_once_loses_nothing() -> None:
    tally = Tally()
    threads = [threading.Thread(target=lambda: [tally.add(2) for _ in range(5_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
        tally.value()
    for thread in threads:
        thread.join()
    assert [tally.value(), tally.value()] == [40_000, 40_000]


def test_a_bell_rung_twice_ends_one_wait() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    assert [bell.wait(0.0), bell.wait(0.0)] == [True, False]


def test_a_bell_ends_a_wait_of_another_thread() -> None:
    bell, heard = Bell(), []
    thread = threading.Thread(target=lambda: heard.append(bell.wait(30.0)))
    thread.start()
    bell.ring()
    thread.join(10)
    assert heard == [True]


def test_complaints_come_once_a_minute_and_tell_what_was_not_said() -> None:
    said: list[str] = []
    now = [0.0]
    complaints = Complaints(said.append, lambda: now[0])
    complaints.lost(1, "a", "x")
    for now[0] in (1.0, INTERVAL - 0.1, INTERVAL, INTERVAL + 1):
        complaints.lost(2, "b", "y")
    assert said == [
        "dask-otel: a: x; 1 span lost so far.",
        "dask-otel: b: y; 7 spans lost so far (this and 2 earlier problems).",
    ]


def test_hushed_complaints_are_said_at_the_conclusion_once() -> None:
    said: list[str] = []
    complaints = Complaints(said.append, lambda: 0.0)
    complaints.hush()
    complaints.lost(1, "a", "x")
    complaints.lost(1, "b", "y")
    assert said == []
    complaints.conclude()
    complaints.conclude()
    assert said == ["dask-otel: b: y; 2 spans lost so far (this and 1 earlier problems)."]


def test_there_is_no_conclusion_where_nothing_went_wrong() -> None:
    said: list[str] = []
    Complaints(said.append).conclude()
    assert said == []
