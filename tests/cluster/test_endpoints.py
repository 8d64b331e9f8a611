"""What servers send is what their Prometheus endpoints show: every number of a run with a bit of everything."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from distributed import Client, Scheduler, Semaphore
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import dask_otel
from dask_otel import instruments, names
from dask_otel.endpoint_names import DISTRIBUTION, EQUAL, FOREIGN, MORE, MOVES, SHOWN, SUM, Shown
from dask_otel.receiver import Receiver
from tests.cluster.commands import PRELOAD, commands
from tests.cluster.support import DEADLINE, receiving, wait_for, wait_until

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed: pip install '.[test]'")
from prometheus_client.parser import text_string_to_metric_families

#: Needs more than `prometheus_client` on the servers.
OPTIONAL = {"gil_contention": "gilknocker", "_median_": "crick"}
#: Not in every version of distributed that is supported.
OLD = {"dask_worker_concurrent_fetch_requests"}
SEMAPHORE, CLOSED = "database", "closed"

#: By name of a sample and its labels.
Scraped = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Server(NamedTuple):
    """A process: its role, its id, where its endpoint is."""

    role: str
    id: str
    url: str

    def scrape(self) -> Scraped:
        with urllib.request.urlopen(self.url, timeout=DEADLINE) as answer:
            text = answer.read().decode()
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


#: By name of a metric and its attributes.
Sent = dict[tuple[str, frozenset[tuple[str, str]]], float]
#: Gives the last of what was sent by instance.
Read = Callable[[], dict[str, Sent]]


class Seen(NamedTuple):
    """A server's endpoint before and after what it sent in between; ``first`` is how it was before the run."""

    server: Server
    before: Scraped
    sent: Sent
    after: Scraped
    first: Seen | None = None


def sent(receiver: Receiver) -> dict[str, Sent]:
    """The last value of each series (histograms: the sum) by instance."""
    found: dict[str, Sent] = {}
    for request in receiver.requests():
        if request.path != "/v1/metrics":
            continue
        for resource in ExportMetricsServiceRequest.FromString(request.body).resource_metrics:
            who = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            of_instance = found.setdefault(who[names.SERVICE_INSTANCE_ID], {})
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                for point in (*metric.sum.data_points, *metric.gauge.data_points):
                    value = point.as_double if point.HasField("as_double") else point.as_int
                    of_instance[metric.name, _attributes(point)] = value
                for point in metric.histogram.data_points:
                    of_instance[metric.name, _attributes(point)] = point.sum
    return found


def _attributes(point: Any) -> frozenset[tuple[str, str]]:
    return frozenset((pair.key, pair.value.string_value) for pair in point.attributes)


# -- the run ------------------------------------------------------------------------------------------------------


def big(n: int) -> bytes:
    return bytes([n]) * 2_000_000


def slow(n: int) -> int:
    time.sleep(0.05)
    return n


def leased(n: int, name: str) -> int:
    with Semaphore(max_leases=2, name=name):
        time.sleep(0.01)
    return n


def bad(n: int) -> int:
    raise ValueError(n)


def held(folder: str) -> None:
    (Path(folder) / "holds").touch()
    wait_for(Path(folder) / "never")


def requests_to_steal(dask_scheduler: Scheduler) -> int:
    return sum(dask_scheduler.extensions["stealing"].metrics["request_count_total"].values())


