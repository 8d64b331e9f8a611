"""What is current inside a task: its own span, below it what the client carried, never a stranger's context."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import dask
import pytest
from distributed import Client, Worker, get_client, rejoin, secede, worker_client
from distributed.metrics import context_meter
from opentelemetry import context, propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

import dask_otel
from dask_otel import names
from dask_otel.receiver import Receiver
from dask_otel.records import ERROR
from dask_otel.tree import Received, outline
from tests.cluster.commands import PRELOAD, commands, until
from tests.cluster.conftest import MakeTraced
from tests.cluster.support import (
    DEADLINE,
    Once,
    Traced,
    attributes,
    named,
    tasks,
    wait_for,
    without_transfers,
)

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
INCOMING = {
    "traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01",
    "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
    "baggage": "user=Zo%C3%AB+L.,sum=1%2B1%3D2",
}
UNSAMPLED = {**INCOMING, "traceparent": f"00-{TRACE_ID}-{SPAN_ID}-00"}
NOWHERE: dict[str, str] = {}

#: What another system's span looks like from here.
ELSEWHERE = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True, TraceFlags(1))


# -- what runs inside tasks ----------------------------------------------------------------------------------------


def inc(x: int) -> int:
    return x + 1


def add(*xs: int) -> int:
    return sum(xs)


def sent_on() -> dict[str, str]:
    """The headers that an instrumented call from here would have."""
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


def observe(*inputs: object) -> dict[str, str]:
    return sent_on()


async def observe_async(*inputs: object) -> dict[str, str]:
    await asyncio.sleep(0)
    return sent_on()


def span_of(headers: dict[str, str]) -> tuple[bytes, bytes]:
    """Trace and span id of a ``traceparent``."""
    _, trace_id, span_id, _ = headers["traceparent"].split("-")
    return bytes.fromhex(trace_id), bytes.fromhex(span_id)


def ids(received: Received) -> tuple[bytes, bytes]:
    return received.span.trace_id, received.span.span_id


def write() -> str:
    span = trace.get_current_span()
    assert span.is_recording()
    span.set_attribute("rows", 3)
    span.set_attributes({"complete": True, "columns": ["a", "b"]})
    span.add_event("half way", {"rows": 1}, timestamp=1_700_000_000_000_000_000)
    try:
        raise LookupError("no such row")
    except LookupError as error:
        span.record_exception(error, {"handled": True})
    span.add_link(ELSEWHERE, {"why": "continued"})
    span.update_name("load orders")
    span.set_status(Status(StatusCode.ERROR, "one row is missing"))
    return sent_on()["traceparent"]


async def write_async() -> str:
    await asyncio.sleep(0)
    return write()


def instrumented(x: int) -> int:
    """Code of a user's with spans of its own."""
    tracer = trace.get_tracer("shop", "1.2")
    read = tracer.start_as_current_span("read", kind=SpanKind.CLIENT, attributes={"x": x})
    with read, tracer.start_as_current_span("parse"):
        return x + 1


async def instrumented_async(x: int) -> int:
    tracer = trace.get_tracer("shop", "1.2")
    with tracer.start_as_current_span("read", kind=SpanKind.CLIENT, attributes={"x": x}):
        await asyncio.sleep(0)
        with tracer.start_as_current_span("parse"):
            await asyncio.sleep(0)
            return x + 1


# -- what a client does --------------------------------------------------------------------------------------------


@contextmanager
def attached(headers: dict[str, str]) -> Iterator[None]:
    """A web server's handler: the caller's context is current."""
    token = context.attach(propagate.extract(headers, context.Context()))
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def application(receiver: Receiver) -> Iterator[TracerProvider]:
    """An application with a provider and an exporter of its own."""
    provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{receiver.endpoint}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


def own_attributes(received: Received) -> dict[str, Any]:
    """What is not dask-otel's."""
    return {
        key: value
        for key, value in attributes(received).items()
        if not key.startswith("dask.") and key not in (names.THREAD_ID, names.ERROR_TYPE)
    }


def one_trace(spans: list[Received], trace_id: str = TRACE_ID) -> list[Received]:
    """All spans, after a look at their trace id."""
    assert {received.span.trace_id.hex() for received in spans} == {trace_id}
    return spans


