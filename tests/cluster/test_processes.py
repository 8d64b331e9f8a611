"""Whatever stands in the environment, in the user's provider or in the process: Dask is unharmed, one sentence says why."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from operator import neg
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, WorkerPlugin
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import dask_otel
from dask_otel import config, names, process
from dask_otel.export.readable import from_readable
from dask_otel.instruments import COMPUTE_SECONDS, TASK_ATTEMPTS
from dask_otel.outlet import SCOPE
from dask_otel.receiver import Receiver, Request, Response
from dask_otel.records import Span
from dask_otel.tree import Received, outline
from tests.cluster.commands import NOTHING_SET, PRELOAD, Commands, commands, until
from tests.cluster.metering import samples, totals
from tests.cluster.support import (
    DEADLINE,
    attributes,
    named,
    tasks,
    traced_cluster,
    without_transfers,
)

WHOLE = """\
dask.compute
  dask.computation
    dask.graph.update
      dask.graph.init
      dask.graph.materialize
      dask.graph.order
    neg group
      neg
        executor
          compute"""


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process has said once it says again, and what it has waited for it waits for again."""
    monkeypatch.setattr(process, "_said", set())
    monkeypatch.setattr(process, "_vain", float("-inf"))


@pytest.fixture
def started(tmp_path: Path, receiver: Receiver) -> Iterator[Commands]:
    """Processes of a cluster."""
    with commands(tmp_path) as started:
        yield started


@pytest.fixture
def preloaded(receiver: Receiver) -> Iterator[None]:
    """Clients of this process are told to preload."""
    with dask.config.set({"distributed.client.preload": ["dask_otel"]}):
        yield


@pytest.fixture
def exported(clean_environment: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What the application's provider exports, which is this process's global one."""
    provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    clean_environment.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    return exporter


def compute(x: int = 1) -> None:
    assert dask.delayed(neg)(x, dask_key_name=f"neg-{x}").compute() == -x


def received(exported: InMemorySpanExporter) -> list[Received]:
    """What was exported, as a receiver would have it."""
    spans = [from_readable(span) for span in exported.get_finished_spans()]
    return [Received(dict(resource), (scope.name, scope.version), span) for resource, scope, span in spans]


def spans_requested(receiver: Receiver) -> list[Request]:
    """The requests that were for spans."""
    return [request for request in receiver.requests() if request.path == "/v1/traces"]


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What dask-otel has said in this process."""
    return [
        r.getMessage() for r in caplog.records if r.name.startswith("dask_otel") and r.levelno > logging.INFO
    ]


# -- an application's provider -------------------------------------------------------------------------------------


def test_the_application_s_provider_is_used_as_it_is_and_never_replaced(
    receiver: Receiver, exported: InMemorySpanExporter
) -> None:
    """By the client and by the scheduler of its process; workers have processes of their own."""
    provider = trace.get_tracer_provider()
    with traced_cluster(receiver, n_workers=1) as traced:
        with trace.get_tracer("shop").start_as_current_span("request"):
            compute()
        assert dask_otel.flush(traced.client, DEADLINE)
        own, others = received(exported), receiver.spans()
        assert trace.get_tracer_provider() is provider
    assert outline(own + others) == "request\n" + "\n".join(f"  {line}" for line in WHOLE.splitlines())
    assert {tuple(r.resource.items()) for r in own} == {(("service.name", "shop"),)}
    assert {r.resource["service.name"] for r in others} == {"dask-worker"}
    assert {r.span.name for r in others} == {"neg", "executor", "compute"}


def read(x: int) -> int:
    with trace.get_tracer("shop").start_as_current_span("SELECT"):
        return -x


def test_the_spans_of_a_task_s_code_are_sent_while_dask_otel_is_on(receiver: Receiver) -> None:
    """A provider can be set once only: ours stays the worker's, and is quiet while dask-otel is off."""
    with traced_cluster(receiver, n_workers=1) as traced:

        def sent(number: int) -> list[str]:
            seen = len(receiver.spans())
            assert traced.client.submit(read, number, key=f"read-{number}").result() == -number
            assert dask_otel.flush(traced.client, DEADLINE)
            return sorted(r.span.name for r in receiver.spans()[seen:] if r.resource[names.ROLE] == "worker")

        assert sent(1) == ["SELECT", "compute", "executor", "read"]
        dask_otel.disable(traced.client)
        assert sent(2) == []
        dask_otel.enable(traced.client)
        assert sent(3) == ["SELECT", "compute", "executor", "read"]


class Late(WorkerPlugin):
    """A user's plugin that sets a provider, after dask-otel was turned on."""

    name = "late"

    def setup(self, worker: Any) -> None:
        provider = TracerProvider(resource=Resource({"service.name": "late"}), shutdown_on_exit=False)
        worker.exported = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(worker.exported))
        trace.set_tracer_provider(provider)


