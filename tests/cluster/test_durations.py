"""Attempts, wasted time and transfers as metrics: whole for every task, and the very numbers of the spans."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import dask
import distributed.worker
import pytest
from distributed import Client, Reschedule, Worker, span, wait
from distributed.comm import CommClosedError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import dask_otel
from dask_otel import endings, names
from dask_otel.instruments import (
    INCOMING,
    OUTGOING,
    TASK_ATTEMPTS,
    TASK_DURATION,
    TRANSFER_BANDWIDTH,
    TRANSFER_BYTES,
    TRANSFER_DIRECTION,
    TRANSFER_SECONDS,
    WASTE_REASON,
    WASTED_SECONDS,
)
from dask_otel.receiver import Receiver
from dask_otel.tree import Received
from tests.cluster.commands import PRELOAD, commands
from tests.cluster.conftest import MakeTraced
from tests.cluster.metering import REASONS, samples, totals
from tests.cluster.support import (
    DEADLINE,
    Once,
    Traced,
    assert_nothing_open,
    attributes,
    named,
    wait_until,
)
from tests.cluster.test_failures import Gate, addresses, inc, kill, seconds, state, wait_for_heartbeat

Counted = dict[tuple[str, ...], float]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine makes no worker late: totals are whole or the test fails."""
    monkeypatch.setattr(endings, "PATIENCE", 20.0)


# -- what is received ------------------------------------------------------------------------------------------------


class Distribution(NamedTuple):
    """One point of a histogram."""

    total: int
    sum: float
    buckets: tuple[int, ...]
    bounds: tuple[float, ...]


class Exemplar(NamedTuple):
    """An exemplar, and what its series is of."""

    of: tuple[str, ...]
    value: float
    trace_id: bytes
    span_id: bytes


def points(receiver: Receiver, name: str) -> Iterator[tuple[str, dict[str, str], Any]]:
    """The points of a histogram in the order of their arrival: instance, attributes, point."""
    for request in receiver.requests():
        if request.path != "/v1/metrics":
            continue
        for resource in ExportMetricsServiceRequest.FromString(request.body).resource_metrics:
            who = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                if metric.name == name:
                    for point in metric.histogram.data_points:
                        told = {pair.key: pair.value.string_value for pair in point.attributes}
                        yield who["service.instance.id"], told, point


def distributions(receiver: Receiver, name: str, *keys: str) -> dict[tuple[str, ...], Distribution]:
    """The last of each series, added up over instances."""
    last: dict[tuple[str, tuple[str, ...]], Distribution] = {}
    for instance, told, point in points(receiver, name):
        assert set(told) <= set(keys)
        last[instance, tuple(told.get(key, "") for key in keys)] = Distribution(
            point.count, point.sum, tuple(point.bucket_counts), tuple(point.explicit_bounds)
        )
    found: dict[tuple[str, ...], Distribution] = {}
    for (_, of), one in last.items():
        other = found.get(of, one._replace(total=0, sum=0.0, buckets=(0,) * len(one.buckets)))
        buckets = tuple(map(sum, zip(one.buckets, other.buckets)))
        found[of] = Distribution(one.total + other.total, one.sum + other.sum, buckets, one.bounds)
    return {of: one for of, one in found.items() if one.total}


def exemplars(receiver: Receiver, name: str, *keys: str) -> list[Exemplar]:
    return [
        Exemplar(tuple(told.get(key, "") for key in keys), one.as_double, one.trace_id, one.span_id)
        for _, told, point in points(receiver, name)
        for one in point.exemplars
    ]


DURATION = (names.TASK_PREFIX, names.OUTCOME, names.ERROR_TYPE)


def durations(receiver: Receiver) -> dict[tuple[str, ...], Distribution]:
    return distributions(receiver, TASK_DURATION.name, *DURATION)


def attempts(receiver: Receiver) -> Counted:
    return totals(samples(receiver), TASK_ATTEMPTS.name, names.TASK_PREFIX, names.OUTCOME)


