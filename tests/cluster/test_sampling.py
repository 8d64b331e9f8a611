"""Whether a trace is recorded is decided once, and holds in every process: all of its spans come, or none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import dask
import pytest
from distributed import Client, get_client, wait
from opentelemetry import context, propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import Sampler

from dask_otel import names
from dask_otel.environment import SAMPLERS
from dask_otel.receiver import Receiver
from dask_otel.tree import Received, outline
from tests.cluster.conftest import MakeTraced
from tests.cluster.support import Traced, attributes, named, receiving, traced_cluster, without_transfers

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACE_STATE = "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7,acme@tenant=x:1;y:2"

#: What a sampler says of a trace of ours, by its trace id.
SAYS: dict[str, Callable[[int], bool]] = {
    "always_on": lambda trace_id: True,
    "traceidratio": lambda trace_id: trace_id & (2**64 - 1) < 2**63,
    "parentbased_always_on": lambda trace_id: True,
    "parentbased_always_off": lambda trace_id: False,
    "parentbased_traceidratio": lambda trace_id: trace_id & (2**64 - 1) < 2**63,
}


class Seen(NamedTuple):
    """The headers that a call from inside a task would have; empty where there is no context."""

    traceparent: str
    trace_state: str

    @property
    def trace_id(self) -> str:
        return self.traceparent[3:35]

    @property
    def sampled(self) -> bool:
        return bool(int(self.traceparent[-2:] or "0", 16) & 1)


# -- what runs inside tasks ----------------------------------------------------------------------------------------


def seen() -> Seen:
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return Seen(headers.get("traceparent", ""), headers.get("tracestate", ""))


def look() -> list[Seen]:
    """In a task, and in a user's span there."""
    with trace.get_tracer("shop").start_as_current_span("read"):
        return [seen()]


def work() -> list[Seen]:
    """Looks, and has others look from two computations within."""
    found = [seen(), *look()]
    found += get_client().submit(look, key=f"look-1-{found}", pure=False).result()
    found += dask.delayed(look, pure=False)(dask_key_name=f"look-2-{found}").compute()
    return [*found, seen()]


# -- what a client does --------------------------------------------------------------------------------------------


def computed(client: Client) -> list[Seen]:
    return dask.delayed(work, pure=False)().compute()  # type: ignore[no-any-return]


def submitted(client: Client) -> list[Seen]:
    return client.submit(work, pure=False).result()  # type: ignore[no-any-return]


def below(traceparent: str, call: Callable[[Client], list[Seen]], client: Client) -> list[Seen]:
    """As in the handler of a web server, with the caller's context."""
    headers = {"traceparent": traceparent, "tracestate": TRACE_STATE}
    token = context.attach(propagate.extract(headers, context.Context()))
    try:
        return call(client)
    finally:
        context.detach(token)


def shown(spans: list[Received]) -> str:
    """Without transfers, and what a worker does once for a function: whether there are any is Dask's choice."""
    return outline([r for r in without_transfers(spans) if r.span.name not in ("decompress", "deserialize")])


def indented(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())


WORK = dedent("""\
    dask.computation
      dask.graph.update
        dask.graph.init
        dask.graph.materialize
        dask.graph.order
      work group
        work
          dask.computation ×2
            dask.graph.update
              dask.graph.init
              dask.graph.materialize
              dask.graph.order
            look group
              look
                executor
                  compute
                read
          executor
            compute
          read""")
WHOLE = {computed: f"dask.compute\n{indented(WORK)}", submitted: WORK}


@pytest.fixture(scope="module", params=SAMPLERS)
def cluster_by_sampler(request: pytest.FixtureRequest) -> Iterator[tuple[str, Traced]]:
    """The name of a sampler, and a cluster whose processes all have it, of a half where it has a ratio."""
    with pytest.MonkeyPatch.context() as environment, receiving(environment) as receiver:
        environment.setenv("OTEL_TRACES_SAMPLER", request.param)
        if "ratio" in request.param:
            environment.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
        with traced_cluster(receiver, threads=2) as traced:
            yield request.param, traced


@pytest.fixture
def by(cluster_by_sampler: tuple[str, Traced]) -> tuple[str, Traced]:
    """The same, what tests did before forgotten."""
    cluster_by_sampler[1].forget()
    return cluster_by_sampler


