"""Metrics where the application has a meter provider, or names another exporter; who they are of, in every case."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, Worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.metrics import context_meter
from opentelemetry import metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricReader, MetricsData
from opentelemetry.sdk.resources import Resource

import dask_otel
from dask_otel import config, instruments, names, process, worker_metrics
from dask_otel.decode import attributes as decoded
from dask_otel.receiver import Receiver
from dask_otel.scheduler import schedulers
from tests.cluster.commands import commands
from tests.cluster.metering import samples, totals
from tests.cluster.support import DEADLINE, traced_cluster, wait_until

DELTA = {ObservableCounter: AggregationTemporality.DELTA}
KEYS = (names.WORKER_NAME, names.TASK_PREFIX)


class Kept(MetricReader):
    """Keeps everything that was collected."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data: list[MetricsData] = []

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        self.data.append(metrics_data)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None: ...

    def values(self, name: str, *keys: str) -> list[dict[tuple[str, ...], float]]:
        """Of each collection that has the metric its sums by values of attributes."""
        return [found for data in self.data if (found := self._sums(data, name, keys))]

    @staticmethod
    def _sums(data: MetricsData, name: str, keys: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points if metric.name == name else ():
                        value = point.value if hasattr(point, "value") else point.count
                        sums[tuple(str(point.attributes.get(key, "")) for key in keys)] += value
        return dict(sums)


def of_ours(data: MetricsData) -> list[Any]:
    """Without the SDK's metrics about itself."""
    scopes = data.resource_metrics[0].scope_metrics
    return [metric for scope in scopes if scope.scope.name == names.SCOPE for metric in scope.metrics]


def metered(x: int, rows: int = 3) -> int:
    with context_meter.meter("mine"):
        context_meter.digest_metric("mine", rows, "rows")
    return x


def rows(dask_worker: Worker) -> float:
    """Dask's own total."""
    return sum(v for k, v in dask_worker.digests_total.items() if isinstance(k, tuple) and k[-1] == "rows")


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """Of the application's provider, which is this process's global one."""
    reader = Kept()
    use(monkeypatch, reader)
    return reader


def use(monkeypatch: pytest.MonkeyPatch, *readers: MetricReader) -> MeterProvider:
    provider = MeterProvider(readers, Resource({"service.name": "shop"}), shutdown_on_exit=False)
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", provider)
    return provider


def requests(receiver: Receiver) -> list[str]:
    """Who has sent metrics."""
    return sorted({one.role for one in samples(receiver)})


# -- an application's provider -------------------------------------------------------------------------------------


def test_all_servers_of_a_process_go_to_the_application_s_provider_and_stay_apart(
    receiver: Receiver, reader: Kept
) -> None:
    """Though our own way is open too."""
    with traced_cluster(receiver, processes=False) as traced:
        client = traced.client
        here, there = sorted(client.scheduler_info(n_workers=-1)["workers"])
        client.submit(metered, 1, key="metered-1", workers=[here]).result()
        client.submit(metered, 2, 5, key="metered-2", workers=[there]).result()
        assert dask_otel.flush(client, DEADLINE)
        told = {
            str(w["name"]): n
            for w, n in zip(
                (client.scheduler_info(n_workers=-1)["workers"][a] for a in (here, there)),
                (3, 5),
                strict=True,
            )
        }
        cluster_id = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.id)
        amount = reader.values(instruments.ACTIVITY_AMOUNT_OF.name, names.CLUSTER_ID, names.WORKER_NAME)
    assert amount[-1] == {(cluster_id, name): n for name, n in told.items()}
    idle = reader.values(instruments.IDLE_SECONDS.name, names.CLUSTER_ID, names.WORKER_NAME)
    assert {who for seen in idle for who in seen} == {(cluster_id, "")}
    (resource,) = {
        tuple(one.resource.attributes.items()) for data in reader.data for one in data.resource_metrics
    }
    assert resource == (("service.name", "shop"),)
    assert requests(receiver) == []


