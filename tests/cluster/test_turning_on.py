"""The three ways to turn dask-otel on, each alone and together: every server reports once, or says what is missing."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from operator import neg
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import dask_otel
from dask_otel import config, names, process
from dask_otel.export.readable import from_readable
from dask_otel.instrumentor import DaskInstrumentor
from dask_otel.receiver import Receiver
from dask_otel.tree import Received, outline
from tests.cluster.commands import NOTHING_SET, PRELOAD, ROOT, Commands, commands, until
from tests.cluster.support import DEADLINE, attributes, named, without_transfers


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process has said once it says again."""
    monkeypatch.setattr(process, "_said", set())


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


# -- what is expected ----------------------------------------------------------------------------------------------

UPDATE = """\
dask.graph.update
  dask.graph.init
  dask.graph.materialize
  dask.graph.order"""


def whole(tasks: int = 2) -> str:
    """The outline of `compute`, on so many workers that tell of their tasks."""
    times = f" ×{tasks}" if tasks > 1 else ""
    told = f"\n    neg{times}\n      executor\n        compute" if tasks else ""
    return "dask.compute\n" + indented(f"dask.computation\n{indented(UPDATE)}\n  neg group{told}")


def indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def compute(client: Client, number: int = 0) -> None:
    """A task on each worker."""
    made = []
    for i, address in enumerate(client.scheduler_info()["workers"]):
        with dask.annotate(workers=[address], allow_other_workers=False):
            made.append(dask.delayed(neg)(i, dask_key_name=f"neg-{number}{i}"))
    assert client.compute(made, sync=True) == [-i for i in range(len(made))]


def told(spans: list[Received]) -> list[Received]:
    """The spans, transfers left out, once it is sure that none has come twice."""
    assert [span_id for span_id, times in Counter(r.span.span_id for r in spans).items() if times > 1] == []
    return without_transfers(spans)


def senders(spans: list[Received]) -> set[tuple[str, object, object]]:
    """Who sends what: span name, service and its instance."""
    return {
        (r.span.name, r.resource[names.SERVICE_NAME], r.resource[names.SERVICE_INSTANCE_ID]) for r in spans
    }


def expected_senders(client: Client) -> set[tuple[str, object, object]]:
    workers = client.run(lambda dask_worker: dask_worker.id).values()
    scheduler = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.id)
    return {
        ("dask.compute", "dask-client", client.id),
        *((line.strip(), "dask-scheduler", scheduler) for line in UPDATE.splitlines()),
        *((name, "dask-scheduler", scheduler) for name in ("dask.computation", "neg group")),
        *((name, "dask-worker", worker) for name in ("neg", "executor", "compute") for worker in workers),
    }


def flushed(client: Client, receiver: Receiver, seen: int = 0) -> list[Received]:
    """What has come, but for the first spans, once all have sent what they have."""
    assert dask_otel.flush(client, DEADLINE)
    return told(receiver.spans()[seen:])


# -- preload -------------------------------------------------------------------------------------------------------


def test_whoever_is_told_to_preload_reports_once(
    started: Commands, receiver: Receiver, preloaded: None
) -> None:
    """By the command line: workers below a nanny, which is told too, and without one."""
    started.scheduler(*PRELOAD)
    started.worker(*PRELOAD, "--preload-nanny", "dask_otel")
    started.worker(*PRELOAD, "--no-nanny")
    with started.client(2) as client:
        compute(client)
        spans = flushed(client, receiver)
        assert outline(spans) == whole()
        assert senders(spans) == expected_senders(client)
    assert [command.said() for command in started.started] == [[], [], []]


APPLICATION = """\
import sys
import dask
from distributed import Client, worker_client

def inc(x):
    return x + 1

def nest(x):
    with worker_client() as client:
        return client.compute(dask.delayed(inc)(x, dask_key_name="inc-1"), sync=True)

if __name__ == "__main__":
    with Client(scheduler_file=sys.argv[1]) as client:
        client.wait_for_workers(1)
        assert client.get({"nest-1": (nest, 1)}, "nest-1") == 2
"""