@pytest.mark.parametrize("call", [computed, submitted])
def test_every_process_follows_the_decision_at_the_root_of_a_trace(
    by: tuple[str, Traced], call: Callable[[Client], list[Seen]]
) -> None:
    name, traced = by
    if name == "always_off":
        assert not any(one.sampled for one in call(traced.client))
        assert traced.spans() == []
        return
    says = SAYS[name]
    decided: dict[str, bool] = {}
    answers = {True, False} if "ratio" in name else {says(0)}
    while len(decided) < 3 or set(decided.values()) != answers:
        found = call(traced.client)
        (trace_id,) = {one.trace_id for one in found}
        decided[trace_id] = says(int(trace_id, 16))
        assert {one.sampled for one in found} == {decided[trace_id]}
    spans = {trace_id.hex(): spans for trace_id, spans in traced.traces().items()}
    assert spans.keys() == {trace_id for trace_id, sampled in decided.items() if sampled}
    assert [shown(received) for received in spans.values()] == [WHOLE[call]] * len(spans)


@pytest.mark.parametrize("call", [computed, submitted])
def test_below_an_incoming_span_its_flag_is_obeyed_and_its_trace_state_passes_on(
    by: tuple[str, Traced], call: Callable[[Client], list[Seen]]
) -> None:
    """Not by ``always_off``, of which a process sends nothing."""
    name, traced = by
    unsampled = below(f"00-{TRACE_ID}-{SPAN_ID}-00", call, traced.client)
    assert {(one.trace_id, one.sampled, one.trace_state) for one in unsampled} == {
        (TRACE_ID, False, TRACE_STATE)
    }
    assert traced.spans() == []
    sampled = below(f"00-{TRACE_ID}-{SPAN_ID}-01", call, traced.client)
    spans = traced.spans()
    if name == "always_off":
        assert (sampled[0], spans) == (Seen(f"00-{TRACE_ID}-{SPAN_ID}-01", TRACE_STATE), [])
        return
    assert {(one.trace_id, one.sampled, one.trace_state) for one in sampled} == {
        (TRACE_ID, True, TRACE_STATE)
    }
    assert shown(spans) == f"(parent not received)\n{indented(WHOLE[call])}"
    assert {(r.span.trace_id.hex(), r.span.trace_state) for r in spans} == {(TRACE_ID, TRACE_STATE)}


# -- samplers of others --------------------------------------------------------------------------------------------

SHOP = """
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import TraceState, get_current_span

class Shop(Sampler):
    '''Asked for gold customers only; says so on the span and in the trace state, and notes who asks.'''

    def __init__(self, path):
        self.path = path

    def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, links=None, trace_state=None):
        parent = get_current_span(parent_context).get_span_context()
        with open(self.path, "a") as file:
            file.write(f"{trace_id:032x} {name} {kind.name} {'below' if parent.is_valid else 'root'}\\n")
        if trace_id % 2:
            return SamplingResult(Decision.DROP, None, TraceState([("shop", "tin")]))
        return SamplingResult(
            Decision.RECORD_AND_SAMPLE, {"tier": "gold", "p": 0.5}, TraceState([("shop", "gold"), ("vendor", "x")])
        )

    def get_description(self):
        return "Shop"
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with a sampler of its own, for this process and those that it starts; where it notes."""
    folder = tmp_path / "site"
    info = folder / "shop_sampler-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: shop-sampler\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[opentelemetry_traces_sampler]\nshop = shop_sampler:Shop\n")
    (folder / "shop_sampler.py").write_text(dedent(SHOP))
    monkeypatch.syspath_prepend(folder)
    return tmp_path / "notes"


def until_both(call: Callable[[Client], list[Seen]], client: Client) -> dict[str, list[Seen]]:
    """What was seen by trace id, of traces of both decisions."""
    found: dict[str, list[Seen]] = {}
    while {int(trace_id, 16) % 2 for trace_id in found} != {0, 1}:
        seen_there = call(client)
        (trace_id,) = {one.trace_id for one in seen_there}
        found[trace_id] = seen_there
    return found


def assert_gold_is_whole(
    spans: list[Received], found: dict[str, list[Seen]], call: Callable[[Client], list[Seen]]
) -> None:
    """Of gold customers everything came, the others' context says no."""
    gold = {trace_id for trace_id in found if int(trace_id, 16) % 2 == 0}
    assert {r.span.trace_id.hex() for r in spans} == gold
    for trace_id, seen_there in found.items():
        said = "shop=gold,vendor=x" if trace_id in gold else "shop=tin"
        assert {(one.sampled, one.trace_state) for one in seen_there} == {(trace_id in gold, said)}
        mine = [r for r in spans if r.span.trace_id.hex() == trace_id]
        assert shown(mine) == (WHOLE[call] if trace_id in gold else "")
        assert {r.span.trace_state for r in mine} <= {said}
    root = names.COMPUTE if call is computed else names.COMPUTATION
    roots = [r for r in named(spans, root) if not r.span.parent_id]
    told = [r for r in spans if "tier" in attributes(r)]
    assert sorted(told, key=lambda r: r.span.span_id) == sorted(roots, key=lambda r: r.span.span_id)
    assert {(attributes(r)["tier"], attributes(r)["p"]) for r in told} == {("gold", 0.5)}