def test_a_provider_that_is_set_late_on_a_worker_wins(receiver: Receiver) -> None:
    def on_worker(dask_worker: Any) -> list[tuple[str, str]]:
        return [
            (span.name, span.resource.attributes["service.name"])
            for span in dask_worker.exported.get_finished_spans()
        ]

    with traced_cluster(receiver, n_workers=1) as traced:
        traced.client.register_plugin(Late())
        assert traced.client.submit(read, 1, key="read-1").result() == -1
        assert {r.resource["dask.role"] for r in traced.spans()} == {"scheduler"}
        (there,) = traced.client.run(on_worker).values()
    assert sorted(there) == [("SELECT", "late"), ("compute", "late"), ("executor", "late"), ("read", "late")]


# -- what raises, what says no -------------------------------------------------------------------------------------


class Breaking(SpanProcessor):
    """A user's processor that raises whatever it is asked."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.at_start:
            raise ValueError("on_start")

    def on_end(self, span: ReadableSpan) -> None:
        raise ValueError("on_end")

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        raise ValueError("force_flush")

    def __init__(self, at_start: bool) -> None:
        self.at_start = at_start


@pytest.mark.parametrize("at_start", [True, False])
def test_a_processor_that_raises_harms_neither_the_computation_nor_the_processors_before_it(
    receiver: Receiver, exported: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, at_start: bool
) -> None:
    """Scenario 25."""
    trace.get_tracer_provider().add_span_processor(Breaking(at_start))  # type: ignore[attr-defined]
    with traced_cluster(receiver, n_workers=1, processes=False, silence_logs=False) as traced:
        compute()
        dask_otel.flush(traced.client, DEADLINE)
        expected = WHOLE.splitlines()
        if at_start:  # The client's span could not be begun: the computation starts the trace.
            expected = [line[2:] for line in expected[1:]]
        assert outline(received(exported)) == "\n".join(expected)
    where = "start" if at_start else "end"
    lost = [
        sentence
        for sentence in ours(caplog)
        if sentence.startswith("dask-otel: span processor: ValueError: on_end; ")
    ]
    assert len(lost) <= 2  # One when it happens, one when the pipeline closes.
    assert sorted(set(ours(caplog)) - set(lost)) == [
        "The application's tracer provider cannot flush: ValueError.",
        f"The tracer provider of this process raised ValueError at the {where} of a span; the computation goes on.",
    ]


BREAKING_EXPORTER = """\
class Exporter:
    def export(self, spans):
        raise ValueError("export")
    def shutdown(self):
        raise ValueError("shutdown")