def test_the_environment_tells_all_to_preload_and_a_task_s_client_is_no_client(
    started: Commands, receiver: Receiver, clean_environment: pytest.MonkeyPatch
) -> None:
    """All three variables in every process. Nobody flushes: what is sent is sent since processes end."""
    for role in ("SCHEDULER", "WORKER", "CLIENT", "NANNY"):
        clean_environment.setenv(f"DASK_DISTRIBUTED__{role}__PRELOAD", "dask_otel")
    scheduler, worker, application = started.scheduler(), started.worker(), started.application(APPLICATION)
    application.wait()
    assert (worker.terminate(), scheduler.terminate()) == (0, 0)
    spans = told(receiver.spans())
    tasks = [r for r in spans if attributes(r)[names.OPERATION] != names.OP_ACTIVITY]
    nested = f"dask.computation\n{indented(UPDATE)}\n  inc group\n    inc"
    outermost = f"dask.computation\n{indented(UPDATE)}\n  nest group\n    nest\n{indented(indented(indented(nested)))}"
    assert outline(tasks) == f"dask.compute\n{indented(outermost)}"
    assert {(r.resource[names.ROLE], r.resource[names.SERVICE_NAME]) for r in spans} == {
        ("client", "dask-client"),
        ("scheduler", "dask-scheduler"),
        ("worker", "dask-worker"),
    }
    assert {r.resource[names.ROLE] for r in named(spans, "dask.compute")} == {"client"}
    assert len({r.resource[names.SERVICE_INSTANCE_ID] for r in spans}) == 3


# -- enable and disable --------------------------------------------------------------------------------------------


def test_enable_reaches_all_who_are_there_and_who_join_later_until_disable(receiver: Receiver) -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        compute(client, 0)
        dask_otel.enable(client)
        dask_otel.enable(client)
        compute(client, 1)
        assert outline(flushed(client, receiver)) == whole(1)
        cluster.scale(2)
        client.wait_for_workers(2, timeout=DEADLINE)
        seen = len(receiver.spans())
        compute(client, 2)
        spans = flushed(client, receiver, seen)
        assert outline(spans) == whole(2)
        assert senders(spans) == expected_senders(client)
        dask_otel.disable(client)
        dask_otel.disable(client)
        seen = len(receiver.spans())
        compute(client, 3)
        assert flushed(client, receiver, seen) == []
        dask_otel.enable(client)
        compute(client, 4)
        assert outline(flushed(client, receiver, seen)) == whole(2)