def wasted(receiver: Receiver) -> Counted:
    return totals(samples(receiver), WASTED_SECONDS.name, names.TASK_PREFIX, WASTE_REASON)


def transfers(receiver: Receiver, name: str = TRANSFER_SECONDS.name) -> dict[tuple[str, ...], Distribution]:
    return distributions(receiver, name, TRANSFER_DIRECTION, names.TRANSFER_OUTCOME)


def number(found: dict[tuple[str, ...], Distribution]) -> dict[tuple[str, ...], int]:
    return {of: one.total for of, one in found.items()}


def become(client: Client, get: Callable[[], Any], expected: Any) -> None:
    """Everything is exported until what is seen is what is expected."""
    deadline = time.monotonic() + DEADLINE
    while True:
        assert dask_otel.flush(client, DEADLINE)
        seen = get()
        if seen == expected or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert seen == expected


def assert_never_falls(receiver: Receiver) -> None:
    """Totals of one series, export by export; zero points of new series aside."""
    before: dict[Any, float] = {}
    for one in samples(receiver):
        if one.monotonic and one.time > one.start:
            key = one.instance, one.name, one.attributes
            assert one.value >= before.get(key, 0)
            before[key] = one.value


# -- a workload with all that can happen to a task ---------------------------------------------------------------------


class OddError(Exception):
    """Its text does not tell its class."""

    def __repr__(self) -> str:
        return "how odd"


def odd(x: object) -> NoReturn:
    raise OddError(x)


def hold(x: Any, gate: Gate) -> Any:
    gate.pass_through()
    return x


def gates(folder: Path) -> Iterator[Gate]:
    for n in range(10):
        yield Gate(folder / f"gate-{n}")


def work(traced: Traced, folder: Path) -> None:
    """Everything but lost workers."""
    client, (here, _) = traced.client, addresses(traced)
    opened = gates(folder)
    wait([client.submit(inc, x, key=f"inc-{x}") for x in range(3)])
    assert client.submit(odd, 1, key="odd-1").exception()
    (folder / "retried").mkdir()
    assert client.submit(Once(folder / "retried", times=2), 1, retries=2, key="retried-1").result() == 1
    (folder / "again").mkdir()
    assert client.submit(Once(folder / "again", error=Reschedule), 1, key="again-1").result() == 1

    gate = next(opened)
    future = client.submit(hold, 1, gate, key="cancelled-1")
    gate.wait_for_tasks()
    future.cancel()
    wait_until(lambda: state(traced, "cancelled-1") == "cancelled")
    gate.open()
    wait_until(lambda: state(traced, "cancelled-1") is None)

    gate = next(opened)
    future = client.submit(hold, 1, gate, key="discarded-1", workers=[here])
    gate.wait_for_tasks()
    future.cancel()
    client.submit(inc, 1, key="inc-3").result()
    future = client.submit(hold, 1, gate, key="discarded-1", workers=[here])
    wait_until(lambda: state(traced, "discarded-1") == "executing")
    gate.open()
    assert future.result() == 1


def lose(traced: Traced, folder: Path) -> None:
    """A worker is killed while it runs a task that needs a result which only it has."""
    client, gate = traced.client, Gate(folder / "gate-of-the-lost")
    victim = addresses(traced)[0]
    here = {"workers": [victim], "allow_other_workers": True}
    base = client.submit(inc, 1, key="base-1", **here)
    wait(base)
    future = client.submit(hold, base, gate, key="lost-1", **here)
    gate.wait_for_tasks()
    wait_for_heartbeat(traced, victim, "lost-1")
    assert dask_otel.flush(client, DEADLINE)  # What it counted would die with it.
    kill(traced, victim)
    gate.open()
    assert future.result() == 2