@pytest.mark.parametrize("call", [computed, submitted])
def test_a_sampler_from_an_entry_point_is_asked_once_a_trace_and_says_what_stands_on_the_root(
    shop: Path,
    traced_cluster_of: MakeTraced,
    clean_environment: pytest.MonkeyPatch,
    call: Callable[[Client], list[Seen]],
) -> None:
    clean_environment.setenv("OTEL_TRACES_SAMPLER", "shop")
    clean_environment.setenv("OTEL_TRACES_SAMPLER_ARG", str(shop))
    with traced_cluster_of() as traced:
        found = until_both(call, traced.client)
        assert_gold_is_whole(traced.spans(), found, call)
    name = "dask.compute CLIENT root" if call is computed else "dask.computation INTERNAL root"
    assert shop.read_text().splitlines() == [f"{trace_id} {name}" for trace_id in found]


def test_transfers_bear_the_trace_state_and_what_the_sampler_says_of_their_root(
    shop: Path, traced_cluster_of: MakeTraced, clean_environment: pytest.MonkeyPatch
) -> None:
    """One that a task waits for, then replicas that are moved, whose traces begin there, until one is sampled."""
    clean_environment.setenv("OTEL_TRACES_SAMPLER", "shop")
    clean_environment.setenv("OTEL_TRACES_SAMPLER_ARG", str(shop))
    with traced_cluster_of() as traced:
        client = traced.client
        here, there = client.scheduler_info()["workers"]

        def transfer(client: Client) -> list[Seen]:
            first = client.submit(abs, -1, key="first-1", workers=[here])
            return client.submit(lambda x: [seen()], first, key="second-1", workers=[there]).result()  # type: ignore[no-any-return]

        below(f"00-{TRACE_ID}-{SPAN_ID}-01", transfer, client)
        assert transfers(traced) == [
            (name, TRACE_ID, TRACE_STATE, None) for name in (names.GATHER_DEP, names.GET_DATA)
        ]
        traced.forget()
        for number in itertools.count():
            future = client.submit(abs, number, key=f"moved-{number}", workers=[here])
            wait(future)
            client.replicate([future], workers=[there])
            if found := transfers(traced):
                break
        (trace_id,) = {trace_id for _, trace_id, _, _ in found}
        assert found == [
            (names.GATHER_DEP, trace_id, "shop=gold,vendor=x", "gold"),
            (names.GET_DATA, trace_id, "shop=gold,vendor=x", None),
        ]
        assert f"{trace_id} gather-dep CLIENT root" in shop.read_text()


def transfers(traced: Traced) -> list[tuple[str, str, str, object]]:
    """Name, trace, trace state and what the sampler said."""
    told = [(r.span, attributes(r)) for r in traced.spans()]
    return sorted(
        (span.name, span.trace_id.hex(), span.trace_state, with_.get("tier"))
        for span, with_ in told
        if with_.get(names.OPERATION) == names.OP_TRANSFER
    )


@contextmanager
def application(receiver: Receiver, sampler: Sampler) -> Iterator[TracerProvider]:
    """An application with a provider, a sampler and an exporter of its own."""
    provider = TracerProvider(sampler, resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{receiver.endpoint}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


@pytest.mark.parametrize("call", [computed, submitted])
def test_the_sampler_of_an_applications_provider_decides_for_all_processes(
    shop: Path,
    receiver: Receiver,
    traced_cluster_of: MakeTraced,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Client], list[Seen]],
) -> None:
    """Of the process with the client and the scheduler; workers are processes of their own, which follow."""
    from shop_sampler import Shop

    with application(receiver, Shop(str(shop))) as provider:
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        with traced_cluster_of() as traced:
            found = until_both(call, traced.client)
            assert_gold_is_whole(traced.spans(), found, call)
    name = "dask.compute CLIENT root" if call is computed else "dask.computation INTERNAL root"
    assert shop.read_text().splitlines() == [f"{trace_id} {name}" for trace_id in found]