"""


def test_an_exporter_that_raises_leaves_the_others_alone(
    started: Commands,
    receiver: Receiver,
    preloaded: None,
    tmp_path: Path,
    clean_environment: pytest.MonkeyPatch,
) -> None:
    """Scenario 25. Found by its entry point, on all servers."""
    (tmp_path / "breaking.py").write_text(BREAKING_EXPORTER)
    (tmp_path / "breaking-1.0.dist-info").mkdir()
    (tmp_path / "breaking-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: breaking\nVersion: 1.0\n"
    )
    (tmp_path / "breaking-1.0.dist-info" / "entry_points.txt").write_text(
        "[opentelemetry_traces_exporter]\nbreaking = breaking:Exporter\n"
    )
    clean_environment.setenv("OTEL_TRACES_EXPORTER", "otlp,breaking")
    clean_environment.syspath_prepend(tmp_path)
    scheduler, worker = started.scheduler(*PRELOAD), started.worker(*PRELOAD)
    with started.client(1) as client:
        compute()
        assert dask_otel.flush(client, DEADLINE)
    assert (worker.terminate(), scheduler.terminate()) == (0, 0)
    assert outline(without_transfers(receiver.spans())) == WHOLE
    for command in (scheduler, worker):
        assert [line.partition("; ")[0] for line in command.said()[:1]] == [
            "dask-otel: exporter breaking: ValueError: export"
        ]


@pytest.mark.parametrize(
    ("name", "argument"), [("always_off", None), ("traceidratio", "0"), ("parentbased_always_off", None)]
)
def test_a_sampler_that_says_no_sends_nothing_and_says_nothing(
    receiver: Receiver,
    clean_environment: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    argument: str | None,
) -> None:
    """Scenario 25."""
    clean_environment.setenv("OTEL_TRACES_SAMPLER", name)
    if argument:
        clean_environment.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    with traced_cluster(receiver, n_workers=1, processes=False, silence_logs=False) as traced:
        compute()
        assert traced.spans() == []
    assert spans_requested(receiver) == []
    assert ours(caplog) == []


def test_the_sampler_of_the_application_s_provider_is_asked(
    receiver: Receiver, exported: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """Also about a computation that no span of the client stands above."""
    trace.get_tracer_provider().sampler = ALWAYS_OFF  # type: ignore[attr-defined]
    with traced_cluster(receiver, n_workers=1, processes=False, silence_logs=False) as traced:
        compute()
        assert traced.client.submit(neg, 2).result() == -2
        assert traced.spans() == []
    assert (received(exported), spans_requested(receiver), ours(caplog)) == ([], [], [])


# -- what stands in the environment --------------------------------------------------------------------------------


def test_nothing_set_starts_no_thread_sends_nothing_and_says_what_to_type(
    started: Commands,
    receiver: Receiver,
    preloaded: None,
    clean_environment: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line a process, which was asked to preload. A worker and a scheduler without dask-otel have as many threads."""

    def names_of_threads() -> Counter[str]:
        return Counter(thread.name.replace(str(os.getpid()), "") for thread in threading.enumerate())

    for name in NOTHING_SET:
        clean_environment.delenv(name)
    scheduler, worker, without = started.scheduler(*PRELOAD), started.worker(*PRELOAD), started.worker()
    with started.client(2) as client:
        for address in client.scheduler_info()["workers"]:
            assert client.submit(neg, 1, workers=[address], key=f"neg-{address}").result() == -1
        with_us, without_us = client.run(names_of_threads).values()
        on_scheduler = client.run_on_scheduler(names_of_threads)
        assert [name for name in threading.enumerate() if "otel" in name.name] == []
    assert with_us == without_us
    assert [name for name in on_scheduler if "otel" in name] == []
    assert receiver.requests() == []
    sentence = config.explain()
    assert (scheduler.said(), worker.said(), without.said(), ours(caplog)) == (
        [sentence],
        [sentence],
        [],
        [sentence],
    )