def work(client: Client, other: Client, folder: Path) -> list[Any]:
    """Spill, steal, lease, fail, move data, lose a worker, forget; what is returned is to be held."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    named = {info["name"]: address for address, info in workers.items()}
    here, there, doomed = named["here"], named["there"], named["doomed"]
    lost = client.submit(held, str(folder), key="held-1", workers=[doomed])
    wait_until((folder / "holds").exists)
    os.kill(client.run(os.getpid, workers=[doomed])[doomed], signal.SIGKILL)
    wait_until(lambda: doomed not in client.scheduler_info(n_workers=-1)["workers"])
    del lost

    kept = client.map(big, range(10), key=[f"big-{n}" for n in range(10)], workers=[here])
    assert client.submit(len, kept[0], key="len-1", workers=[here]).result() == 2_000_000
    assert client.submit(len, kept[1], key="len-2", workers=[there]).result() == 2_000_000
    assert client.submit(slow, 0, key="slow-0").result() == 0
    rounds = count(1)

    def stolen() -> bool:
        keys = [f"slow-{next(rounds)}" for _ in range(20)]
        crowd = client.map(slow, range(20), key=keys, workers=[here], allow_other_workers=True)
        assert client.gather(crowd) == list(range(20))
        return client.run_on_scheduler(requests_to_steal) > 0  # type: ignore[no-any-return]

    wait_until(stolen)
    for name in (SEMAPHORE, CLOSED):
        Semaphore(max_leases=2, name=name)
        tasks = client.map(leased, range(4), name=name, key=[f"leased-{name}-{n}" for n in range(4)])
        assert client.gather(tasks) == list(range(4))
    Semaphore(max_leases=2, name=CLOSED).close()
    client.run(gc.collect)
    client.run_on_scheduler(gc.collect)
    failed = other.submit(bad, 1, key="bad-1")
    assert failed.exception()
    return [kept, failed]


@contextmanager
def servers_of(folder: Path, environment: pytest.MonkeyPatch) -> Iterator[tuple[Client, Client]]:
    """A scheduler and three workers, two clients of theirs; metrics are exported when they are flushed."""
    memory = "DASK_DISTRIBUTED__WORKER__MEMORY__"
    environment.setenv(f"{memory}TARGET", "0.01")
    for other in ("SPILL", "PAUSE", "TERMINATE"):
        environment.setenv(f"{memory}{other}", "False")
    environment.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    arguments = (*PRELOAD, "--dashboard-address", "127.0.0.1:0")
    with commands(folder) as cluster:
        cluster.scheduler(*arguments)
        for name in ("here", "there", "doomed"):
            cluster.worker("--name", name, "--memory-limit", "500MB", "--no-nanny", *arguments)
        with (
            cluster.client(3) as client,
            Client(client.scheduler.address, set_as_default=False) as other_client,
        ):
            yield client, other_client


def watch(client: Client, other: Client, folder: Path, read: Read) -> list[Seen]:
    """Each server after the run; ``read`` gives what was sent."""
    first = {one.server: one for one in look(client, read)}
    results = work(client, other, folder)
    seen = [one._replace(first=first[one.server]) for one in look(client, read)]
    del results
    return seen


def look(client: Client, read: Read) -> list[Seen]:
    """Each server while nothing changes but what does so by itself."""
    servers = find(client)
    found: list[Seen] = []

    def settled() -> bool:
        before = [server.scrape() for server in servers]
        assert dask_otel.flush(client, DEADLINE)
        points = read()
        after = [server.scrape() for server in servers]
        found[:] = [Seen(server, b, points[server.id], a) for server, b, a in zip(servers, before, after)]
        return all(still(one) for one in found)

    wait_until(settled)
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    folder = tmp_path_factory.mktemp("servers")
    with (
        pytest.MonkeyPatch.context() as environment,
        receiving(environment) as receiver,
        servers_of(folder, environment) as (client, other),
    ):
        return watch(client, other, folder, partial(sent, receiver))


def find(client: Client) -> list[Server]:
    """The servers and their endpoints."""
    info = client.scheduler_info(n_workers=-1)
    port = info["services"]["dashboard"]
    found = [Server("scheduler", info["id"], f"http://127.0.0.1:{port}/metrics")]
    for address, instance in client.run(lambda dask_worker: dask_worker.id).items():
        port = info["workers"][address]["services"]["dashboard"]
        found.append(Server("worker", instance, f"http://127.0.0.1:{port}/metrics"))
    return found


def still(seen: Seen) -> bool:
    """Whether nothing has changed that does not by itself."""
    return all(
        seen.before.get(key) == seen.after.get(key)
        for key in seen.before.keys() | seen.after.keys()
        for shown in SHOWN
        if shown.name == key[0] and shown.comparison == EQUAL
    )


# -- the comparison -----------------------------------------------------------------------------------------------


def test_an_endpoint_shows_what_is_mapped_and_nothing_else(seen: list[Seen]) -> None:
    for role in ("scheduler", "worker"):
        scraped = {name for one in seen if one.server.role == role for name, _ in one.before}
        dasks = {name for name in scraped if not name.startswith(tuple(FOREIGN))}
        mapped = {shown.name for shown in SHOWN if shown.role == role and _installed(shown)}
        assert dasks | OLD == mapped | OLD


def _installed(shown: Shown) -> bool:
    needed = (module for part, module in OPTIONAL.items() if part in shown.name)
    return all(importlib.util.find_spec(module) for module in needed)


def test_what_is_sent_is_what_an_endpoint_shows(seen: list[Seen]) -> None:
    compare_all(seen)


def compare_all(seen: list[Seen]) -> None:
    compared: set[str] = set()
    for one in seen:
        for shown in SHOWN:
            if shown.role == one.server.role and _installed(shown):
                compared |= compare(one, shown)
    assert compared | OLD == {shown.name for shown in SHOWN if _installed(shown)}


def compare(one: Seen, shown: Shown) -> set[str]:
    """Compare all series of one name; the name, if there were any."""
    ours = {
        attributes: value
        for (name, attributes), value in one.sent.items()
        if name == shown.instrument.name and set(shown.attributes) <= attributes
    }
    labels = dict(shown.labels)
    theirs = {
        frozenset({(labels[key], value) for key, value in of} | set(shown.attributes)): key
        for key in one.before
        if key[0] == shown.name
        for of in (key[1],)
    }
    if shown.comparison == DISTRIBUTION:
        return {shown.name} if theirs else set()
    if shown.comparison == SUM:
        (key,) = theirs.values()
        return compare_increase(one, shown, key)
    for attributes, key in theirs.items():
        agree(one, shown, one.before[key], ours.pop(attributes, 0), one.after[key])
    if shown.labels == (("name", instruments.SEMAPHORE_NAME),):
        gone = ours.pop(frozenset({(instruments.SEMAPHORE_NAME, CLOSED)}), 0)
        total = shown.instrument.kind == instruments.COUNTER
        assert gone == (4 if total else 0), shown.name
    assert not any(ours.values()), (shown.name, ours)
    return {shown.name} if theirs else set()


def compare_increase(one: Seen, shown: Shown, key: tuple[str, frozenset[tuple[str, str]]]) -> set[str]:
    """Compare what a sum has risen by during the run; each side has work of its own within, and may be put aside in it."""
    assert one.first is not None
    ours = (shown.instrument.name, frozenset(shown.attributes))
    if ours in one.sent:
        risen = one.sent[ours] - one.first.sent.get(ours, 0)
        assert one.before[key] - one.first.after[key] <= risen * 1.5 + 0.5, shown.name
        assert risen <= (one.after[key] - one.first.before[key]) * 1.5 + 0.5, shown.name
    return {shown.name}


def agree(one: Seen, shown: Shown, before: float, ours: float, after: float) -> None:
    said = f"{one.server.role}: {shown.name} {before} {after}, {shown.instrument.name} {ours}"
    if shown.instrument is instruments.MONITOR_TIME:
        ours -= time.time() - time.monotonic()
        before, after = before - 0.01, after + 0.01
    if shown.comparison == EQUAL:
        assert before == after == pytest.approx(ours, rel=1e-12, abs=0), said
    elif shown.comparison == MORE:
        assert ours >= before, said
    elif shown.instrument in (instruments.WORKER_MEMORY, instruments.WORKER_LATENCY):
        low, high = sorted((before, after))
        assert low * 0.8 <= ours <= high * 1.25, said
    else:
        assert shown.comparison == MOVES
        assert before <= ours <= after, said


def test_the_run_had_a_bit_of_everything(seen: list[Seen]) -> None:
    """What is compared is not 0 everywhere."""
    scheduler, *workers = seen
    assert [one.server.role for one in seen] == ["scheduler", "worker", "worker"]

    def total(of: list[Seen], instrument: instruments.Instrument, *attributes: tuple[str, str]) -> float:
        return sum(
            value
            for one in of
            for (name, found), value in one.sent.items()
            if name == instrument.name and set(attributes) <= found
        )

    assert total([scheduler], instruments.STEALING_REQUESTS) > 0
    assert total([scheduler], instruments.LEASES_ACQUIRED) == 8
    assert total([scheduler], instruments.TASKS_SUSPICIOUS, (names.TASK_PREFIX, "held")) == 1
    assert total([scheduler], instruments.WORKERS_REMOVED) == 1
    assert total([scheduler], instruments.CLIENTS) == 2
    assert total([scheduler], instruments.TASK_TRANSITIONS, (instruments.TASK_STATE, "erred")) == 1
    assert total([scheduler], instruments.TASKS_FORGOTTEN) >= 20
    assert total(workers, instruments.SPILL_BYTES, (names.ACTIVITY_NAME, "disk-write")) > 2_000_000
    assert total(workers, instruments.SPILL_BYTES, (names.ACTIVITY_NAME, "disk-read")) > 0
    assert total(workers, instruments.TRANSFERS, (instruments.TRANSFER_DIRECTION, "incoming")) > 0
    assert total(workers, instruments.WORKER_TASKS, (instruments.TASK_STATE, "disk")) > 0