ATTEMPTS = {
    ("inc", "success"): 4,
    ("odd", "failed"): 1,
    ("retried", "failed"): 2,
    ("retried", "success"): 1,
    ("again", "rescheduled"): 1,
    ("again", "success"): 1,
    ("cancelled", "cancelled"): 1,
    ("discarded", "discarded"): 1,
    ("discarded", "success"): 1,
    ("base", "success"): 2,
    ("lost", "lost"): 1,
    ("lost", "success"): 1,
}
ERROR_TYPES = {"odd": "tests.cluster.test_durations.OddError", "retried": "ValueError"}
DURATIONS = {
    (prefix, outcome, ERROR_TYPES[prefix] if outcome == "failed" else ""): n
    for (prefix, outcome), n in ATTEMPTS.items()
    if outcome != "lost"
}
WASTED = {
    ("odd", "failed"),
    ("retried", "failed"),
    ("again", "cancelled"),
    ("cancelled", "cancelled"),
    ("discarded", "cancelled"),
    ("base", "recomputed"),
    ("lost", "lost"),
}


def task_spans(spans: list[Received]) -> list[tuple[tuple[str, str, str], Received]]:
    """Task spans by prefix, outcome, error type."""
    found = [(attributes(r), r) for r in spans]
    return [
        ((told[names.TASK_PREFIX], told[names.OUTCOME], told.get(names.ERROR_TYPE, "")), r)
        for told, r in found
        if told[names.OPERATION] == names.OP_TASK
    ]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"otel.traces.detail": "group"},
        {"OTEL_TRACES_SAMPLER": "always_off"},
        {"OTEL_TRACES_EXPORTER": "none"},
    ],
    ids=str,
)
def test_every_attempt_is_counted_whatever_is_sampled(
    traced_cluster_of: MakeTraced, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: dict[str, str]
) -> None:
    for variable, value in said.items():
        monkeypatch.setenv(variable, value)
    with dask.config.set(said), traced_cluster_of() as traced:
        receiver = traced.receiver
        work(traced, tmp_path)
        lose(traced, tmp_path)
        become(traced.client, lambda: attempts(receiver), ATTEMPTS)
        become(traced.client, lambda: number(durations(receiver)), DURATIONS)
        assert {of for of, value in wasted(receiver).items() if value > 0} == WASTED
        assert_never_falls(receiver)
        assert_nothing_open(traced)
        if said and "otel.traces.detail" not in said:
            assert receiver.spans() == []
            assert exemplars(receiver, TASK_DURATION.name, *DURATION) == []


def test_spans_and_metrics_are_the_same_numbers(traced: Traced, tmp_path: Path) -> None:
    work(traced, tmp_path)
    lose(traced, tmp_path)
    become(traced.client, lambda: attempts(traced.receiver), ATTEMPTS)
    become(traced.client, lambda: number(durations(traced.receiver)), DURATIONS)
    spans = traced.spans()
    shown = task_spans(spans)
    summed: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for_nothing: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for (prefix, outcome, error_type), r in shown:
        if outcome != names.LOST:
            summed[prefix, outcome, error_type] += seconds(r)
        if outcome in REASONS:
            for_nothing[prefix, REASONS[outcome]] += seconds(r)
        elif names.CAUSE in attributes(r):
            for_nothing[prefix, "recomputed"] += seconds(r)
    assert Counter((prefix, outcome) for (prefix, outcome, _), _ in shown) == ATTEMPTS
    found = durations(traced.receiver)
    assert {of: one.sum for of, one in found.items()} == pytest.approx(summed, abs=1e-5)
    assert wasted(traced.receiver) == pytest.approx(for_nothing, abs=1e-5)
    told = [attributes(r)[names.WASTED_TIME] for r in named(spans, names.COMPUTATION)]
    assert sum(wasted(traced.receiver).values()) == pytest.approx(sum(told), abs=1e-6)
    for of, one in found.items():
        values = [seconds(r) for which, r in shown if which == of]
        assert sum(one.buckets) == one.total == len(values)