def test_a_disabled_sdk_sends_nothing_and_says_nothing(
    started: Commands,
    receiver: Receiver,
    preloaded: None,
    clean_environment: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Scenario 25."""
    clean_environment.setenv("OTEL_SDK_DISABLED", "true")
    scheduler, worker = started.scheduler(*PRELOAD), started.worker(*PRELOAD, "--no-nanny")
    with started.client(1) as client:
        compute()
        assert dask_otel.flush(client, DEADLINE)
        assert (
            client.run(lambda: [t.name for t in threading.enumerate() if "otel" in t.name]).popitem()[1] == []
        )
    assert (receiver.requests(), scheduler.said(), worker.said(), ours(caplog)) == ([], [], [], [])


#: Wrong values, and what is said of each.
WRONG = {
    "OTEL_BSP_SCHEDULE_DELAY": (
        "soon",
        "OTEL_BSP_SCHEDULE_DELAY is 'soon', which is not a whole number of milliseconds; 1000 ms is used instead.",
    ),
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": (
        "many",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT is 'many', which is not a whole number; 128 is used instead.",
    ),
    "OTEL_SPAN_EVENT_COUNT_LIMIT": (
        "-1",
        "OTEL_SPAN_EVENT_COUNT_LIMIT is '-1', which is not a whole number; 128 is used instead.",
    ),
    "OTEL_TRACES_SAMPLER": (
        "sometimes",
        "OTEL_TRACES_SAMPLER is 'sometimes', which is not one of always_on, always_off, traceidratio, "
        "parentbased_always_on, parentbased_always_off, parentbased_traceidratio and not installed; "
        "parentbased_always_on is used instead.",
    ),
    "OTEL_PROPAGATORS": (
        "pigeon",
        "OTEL_PROPAGATORS names 'pigeon', which is not one of tracecontext, baggage, none and not installed; "
        "it is left out.",
    ),
    "OTEL_EXPORTER_OTLP_PROTOCOL": (
        "http",
        "OTEL_EXPORTER_OTLP_PROTOCOL is 'http', which is not http/protobuf or grpc; http/protobuf is used instead.",
    ),
    "OTEL_RESOURCE_ATTRIBUTES": (
        "broken",
        "Entry 1 of OTEL_RESOURCE_ATTRIBUTES is not key=value in percent-encoded UTF-8; none of its entries is used.",
    ),
    "DASK_OTEL__TRACES__DETAIL": (
        "tasks",
        "otel.traces.detail is 'tasks', which is not auto, activity, task or group; auto is used instead.",
    ),
    "DASK_OTEL__TRACES__DETIAL": (
        "task",
        "otel.traces.detial is not a key of dask-otel; did you mean otel.traces.detail?",
    ),
}


def test_each_wrong_setting_is_told_in_one_sentence_a_process_and_everything_works(
    started: Commands, receiver: Receiver, preloaded: None
) -> None:
    """Scenario 25."""
    wrong = {key: value for key, (value, _) in WRONG.items()}
    scheduler, worker = started.scheduler(*PRELOAD, **wrong), started.worker(*PRELOAD, **wrong)
    with started.client(1) as client:
        compute()
        assert dask_otel.flush(client, DEADLINE)
    assert outline(without_transfers(receiver.spans())) == WHOLE
    for command in (scheduler, worker):
        said = [line for line in command.log.splitlines() if any(word in line for word in ("OTEL_", "otel."))]
        assert sorted(said) == sorted(sentence for _, sentence in WRONG.values())


# -- several servers in a process, several processes of a worker ---------------------------------------------------


def test_every_server_says_whose_cluster_it_is_of(receiver: Receiver, started: Commands) -> None:
    started.scheduler(*PRELOAD)
    started.worker(*PRELOAD)
    with started.client(1) as client:
        cluster = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.id)
        compute()
        assert dask_otel.flush(client, DEADLINE)
    told = {(r.resource[names.ROLE], r.resource.get(names.CLUSTER_ID)) for r in receiver.spans()}
    assert told == {("scheduler", cluster), ("worker", cluster)}


def test_two_workers_of_one_process_are_told_apart(receiver: Receiver) -> None:
    """Scenario 27: by their resource; each task names its worker."""
    with traced_cluster(receiver, processes=False) as traced:
        for address in traced.client.scheduler_info()["workers"]:
            assert traced.client.submit(neg, 1, workers=[address], key=f"neg-{address}").result() == -1
        spans = traced.spans()
        workers = {w.id: (str(w.name), w.address) for w in traced.cluster.workers.values()}  # type: ignore[union-attr]
        found = {
            r.resource[names.SERVICE_INSTANCE_ID]: (
                attributes(r)[names.WORKER_NAME],
                attributes(r)[names.WORKER_ADDRESS],
            )
            for r in tasks(spans, "neg")
        }
        assert found == workers
        assert all(
            (r.resource[names.WORKER_NAME], r.resource[names.WORKER_ADDRESS])
            == workers[r.resource[names.SERVICE_INSTANCE_ID]]
            for r in spans
            if r.resource[names.ROLE] == "worker"
        )
        assert {
            r.resource[names.SERVICE_INSTANCE_ID] for r in spans if r.resource[names.ROLE] == "worker"
        } == set(workers)
        assert {r.resource[names.SERVICE_INSTANCE_ID] for r in spans} - set(workers) == {
            traced.cluster.scheduler.id  # type: ignore[union-attr]
        }


def child(x: int) -> int:
    """In a process that was forked from a task's: its spans cannot be sent, and must not be waited for."""
    with trace.get_tracer("shop").start_as_current_span("child"):
        trace.get_current_span().set_attribute("x", x)
    assert trace.get_tracer_provider().force_flush(), "nothing is to be sent from here"  # type: ignore[attr-defined]
    # By which a Pool ends its workers: a handler of Python's may never be come to.
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    return -x


def fork(x: int) -> list[int]:
    with (
        trace.get_tracer("shop").start_as_current_span("parent"),
        multiprocessing.get_context("fork").Pool(2) as pool,
    ):
        return pool.map(child, range(4))


def test_tasks_that_fork_neither_hang_nor_send_anything_twice(receiver: Receiver) -> None:
    """Scenario 28: while the worker sends what other tasks have left."""
    with (
        dask.config.set({"distributed.worker.daemon": False}),
        traced_cluster(receiver, n_workers=1, threads=4) as traced,
    ):
        client = traced.client
        others = client.map(neg, range(200), pure=False)
        forks = client.map(fork, range(8), pure=False)
        assert client.gather(forks, errors="raise") == [[0, -1, -2, -3]] * 8
        assert client.gather(others) == [-x for x in range(200)]
        spans = traced.spans()
    assert Counter(r.span.span_id for r in spans).most_common(1)[0][1] == 1
    assert len(tasks(spans, "fork")) == 8
    assert len(tasks(spans, "neg")) == 200
    parents = {r.span.span_id for r in tasks(spans, "fork")}
    assert {r.span.parent_id for r in named(spans, "parent")} == parents
    assert named(spans, "child") == []


# -- the graph is Dask's -------------------------------------------------------------------------------------------


def work(client: Client) -> set[str]:
    """Run a DataFrame query and an array reduction; the keys that were to be computed."""
    import dask.array as da
    import dask.dataframe as dd
    import pandas as pd

    table = dd.from_pandas(pd.DataFrame({"k": range(100), "x": range(100)}), npartitions=4)
    lookup = dd.from_pandas(pd.DataFrame({"k": range(0, 100, 2), "y": range(50)}), npartitions=3)
    query = table[table.x > 10].merge(lookup, on="k").groupby("y").x.sum().sum()
    reduction = (
        ((da.arange(1_000, chunks=100) + 1).reshape((100, 10)).rechunk((25, 10)) ** 2).sum(axis=0).max()
    )
    assert query.compute() == sum(range(12, 100, 2))
    assert reduction.compute() == sum((10 * i + 10) ** 2 for i in range(100))
    keys = client.run_on_scheduler(
        lambda dask_scheduler: [
            str(entry[0]) for entry in dask_scheduler.transition_log if entry[1:3] == ("released", "waiting")
        ]
    )
    # This one has a random name from Dask.
    return {re.sub(r"(finalize-hlgfinalizecompute-)\w+", r"\1random", key) for key in keys}


def test_the_tasks_and_keys_of_a_computation_are_the_same_with_and_without(receiver: Receiver) -> None:
    """Scenario 32."""
    kwargs = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**kwargs) as cluster, Client(cluster) as client:
        without = work(client)
    with traced_cluster(receiver, processes=False) as traced:
        with_us = work(traced.client)
        computations = named(traced.spans(), names.COMPUTATION)
    assert with_us == without
    assert len(with_us) > 60
    assert sum(attributes(computation)[names.COMPUTATION_TASKS] for computation in computations) == len(
        without
    )
    assert len(computations) == 2


