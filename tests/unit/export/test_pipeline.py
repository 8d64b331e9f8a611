"""The pipeline as a whole: thread, bounds, counts, flush, close, exit and fork."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dask_otel.attempts import Attempt, origin
from dask_otel.export import sinks
from dask_otel.export.fates import Counts
from dask_otel.export.pipeline import Pipeline
from dask_otel.export.sinks import OtlpSink
from dask_otel.intervals import Amounts
from dask_otel.parents import ACTIVITY, Parent
from dask_otel.records import Scope
from dask_otel.settings import Limits, Otlp, Queue, Settings

from .receivers import LATE, Answer, free_port, grpc_receiver, http_receiver, wait_until
from .spans import TRACE, numbered, span
from .test_queue import Broken, Several

RESOURCE, SCOPE = (("service.name", "demo"),), Scope("dask_otel", "1.0")


@pytest.fixture
def pipeline() -> Iterator[Callable[..., Pipeline]]:
    """Makes pipelines to an endpoint, and closes them."""
    made: list[Pipeline] = []

    def make(
        endpoint: str = "", queue: Queue | None = None, limits: Limits | None = None, **otlp: Any
    ) -> Pipeline:
        settings = Settings(
            exporters=("otlp",) if endpoint else (),
            otlp=Otlp(endpoint=endpoint, **otlp),
            queue=queue or Queue(delay=0.01),
            limits=limits or Limits(),
        )
        made.append(Pipeline(settings))
        return made[-1]

    yield make
    for one in made:
        one.close(0.0)


def emit(one: Pipeline, first: int, last: int) -> None:
    emitter = one.emitter(RESOURCE, SCOPE)
    for made in numbered(first, last):
        emitter.emit(made)


def exporting_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dask-otel-export"]


def threads_of(one: Pipeline) -> list[threading.Thread]:
    return [thread for thread in exporting_threads() if thread is one._thread]


# -- the way through -----------------------------------------------------------------------------------------


def test_spans_arrive_in_their_order_and_are_counted(pipeline: Any) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url)
        emit(one, 1, 5)
        assert one.flush()
        assert receiver.spans() == [f"span-{i}" for i in range(1, 6)]
        assert one.counts == Counts(emitted=5, exported=5)


def test_spans_arrive_without_being_asked_for_after_the_delay(pipeline: Any) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url)
        for number in (1, 2):
            emit(one, number, number)
            wait_until(lambda number=number: len(receiver.spans()) == number)


def test_spans_arrive_before_the_delay_when_enough_wait(pipeline: Any) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url, queue=Queue(delay=600.0, batch=20))
        emit(one, 1, 1)  # Starts the thread and wakes it.
        wait_until(lambda: receiver.spans())
        wait_until(lambda: one._line.wake_at == 10)
        emit(one, 2, 12)
        wait_until(lambda: len(receiver.spans()) == 12)


def test_what_becomes_spans_arrives_beside_spans(pipeline: Any) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url)
        emitter = one.emitter(RESOURCE, SCOPE)
        for item in (span(1), Several(*numbered(2, 4)), Broken(), span(5)):
            emitter.emit(item)
        assert one.flush()
        assert receiver.spans() == [f"span-{i}" for i in range(1, 6)]
        assert one.counts == Counts(emitted=8, exported=5, failed=3)


ATTEMPT = Attempt(
    origin(Parent(TRACE, b"g" * 8, b"c" * 8, 1, ACTIVITY), "inc", "inc-group", "tcp://w:1", "w"),
    "inc-1",
    b"s" * 8,
    1,
    b"",
    "",
    1.7e9,
    1.7e9 + 1,
    "success",
    Amounts.of([("executor", 0.5, "seconds"), ("other", 0.5, "seconds")]),
    None,
    [0.75],
    1.7e9,
    depths=b"\0",
)


def test_attempts_arrive_beside_spans_whether_they_are_encoded_whole_or_not(pipeline: Any) -> None:
    with http_receiver() as receiver:
        one, got = pipeline(receiver.url), []
        emitter = one.emitter(RESOURCE, SCOPE)
        for item in (span(1), *[ATTEMPT] * 4, span(2)):
            emitter.emit(item)
        assert one.flush()
        assert sorted(receiver.spans()) == ["executor"] * 4 + ["inc"] * 4 + ["span-1", "span-2"]
        assert one.counts == Counts(emitted=10, exported=10)
        one.add_processor(lambda made: got.append(made.name))
        emitter.emit(ATTEMPT)
        assert one.flush()
        assert sorted(got) == ["executor", "inc"]
        assert one.counts == Counts(emitted=12, exported=12)


@pytest.mark.parametrize("limits", [Limits(attributes=3), Limits(attribute_length=2)])
def test_attempts_keep_to_limits(pipeline: Any, limits: Limits) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url, limits=limits)
        emitter = one.emitter(RESOURCE, SCOPE)
        for _ in range(4):
            emitter.emit(ATTEMPT)
        assert one.flush()
        spans = [
            made
            for request in receiver.requests
            for block in ExportTraceServiceRequest.FromString(request.unzipped).resource_spans
            for scope in block.scope_spans
            for made in scope.spans
        ]
    assert len(spans) == 8
    assert {len(made.attributes) for made in spans} == ({3} if limits.attributes == 3 else {3, 10})
    texts = [pair.value.string_value for made in spans for pair in made.attributes]
    assert limits.attributes == 3 or max(map(len, texts)) == 2


def test_a_request_has_no_more_spans_than_a_batch(pipeline: Any) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url, queue=Queue(delay=600.0, batch=10))
        emit(one, 1, 25)
        assert one.flush()
        assert len(receiver.spans()) == 25
        assert len(receiver.requests) >= 3


def test_the_thread_starts_with_the_first_span_and_not_before(pipeline: Any) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url)
        one.emitter(RESOURCE, SCOPE)
        assert one.flush()
        assert (one._thread, one.counts) == (None, Counts())
        emit(one, 1, 1)
        assert [thread.daemon for thread in threads_of(one)] == [True]


def test_threads_that_emit_first_at_once_start_one_thread(pipeline: Any) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url)
        before = exporting_threads()
        threads = [threading.Thread(target=emit, args=(one, 1, 10)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert one.flush()
        assert len([thread for thread in exporting_threads() if thread not in before]) == 1
        assert one.counts == Counts(emitted=80, exported=80)


def test_without_an_exporter_nothing_is_held_and_no_thread_is_started(pipeline: Any) -> None:
    one = pipeline()
    emit(one, 1, 3)
    assert (one._thread, one.counts) == (None, Counts(emitted=3, dropped=3))


def test_grpc_is_a_way_through_too(pipeline: Any) -> None:
    with grpc_receiver() as receiver:
        one = pipeline(f"127.0.0.1:{receiver.port}", protocol="grpc", insecure=True)
        emit(one, 1, 3)
        assert one.flush()
        assert (len(receiver.requests), one.counts) == (1, Counts(emitted=3, exported=3))


def test_an_applications_processors_get_the_spans_and_the_resource(pipeline: Any) -> None:
    one, got = pipeline(), []
    one.add_processor(lambda made: got.append((made.name, made.resource.attributes["service.name"])))
    emit(one, 1, 2)
    assert one.flush()
    assert got == [("span-1", "demo"), ("span-2", "demo")]
    assert one.counts == Counts(emitted=2, exported=2)


def test_a_processor_that_raises_beside_otlp_costs_otlp_nothing(pipeline: Any) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url)
        one.add_processor(lambda made: 1 / 0)
        emit(one, 1, 2)
        assert one.flush()
        assert receiver.spans() == ["span-1", "span-2"]
        assert one.counts == Counts(emitted=2, exported=2)


def test_instrumented_libraries_make_no_spans_of_our_own_requests(pipeline: Any) -> None:
    one, got = pipeline(), []
    one.add_processor(lambda made: got.append(get_value(_SUPPRESS_INSTRUMENTATION_KEY)))
    emit(one, 1, 1)
    assert one.flush()
    assert got == [True]
    assert get_value(_SUPPRESS_INSTRUMENTATION_KEY) is None


def test_a_sink_that_forgets_spans_has_failed_with_them(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OtlpSink, "deliver", lambda self, batch: 1 / 0)
    one = pipeline(f"http://127.0.0.1:{free_port()}/")
    emit(one, 1, 3)
    assert one.flush()
    assert one.counts == Counts(emitted=3, failed=3)
    emit(one, 4, 4)
    assert one.flush()
    assert one.counts == Counts(emitted=4, failed=4)


# -- bounds and counts ---------------------------------------------------------------------------------------


def test_a_full_queue_drops_and_counts_while_a_receiver_hangs(pipeline: Any) -> None:
    with http_receiver(Answer(hang=True), Answer()) as receiver:
        one = pipeline(receiver.url, queue=Queue(size=10, delay=0.01))
        emit(one, 1, 1)
        wait_until(lambda: receiver.requests)
        emit(one, 2, 100)
        assert (len(one._line.entries), one.counts) == (10, Counts(emitted=100, dropped=89, waiting=11))
        receiver.released.set()
        assert one.flush()
        assert receiver.spans() == [f"span-{i}" for i in range(1, 12)]
        assert one.counts == Counts(emitted=100, exported=10, dropped=89, unknown=1)


def test_every_fate_is_counted_and_they_add_up(pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "FIRST_WAIT", 0.01)
    with http_receiver(Answer(), Answer(400), Answer(drop=True), Answer(503), Answer()) as receiver:
        one = pipeline(receiver.url)
        for first in (1, 11, 21, 31):
            emit(one, first, first + 9)
            assert one.flush()
        assert one.counts == Counts(emitted=40, exported=20, failed=10, unknown=10)
        assert len(receiver.requests) == 5


def test_spans_survive_a_receiver_that_is_away_for_a_while(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "FIRST_WAIT", 0.01)
    with http_receiver(Answer(503), Answer(503), Answer()) as receiver:
        one = pipeline(receiver.url)
        emit(one, 1, 3)
        assert one.flush()
        assert one.counts == Counts(emitted=3, exported=3)
        assert receiver.spans() == 3 * ["span-1", "span-2", "span-3"]


def test_what_goes_wrong_is_said_once_and_shows_no_secret(
    pipeline: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with http_receiver(Answer(400)) as receiver:
        url = receiver.url.replace("//", "//user:secret@") + "?token=secret"
        one = pipeline(url, headers=(("Authorization", "secret"),))
        for number in range(1, 6):
            emit(one, number, number)
            assert one.flush()
        [said] = caplog.messages
        assert said == (
            f"dask-otel: http://127.0.0.1:{receiver.port}: HTTP 400 Bad Request; 1 span lost so far."
        )
        one.close()
    assert caplog.messages[1].endswith("; 5 spans lost so far (this and 3 earlier problems).")
    assert "secret" not in caplog.text


def test_a_full_queue_is_said(pipeline: Any, caplog: pytest.LogCaptureFixture) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url, queue=Queue(size=2, delay=600.0, batch=100))
        emit(one, 1, 1)
        assert one.flush()
        one._line.wake_at = 10**9  # Else the thread would make room.
        emit(one, 2, 6)
        assert one.flush()
        assert one.counts == Counts(emitted=6, exported=3, dropped=3)
    assert caplog.messages == ["dask-otel: queue: full, it holds 2 spans; 3 spans lost so far."]


# -- flush and close -----------------------------------------------------------------------------------------


def test_a_flush_that_takes_too_long_says_so(pipeline: Any) -> None:
    with http_receiver(Answer(hang=True)) as receiver:
        one = pipeline(receiver.url)
        emit(one, 1, 1)
        assert not one.flush(0.05)
        receiver.released.set()
        assert one.flush()


def test_a_flush_does_not_wait_for_spans_that_come_after_it(pipeline: Any) -> None:
    one = pipeline()
    emitter = one.emitter(RESOURCE, SCOPE)
    one.add_processor(lambda made: emitter.emit(span(1)))  # Each span makes another one.
    emitter.emit(span(1))
    assert one.flush()


def test_a_flush_waits_for_all_that_came_before_it_whatever_an_item_said_it_weighed(pipeline: Any) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url, queue=Queue(delay=600.0, batch=2))
        emit(one, 1, 1)
        assert one.flush()
        emitter = one.emitter(RESOURCE, SCOPE)
        for item in (Several(*numbered(2, 20), weight=2), span(21), Several(weight=5), span(22)):
            emitter.emit(item)
        assert one.flush()
        assert receiver.spans() == [f"span-{i}" for i in range(1, 23)]
        assert one.counts == Counts(emitted=22, exported=22)


def test_users_code_that_exits_does_not_end_the_thread(pipeline: Any) -> None:
    class Exits(Broken):
        def spans(self) -> Iterator[Any]:
            raise SystemExit

    one = pipeline()
    one.add_processor(lambda made: sys.exit() if made.name == "span-1" else None)
    emitter = one.emitter(RESOURCE, SCOPE)
    emitter.emit(span(1))
    assert one.flush()
    emitter.emit(Exits())
    assert one.flush()
    emitter.emit(span(2))
    assert one.flush()
    assert one.counts == Counts(emitted=5, exported=1, failed=4)


def test_a_delay_without_end_is_possible(pipeline: Any) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url, queue=Queue(delay=float("inf")))
        emit(one, 1, 1)
        assert one.flush()
        assert receiver.spans() == ["span-1"]


def test_closing_sends_what_waits(pipeline: Any, caplog: pytest.LogCaptureFixture) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url, queue=Queue(delay=600.0))
        emit(one, 1, 1)
        assert one.flush()
        emit(one, 2, 300)
        assert one.close()
        assert len(receiver.spans()) == 300
        assert (one.counts, threads_of(one)) == (Counts(emitted=300, exported=300), [])
    assert caplog.messages == []


def test_after_closing_spans_are_dropped_and_counted(pipeline: Any) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url)
        emit(one, 1, 1)
        assert one.close()
        emit(one, 2, 4)
        one.add_processor(print)
        assert one.close()
        assert one.flush()
        assert one.counts == Counts(emitted=4, exported=1, dropped=3)


def test_closing_what_never_started_does_nothing(pipeline: Any) -> None:
    one = pipeline("http://127.0.0.1:1/")
    assert one.close()
    assert one.counts == Counts()


def test_a_hanging_http_receiver_does_not_hold_up_closing(
    pipeline: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with http_receiver(Answer(hang=True)) as receiver:
        one = pipeline(receiver.url, timeout=30.0, queue=Queue(delay=0.01, batch=100))
        emit(one, 1, 1)
        wait_until(lambda: receiver.requests)
        emit(one, 2, 300)
        began = time.monotonic()
        assert not one.close(0.5)
        assert time.monotonic() - began < 0.5 + LATE
        wait_until(lambda: not threads_of(one))
        counts = one.counts
        assert counts.emitted == counts.dropped + counts.unknown == 300
        assert counts.unknown >= 1
    assert len(caplog.messages) == 1
    assert "; 300 spans lost so far" in caplog.text


def test_a_hanging_grpc_receiver_does_not_hold_up_closing(pipeline: Any) -> None:
    with grpc_receiver(lambda context: receiver.released.wait(30) and b"") as receiver:
        one = pipeline(f"127.0.0.1:{receiver.port}", protocol="grpc", insecure=True, timeout=30.0)
        emit(one, 1, 1)
        wait_until(lambda: receiver.requests)
        emit(one, 2, 10)
        began = time.monotonic()
        assert not one.close(0.5)
        assert time.monotonic() - began < 0.5 + LATE
        assert one.counts == Counts(emitted=10, dropped=9, unknown=1)


def test_a_receiver_that_is_down_does_not_hold_up_closing(
    pipeline: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one = pipeline(f"http://127.0.0.1:{free_port()}/", queue=Queue(delay=0.01, batch=100))
    emit(one, 1, 1)
    wait_until(lambda: caplog.messages)
    emit(one, 2, 3_000)
    began = time.monotonic()
    assert not one.close()
    assert time.monotonic() - began < 1.5 + LATE
    assert one.counts == Counts(emitted=3_000, dropped=3_000)
    assert len(caplog.messages) == 2
    assert "; 3000 spans lost so far" in caplog.messages[1]


def test_a_processor_that_hangs_is_left_behind_at_closing(pipeline: Any) -> None:
    one, let_go = pipeline(), threading.Event()
    one.add_processor(lambda made: let_go.wait(30))
    emit(one, 1, 3)
    wait_until(lambda: one.counts.waiting and not one._line.entries)
    began = time.monotonic()
    assert not one.close(0.3)
    assert time.monotonic() - began < 0.3 + LATE
    assert one.counts == Counts(emitted=3, unknown=3)
    let_go.set()
    wait_until(lambda: not threads_of(one))
    assert one.counts == Counts(emitted=3, unknown=3)


def test_closing_from_the_pipelines_own_thread_does_not_wait_for_itself(pipeline: Any) -> None:
    one, closed = pipeline(), []
    one.add_processor(lambda made: closed.append(one.close()))
    emit(one, 1, 1)
    wait_until(lambda: closed and not threads_of(one))
    assert one.counts.emitted == 1


def test_flushing_from_the_pipelines_own_thread_does_not_wait_for_itself(pipeline: Any) -> None:
    one, flushed = pipeline(), []
    one.add_processor(lambda made: flushed.append(one.flush()))
    emit(one, 1, 1)
    assert one.flush()
    assert flushed == [True]


def test_threads_that_emit_while_it_closes_lose_no_count(pipeline: Any) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url)
        started, emitted = threading.Event(), [0] * 4

        def work(index: int) -> None:
            emitter = one.emitter(RESOURCE, SCOPE)
            for made in numbered(1, 3_000):
                emitter.emit(made)
                emitted[index] += 1
                if made.span_id[-1] == 200:
                    started.set()

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        assert started.wait(10)
        one.close()
        for thread in threads:
            thread.join()
        counts = one.counts
        assert counts.emitted == sum(emitted) == 12_000
        assert counts.emitted == counts.exported + counts.dropped
        assert counts.exported == len(receiver.spans())


# -- the process's end, and forks ----------------------------------------------------------------------------

_PROGRAM = """
import os, sys, time
from dask_otel.export.pipeline import Pipeline
from dask_otel.records import Scope, Span
from dask_otel.settings import Otlp, Queue, Settings