# -- the task's span -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [write, write_async])
def test_what_a_task_writes_on_the_current_span_is_on_the_span_that_arrives(
    shared: Traced, function: Callable[[], Any]
) -> None:
    traceparent = shared.client.submit(function, key=f"{function.__name__}-1").result()
    (received,) = named(shared.trace(), "load orders")
    span = received.span
    assert traceparent == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-03"
    assert own_attributes(received) == {"rows": 3, "complete": True, "columns": ("a", "b")}
    assert attributes(received)[names.TASK_PREFIX] == function.__name__
    assert attributes(received)[names.OUTCOME] == names.SUCCESS
    half_way, exception = span.events
    assert half_way == ("half way", 1_700_000_000_000_000_000, (("rows", 1),), 0)
    assert exception.name == "exception"
    assert span.start <= exception.time <= span.end
    told = dict(exception.attributes)
    assert told.pop("exception.stacktrace").endswith("LookupError: no such row\n")  # type: ignore[union-attr]
    assert told == {
        "exception.type": "LookupError",
        "exception.message": "no such row",
        "exception.escaped": "False",
        "handled": True,
    }
    (link,) = span.links
    assert (link.trace_id.hex(), link.span_id.hex(), link.attributes) == (
        TRACE_ID,
        SPAN_ID,
        (("why", "continued"),),
    )
    assert (span.status, span.message) == (ERROR, "one row is missing")


def fail_after_recording() -> None:
    span = trace.get_current_span()
    span.record_exception(LookupError("tried the cache"))
    span.set_status(StatusCode.OK)
    raise ValueError("boom")


def test_the_exception_that_ends_a_task_is_told_beside_one_that_it_recorded(shared: Traced) -> None:
    future = shared.client.submit(fail_after_recording, key="failing-1")
    with pytest.raises(ValueError, match="boom"):
        future.result()
    (received,) = tasks(shared.trace(), "failing")
    told = [
        (dict(e.attributes)["exception.type"], dict(e.attributes)["exception.message"])
        for e in received.span.events
    ]
    assert told == [("LookupError", "tried the cache"), ("ValueError", "boom")]
    assert (received.span.status, received.span.message) == (ERROR, "boom")
    assert attributes(received)[names.OUTCOME] == names.FAILED


def record_and_raise() -> None:
    error = ValueError("boom")
    trace.get_current_span().record_exception(error, {"order": 7})
    raise error


def test_the_exception_that_ends_a_task_is_told_once_where_it_was_recorded(shared: Traced) -> None:
    future = shared.client.submit(record_and_raise, key="recording-1")
    with pytest.raises(ValueError, match="boom"):
        future.result()
    (received,) = tasks(shared.trace(), "recording")
    (event,) = received.span.events
    assert dict(event.attributes)["order"] == 7


def claim() -> None:
    span = trace.get_current_span()
    span.set_attribute("thread.id", 1)
    span.set_attribute("dask.operation", "mine")
    span.set_attribute("dask.task.key", "mine")
    span.set_attribute("dask.mine", "mine")


def test_no_attribute_is_there_twice_and_those_of_dask_stay(shared: Traced) -> None:
    shared.client.submit(claim, key="claim-1").result()
    (received,) = tasks(shared.trace(), "claim")
    keys = [key for key, _ in received.span.common + received.span.attributes]
    assert len(keys) == len(set(keys))
    assert {
        key: attributes(received)[key]
        for key in ("thread.id", "dask.operation", "dask.task.key", "dask.mine")
    } == {
        "thread.id": 1,
        "dask.operation": "task",
        "dask.task.key": "claim-1",
        "dask.mine": "mine",
    }


@pytest.mark.parametrize("function", [instrumented, instrumented_async])
def test_spans_of_user_code_lie_below_their_task_and_come_with_the_workers_resource(
    shared: Traced, function: Callable[[int], Any]
) -> None:
    prefix = "thread" if function is instrumented else "waiting"
    futures = shared.client.map(function, range(3), key=[f"{prefix}-{i}" for i in range(3)])
    assert shared.client.gather(futures) == [1, 2, 3]
    spans = [
        r
        for trace in shared.traces().values()
        for r in without_transfers(trace)
        if r.span.name != names.GATHER
    ]
    indented = "executor\n                  compute" if function is instrumented else "compute"
    assert outline(spans) == dedent(f"""\
        dask.map
          dask.computation
            dask.graph.update
              dask.graph.init
              dask.graph.materialize
              dask.graph.order
            {prefix} group
              {prefix} ×3
                {indented}
                read
                  parse""")
    by_id = {ids(received): received for received in spans}
    for received in named(spans, "read") + named(spans, "parse"):
        above = by_id[received.span.trace_id, received.span.parent_id]
        assert received.resource == above.resource
        assert received.resource[names.ROLE] == "worker"
        assert received.scope == ("shop", "1.2")
    for received in named(spans, "read"):
        above = by_id[received.span.trace_id, received.span.parent_id]
        assert attributes(above)[names.TASK_KEY] == f"{prefix}-{attributes(received)['x']}"