def test_the_application_s_provider_has_all_that_goes_our_own_way(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, unit and kind."""
    kinds = {"sum": "Sum", "gauge": "Gauge", "histogram": "Histogram"}

    def work() -> None:
        with traced_cluster(receiver, processes=False) as traced:
            work = traced.client.map(metered, range(20), pure=False)
            assert traced.client.submit(sum, work).result() == 190
            assert dask_otel.flush(traced.client, DEADLINE)

    work()
    own = {
        (metric.name, metric.unit, kinds[str(metric.WhichOneof("data"))], metric.sum.is_monotonic)
        for _, metric in received(receiver)
    }
    reader = Kept()
    use(monkeypatch, reader)
    work()
    theirs = {
        (metric.name, metric.unit, type(metric.data).__name__, getattr(metric.data, "is_monotonic", False))
        for data in reader.data
        for metric in of_ours(data)
    }
    # Whether in so short a time garbage is collected or the loop's lag is looked at is nobody's choice.
    chance = {instruments.GC_PAUSE.name, instruments.LOOP_LAG.name}
    assert {name for name, *_ in own ^ theirs} <= chance
    assert len(own) > 40


def test_the_last_values_of_servers_that_close_are_collected_and_nothing_after_them(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, difference = Kept(), Kept(preferred_temporality=DELTA)
    provider = use(monkeypatch, total, difference)
    with traced_cluster(receiver, n_workers=1, processes=False) as traced:
        traced.client.submit(metered, 1, key="metered-1").result()
        assert provider.force_flush()
        traced.client.submit(metered, 2, 5, key="metered-2").result()
    name = instruments.ACTIVITY_AMOUNT_OF.name
    assert total.values(name)[-1] == {(): 8}
    assert sum(seen.get((), 0.0) for seen in difference.values(name)) == 8
    seen = len(total.data), len(difference.data)
    assert provider.force_flush()
    after = [data for one, n in zip((total, difference), seen, strict=True) for data in one.data[n:]]
    assert [
        metric.name
        for data in after
        for metric in of_ours(data)
        if not hasattr(metric.data.data_points[0], "bucket_counts")
    ] == []


def test_with_nothing_in_the_environment_an_application_s_provider_is_enough(
    clean_environment: pytest.MonkeyPatch, reader: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    clean_environment.setattr(process, "_said", set())
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        dask_otel.enable(client)
        client.submit(metered, 1, key="metered-1").result()
        assert dask_otel.flush(client, DEADLINE)
        dask_otel.disable(client)
    assert reader.values(instruments.ACTIVITY_AMOUNT_OF.name, *KEYS)[-1] == {("0", "metered"): 3}
    assert config.explain() not in [record.getMessage() for record in caplog.records]


def test_totals_do_not_fall_where_dask_otel_is_turned_off_and_on(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, difference = Kept(), Kept(preferred_temporality=DELTA)
    use(monkeypatch, total, difference)
    with traced_cluster(receiver, n_workers=1, processes=False) as traced:
        for n in range(3):
            traced.client.submit(metered, n, key=f"metered-{n}").result()
            assert dask_otel.flush(traced.client, DEADLINE)
            dask_otel.disable(traced.client)
            dask_otel.enable(traced.client)
    name = instruments.ACTIVITY_AMOUNT_OF.name
    seen = [found[()] for found in total.values(name)]
    assert (seen, seen[-1]) == (sorted(seen), 9)
    changes = [found[()] for found in difference.values(name)]
    assert (min(changes) >= 0, sum(changes)) == (True, 9)


async def counts(dask_scheduler: Any) -> bool:
    telemetry = schedulers.telemetry(dask_scheduler)
    assert telemetry is not None
    return telemetry.metrics.meter.on


@pytest.mark.parametrize(
    "said", [{"DASK_OTEL__METRICS__ENABLED": "false"}, {"OTEL_SDK_DISABLED": "true"}, {}]
)
def test_nothing_is_measured_where_metrics_are_off_or_nobody_reads(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, said: dict[str, str]
) -> None:
    reader = Kept()
    provider = use(monkeypatch, *([reader] if said else []))
    for variable, value in said.items():
        monkeypatch.setenv(variable, value)

    with (
        dask.config.set({"otel": dask.config.collect(env=said).get("otel", {})}),
        traced_cluster(receiver, n_workers=1, processes=False) as traced,
    ):
        assert not traced.client.run_on_scheduler(counts)
        if not said and hasattr(provider, "add_metric_reader"):  # The SDK has it since 1.41.
            provider.add_metric_reader(reader)
            wait_until(lambda: traced.client.run_on_scheduler(counts))
    assert requests(receiver) == []


class Late(WorkerPlugin):
    """A user's plugin that sets a provider, after dask-otel was turned on."""

    name = "late"

    def setup(self, worker: Any) -> None:
        worker.reader = Kept(preferred_temporality=DELTA)
        metrics.set_meter_provider(
            MeterProvider([worker.reader], Resource({"service.name": "late"}), shutdown_on_exit=False)
        )


def given(dask_worker: Any) -> float:
    found = dask_worker.reader.values(instruments.ACTIVITY_AMOUNT_OF.name)
    return float(sum(seen.get((), 0.0) for seen in found))


async def provided(dask_worker: Any) -> bool:
    from dask_otel.turning_on import workers

    telemetry = workers.telemetry(dask_worker)
    assert telemetry is not None
    return telemetry.metrics.meter._feed is not None


def test_a_provider_that_is_set_late_on_a_worker_wins_and_nothing_is_counted_twice(
    receiver: Receiver,
) -> None:
    with traced_cluster(receiver, n_workers=1) as traced:
        client = traced.client
        client.submit(metered, 1, key="metered-1").result()
        assert dask_otel.flush(client, DEADLINE)
        client.submit(metered, 2, 5, key="metered-2").result()
        client.register_plugin(Late())
        wait_until(lambda: all(client.run(provided).values()))
        client.submit(metered, 3, 7, key="metered-3").result()
        assert dask_otel.flush(client, DEADLINE)
        own = totals(samples(receiver), instruments.ACTIVITY_AMOUNT_OF.name)[()]
        (late,) = client.run(given).values()
        (all_of_them,) = client.run(rows).values()
    assert (own, late, all_of_them) == (8, 7, 15)


def slept(x: int, seconds: float) -> int:
    time.sleep(seconds)
    return x


def test_durations_of_prefixes_that_got_a_room_late_are_not_told_again_to_a_late_provider(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_metrics, "MAX_PREFIXES", 4)
    prefixes = {f"{letter}nt" for letter in "abcdefg"}

    def shown() -> set[str]:
        assert dask_otel.flush(traced.client, DEADLINE)
        return {
            of for (of,) in totals(samples(receiver), instruments.COMPUTE_SECONDS.name, names.TASK_PREFIX)
        }

    with traced_cluster(receiver, n_workers=1, processes=False) as traced:

        def run(prefix: str, n: int, seconds: float = 0.0) -> None:
            assert traced.client.submit(slept, n, seconds, key=f"{prefix}-{n}").result(DEADLINE) == n

        for prefix in sorted(prefixes):
            run(prefix, 1)
        late, other = sorted(prefixes - shown())[:2]
        run(late, 2, 0.3)
        wait_until(lambda: late in shown())
        reader = Kept()
        use(monkeypatch, reader)
        # The scheduler and the worker look for a provider each by itself.
        of_worker = instruments.WORKER_THREADS.name
        wait_until(lambda: dask_otel.flush(traced.client, DEADLINE) and reader.values(of_worker))
        run(late, 3)
        run(other, 3)
        assert dask_otel.flush(traced.client, DEADLINE)
    durations = reader.values(instruments.TASK_DURATION.name, names.TASK_PREFIX)
    assert durations[-1] == {(late,): 1, ("other",): 1}


SHOP = """\
from distributed import Client, LocalCluster
from distributed.metrics import context_meter

def metered(x):
    with context_meter.meter("mine"):
        context_meter.digest_metric("mine", 3, "rows")
    return x

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        assert client.gather(client.map(metered, range(10), pure=False)) == list(range(10))
"""


def test_the_last_values_of_workers_go_through_the_distro_s_provider(
    tmp_path: Path, receiver: Receiver
) -> None:
    """Under `opentelemetry-instrument`, in nannies' workers too, long before a minute is over; nobody flushes."""
    with commands(tmp_path) as started:
        application = started.application(
            SHOP,
            str(Path(sys.executable).with_name("opentelemetry-instrument")),
            sys.executable,
            OTEL_SERVICE_NAME="shop",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_METRICS_EXPORTER="otlp",
            OTEL_LOGS_EXPORTER="none",
        )
        assert application.wait() == ""
    found: dict[str, float] = {}
    for resource, metric in received(receiver):
        for point in metric.sum.data_points if metric.name == instruments.ACTIVITY_AMOUNT_OF.name else ():
            # Under older versions the nanny's worker has no provider of the distro's: its resource says who it is.
            told = {**resource, **dict(decoded(point.attributes))}
            found[told[names.WORKER_NAME]] = point.as_int or point.as_double
    assert (sum(found.values()), set(found) <= {"0", "1"}) == (30, True)
    resources_ = {resource["service.name"] for path, resource in resources(receiver) if path == "/v1/metrics"}
    assert resources_ == {"shop"}


def received(receiver: Receiver) -> Iterator[tuple[dict[str, Any], Any]]:
    """Metrics that came, whoever made them, with the resource of each."""
    for request in receiver.requests():
        if request.path == "/v1/metrics":
            for group in ExportMetricsServiceRequest.FromString(request.body).resource_metrics:
                resource = dict(decoded(group.resource.attributes))
                for scope in group.scope_metrics:
                    yield from ((resource, metric) for metric in scope.metrics)


# -- who ------------------------------------------------------------------------------------------------------------


def resources(receiver: Receiver) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and resource of everything that came."""
    for request in receiver.requests():
        if request.path == "/v1/metrics":
            groups: Any = ExportMetricsServiceRequest.FromString(request.body).resource_metrics
        else:
            groups = ExportTraceServiceRequest.FromString(request.body).resource_spans
        for group in groups:
            yield request.path, dict(decoded(group.resource.attributes))


@pytest.mark.parametrize("processes", [True, False])
def test_each_server_has_one_identity_the_same_on_spans_and_metrics(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, processes: bool
) -> None:
    """From the first export on, which an interval this short has before much is known."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
    with traced_cluster(receiver, processes=processes) as traced:
        client = traced.client
        work = client.map(metered, range(10), pure=False)
        assert sum(client.gather(work)) == 45
        assert dask_otel.flush(client, DEADLINE)
        cluster_id = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.id)
        ids = {cluster_id, *client.run(lambda dask_worker: dask_worker.id).values()}
    found: defaultdict[str, set[tuple[str, Any]]] = defaultdict(set)
    for path, resource in resources(receiver):
        found[resource[names.SERVICE_INSTANCE_ID]].add((path, tuple(sorted(resource.items()))))
    told = {instance: dict(who) for instance in ids for _, who in found[instance]}
    assert {instance: sorted(path for path, _ in found[instance]) for instance in ids} == {
        instance: ["/v1/metrics", "/v1/traces"] for instance in ids
    }
    assert [len({who for _, who in found[instance]}) for instance in ids] == [1, 1, 1]
    assert {one[names.CLUSTER_ID] for one in told.values()} == {cluster_id}
    assert sorted(one[names.ROLE] for one in told.values()) == ["scheduler", "worker", "worker"]
    sdk = {
        tuple(one[f"telemetry.sdk.{key}"] for key in ("language", "name", "version")) for one in told.values()
    }
    theirs = Resource.create({}).attributes
    assert sdk == {tuple(theirs[f"telemetry.sdk.{key}"] for key in ("language", "name", "version"))}


# -- exporters by their names -----------------------------------------------------------------------------------------


def test_metrics_are_shown_on_the_console_beside_what_is_sent(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp,console")
    with traced_cluster(receiver, n_workers=1, forked=False) as traced:
        traced.client.submit(metered, 1, key="metered-1").result()
        assert dask_otel.flush(traced.client, DEADLINE)
        wait_until(lambda: requests(receiver) == ["scheduler", "worker"])
    # The scheduler's is in this process, whose standard output the SDK had in hand before the test did.
    shown = capfd.readouterr().out
    assert f'"name": "{instruments.COMPUTE_SECONDS.name}"' in shown