def span(i):
    return Span(f"span-{i}", 1, b"1" * 16, i.to_bytes(8, "big"), start=1, end=2)

queue = Queue(delay=600.0)
pipeline = Pipeline(Settings(exporters=("otlp",), otlp=Otlp(endpoint=sys.argv[1], timeout=30.0), queue=queue))
emitter = pipeline.emitter((), Scope("test"))
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _PROGRAM + textwrap.dedent(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_process_that_ends_sends_what_waits() -> None:
    with http_receiver() as receiver:
        done = run("for i in range(1, 4): emitter.emit(span(i))", receiver.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert receiver.spans() == ["span-1", "span-2", "span-3"]


def test_a_process_that_ends_with_a_hanging_receiver_ends_in_time_and_says_so_once() -> None:
    with http_receiver(Answer(hang=True)) as receiver:
        done = run(
            """
            import atexit
            began = []
            atexit.register(lambda: print(time.monotonic() - began[0]))
            emitter.emit(span(1))  # Registers the pipeline's own exit, which runs before.
            emitter.emit(span(2))
            began.append(time.monotonic())
            """,
            receiver.url,
        )
    assert done.returncode == 0
    assert 1.0 < float(done.stdout) < 1.5 + LATE
    [said] = done.stderr.splitlines()
    assert said.endswith("; 2 spans lost so far.")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_off_and_its_parent_goes_on() -> None:
    with http_receiver() as receiver:
        done = run(
            """
            import threading
            emitter.emit(span(1))
            pipeline._changing.acquire()  # As if a thread of the parent held it.
            pipeline._line.dropped._reading.acquire()
            child = os.fork()
            if child == 0:
                emitter.emit(span(2))
                emitter.emit(span(3))
                waiting = len(pipeline._line.entries) > 1
                fine = pipeline.flush(5) is not None and pipeline.close() and threading.active_count() == 1
                os._exit(0 if fine and not waiting else 1)
            pipeline._line.dropped._reading.release()
            pipeline._changing.release()
            emitter.emit(span(4))
            print(os.waitpid(child, 0)[1], pipeline.close(), pipeline.counts.exported)
            """,
            receiver.url,
        )
        assert done.stdout.split() == ["0", "True", "2"], done.stderr
        assert receiver.spans() == ["span-1", "span-4"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_forked_before_the_first_span_is_off_too() -> None:
    with http_receiver() as receiver:
        done = run(
            """
            child = os.fork()
            emitter.emit(span(1))
            if child == 0:
                os._exit(int(pipeline._thread is not None))
            print(os.waitpid(child, 0)[1], pipeline.close())
            """,
            receiver.url,
        )
        assert done.stdout.split() == ["0", "True"], done.stderr
        assert receiver.spans() == ["span-1"]


def test_logging_is_not_touched_where_nothing_goes_wrong(
    pipeline: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dask_otel")
    with http_receiver() as receiver:
        one = pipeline(receiver.url)
        emit(one, 1, 3)
        assert one.close()
    assert caplog.messages == []