# -- contexts do not mix -------------------------------------------------------------------------------------------


def meet(name: str, folder: Path, n: int) -> None:
    """Wait, in a thread, until ``n`` are here."""
    (folder / name).touch()
    deadline = time.monotonic() + DEADLINE
    while len(list(folder.iterdir())) < n:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def watch(name: str, folder: Path, n: int) -> list[str]:
    seen = [sent_on()["traceparent"]]
    meet(name, folder, n)
    for _ in range(20):
        seen.append(sent_on()["traceparent"])
        time.sleep(0.001)
    return seen


async def watch_async(name: str, folder: Path, n: int) -> list[str]:
    seen = [sent_on()["traceparent"]]
    (folder / name).touch()
    deadline = time.monotonic() + DEADLINE
    while len(list(folder.iterdir())) < n:
        assert time.monotonic() < deadline
        await asyncio.sleep(0)
        seen.append(sent_on()["traceparent"])
    for _ in range(20):
        await asyncio.sleep(0.001)
        seen.append(sent_on()["traceparent"])
    return seen


@pytest.mark.parametrize("function", [watch, watch_async])
def test_tasks_that_run_at_the_same_time_see_their_own_span_only(
    shared: Traced, tmp_path: Path, function: Callable[..., Any]
) -> None:
    worker = next(iter(shared.client.scheduler_info()["workers"]))
    keys = [f"{function.__name__}-{i}" for i in range(2)]
    futures = [shared.client.submit(function, key, tmp_path, 2, key=key, workers=[worker]) for key in keys]
    seen = dict(zip(keys, (future.result() for future in futures), strict=True))
    received = tasks(shared.trace(), function.__name__)
    assert [set(seen[attributes(one)[names.TASK_KEY]]) for one in received] == [
        {f"00-{one.span.trace_id.hex()}-{one.span.span_id.hex()}-03"} for one in received
    ]
    assert len(received) == 2


def leave_and_return() -> list[str]:
    seen = [sent_on()["traceparent"]]
    secede()
    seen.append(sent_on()["traceparent"])
    with trace.get_tracer("shop").start_as_current_span("away"):
        pass
    rejoin()
    seen.append(sent_on()["traceparent"])
    return seen


def nest() -> list[str]:
    seen = [sent_on()["traceparent"]]
    with worker_client() as client:
        assert client.submit(inc, 1, key="nested-inc-1", pure=False).result() == 2
    seen.append(sent_on()["traceparent"])
    assert dask.delayed(add)(1, 2).compute() == 3
    seen.append(sent_on()["traceparent"])
    return seen


async def nest_async() -> list[str]:
    seen = [sent_on()["traceparent"]]
    client = get_client()
    assert await client.submit(inc, 1, key="nested-async-inc-1", pure=False) == 2
    seen.append(sent_on()["traceparent"])
    assert await client.compute(dask.delayed(add)(1, 2)) == 3
    seen.append(sent_on()["traceparent"])
    return seen


@pytest.mark.parametrize("function", [leave_and_return, nest, nest_async])
def test_the_span_stays_current_whatever_a_task_does_to_wait(
    shared: Traced, function: Callable[[], Any]
) -> None:
    seen = shared.client.submit(function, key=f"{function.__name__}-1").result()
    (received,) = tasks(shared.trace(), function.__name__)
    assert seen == [f"00-{received.span.trace_id.hex()}-{received.span.span_id.hex()}-03"] * 3
    for away in named(shared.trace(), "away"):
        assert away.span.parent_id == received.span.span_id


def start_and_wait(folder: Path) -> None:
    (folder / "started").touch()
    wait_for(folder / "end")


def hold_a_slot(folder: Path) -> None:
    """Secede when the file is there, and stay until the next is."""
    (folder / "started").touch()
    wait_for(folder / "secede")
    secede()
    wait_for(folder / "end")


def ready(dask_worker: Any) -> int:
    return len(dask_worker.state.ready)