# -- the end -------------------------------------------------------------------------------------------------------


def test_sigterm_delivers_what_was_recorded(
    started: Commands, receiver: Receiver, preloaded: None, clean_environment: pytest.MonkeyPatch
) -> None:
    """Scenario 24: nobody flushes, and nothing would have been sent before a minute had passed."""
    clean_environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    scheduler, nannied, alone = (
        started.scheduler(*PRELOAD),
        started.worker(*PRELOAD),
        started.worker(*PRELOAD, "--no-nanny"),
    )
    with started.client(2) as client:
        made = []
        for address in client.scheduler_info()["workers"]:
            with dask.annotate(workers=[address]):
                made.append(dask.delayed(neg)(1, dask_key_name=f"neg-{address}"))
        assert client.compute(made, sync=True) == [-1, -1]
    assert [command.terminate() for command in (nannied, alone, scheduler)] == [0, 0, 0]
    assert outline(without_transfers(receiver.spans())) == WHOLE.replace("neg\n", "neg ×2\n")
    found = samples(receiver)
    assert totals(found, TASK_ATTEMPTS.name, names.TASK_PREFIX, names.OUTCOME) == {("neg", names.SUCCESS): 2}
    computed = {one.instance: one.value for one in found if one.name == COMPUTE_SECONDS.name and one.value}
    assert len(computed) == 2
    assert [command.said() for command in started.started] == [[], [], []]


