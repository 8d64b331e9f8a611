"""Method calls of actors as spans: a call in, a span out."""

from __future__ import annotations

from dask_otel import actors, names
from dask_otel.attempts import Failure, Written
from dask_otel.carried import Carried
from dask_otel.records import ERROR, INTERNAL, IS_REMOTE, IS_REMOTE_KNOWN, Event, Span

CALLER = Carried(b"t" * 16, b"c" * 8, 1)


def span(failure: Failure | None = None, written: Written | None = None, offset: float = 0.0) -> Span:
    call = actors.begin(CALLER, b"s" * 8, "Counter", "add", 1.0)
    return actors.span(call, 2.0, failure, written, ("tcp://w:1", "0"), offset)


def test_a_call_is_a_span_below_its_caller() -> None:
    assert span() == Span(
        "Counter.add",
        INTERNAL,
        b"t" * 16,
        b"s" * 8,
        b"c" * 8,
        1 | IS_REMOTE_KNOWN | IS_REMOTE,
        start=1_000_000_000,
        end=2_000_000_000,
        common=(
            (names.OPERATION, names.OP_ACTOR),
            (names.TASK_PREFIX, "Counter"),
            (names.ACTOR_METHOD, "add"),
            (names.WORKER_ADDRESS, "tcp://w:1"),
            (names.WORKER_NAME, "0"),
        ),
    )


def test_a_call_that_raises_is_an_error_with_its_exception() -> None:
    made = span(Failure("ValueError", "no", "trace"))
    assert (made.status, made.message, made.attributes) == (ERROR, "no", ((names.ERROR_TYPE, "ValueError"),))
    told = (
        (names.EXCEPTION_TYPE, "ValueError"),
        (names.EXCEPTION_MESSAGE, "no"),
        (names.EXCEPTION_STACKTRACE, "trace"),
    )
    assert made.events == (Event(names.EXCEPTION_EVENT, 2_000_000_000, told),)


def test_what_a_method_writes_is_on_its_span_but_for_dasks_own_names() -> None:
    written = Written("renamed", (("rows", 3), (names.OPERATION, "mine")))
    assert (span(written=written).name, span(written=written).attributes) == ("renamed", (("rows", 3),))


def test_a_clock_that_is_off_is_told_from_a_millisecond_on() -> None:
    assert span(offset=0.0005).attributes == ()
    assert span(offset=-0.5).attributes == ((names.CLOCK_OFFSET, -0.5),)