@pytest.mark.parametrize("headers", [UNSAMPLED, NOWHERE])
def test_a_task_that_is_not_traced_never_sees_a_strangers_context(
    traced_cluster_of: MakeTraced,
    clean_environment: pytest.MonkeyPatch,
    tmp_path: Path,
    headers: dict[str, str],
) -> None:
    """The worker starts the next task in the context of the one that secedes."""
    clean_environment.setenv("OTEL_TRACES_EXPORTER", "none")
    with (
        traced_cluster_of(n_workers=1) as traced,
        Client(traced.client.scheduler.address, set_as_default=False) as other,
    ):
        with attached(INCOMING):
            stranger = traced.client.submit(hold_a_slot, tmp_path)
        wait_for(tmp_path / "started")
        with attached(headers):
            futures = [
                other.submit(f, i, pure=False) for i, f in enumerate((observe, observe_async, observe))
            ]
        until(lambda: any(other.run(ready).values()))
        (tmp_path / "secede").touch()
        assert other.gather(futures) == [NOWHERE] * 3
        (tmp_path / "end").touch()
        stranger.result()
        assert traced.receiver.requests() == []


def test_a_client_that_does_not_trace_has_traces_of_its_own_beside_a_task_that_seceded(
    traced_cluster_of: MakeTraced, tmp_path: Path
) -> None:
    with (
        traced_cluster_of(n_workers=1) as traced,
        Client(traced.client.scheduler.address, set_as_default=False) as other,
    ):
        with attached(INCOMING):
            stranger = traced.client.submit(hold_a_slot, tmp_path, key="stranger-1")
        wait_for(tmp_path / "started")
        future = other.submit(observe, key="observe-1")
        until(lambda: any(other.run(ready).values()))
        (tmp_path / "secede").touch()
        seen = future.result()
        (tmp_path / "end").touch()
        stranger.result()
        mine, others = sorted(
            traced.traces().values(), key=lambda spans: spans[0].span.trace_id.hex() != TRACE_ID
        )
        assert [r.span.name for r in tasks(one_trace(mine), "stranger")] == ["stranger"]
        (received,) = tasks(others, "observe")
        assert span_of(seen) == ids(received)
        assert seen.keys() == {"traceparent"}


def test_tasks_that_were_there_before_are_not_traced_and_see_nothing(
    receiver: Receiver, tmp_path: Path
) -> None:
    """dask-otel is turned on while tasks wait."""
    with Client(n_workers=1, threads_per_worker=1, dashboard_address=":0") as client:
        running = client.submit(wait_for, tmp_path / "end", key="running-1")
        waiting = client.submit(observe, running, key="waiting-1")
        until(lambda: "waiting-1" in client.cluster.scheduler.tasks)
        dask_otel.enable(client)
        with attached(INCOMING):
            traced = client.submit(observe, key="traced-1")
        (tmp_path / "end").touch()
        assert waiting.result() == NOWHERE
        assert traced.result()["tracestate"] == INCOMING["tracestate"]
        spans = one_trace(Traced(client, None, receiver).spans())
        assert span_of(traced.result()) == ids(*tasks(spans, "traced"))
        dask_otel.disable(client)


# -- where a trace begins ------------------------------------------------------------------------------------------


def test_an_incoming_context_is_the_root_of_the_trace(shared: Traced) -> None:
    """The whole of it arrives in the tasks: trace state and baggage word by word."""
    with attached(INCOMING):
        seen, seen_async = dask.compute(
            dask.delayed(observe)(dask_key_name="observe-1"), dask.delayed(observe_async)()
        )
    spans = one_trace(without_transfers(shared.spans()))
    assert outline(spans) == dedent("""\
        (parent not received)
          dask.compute
            dask.computation
              dask.graph.update
                dask.graph.init
                dask.graph.materialize
                dask.graph.order
              observe group
                observe
                  executor
                    compute
              observe_async group
                observe_async
                  compute""")
    (compute,) = named(spans, names.COMPUTE)
    assert compute.span.parent_id.hex() == SPAN_ID
    assert {received.span.trace_state for received in spans} == {INCOMING["tracestate"]}
    (task,) = tasks(spans, "observe")
    assert seen == {**INCOMING, "traceparent": f"00-{TRACE_ID}-{task.span.span_id.hex()}-01"}
    assert {key: seen_async[key] for key in ("tracestate", "baggage")} == {
        key: INCOMING[key] for key in ("tracestate", "baggage")
    }