def test_sigterm_to_the_worker_below_a_nanny_delivers_what_was_recorded_too(
    receiver: Receiver, clean_environment: pytest.MonkeyPatch
) -> None:
    """Scenario 24: as a batch system sends it to every process. The worker dies of it as ever, and is started anew."""
    clean_environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    with traced_cluster(receiver, n_workers=1) as traced:
        compute()
        (pid,) = traced.client.run(os.getpid).values()
        os.kill(pid, signal.SIGTERM)
        until(lambda: list(traced.client.run(os.getpid, on_error="ignore").values()) not in ([], [pid]))
        assert outline(without_transfers(traced.spans())) == WHOLE


@pytest.fixture
def hanging(clean_environment: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A collector that accepts and never answers."""
    answered = threading.Event()

    def hang(request: Request) -> Response:
        answered.wait(DEADLINE)
        return Response(503)

    with Receiver(hang) as receiver:
        clean_environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        yield receiver
        answered.set()


def test_sigterm_is_not_held_up_by_a_collector_that_never_answers(hanging: Receiver, tmp_path: Path) -> None:
    """Scenario 24: what could not be delivered is counted, and said."""
    with commands(tmp_path) as started:
        scheduler, nannied = started.scheduler(*PRELOAD), started.worker(*PRELOAD)
        alone = started.worker(*PRELOAD, "--no-nanny")
        with started.client(2) as client:
            for address in client.scheduler_info()["workers"]:
                assert client.submit(neg, 1, workers=[address], key=f"neg-{address}").result() == -1
        for command in (nannied, alone, scheduler):
            command.process.terminate()
        assert [command.process.wait(DEADLINE) for command in (nannied, alone, scheduler)] == [0, 0, 0]
        assert "killing" not in nannied.log
        for command in (scheduler, nannied, alone):
            assert len([line for line in command.said() if "spans lost so far" in line]) == 1, command.log


def test_a_wait_in_vain_is_not_repeated_by_the_next_server_that_ends(hanging: Receiver) -> None:
    """Scenario 23: a client, its LocalCluster's scheduler and workers, and at last their process."""

    async def farewells() -> list[float]:
        took = []
        for _ in range(3):
            begun = time.monotonic()
            await process.farewell()
            took.append(time.monotonic() - begun)
        return took

    pipeline = process.pipeline_for(config.load())
    pipeline.emitter((), SCOPE).emit(Span("neg", 5, b"t" * 16, b"s" * 8, start=1, end=2))
    first, *others = asyncio.run(farewells())
    assert first >= 1.5
    assert max(others) < 1.2
    begun = time.monotonic()
    assert not pipeline.close()
    assert time.monotonic() - begun < 1.2
    assert pipeline.counts.unknown == 1
