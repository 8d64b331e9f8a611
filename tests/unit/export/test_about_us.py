"""What dask-otel tells of itself adds up, whatever a receiver does, and is told once by a process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dask_otel import instruments
from dask_otel.about_us import Duty, totals
from dask_otel.export.bodies import Source
from dask_otel.export.metric_bodies import Batch
from dask_otel.export.metrics import MetricExporter
from dask_otel.export.pipeline import Pipeline
from dask_otel.instruments import (
    LOOP_TICKS,
    OVERHEAD_SECONDS,
    POINTS_EXPORTED,
    QUEUE_CAPACITY,
    SPANS_BY_FATE,
    SPANS_EXPORTED,
    SPANS_PROCESSED,
    SPANS_QUEUED,
    Instrument,
)
from dask_otel.names import ERROR_TYPE
from dask_otel.records import Scope
from dask_otel.series import Measured, measured
from dask_otel.settings import Metrics, Otlp, Queue, Settings

from .receivers import Answer, free_port, http_receiver, partial, wait_until
from .spans import numbered
from .test_queue import Broken

RESOURCE, SCOPE = (("service.name", "demo"),), Scope("dask_otel", "1.0")
COUNTED = Instrument("dask.counted", instruments.COUNTER, "1", ("worker",), ("of",), "Counted.")


@pytest.fixture
def made() -> Iterator[list[Pipeline | MetricExporter]]:
    """What is closed at the end."""
    made: list[Pipeline | MetricExporter] = []
    yield made
    for one in made:
        one.close(0.0)


@pytest.fixture
def pipeline(made: list[Any]) -> Callable[..., Pipeline]:
    """Makes pipelines to an endpoint."""

    def make(endpoint: str, size: int = 100, batch: int = 5, timeout: float = 0.3) -> Pipeline:
        queue = Queue(size=size, batch=batch, delay=0.01, timeout=0.1)
        otlp = Otlp(endpoint=endpoint, timeout=timeout)
        made.append(Pipeline(Settings(exporters=("otlp",), otlp=otlp, queue=queue)))
        return made[-1]  # type: ignore[no-any-return]

    return make


def emit(one: Pipeline, spans: int) -> None:
    emitter = one.emitter(RESOURCE, SCOPE)
    for made in numbered(1, spans):
        emitter.emit(made)


def told(*components: Pipeline | MetricExporter) -> dict[str, Any]:
    """What is told of these, by metric: one number, or by the error's type where there are any."""
    found: dict[str, Any] = {}
    for one in totals(components):
        if one.instrument is OVERHEAD_SECONDS:
            assert one.values == {(): sum(component.cpu for component in components)}
            continue
        by_error = {dict(point.attributes).get(ERROR_TYPE, ""): point.value for point in one.points}
        found[one.instrument.name] = by_error if ERROR_TYPE in one.instrument.attributes else by_error[""]
    return found


def expected(
    capacity: int, queued: int, processed: dict[str, int], exported: dict[str, int], unknown: int = 0
) -> dict[str, Any]:
    found = {
        SPANS_PROCESSED.name: processed,
        SPANS_QUEUED.name: queued,
        QUEUE_CAPACITY.name: capacity,
        SPANS_EXPORTED.name: exported,
    }
    return found | ({SPANS_BY_FATE.name: unknown} if unknown else {})


# -- spans --------------------------------------------------------------------------------------------------------


def test_spans_that_arrive_have_no_error(pipeline: Callable[..., Pipeline]) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url)
        emit(one, 5)
        assert one.flush(10)
        assert told(one) == expected(100, 0, {"": 5}, {"": 5})


def test_spans_that_a_receiver_refuses_are_rejected_whole_or_in_part(
    pipeline: Callable[..., Pipeline],
) -> None:
    with http_receiver(Answer(400), Answer(body=partial(2, "bad")), Answer()) as receiver:
        one = pipeline(receiver.url)
        for _ in range(3):
            emit(one, 5)
            assert one.flush(10)
        assert told(one) == expected(100, 0, {"": 15}, {"": 8, "rejected": 7})


def test_spans_that_nobody_takes_in_time_were_unreachable(pipeline: Callable[..., Pipeline]) -> None:
    one = pipeline(f"http://127.0.0.1:{free_port()}/v1/traces")
    emit(one, 5)
    assert one.flush(10)
    assert told(one) == expected(100, 0, {"": 5}, {"": 0, "unreachable": 5})


def test_spans_that_have_no_answer_are_unknown(pipeline: Callable[..., Pipeline]) -> None:
    with http_receiver(Answer(hang=True)) as receiver:
        one = pipeline(receiver.url)
        emit(one, 5)
        assert one.flush(10)
        assert told(one) == expected(100, 0, {"": 5}, {"": 0, "unknown": 5}, unknown=5)


def test_spans_that_do_not_fit_are_told_where_the_queue_is_full(pipeline: Callable[..., Pipeline]) -> None:
    with http_receiver(Answer(hang=True)) as receiver:
        one = pipeline(receiver.url, size=10, batch=4, timeout=10.0)
        emit(one, 4)
        wait_until(lambda: receiver.requests)
        emit(one, 30)
        held = told(one)
        assert held == expected(10, 10, {"": 4, "queue_full": 20}, {"": 0})
        receiver.answers[:] = [Answer()]
        receiver.released.set()
        assert one.flush(10)
        assert told(one) == expected(10, 0, {"": 14, "queue_full": 20}, {"": 10, "unknown": 4}, unknown=4)