def observe_nested() -> dict[str, str]:
    with worker_client() as client:
        return client.submit(observe, key="nested-observe-1").result()  # type: ignore[no-any-return]


@pytest.mark.parametrize("headers", [INCOMING, UNSAMPLED])
def test_trace_state_and_baggage_go_on_to_what_a_task_submits(
    shared: Traced, headers: dict[str, str]
) -> None:
    with attached(headers):
        seen = shared.client.submit(observe_nested, key="outer-1").result()
    spans = shared.spans()
    below = tasks(spans, "nested-observe")[0].span.span_id.hex() if headers is INCOMING else SPAN_ID
    assert seen == {**headers, "traceparent": headers["traceparent"].replace(SPAN_ID, below)}
    assert {r.span.trace_state for r in without_transfers(spans)} <= {headers["tracestate"]}


def test_a_submit_hangs_its_computation_below_the_incoming_span(shared: Traced) -> None:
    with attached(INCOMING):
        shared.client.submit(observe, key="observe-1").result()
    (computation,) = named(one_trace(shared.spans()), names.COMPUTATION)
    assert computation.span.parent_id.hex() == SPAN_ID


def test_an_applications_own_span_and_exporter_give_one_whole_trace(shared: Traced) -> None:
    with (
        application(shared.receiver) as provider,
        provider.get_tracer("shop").start_as_current_span("request"),
    ):
        assert dask.delayed(instrumented)(1, dask_key_name="instrumented-1").compute() == 2
    assert outline(shared.spans()) == dedent("""\
        request
          dask.compute
            dask.computation
              dask.graph.update
                dask.graph.init
                dask.graph.materialize
                dask.graph.order
              instrumented group
                instrumented
                  executor
                    compute
                  read
                    parse""")