def test_an_asynchronous_client_awaits_enable_and_disable(receiver: Receiver) -> None:
    async def run() -> None:
        async with (
            LocalCluster(
                n_workers=1, threads_per_worker=1, processes=False, asynchronous=True, dashboard_address=":0"
            ) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            await dask_otel.enable(client)
            assert await client.compute(dask.delayed(neg)(1, dask_key_name="neg-1")) == -1
            assert await dask_otel.flush(client, DEADLINE)
            assert outline(told(receiver.spans())) == whole(1)
            seen = len(receiver.spans())
            await dask_otel.disable(client)
            assert await client.compute(dask.delayed(neg)(2, dask_key_name="neg-2")) == -2
            assert await dask_otel.flush(client, DEADLINE)
            assert receiver.spans()[seen:] == []

    asyncio.run(run())


def test_enable_on_preloaded_servers_changes_nothing_and_disable_leaves_them_on(
    started: Commands, receiver: Receiver, preloaded: None
) -> None:
    started.scheduler(*PRELOAD)
    started.worker(*PRELOAD)
    with started.client(1) as client:
        dask_otel.enable(client)
        compute(client, 1)
        assert outline(flushed(client, receiver)) == whole(1)
        seen = len(receiver.spans())
        dask_otel.disable(client)
        compute(client, 2)
        assert outline(flushed(client, receiver, seen)) == whole(1)


def test_enable_tells_preloaded_servers_where_to_send_until_disable(
    started: Commands, receiver: Receiver
) -> None:
    """Servers that are preloaded and were told nothing say so once, and take the client's word."""
    scheduler = started.scheduler(*PRELOAD, **NOTHING_SET)
    worker = started.worker(*PRELOAD, **NOTHING_SET)
    with started.client(1) as client:
        compute(client, 0)
        dask_otel.enable(client)
        compute(client, 1)
        spans = flushed(client, receiver)
        assert outline(spans) == whole(1)
        assert senders(spans) == expected_senders(client)
        dask_otel.disable(client)
        seen = len(receiver.spans())
        compute(client, 2)
        assert flushed(client, receiver, seen) == []
    for command in (scheduler, worker):
        assert command.said() == [config.explain()]


# -- on some servers only ------------------------------------------------------------------------------------------


def test_workers_without_dask_otel_are_counted_and_the_scheduler_says_so(
    started: Commands, receiver: Receiver, preloaded: None
) -> None:
    """Scenario 30: one worker has it, the other has not."""
    scheduler = started.scheduler(*PRELOAD)
    there, lacking = started.worker("--name", "there", *PRELOAD), started.worker("--name", "lacking")
    with started.client(2) as client:
        address = next(a for a, w in client.scheduler_info()["workers"].items() if w["name"] == "lacking")
        compute(client, 1)
        spans = flushed(client, receiver)
        assert outline(spans) == whole(1)
        (group,) = named(spans, "neg group")
        assert attributes(group)[names.GROUP_OUTCOMES + names.SUCCESS] == 2
        assert names.GROUP_INCOMPLETE not in attributes(group)
        (computation,) = named(spans, "dask.computation")
        assert attributes(computation)[names.COMPUTATION_OUTCOMES + names.SUCCESS] == 2
        scheduler.wait_until_said("do not run")
        compute(client, 2)
        assert flushed(client, receiver)
    assert scheduler.said() == [
        f"1 of 2 workers do not run dask-otel ({address}): their tasks are counted and have no spans. Start workers with "
        "--preload dask_otel, or call dask_otel.enable(client)."
    ]
    assert (there.said(), lacking.said()) == ([], [])


def test_a_scheduler_without_dask_otel_is_told_of_by_workers_and_clients(
    started: Commands, receiver: Receiver, preloaded: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario 30, the reverse: the client's own spans are all that there is, until `enable`."""
    scheduler, worker = started.scheduler(), started.worker(*PRELOAD)
    with started.client(1) as client:
        compute(client, 1)
        assert outline(flushed(client, receiver)) == "dask.compute"
        address = client.scheduler.address
        lacks = f"The scheduler at {address} does not run dask-otel: "
        does = "Start it with --preload dask_otel, or call dask_otel.enable(client)."
        worker.wait_until_said("does not run")
        until(lambda: lacks in caplog.text)
        seen = len(receiver.spans())
        dask_otel.enable(client)
        compute(client, 2)
        assert outline(flushed(client, receiver, seen)) == whole(1)
    assert worker.said() == [f"{lacks}tasks have no spans. {does}"]
    assert ours(caplog) == [f"{lacks}only this client's own spans are sent. {does}"]
    assert scheduler.said() == []


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What dask-otel has said in this process."""
    return [r.getMessage() for r in caplog.records if r.name.startswith("dask_otel")]


OTHER_VERSION = """\
import dask_otel.turning_on
import dask_otel.seam.worker
import dask_otel.worker
dask_otel.seam.worker.__version__ = dask_otel.worker.__version__ = "0.0.1"
"""


def test_another_version_on_workers_works_and_is_told_once(
    started: Commands, receiver: Receiver, preloaded: None, tmp_path: Path
) -> None:
    """Scenario 30."""
    (tmp_path / "other_version.py").write_text(OTHER_VERSION)
    scheduler = started.scheduler(*PRELOAD)
    for _ in range(2):
        started.worker("--preload", str(tmp_path / "other_version.py"), *PRELOAD, "--no-nanny")
    with started.client(2) as client:
        compute(client)
        assert outline(flushed(client, receiver)) == whole(2)
    assert scheduler.said() == [
        f"Workers run dask-otel 0.0.1, the scheduler {dask_otel.__version__}: what only one of them knows is not told. "
        f"Install the same everywhere, like pip install dask-otel=={dask_otel.__version__}."
    ]


#: A package in whose place nothing is installed.
NOT_INSTALLED = "raise ModuleNotFoundError(\"No module named 'dask_otel'\", name='dask_otel')"


def without_package(folder: Path) -> str:
    """A PYTHONPATH on which dask-otel is not installed."""
    (folder / "lacking" / "dask_otel").mkdir(parents=True)
    (folder / "lacking" / "dask_otel" / "__init__.py").write_text(NOT_INSTALLED)
    return f"{folder / 'lacking'}:{ROOT}"


def test_enable_harms_no_worker_that_lacks_the_package(
    started: Commands, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither one that is there nor one that joins later, which unpickles all plugins before it runs."""
    path = without_package(tmp_path)
    started.scheduler()
    lacking = [started.worker("--name", "first", "--no-nanny", PYTHONPATH=path)]
    with started.client(1) as client:
        (first,) = client.scheduler_info()["workers"]
        dask_otel.enable(client)
        dask_otel.enable(client)
        lacking.append(started.worker("--name", "later", PYTHONPATH=path))
        client.wait_for_workers(2, timeout=DEADLINE)
        compute(client)
        assert dask_otel.flush(client, DEADLINE)
        assert outline(told(receiver.spans())) == whole(0)
        dask_otel.disable(client)
    wanted = (
        f"dask-otel could not be turned on at 1 worker ({first}). Install it there (pip install dask-otel) and call "
        "dask_otel.enable(client) again."
    )
    assert ours(caplog) == [wanted, wanted]
    sentence = (
        "dask-otel is turned on for this cluster and cannot be loaded by this worker (ModuleNotFoundError: No module "
        "named 'dask_otel'): its tasks have no spans. Install it here, with the scheduler's version: pip install dask-otel."
    )
    assert [[line.split(" - WARNING - ")[1] for line in c.said()] for c in lacking] == [
        [sentence] * 2,
        [sentence],
    ]


def test_enable_harms_no_cluster_that_lacks_the_package(
    started: Commands, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client's own spans are sent."""
    path = without_package(tmp_path)
    started.scheduler(PYTHONPATH=path)
    worker = started.worker(PYTHONPATH=path)
    with started.client(1) as client:
        dask_otel.enable(client)
        compute(client, 1)
        assert outline(flushed(client, receiver)) == "dask.compute"
        dask_otel.disable(client)
        assert client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.worker_plugins)) == [
            "shuffle"
        ]
        compute(client, 2)
        assert outline(flushed(client, receiver)) == "dask.compute"
    assert ours(caplog) == [
        "dask-otel could not be turned on at the scheduler (ModuleNotFoundError: No module named 'dask_otel'). Install "
        "it there (pip install dask-otel) and call dask_otel.enable(client) again."
    ]
    assert [line for line in worker.said() if "cannot be loaded" not in line] == []


# -- opentelemetry-instrument --------------------------------------------------------------------------------------

SHOP = """\
import dask
from distributed import Client, LocalCluster
from opentelemetry import trace

def read(x):
    with trace.get_tracer("shop").start_as_current_span("SELECT"):
        return -x

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster):
        with trace.get_tracer("shop").start_as_current_span("request"):
            assert dask.delayed(read)(1, dask_key_name="read-1").compute() == -1
"""


def test_opentelemetry_instrument_turns_on_an_application_and_the_cluster_that_it_starts(
    started: Commands, receiver: Receiver
) -> None:
    """With the distro's provider, in the nanny's worker too. Nobody flushes: the processes' end does."""
    application = started.application(
        SHOP,
        str(Path(sys.executable).with_name("opentelemetry-instrument")),
        sys.executable,
        OTEL_SERVICE_NAME="shop",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        OTEL_METRICS_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
    )
    assert application.wait() == ""
    spans = told(receiver.spans())
    shown = [r for r in spans if attributes(r).get(names.OPERATION) != names.OP_ACTIVITY]
    read = f"dask.computation\n{indented(UPDATE)}\n  read group\n    read\n      SELECT"
    assert outline(shown) == f"request\n  dask.compute\n{indented(indented(read))}"
    telemetry = {f"telemetry.{key}" for key in ("auto.version", "sdk.language", "sdk.name", "sdk.version")}
    assert {r.resource["service.name"] for r in spans} == {"shop"}
    # Under older versions the SDK gives no instance, and the nanny's worker has our provider, not the distro's.
    instances = {r.span.name: r.resource.get("service.instance.id") for r in shown}
    own = [r for r in spans if r.resource.get("service.instance.id") == instances["request"]]
    assert {key for r in own for key in r.resource} - {"service.instance.id"} == {"service.name", *telemetry}
    assert len(set(instances.values())) == 2
    assert {name for name, instance in instances.items() if instance == instances["read"]} == {
        "read",
        "SELECT",
    }


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    """One that is not the global one."""
    provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    yield provider
    provider.shutdown()


@pytest.fixture
def exported(provider: TracerProvider) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def test_instrument_turns_on_what_is_made_afterwards_and_uninstrument_all_of_it_off(
    receiver: Receiver,
    provider: TracerProvider,
    exported: InMemorySpanExporter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A second time either does nothing. The provider that it is given is this process's alone."""
    made = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0", "preload": []}
    DaskInstrumentor().instrument(tracer_provider=provider)
    DaskInstrumentor().instrument()
    try:
        with LocalCluster(**made) as cluster, Client(cluster) as client:
            compute(client, 1)
            assert dask_otel.flush(client, DEADLINE)
            own = [from_readable(span) for span in exported.get_finished_spans()]
            spans = told(
                [Received(dict(r), (scope.name, ""), span) for r, scope, span in own] + receiver.spans()
            )
            assert outline(spans) == whole(1)
            assert {r.span.name for r in spans if r.resource["service.name"] == "shop"} == {
                "dask.compute",
                "dask.computation",
                "neg group",
                *(line.strip() for line in UPDATE.splitlines()),
            }
            exported.clear()
            seen = len(receiver.spans())
            DaskInstrumentor().uninstrument()
            DaskInstrumentor().uninstrument()
            compute(client, 2)
            on_worker = client.run(lambda dask_worker: list(dask_worker.plugins))
            on_scheduler = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins))
            plugins = [*on_scheduler, *(name for names in on_worker.values() for name in names)]
            assert [name for name in plugins if "otel" in name] == []
            assert dask_otel.flush(client, DEADLINE)
        with LocalCluster(**made, processes=False) as cluster, Client(cluster) as client:
            compute(client, 3)
            assert dask_otel.flush(client, DEADLINE)
        assert (exported.get_finished_spans(), receiver.spans()[seen:]) == ((), [])
    finally:
        DaskInstrumentor().uninstrument()
    assert ours(caplog) == []