def test_exemplars_are_spans_that_arrive(traced: Traced, tmp_path: Path) -> None:
    client = traced.client
    work(traced, tmp_path)
    move(client)
    spans = traced.spans()
    shown = {(r.span.trace_id, r.span.span_id): (of, seconds(r)) for of, r in task_spans(spans)}
    seen = exemplars(traced.receiver, TASK_DURATION.name, *DURATION)
    assert {one.of for one in seen} == {of for of, _ in shown.values()}
    for one in seen:
        assert (one.of, pytest.approx(one.value, abs=1e-5)) == shown[one.trace_id, one.span_id]
    transferred = {
        (r.span.trace_id, r.span.span_id): (DIRECTIONS[r.span.name], attributes(r)) for r in spans
        if r.span.name in DIRECTIONS
    }  # fmt: skip
    for name in (TRANSFER_SECONDS.name, TRANSFER_BYTES.name, TRANSFER_BANDWIDTH.name):
        seen = exemplars(traced.receiver, name, TRANSFER_DIRECTION)
        assert {direction for (direction,), *_ in seen} == {INCOMING, OUTGOING}
        assert all(transferred[one.trace_id, one.span_id][0] == one.of[0] for one in seen)
        if name == TRANSFER_BYTES.name:
            sizes = {one.value: transferred[one.trace_id, one.span_id][1] for one in seen}
            assert all(told[names.TRANSFER_SIZE] == size for size, told in sizes.items())


