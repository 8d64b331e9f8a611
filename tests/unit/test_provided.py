"""Metrics through a meter provider of the application's: its readers, its views, its faults."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.metrics import Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader, MetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource

from dask_otel import process, provided
from dask_otel.distributions import Distributions, Exemplar
from dask_otel.feed import Feed
from dask_otel.instruments import (
    ACTIVE_COMPUTATIONS,
    COMPUTE_SECONDS,
    GRAPH_UPDATE_SECONDS,
    LEASE_WAIT,
    SECEDED_SECONDS,
    TASK_DURATION,
)
from dask_otel.provided import PATIENCE, Provided
from dask_otel.records import Scope
from dask_otel.series import Measured, keyed, measured

SCOPE = Scope("dask_otel", "1", "https://s/1")
W0, W1 = (("dask.cluster.id", "c"), ("dask.worker.name", "0")), (("dask.worker.name", "1"),)
DELTA = {ObservableCounter: AggregationTemporality.DELTA, Histogram: AggregationTemporality.DELTA}
DEADLINE = 30.0


class Server:
    """A server's event loop in a thread, and what it has measured."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.measured: list[Any] = []
        self.broken = False
        self.snapshots: list[threading.Thread] = []

    def collect(self) -> Sequence[Any]:
        assert not self.broken
        self.snapshots.append(threading.current_thread())
        return list(self.measured)

    def on_loop(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(DEADLINE)

    def feed(self, into: Provided, who: Any = W0, before: Any = None) -> Feed:
        feed: Feed = self.on_loop(lambda: Feed(self.collect, lambda last: who, before or {}))
        into.join(feed)
        return feed

    def leave(self, into: Provided, feed: Feed) -> None:
        self.on_loop(lambda: into.leave(feed))

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def make_server() -> Iterator[Callable[[], Server]]:
    made: list[Server] = []

    def make() -> Server:
        made.append(Server())
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def server(make_server: Callable[[], Server]) -> Server:
    return make_server()


@pytest.fixture(autouse=True)
def keep_nothing() -> Iterator[None]:
    yield
    Distributions.recent = 0


def application(*readers: MetricReader, views: Sequence[View] = ()) -> tuple[MeterProvider, Provided]:
    provider = MeterProvider(readers, Resource({"service.name": "shop"}), shutdown_on_exit=False, views=views)
    into = Provided(provider, SCOPE)
    assert into._ready.wait(DEADLINE)
    return provider, into


def seconds(**values: float) -> Measured:
    return measured(COMPUTE_SECONDS, keyed(values))


def collected(reader: InMemoryMetricReader) -> dict[tuple[str, ...], Any]:
    """Numbers, and for histograms count, sum and buckets, by name and values of attributes."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    ((resource, (scope,)),) = [(one.resource, one.scope_metrics) for one in data.resource_metrics]
    assert (dict(resource.attributes), scope.scope.name) == ({"service.name": "shop"}, "dask_otel")
    return {
        (metric.name, *map(str, point.attributes.values())): point.value
        if hasattr(point, "value")
        else (point.count, point.sum, tuple(point.bucket_counts))
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_readers_get_every_kind_once_with_who_it_is_of(server: Server) -> None:
    reader = InMemoryMetricReader()
    _, into = application(reader)
    durations = Distributions(GRAPH_UPDATE_SECONDS)
    durations.record(("order",), 0.02)
    server.measured = [
        seconds(inc=1.5),
        measured(ACTIVE_COMPUTATIONS, {(): 2}),
        measured(LEASE_WAIT, {("s",): 0.25}),
        measured(GRAPH_UPDATE_SECONDS, durations.snapshots()),
    ]
    feed = server.feed(into)
    data = reader.get_metrics_data()
    assert data is not None
    (metrics,) = [one.scope_metrics[0].metrics for one in data.resource_metrics]
    told = {
        one.name: (
            type(one.data).__name__,
            getattr(one.data, "is_monotonic", None),
            one.unit,
            one.description,
        )
        for one in metrics
    }
    assert told == {
        COMPUTE_SECONDS.name: ("Sum", True, "s", COMPUTE_SECONDS.brief),
        ACTIVE_COMPUTATIONS.name: ("Sum", False, "{computation}", ACTIVE_COMPUTATIONS.brief),
        LEASE_WAIT.name: ("Gauge", None, "s", LEASE_WAIT.brief),
        GRAPH_UPDATE_SECONDS.name: ("Histogram", None, "s", GRAPH_UPDATE_SECONDS.brief),
    }
    (point,) = next(one.data.data_points for one in metrics if one.name == GRAPH_UPDATE_SECONDS.name)
    assert tuple(point.explicit_bounds) == GRAPH_UPDATE_SECONDS.boundaries
    assert dict(point.attributes) == {
        "dask.graph.phase": "order",
        "dask.cluster.id": "c",
        "dask.worker.name": "0",
    }
    assert collected(reader) == {
        (COMPUTE_SECONDS.name, "inc", "c", "0"): 1.5,
        (ACTIVE_COMPUTATIONS.name, "c", "0"): 2,
        (LEASE_WAIT.name, "s", "c", "0"): 0.25,
        (GRAPH_UPDATE_SECONDS.name, "order", "c", "0"): (1, 0.02, (0,) * 4 + (1,) + (0,) * 12),
    }
    # One snapshot at the beginning and for each collection, on the event loop.
    assert server.snapshots == [server.thread] * 3
    assert feed.who == W0


def test_two_servers_of_a_process_are_told_apart(make_server: Callable[[], Server]) -> None:
    reader = InMemoryMetricReader()
    _, into = application(reader)
    one, other = make_server(), make_server()
    one.measured, other.measured = [seconds(inc=1.0)], [seconds(inc=2.0)]
    feeds = one.feed(into), other.feed(into, W1)
    assert collected(reader) == {
        (COMPUTE_SECONDS.name, "inc", "c", "0"): 1.0,
        (COMPUTE_SECONDS.name, "inc", "1"): 2.0,
    }
    del feeds


def test_a_server_of_which_more_will_be_known_waits(server: Server) -> None:
    reader = InMemoryMetricReader()
    _, into = application(reader)
    server.measured = [seconds(inc=1.0)]
    known: list[Any] = []
    feed = server.on_loop(lambda: Feed(server.collect, lambda last: W0 if known or last else None, {}))
    into.join(feed)
    assert collected(reader) == {}
    known.append(True)
    assert collected(reader) == {(COMPUTE_SECONDS.name, "inc", "c", "0"): 1.0}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> float:
    """So long (s) a reader waits in this test: longer than a busy machine takes for what is not waited for."""
    monkeypatch.setattr(provided, "PATIENCE", 2.5)  # A quarter of what a reader gives at most.
    return 2.5


def test_where_the_event_loop_does_not_answer_the_last_values_are_given(server: Server) -> None:
    reader = InMemoryMetricReader()
    _, into = application(reader)
    server.measured = [seconds(inc=1.0)]
    feed = server.feed(into)
    expected = {(COMPUTE_SECONDS.name, "inc", "c", "0"): 1.0}
    assert collected(reader) == expected
    server.measured = [seconds(inc=2.0)]
    busy = threading.Event()
    server.loop.call_soon_threadsafe(busy.wait, DEADLINE)
    start = time.monotonic()
    assert collected(reader) == expected
    took = time.monotonic() - start
    busy.set()
    assert PATIENCE <= took < DEADLINE
    assert collected(reader) == {(COMPUTE_SECONDS.name, "inc", "c", "0"): 2.0}
    del feed


def test_a_reader_that_collects_on_the_event_loop_itself_waits_for_nothing(
    server: Server, patient: float
) -> None:
    reader = InMemoryMetricReader()
    _, into = application(reader)
    server.measured = [seconds(inc=1.0)]
    feed = server.feed(into)
    start = time.monotonic()
    assert server.on_loop(lambda: collected(reader)) == {(COMPUTE_SECONDS.name, "inc", "c", "0"): 1.0}
    assert time.monotonic() - start < patient
    del feed


def test_one_that_has_gone_gives_its_last_totals_to_all_readers_and_then_nothing(server: Server) -> None:
    readers = InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=DELTA)
    provider, into = application(*readers)
    durations = Distributions(GRAPH_UPDATE_SECONDS)
    server.measured = [seconds(inc=1.0), measured(ACTIVE_COMPUTATIONS, {(): 2})]
    feed = server.feed(into)
    assert [len(collected(reader)) for reader in readers] == [2, 2]
    durations.record(("order",), 0.02)
    server.measured = [
        seconds(inc=3.0),
        measured(ACTIVE_COMPUTATIONS, {(): 2}),
        measured(GRAPH_UPDATE_SECONDS, durations.snapshots()),
    ]
    server.leave(into, feed)
    server.measured = [seconds(inc=9.0)]
    assert into.flush(provider, DEADLINE)
    # What `flush` had the readers collect stands in the one that keeps it.
    for reader, total in zip(readers, (3.0, 2.0), strict=True):
        (scope,) = reader._metrics_data.resource_metrics[0].scope_metrics  # type: ignore[union-attr]
        assert {
            metric.name: getattr(point, "value", None) or point.count
            for metric in scope.metrics
            for point in metric.data.data_points
        } == {COMPUTE_SECONDS.name: total, GRAPH_UPDATE_SECONDS.name: 1}
        reader._metrics_data = None
    assert (into._gone, into._feeds) == ((), ())
    # Of synchronous instruments the SDK goes on to give what it has.
    assert collected(readers[0]) == {
        (GRAPH_UPDATE_SECONDS.name, "order", "c", "0"): (1, 0.02, (0,) * 4 + (1,) + (0,) * 12)
    }
    assert collected(readers[1]) == {}


def test_one_that_comes_again_goes_on_and_no_total_falls(server: Server) -> None:
    """Whether its own counters have begun at zero again (inc) or went on (add)."""
    readers = InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=DELTA)
    _, into = application(*readers)

    def given() -> list[tuple[float | None, float | None]]:
        found = [collected(reader) for reader in readers]
        return [
            (
                one.get((COMPUTE_SECONDS.name, "inc", "c", "0")),
                one.get((COMPUTE_SECONDS.name, "add", "c", "0")),
            )
            for one in found
        ]

    feed = server.feed(into)
    server.measured = [seconds(inc=5.0, add=2.0)]
    assert given() == [(5.0, 2.0), (5.0, 2.0)]
    server.measured = [seconds(inc=6.0, add=2.0)]
    server.leave(into, feed)
    server.measured = [seconds(add=3.0)]
    feed = server.feed(into)
    assert given() == [(6.0, 2.0), (1.0, 0.0)]
    server.measured = [seconds(inc=0.5, add=4.0)]
    assert given() == [(6.5, 3.0), (0.5, 1.0)]
    server.leave(into, feed)
    server.measured = [seconds(inc=0.0, add=4.0)]
    feed = server.feed(into)
    server.measured = [seconds(inc=0.25, add=4.0)]
    assert given() == [(6.75, 3.0), (0.25, 0.0)]
    del feed


def test_values_of_histograms_are_recorded_once_where_a_server_comes_again(server: Server) -> None:
    reader = InMemoryMetricReader()
    _, into = application(reader)
    durations = Distributions(GRAPH_UPDATE_SECONDS)

    def record(value: float) -> None:
        durations.record(("order",), value)
        server.measured = [measured(GRAPH_UPDATE_SECONDS, durations.snapshots())]

    feed = server.feed(into)
    record(0.02)
    assert [one[:2] for one in collected(reader).values()] == [(1, 0.02)]
    server.leave(into, feed)
    record(0.5)
    feed = server.feed(into)
    record(0.03)
    assert [one[:2] for one in collected(reader).values()] == [(2, 0.05)]
    del feed


def test_what_has_gone_another_way_is_not_given(server: Server) -> None:
    readers = InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=DELTA)
    _, into = application(*readers)
    before = {(COMPUTE_SECONDS.name, (("dask.task.prefix", "inc"),)): 5.0}
    server.measured = [seconds(inc=7.0, add=1.0)]
    feed = server.feed(into, before=before)
    expected = {
        (COMPUTE_SECONDS.name, "inc", "c", "0"): 2.0,
        (COMPUTE_SECONDS.name, "add", "c", "0"): 1.0,
    }
    assert [collected(reader) for reader in readers] == [expected, expected]
    del feed


def test_what_is_excluded_is_not_given_and_what_exceeds_a_server_s_series_is_added_up(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    reader = InMemoryMetricReader()
    _, into = application(reader)
    many = {f"p{n}": 1.0 for n in range(4_000)}
    server.measured = [seconds(**many), measured(SECEDED_SECONDS, {("inc",): 2.0})]
    feed = server.on_loop(lambda: Feed(server.collect, lambda last: W1, {}, [SECEDED_SECONDS.name]))
    into.join(feed)
    for _ in range(2):
        found = collected(reader)
        assert {name for name, *_ in found} == {COMPUTE_SECONDS.name}
        assert sum(found.values()) == 4_000
        assert len(found) < 3_000
        assert found[COMPUTE_SECONDS.name, "True", "1"] == 4_000 - len(found) + 1
    assert [message for message in caplog.messages if "series" in message] == [
        "dask-otel: a server has more than 3000 series of metrics, dask.worker.compute.time among them: what exceeds "
        "them is added up under the attribute otel.metric.overflow. Set otel.metrics.exclude to metrics that you do not need."
    ]


def test_what_takes_longer_is_made_in_the_reader_s_thread_and_costs_only_its_server(
    make_server: Callable[[], Server], caplog: pytest.LogCaptureFixture
) -> None:
    reader = InMemoryMetricReader()
    _, into = application(reader)
    server, other = make_server(), make_server()
    made: list[threading.Thread] = []

    def later(value: float) -> Callable[[], list[Measured]]:
        def make() -> list[Measured]:
            made.append(threading.current_thread())
            return [seconds(inc=1 / value)]

        return make

    server.measured, other.measured = [later(0.5)], [seconds(inc=3.0)]
    feeds = server.feed(into), other.feed(into, W1)
    expected = {(COMPUTE_SECONDS.name, "inc", "c", "0"): 2.0, (COMPUTE_SECONDS.name, "inc", "1"): 3.0}
    assert collected(reader) == expected
    assert set(made) == {threading.current_thread()}
    server.measured = [later(0)]
    assert collected(reader) == expected
    assert caplog.messages == [
        "dask-otel: the application's meter provider: reading raised ZeroDivisionError: division by zero; "
        "0 values lost so far."
    ]
    server.measured = [later(0.25)]
    server.leave(into, feeds[0])
    assert (len(made), made[-1]) == (4, server.thread), "a server is let go of with all that is its own"
    assert collected(reader) == {**expected, (COMPUTE_SECONDS.name, "inc", "c", "0"): 4.0}


def test_nothing_keeps_a_server_alive(server: Server) -> None:
    reader = InMemoryMetricReader()
    _, into = application(reader)
    server.measured = [seconds(inc=1.0)]

    class Telemetry:
        def collect(self) -> Sequence[Measured]:
            return server.collect()

    def hold() -> tuple[Telemetry, Feed]:
        telemetry = Telemetry()
        return telemetry, Feed(telemetry.collect, lambda last: W0, {})

    telemetry, feed = server.on_loop(hold)
    into.join(feed)
    seen = weakref.ref(telemetry)
    assert len(collected(reader)) == 1
    del telemetry, feed
    gc.collect()
    assert seen() is None
    assert collected(reader) == {}
    telemetry, feed = server.on_loop(hold)
    into.join(feed)
    seen = weakref.ref(telemetry)
    server.leave(into, feed)
    del telemetry, feed
    gc.collect()
    assert seen() is None
    assert len(collected(reader)) == 1


def test_values_of_histograms_are_what_was_recorded_with_their_exemplars(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provided, "RECENT", 3)
    reader = InMemoryMetricReader()
    view = View(
        instrument_name=TASK_DURATION.name,
        aggregation=ExplicitBucketHistogramAggregation((0.2, 2.0)),
        name="tasks",
    )
    _, into = application(reader, views=[view])
    durations = Distributions(TASK_DURATION)
    exemplar = Exemplar(3.0, 100.0, b"\1" * 16, b"\2" * 8)
    durations.record(("inc", "success", ""), 0.15)
    durations.record(("inc", "success", ""), 3.0, exemplar)
    durations.record(("inc", "success", ""), 0.15)
    # Not kept: the middle of where in its bucket (1 s to 2.5 s) values can be.
    durations.record(("inc", "success", ""), 1.5)
    server.measured = [measured(TASK_DURATION, durations.snapshots())]
    feed = server.feed(into)
    data = reader.get_metrics_data()
    assert data is not None
    ((metric,),) = [one.scope_metrics[0].metrics for one in data.resource_metrics]
    (point,) = metric.data.data_points
    assert (metric.name, point.count, point.sum) == ("tasks", 4, pytest.approx(0.15 + 3.0 + 0.15 + 1.75))
    assert tuple(point.bucket_counts) == (2, 1, 1)
    assert [(one.value, one.trace_id, one.span_id) for one in point.exemplars] == [
        (3.0, int.from_bytes(b"\1" * 16, "big"), int.from_bytes(b"\2" * 8, "big"))
    ]
    server.measured = [measured(TASK_DURATION, durations.snapshots())]
    assert collected(reader) == {("tasks", "inc", "success", "c", "0"): (4, pytest.approx(5.05), (2, 1, 1))}
    del feed


class Broken(MetricReader):
    def _receive_metrics(self, metrics_data: Any, timeout_millis: float = 0, **kwargs: Any) -> None:
        raise ValueError("broken")

    def shutdown(self, timeout_millis: float = 0, **kwargs: Any) -> None: ...


def test_views_that_drop_or_rename_and_a_reader_that_breaks_cost_nothing_else(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dask_otel")
    reader = InMemoryMetricReader()
    views = [
        View(instrument_name=COMPUTE_SECONDS.name, aggregation=DropAggregation()),
        View(instrument_name=TASK_DURATION.name, aggregation=DropAggregation()),
        View(instrument_name=SECEDED_SECONDS.name, name="seceded", attribute_keys={"dask.task.prefix"}),
    ]
    provider, into = application(Broken(), reader, views=views)
    durations = Distributions(TASK_DURATION)
    durations.record(("inc", "success", ""), 0.15)
    server.measured = [
        seconds(inc=1.0),
        measured(SECEDED_SECONDS, {("inc",): 2.0}),
        measured(TASK_DURATION, durations.snapshots()),
        measured(ACTIVE_COMPUTATIONS, {(): 2}),
    ]
    feed = server.feed(into)
    with pytest.raises(Exception, match="broken"):
        into.flush(provider, DEADLINE)
    assert collected(reader) == {("seceded", "inc"): 2.0, (ACTIVE_COMPUTATIONS.name, "c", "0"): 2}
    assert caplog.messages == [
        f"dask-otel: views of the application's meter provider drop {COMPUTE_SECONDS.name}, {TASK_DURATION.name}."
    ]
    assert TASK_DURATION.name not in into._record, "what is dropped costs nothing"
    del feed


def test_a_server_that_cannot_be_read_costs_no_other_metric(
    make_server: Callable[[], Server], caplog: pytest.LogCaptureFixture
) -> None:
    reader = InMemoryMetricReader()
    provider, into = application(reader)
    bad, good = make_server(), make_server()
    bad.loop.call_soon_threadsafe(bad.loop.set_exception_handler, lambda loop, context: None)
    good.measured = [seconds(inc=1.0)]
    feeds = bad.feed(into), good.feed(into, W1)
    bad.broken = True
    provider.get_meter("shop").create_counter("orders").add(3)
    data = reader.get_metrics_data()
    assert data is not None
    assert sorted(
        (metric.name, point.value)
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ) == [(COMPUTE_SECONDS.name, 1.0), ("orders", 3)]
    del feeds


def _in_child(reader: InMemoryMetricReader, into: Any) -> None:
    start = time.monotonic()
    into.put((collected(reader), time.monotonic() - start))


@pytest.mark.skipif(not hasattr(multiprocessing, "get_context"), reason="no fork here")
def test_a_forked_child_gives_nothing(server: Server, patient: float) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], Resource({"service.name": "shop"}), shutdown_on_exit=False)
    into = provided.of(provider, SCOPE)
    assert into._ready.wait(DEADLINE)
    server.measured = [seconds(inc=1.0)]
    feed = server.feed(into)
    assert len(collected(reader)) == 1
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    child = fork.Process(target=_in_child, args=(reader, queue), daemon=True)
    child.start()
    found, took = queue.get(timeout=DEADLINE)
    child.join(DEADLINE)
    assert found == {}
    assert took < patient
    assert len(collected(reader)) == 1
    del feed


def test_a_provider_that_cannot_be_loaded_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_PYTHON_METER_PROVIDER", "absent")
    monkeypatch.setattr(process, "_unloadable", False)
    assert [process.application_meter_provider() for _ in range(3)] == [None] * 3
    assert caplog.messages == ["Failed to load configured provider meter_provider"]


def test_a_provider_is_found_again_and_let_go_of() -> None:
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    assert provider not in dict(provided.fed())
    into = provided.of(provider, SCOPE)
    assert into._ready.wait(DEADLINE)
    assert dict(provided.fed())[provider] is provided.of(provider, SCOPE) is into
    assert provided.is_read(provider)
    assert not provided.is_read(MeterProvider(shutdown_on_exit=False))
    seen = weakref.ref(into)
    del provider, into
    gc.collect()
    assert seen() is None