def test_clients_that_are_there_are_instrumented_too_and_an_asynchronous_cluster_is_let_go_of(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        made = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": False}
        async with (
            LocalCluster(**made, processes=False, asynchronous=True) as before,
            Client(before, asynchronous=True, set_as_default=False) as there,
        ):
            DaskInstrumentor().instrument()
            try:
                assert await there.compute(dask.delayed(neg)(1, dask_key_name="neg-1")) == -1
                assert await dask_otel.flush(there, DEADLINE)
                assert outline(told(receiver.spans())) == "dask.compute"
                seen = len(receiver.spans())
                async with (
                    LocalCluster(**made, processes=False, asynchronous=True) as after,
                    Client(after, asynchronous=True, set_as_default=False) as client,
                ):
                    assert await client.compute(dask.delayed(neg)(1, dask_key_name="neg-1")) == -1
                    assert await dask_otel.flush(client, DEADLINE)
                    assert outline(told(receiver.spans()[seen:])) == whole(1)
                    seen = len(receiver.spans())
                    DaskInstrumentor().uninstrument()
                    while any(
                        "otel" in name
                        for server in (after.scheduler, after.workers[0])
                        for name in server.plugins
                    ):
                        await asyncio.sleep(0.01)
                    assert await client.compute(dask.delayed(neg)(2, dask_key_name="neg-2")) == -2
                    assert await dask_otel.flush(client, DEADLINE)
                    assert receiver.spans()[seen:] == []
            finally:
                DaskInstrumentor().uninstrument()
            address = there.scheduler.address
            assert ours(caplog) == [
                f"The scheduler at {address} does not run dask-otel: only this client's own spans are sent. Start it with "
                "--preload dask_otel, or call dask_otel.enable(client)."
            ]

    asyncio.run(run())


def test_all_ways_at_once_report_once_and_each_undoes_its_own(receiver: Receiver) -> None:
    preloads = {
        f"distributed.{role}.preload": ["dask_otel"] for role in ("scheduler", "worker", "client", "nanny")
    }
    made = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}

    def outlined(number: int) -> str:
        seen = len(receiver.spans())
        compute(client, number)
        return outline(flushed(client, receiver, seen))

    DaskInstrumentor().instrument()
    try:
        with dask.config.set(preloads), LocalCluster(**made) as cluster, Client(cluster) as client:
            dask_otel.enable(client)
            assert outlined(1) == whole(1)
            DaskInstrumentor().uninstrument()
            assert outlined(2) == whole(1)
            dask_otel.disable(client)
            assert outlined(3) == whole(1)
        with LocalCluster(**made, processes=False) as cluster, Client(cluster) as client:
            assert outlined(4) == ""
    finally:
        DaskInstrumentor().uninstrument()