def test_without_exemplars_there_are_none(
    traced_cluster_of: MakeTraced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXEMPLAR_FILTER", "always_off")
    with traced_cluster_of() as traced:
        move(traced.client)
        assert traced.spans()
        assert number(durations(traced.receiver)) == {("inc", "success", ""): 1, ("sum", "success", ""): 1}
        assert exemplars(traced.receiver, TASK_DURATION.name, *DURATION) == []
        assert exemplars(traced.receiver, TRANSFER_SECONDS.name, TRANSFER_DIRECTION) == []


def test_tasks_of_a_scheduler_without_dask_otel_have_their_durations(
    receiver: Receiver, tmp_path: Path
) -> None:
    with commands(tmp_path) as start:
        start.scheduler()
        start.worker(*PRELOAD)
        with start.client(1) as client:
            wait([client.submit(inc, x, key=f"inc-{x}") for x in range(3)])
            assert client.submit(odd, 1, key="odd-1").exception()
            expected = {("inc", "success", ""): 3, ("odd", "failed", ERROR_TYPES["odd"]): 1}
            become(client, lambda: number(durations(receiver)), expected)
            assert attempts(receiver) == {}


def test_a_cancelled_run_that_goes_on_is_counted_once_and_its_seconds_when_it_ends(
    traced: Traced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings, "PATIENCE", 0.2)
    client, gate = traced.client, Gate(tmp_path / "gate")
    future = client.submit(hold, 1, gate, key="cancelled-1")
    gate.wait_for_tasks()
    future.cancel()
    become(client, lambda: attempts(traced.receiver), {("cancelled", "cancelled"): 1})
    assert wasted(traced.receiver) == {}
    gate.open()
    become(client, lambda: number(durations(traced.receiver)), {("cancelled", "cancelled", ""): 1})
    become(client, lambda: set(wasted(traced.receiver)), {("cancelled", "cancelled")})
    assert attempts(traced.receiver) == {("cancelled", "cancelled"): 1}
    (run,) = [r for _, r in task_spans(traced.spans())]
    assert wasted(traced.receiver) == {("cancelled", "cancelled"): pytest.approx(seconds(run), abs=1e-5)}
    assert_never_falls(traced.receiver)


def test_totals_go_on_when_the_client_restarts_the_cluster(traced: Traced, tmp_path: Path) -> None:
    client, gate = traced.client, Gate(tmp_path / "gate")
    wait([client.submit(inc, x, key=f"inc-{x}") for x in range(3)])
    running = client.submit(hold, 1, gate, key="restarted-1")
    gate.wait_for_tasks()
    assert dask_otel.flush(client, DEADLINE)
    client.restart()
    assert running.status == "cancelled"
    wait([client.submit(inc, x, key=f"inc-{x}") for x in range(2)])
    become(
        client,
        lambda: attempts(traced.receiver),
        {("inc", "success"): 5, ("restarted", "cancelled"): 1},
    )
    become(client, lambda: number(durations(traced.receiver))["restarted", "cancelled", ""], 1)
    (run,) = [r for (prefix, *_), r in task_spans(traced.spans()) if prefix == "restarted"]
    assert wasted(traced.receiver) == {("restarted", "cancelled"): pytest.approx(seconds(run), abs=1e-5)}
    assert_never_falls(traced.receiver)


def test_a_span_of_the_users_is_an_attribute_where_it_is_listed(traced_cluster_of: MakeTraced) -> None:
    with dask.config.set({"otel.metrics.span-names": ["load", "train"]}), traced_cluster_of() as traced:
        client, receiver = traced.client, traced.receiver
        with span("load"):
            wait(client.submit(inc, 1, key="inc-1"))
            with span("part"):
                wait(client.submit(inc, 2, key=("inc-loaded", 1)))
            with span("train"):
                wait(client.submit(inc, 3, key=("inc-trained", 1)))
        with span("save"):
            wait(client.submit(inc, 4, key=("inc-saved", 1)))
        wait(client.submit(inc, 5, key=("inc-other", 1)))
        expected = {("load",): 2, ("train",): 1, ("",): 2}
        become(client, lambda: totals(samples(receiver), TASK_ATTEMPTS.name, names.SPAN_NAME), expected)
        found = distributions(receiver, TASK_DURATION.name, *DURATION, names.SPAN_NAME)
        counted: Counter[tuple[str, ...]] = Counter()
        for of, one in found.items():
            counted[of[3:]] += one.total
        assert counted == expected


# -- transfers ---------------------------------------------------------------------------------------------------------

DIRECTIONS = {names.GATHER_DEP: INCOMING, names.GET_DATA: OUTGOING}


class Broken:
    """A limit at which the connection breaks."""

    def __mul__(self, other: object) -> NoReturn:
        raise CommClosedError("broken")


def move(client: Client) -> None:
    """One result goes from one worker to another."""
    here, there = sorted(client.scheduler_info(n_workers=-1)["workers"])
    made = client.submit(inc, 1, key="inc-1", workers=[here])
    assert client.submit(sum, [made, made], key="sum-1", workers=[there]).result() == 4


def limit(limit: Any, dask_worker: Worker) -> None:
    """So many requests for data are answered at once."""
    dask_worker.transfer_outgoing_count_limit = limit


def hide(key: str, dask_worker: Worker) -> None:
    """The worker does not find what it has."""
    dask_worker.hidden = dask_worker.data[key]  # type: ignore[attr-defined]
    del dask_worker.data[key]


def find(key: str, dask_worker: Worker) -> None:
    dask_worker.data[key] = dask_worker.hidden  # type: ignore[attr-defined]


def delay(folder: str) -> None:
    """The next transfer to this worker's process waits for a file."""
    original = distributed.worker.get_data_from_worker

    async def get_data_from_worker(*args: Any, **kwargs: Any) -> Any:
        distributed.worker.get_data_from_worker = original  # type: ignore[assignment]
        (Path(folder) / "asked").touch()
        while not (Path(folder) / "go").exists():
            await asyncio.sleep(0.01)
        return await original(*args, **kwargs)

    distributed.worker.get_data_from_worker = get_data_from_worker  # type: ignore[assignment]


def transfer(client: Client, receiver: Receiver, folder: Path) -> None:
    """Transfers of each outcome."""
    here, there = sorted(client.scheduler_info(n_workers=-1)["workers"])
    move(client)
    copied = client.submit(inc, 2, key="copied-1", workers=[here])
    client.replicate(copied)
    assert len(client.who_has(copied)["copied-1"]) == 2

    for name, stops, value in (
        ("busy", limit, 0),
        ("failed", limit, Broken()),
        ("missing", hide, "missing-1"),
    ):
        made = client.submit(inc, 3, key=f"{name}-1", workers=[here])
        wait(made)
        client.run(stops, value, workers=[here])
        future = client.submit(inc, made, key=f"{name}-2", workers=[there])
        for of in ((OUTGOING, name), (INCOMING, name)):
            wait_until(lambda of=of: of in exported(client, receiver))
        client.run(find if stops is hide else limit, value if stops is hide else 10, workers=[here])
        assert future.result() == 5

    made = client.submit(inc, 3, key="unwanted-1", workers=[here])
    wait(made)
    client.run(delay, str(folder), workers=[there])
    future = client.submit(inc, made, key="unwanted-2", workers=[there])
    wait_until((folder / "asked").exists)
    future.cancel()
    wait_until(lambda: unwanted(client, "unwanted-1", there))
    (folder / "go").touch()
    wait_until(lambda: (INCOMING, names.CANCELLED) in exported(client, receiver))


def unwanted(client: Client, key: str, address: str) -> bool:
    def status(dask_worker: Worker) -> str | None:
        found = dask_worker.state.tasks.get(key)
        return found.state if found is not None else None

    return bool(client.run(status, workers=[address])[address] == "cancelled")


def exported(client: Client, receiver: Receiver) -> dict[tuple[str, ...], int]:
    assert dask_otel.flush(client, DEADLINE)
    return number(transfers(receiver))


@pytest.mark.parametrize("sampler", ["parentbased_always_on", "always_off"])
def test_every_transfer_is_counted_by_direction_and_outcome(
    traced_cluster_of: MakeTraced, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sampler: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    with dask.config.set({"distributed.worker.connections.outgoing": 5}), traced_cluster_of() as traced:
        client, receiver = traced.client, traced.receiver
        transfer(client, receiver, tmp_path)
        spans = traced.spans()
        found = transfers(receiver)
        sending = {names.SUCCESS, names.BUSY, names.MISSING, names.FAILED}
        assert set(found) == {
            *((INCOMING, outcome) for outcome in names.TRANSFER_OUTCOMES),
            *((OUTGOING, outcome) for outcome in sending),
        }
        successes = {of for of in found if of[1] == names.SUCCESS}
        sizes = transfers(receiver, TRANSFER_BYTES.name)
        assert successes <= set(sizes) <= successes | {(INCOMING, names.CANCELLED)}
        bandwidths = distributions(receiver, TRANSFER_BANDWIDTH.name, TRANSFER_DIRECTION)
        assert {of: one.total for of, one in bandwidths.items()} == {
            of[:1]: sizes[of].total for of in successes
        }
        if sampler == "always_off":
            assert spans == []
            return
        shown: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        bytes_shown: defaultdict[tuple[str, str], int] = defaultdict(int)
        for r in spans:
            if r.span.name in DIRECTIONS:
                of = DIRECTIONS[r.span.name], attributes(r)[names.TRANSFER_OUTCOME]
                shown[of].append(seconds(r))
                bytes_shown[of] += attributes(r).get(names.TRANSFER_SIZE, 0)
        incoming = {of: one for of, one in found.items() if of[0] == INCOMING}
        assert number(incoming) == {of: len(values) for of, values in shown.items() if of[0] == INCOMING}
        assert {of: one.sum for of, one in incoming.items()} == {
            of: pytest.approx(sum(shown[of]), abs=1e-5) for of in incoming
        }
        assert sizes[INCOMING, names.SUCCESS].sum == bytes_shown[INCOMING, names.SUCCESS]