def test_spans_that_cannot_be_encoded_are_invalid(pipeline: Callable[..., Pipeline]) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url)
        first, second = numbered(1, 2)
        emitter = one.emitter(RESOURCE, SCOPE)
        emitter.emit(first)
        emitter.emit(second._replace(trace_id=b""))
        assert one.flush(10)
        assert told(one) == expected(100, 0, {"": 2}, {"": 1, "invalid": 1})


def test_spans_that_cannot_be_made_are_invalid(pipeline: Callable[..., Pipeline]) -> None:
    with http_receiver() as receiver:
        one = pipeline(receiver.url)
        emit(one, 2)
        one.emitter(RESOURCE, SCOPE).emit(Broken())
        assert one.flush(10)
        assert told(one) == expected(100, 0, {"": 5}, {"": 2, "invalid": 3})


def test_a_pipeline_that_sends_nowhere_tells_nothing(made: list[Any]) -> None:
    made.append(Pipeline(Settings()))
    emit(made[0], 5)
    assert told(made[0]) == {}


# -- points -------------------------------------------------------------------------------------------------------


def test_points_add_up_whatever_becomes_of_them(made: list[Any]) -> None:
    def batch(points: int) -> Batch:
        values: dict[tuple[str, ...], float] = {(f"{n}",): n for n in range(points)}
        return Batch(Source(RESOURCE, SCOPE), 100.0, 110.0, [measured(COUNTED, values)])

    # Their answers have the same form.
    answers = (Answer(), Answer(400), Answer(503), Answer(body=partial(2, "bad")), Answer(hang=True))
    with http_receiver(*answers) as receiver:
        made.append(MetricExporter(Metrics(otlp=Otlp(endpoint=receiver.url, timeout=0.3))))
        (one,) = made
        for points in (5, 10, 20, 40, 80):
            one.submit(batch(points))
            assert one.flush(10)
        one.submit(batch(1)._replace(measured=[measured(COUNTED, {("x",): "no number"})]))  # type: ignore[dict-item]
        assert one.flush(10)
    assert told(one) == {
        POINTS_EXPORTED.name: {"": 5 + 38, "rejected": 10 + 2, "unreachable": 20, "unknown": 80, "invalid": 1}
    }


def test_points_that_wait_too_long_are_told(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made.append(MetricExporter(Metrics(otlp=Otlp(endpoint=f"http://127.0.0.1:{free_port()}/"))))
    monkeypatch.setattr(made[0], "_start", lambda: None)
    for _ in range(70):
        made[0].submit(Batch(Source(RESOURCE, SCOPE), 1.0, 2.0, [measured(LOOP_TICKS, {(): 1})]))
    assert told(made[0]) == {POINTS_EXPORTED.name: {"": 0, "queue_full": 6}}
    made[0]._batches.clear()


# -- names --------------------------------------------------------------------------------------------------------


def test_each_component_has_a_name_of_its_own_that_stays(made: list[Any]) -> None:
    made += [MetricExporter(Metrics()), MetricExporter(Metrics())]

    def names() -> list[tuple[str, str]]:
        (points,) = [one.points for one in totals(made) if one.instrument is POINTS_EXPORTED]
        return [
            (
                dict(p.attributes)[instruments.COMPONENT_TYPE],
                dict(p.attributes)[instruments.COMPONENT_NAME],
            )
            for p in points
        ]

    first = names()
    assert first == names()
    (kind, one), (other_kind, other) = first
    assert kind == other_kind == "dask_otel"
    assert one != other
    assert int(one.removeprefix("dask_otel/")) == int(other.removeprefix("dask_otel/")) - 1


# -- who tells ----------------------------------------------------------------------------------------------------


class Server:
    """Exports."""


def ticks(total: float) -> list[Measured]:
    return [measured(LOOP_TICKS, {(): total}), measured(QUEUE_CAPACITY, {("dask_otel", "0"): 7})]


def values(duty: Duty, who: Server, total: float) -> list[float]:
    return [one.points[0].value for one in duty.told(who, ticks(total))]  # type: ignore[misc]


def test_the_first_server_tells_and_the_others_do_not() -> None:
    duty, one, other = Duty(), Server(), Server()
    assert [values(duty, who, 5) for who in (one, other, one)] == [[5, 7], [], [5, 7]]


def test_the_next_goes_on_from_what_was_told_and_nobody_falls() -> None:
    duty, one, other = Duty(), Server(), Server()
    assert values(duty, one, 5) == [5, 7]
    duty.leave(other)
    assert values(duty, other, 6) == []
    duty.leave(one)
    assert values(duty, other, 8) == [3, 7]
    assert values(duty, one, 9) == []
    duty.leave(other)
    assert values(duty, one, 10) == [7, 7]
    assert values(duty, other, 11) == []


def test_a_server_that_is_gone_without_a_word_hands_over_too() -> None:
    duty, one, other = Duty(), Server(), Server()
    assert values(duty, one, 5) == [5, 7]
    del one
    gc.collect()
    assert values(duty, other, 6) == [1, 7]
    assert (list(duty._shares), dict(duty._gone)) == ([id(other)], {(LOOP_TICKS.name, ()): 5})


def test_a_server_may_go_while_another_one_tells() -> None:
    """The garbage collector ends lives at any moment."""
    duty, going, other = Duty(), [Server()], Server()

    class Looked(dict):
        def get(self, of: Any, default: Any = None) -> Any:
            going.clear()
            return super().get(of, default)

    assert values(duty, going[0], 5) == [5, 7]
    duty.leave(going[0])
    duty._shares[id(going[0])] = Looked(duty._shares[id(going[0])])
    assert [values(duty, other, total) for total in (6, 8)] == [[1, 7], [3, 7]]
    assert (going, list(duty._shares)) == ([], [id(other)])