def test_the_provider_of_the_application_is_used_where_it_is_the_global_one(
    traced_cluster_of: MakeTraced, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds for what runs in its process: the client and a LocalCluster's scheduler."""
    with application(receiver) as provider:
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        with traced_cluster_of(n_workers=1) as traced:
            with provider.get_tracer("shop").start_as_current_span("request"):
                assert dask.delayed(inc)(1, dask_key_name="inc-1").compute() == 2
            spans = traced.trace()
        assert outline(spans) == dedent("""\
            request
              dask.compute
                dask.computation
                  dask.graph.update
                    dask.graph.init
                    dask.graph.materialize
                    dask.graph.order
                  inc group
                    inc
                      executor
                        compute""")
        services = {received.span.name: received.resource[names.SERVICE_NAME] for received in spans}
        assert services == {
            **dict.fromkeys(("request", "dask.compute", "dask.computation", "inc group"), "shop"),
            **dict.fromkeys(
                ("dask.graph.update", "dask.graph.init", "dask.graph.materialize", "dask.graph.order"), "shop"
            ),
            **dict.fromkeys(("inc", "executor", "compute"), "dask-worker"),
        }


def test_the_environments_traceparent_is_the_root_for_the_client_only(
    traced_cluster_of: MakeTraced, clean_environment: pytest.MonkeyPatch
) -> None:
    """All processes have it in their environment."""
    for key, value in INCOMING.items():
        clean_environment.setenv(key.upper(), value)
    with (
        traced_cluster_of(n_workers=1) as traced,
        Client(traced.client.scheduler.address, set_as_default=False) as other,
    ):
        seen = traced.client.submit(observe, key="mine-1").result()
        elsewhere = other.submit(observe, key="others-1").result()
        outside = other.run(sent_on)
        mine, others = sorted(
            traced.traces().values(), key=lambda spans: spans[0].span.trace_id.hex() != TRACE_ID
        )
        (computation,) = named(one_trace(mine), names.COMPUTATION)
        assert computation.span.parent_id.hex() == SPAN_ID
        assert span_of(seen) == ids(*tasks(mine, "mine"))
        assert (seen["tracestate"], seen["baggage"]) == (INCOMING["tracestate"], INCOMING["baggage"])
        assert span_of(elsewhere) == ids(*tasks(others, "others"))
        assert elsewhere.keys() == {"traceparent"}
        assert list(outside.values()) == [NOWHERE]


def test_what_is_current_comes_before_the_environments_traceparent(
    traced_cluster_of: MakeTraced, clean_environment: pytest.MonkeyPatch
) -> None:
    clean_environment.setenv("TRACEPARENT", f"00-{'1' * 32}-{'2' * 16}-01")
    clean_environment.setenv("BAGGAGE", "tier=iron")
    with traced_cluster_of(n_workers=1) as traced:
        with attached(INCOMING):
            seen = traced.client.submit(observe, key="observe-1").result()
        with attached({"baggage": "user=Ann"}):
            below = traced.client.submit(observe, key="below-1").result()
        assert (span_of(seen)[0].hex(), seen["baggage"]) == (TRACE_ID, INCOMING["baggage"])
        assert (span_of(below)[0].hex(), below["baggage"]) == ("1" * 32, "user=Ann")


# -- where nothing of ours is sent ---------------------------------------------------------------------------------


def test_an_unsampled_context_goes_through_and_nothing_is_sent(shared: Traced) -> None:
    with attached(UNSAMPLED):
        seen = shared.client.submit(observe, key="observe-1").result()
        nested = shared.client.submit(nest, key="nest-1").result()
        assert shared.client.gather(shared.client.map(instrumented, range(2))) == [1, 2]
    assert seen == UNSAMPLED
    assert nested == [UNSAMPLED["traceparent"]] * 3
    assert shared.spans() == []


def test_what_the_sampler_refuses_is_not_sent_but_consistent(
    traced_cluster_of: MakeTraced, clean_environment: pytest.MonkeyPatch
) -> None:
    """The users' spans below follow the decision at the root."""
    clean_environment.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    clean_environment.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    with traced_cluster_of(n_workers=1) as traced:
        first, second = traced.client.gather(
            [traced.client.submit(observe, key=f"observe-{i}") for i in range(2)]
        )
        assert traced.client.submit(instrumented, 1).result() == 2
        assert traced.spans() == []
        assert {headers["traceparent"][-2:] for headers in (first, second)} == {"02"}


def test_servers_without_telemetry_pass_the_context_on(receiver: Receiver, tmp_path: Path) -> None:
    with commands(tmp_path) as start:
        start.scheduler(*PRELOAD, OTEL_SDK_DISABLED="true")
        start.worker(*PRELOAD, OTEL_SDK_DISABLED="true")
        with start.client(1) as client:
            dask_otel.enable(client)
            with attached(INCOMING):
                seen = client.submit(observe, key="observe-1").result()
                nested = client.submit(nest, key="nest-1").result()
                assert dask.delayed(inc)(1, dask_key_name="inc-1").compute() == 2
            assert seen == INCOMING
            assert nested == [INCOMING["traceparent"]] * 3
            assert dask_otel.flush(client, DEADLINE)
            (compute,) = one_trace(receiver.spans())
            assert (compute.span.name, compute.resource[names.ROLE]) == ("dask.compute", "client")
            dask_otel.disable(client)


def test_no_exporter_anywhere_passes_the_context_on(
    traced_cluster_of: MakeTraced, clean_environment: pytest.MonkeyPatch
) -> None:
    clean_environment.setenv("OTEL_TRACES_EXPORTER", "none")
    with traced_cluster_of(n_workers=1) as traced:
        with attached(INCOMING):
            (seen,) = dask.compute(dask.delayed(observe)())
            nested = traced.client.submit(nest, key="nest-1").result()
        alone = traced.client.submit(observe, key="alone-1").result()
        with attached({"baggage": "user=Ann"}):
            baggage = traced.client.submit(observe, key="baggage-1").result()
        assert (seen, alone, baggage) == (INCOMING, NOWHERE, {"baggage": "user=Ann"})
        assert nested == [INCOMING["traceparent"]] * 3
        assert traced.receiver.requests() == []


# -- one computation or two ----------------------------------------------------------------------------------------


def test_two_computes_one_after_the_other_are_two_computations_of_their_callers_trace(shared: Traced) -> None:
    with (
        application(shared.receiver) as provider,
        provider.get_tracer("shop").start_as_current_span("request"),
    ):
        assert dask.compute(dask.delayed(inc)(1, dask_key_name="inc-1")) == (2,)
        assert dask.compute(dask.delayed(inc)(2, dask_key_name="inc-2")) == (3,)
    assert outline(shared.spans()) == dedent("""\
        request
          dask.compute ×2
            dask.computation
              dask.graph.update
                dask.graph.init
                dask.graph.materialize
                dask.graph.order
              inc group
                inc
                  executor
                    compute""")


def add_later(x: int, folder: Path) -> int:
    wait_for(folder / "end")
    return x + 1


def test_submits_in_a_loop_are_one_computation_while_the_first_is_not_settled(
    shared: Traced, tmp_path: Path
) -> None:
    futures = [shared.client.submit(add_later, i, tmp_path, key=f"many-{i}") for i in range(20)]
    scheduler = shared.client.cluster.scheduler
    until(lambda: {f"many-{i}" for i in range(20)} <= scheduler.tasks.keys())
    (tmp_path / "end").touch()
    assert [future.result() for future in futures] == list(range(1, 21))
    assert shared.client.submit(inc, 20, key="after-1").result() == 21
    found = [outline(without_transfers(spans)) for spans in shared.traces().values()]
    updates = "dask.graph.update{}\n    dask.graph.init\n    dask.graph.materialize\n    dask.graph.order"
    executed = "executor\n        compute"
    assert sorted(found) == [
        f"dask.computation\n  after group\n    after\n      {executed}\n  {updates.format('')}",
        f"dask.computation\n  {updates.format(' ×20')}\n  many group\n    many ×20\n      {executed}",
    ]


def test_two_clients_never_share_a_computation(shared: Traced, tmp_path: Path) -> None:
    """Under one span, at the same time, and with a key in common."""
    mine = shared.client
    with Client(mine.scheduler.address, set_as_default=False) as other, attached(INCOMING):
        dask_otel.enable(other)
        gate = mine.submit(start_and_wait, tmp_path, key="gate-1")
        wait_for(tmp_path / "started")
        hold = other.submit(wait_for, tmp_path / "end", key="hold-1")
        common = other.submit(start_and_wait, tmp_path, key="gate-1")
        futures = [
            client.submit(inc, i, key=f"{i}-{client.id}") for i in range(4) for client in (mine, other)
        ]
        assert [future.result() for future in futures] == [1, 1, 2, 2, 3, 3, 4, 4]
        (tmp_path / "end").touch()
        gate.result(), common.result(), hold.result()
        spans = one_trace(shared.spans())
    found = {attributes(received)[names.CLIENT_ID]: received for received in named(spans, names.COMPUTATION)}
    assert {client: attributes(c)[names.COMPUTATION_TASKS] for client, c in found.items()} == {
        mine.id: 5,
        other.id: 5,
    }
    assert len(named(spans, names.COMPUTATION)) == 2
    groups = {ids(r): r for r in spans if attributes(r)[names.OPERATION] == names.OP_GROUP}
    for received in spans:
        if attributes(received)[names.OPERATION] == names.OP_TASK:
            group = groups[received.span.trace_id, received.span.parent_id]
            key = attributes(received)[names.TASK_KEY]
            owner = other.id if key.endswith((other.id, "hold-1")) else mine.id
            assert group.span.parent_id == found[owner].span.span_id


# -- how much is told ------------------------------------------------------------------------------------------------


def observe_and_fail_once(x: int, once: Once) -> dict[str, str]:
    with context_meter.meter("mine"), trace.get_tracer("shop").start_as_current_span("read"):
        once(x)
    return sent_on()


def of_group(spans: list[Received], prefix: str) -> Received:
    (received,) = named(spans, f"{prefix} group")
    return received


def of_digests(client: Client, prefix: str) -> dict[str, float]:
    """Dask's own sums of a prefix, under the names that they have on a group."""

    def digests(dask_worker: Worker) -> list[tuple[Any, float]]:
        return [(key, value) for key, value in dask_worker.digests_total.items() if key[0] == "execute"]

    totals: dict[str, float] = {}
    for pairs in client.run(digests).values():
        for (_, _, name, label, unit), value in pairs:
            if name == prefix:
                key = f"{names.ACTIVITY_AMOUNT}{label}.{unit}"
                totals[key] = totals.get(key, 0) + value
    return totals


@pytest.mark.parametrize("detail", ["group", "task"])
def test_at_a_lower_detail_less_is_shown_and_the_groups_totals_are_exact(
    traced_cluster_of: MakeTraced, tmp_path: Path, detail: str
) -> None:
    with dask.config.set({"otel.traces.detail": detail}), traced_cluster_of() as traced:
        client = traced.client
        here, there = client.cluster.scheduler.workers
        once = Once(tmp_path)
        futures = client.map(
            observe_and_fail_once, range(6), once=once, retries=2, key=[f"observe-{i}" for i in range(6)]
        )
        seen = client.gather(futures)
        first = client.submit(inc, 1, key="first-1", workers=[here])
        assert client.submit(inc, first, key="second-1", workers=[there]).result() == 3
        spans = traced.spans()
        digests = of_digests(client, "observe")

    group = of_group(spans, "observe")
    attempts = tasks(spans, "observe")
    found = attributes(group)
    assert {key: value for key, value in found.items() if key.startswith(names.GROUP_OUTCOMES)} == {
        names.GROUP_OUTCOMES + names.SUCCESS: 6,
        names.GROUP_OUTCOMES + names.FAILED: 1,
    }
    amounts = {key: value for key, value in found.items() if key.startswith(names.ACTIVITY_AMOUNT)}
    assert amounts == pytest.approx(digests, abs=1e-9)
    assert amounts["dask.task.activity.mine.seconds"] > 0
    seconds = sum(value for key, value in amounts.items() if key.endswith(".seconds"))
    assert found[names.DURATION + "sum"] == pytest.approx(seconds, abs=1e-4)
    assert not [r for r in spans if attributes(r).get(names.OPERATION) == names.OP_ACTIVITY]
    (computation,) = [r for r in named(spans, names.COMPUTATION) if r.span.span_id == group.span.parent_id]
    assert attributes(computation)[names.TRACE_DETAIL] == detail
    emitted = attributes(computation)[names.SPANS_EMITTED], attributes(computation)[names.SPANS_ROLLED_UP]
    transfers = [r for r in named(spans, names.GATHER_DEP) if r.span.links]
    if detail == "group":
        assert attempts == tasks(spans, "second") == []
        assert emitted == (0, 7)
        assert {span_of(headers) for headers in seen} == {ids(group)}
        assert {r.span.parent_id for r in named(spans, "read")} == {group.span.span_id}
        assert transfers == [], "they are told with the tasks that waited for them"
    else:
        assert [attributes(r)[names.OUTCOME] for r in attempts].count(names.FAILED) == 1
        assert emitted == (7, 0)
        shown = [r for r in attempts if attributes(r)[names.OUTCOME] == names.SUCCESS]
        assert {span_of(headers) for headers in seen} == {ids(r) for r in shown}
        assert {r.span.parent_id for r in named(spans, "read")} == {r.span.span_id for r in attempts}
        ((link,),) = (r.span.links for r in transfers)
        assert (link.trace_id, link.span_id) == ids(*tasks(spans, "second"))
    assert len(named(spans, "read")) == 7


# -- in a process that is the user's own -----------------------------------------------------------------------------


def compute_while_another_waits(folder: Path) -> int:
    """Secedes in ``compute``; the task that its worker starts then does the same."""
    (folder / "started").touch()
    wait_for(folder / "go")
    return dask.delayed(inc)(1, dask_key_name="first-1").compute()  # type: ignore[no-any-return]


def compute_too() -> int:
    return dask.delayed(inc)(2, dask_key_name="second-1").compute()  # type: ignore[no-any-return]


def test_a_task_that_starts_when_another_secedes_in_a_call_is_not_in_that_call(
    traced_cluster_of: MakeTraced, tmp_path: Path
) -> None:
    """Tasks use the client of the process, whose calls have spans; no global provider is set there."""
    # Not below the client of another cluster, which tasks would find instead of theirs.
    spans = contextvars.Context().run(two_that_compute, traced_cluster_of, tmp_path)
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    for name, inner in (("one", "first"), ("two", "second")):
        (outer,) = tasks(spans, name)
        (compute,) = [r for r in named(spans, names.COMPUTE) if r.span.parent_id == outer.span.span_id]
        (computation,) = [
            r for r in named(spans, names.COMPUTATION) if r.span.parent_id == compute.span.span_id
        ]
        assert of_group(spans, inner).span.parent_id == computation.span.span_id


def two_that_compute(traced_cluster_of: MakeTraced, folder: Path) -> list[Received]:
    with traced_cluster_of(n_workers=1, processes=False) as traced:
        first = traced.client.submit(compute_while_another_waits, folder, key="one-1")
        wait_for(folder / "started")
        second = traced.client.submit(compute_too, key="two-1")
        until(lambda: any(traced.client.run(ready).values()))
        (folder / "go").touch()
        assert (first.result(), second.result()) == (2, 3)
        return traced.trace()
