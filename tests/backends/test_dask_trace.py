"""A failing, retried, multi-worker computation, sent through the real Collector, read back from the real Jaeger.

Nothing here is simulated: processes under nannies, OTLP over both protocols, the Collector with the configuration
that users copy, and the tree as Jaeger's API returns it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from textwrap import dedent

import dask
import pytest
from distributed import Client, LocalCluster, get_client, span
from distributed.metrics import context_meter
from opentelemetry import trace as otel_trace

import dask_otel
from dask_otel import names

from .jaeger import Span, wait_for_trace


def load(x: int) -> int:
    with context_meter.meter("parse"):
        otel_trace.get_current_span().set_attribute("rows", 10 * x)
    return x


def charge(x: int, folder: str) -> int:
    try:
        (Path(folder) / "charged").touch(exist_ok=False)
    except FileExistsError:
        return x
    raise ConnectionError("refused")


def add(*xs: int) -> int:
    with otel_trace.get_tracer("shop").start_as_current_span("book"):
        return sum(xs)


def nested(x: int) -> int:
    return int(get_client().submit(load, x, pure=False).result())


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("receiver", ["collector", "jaeger"])
def test_the_tree_of_a_computation_is_whole_in_jaeger(
    protocol: str,
    receiver: str,
    request: pytest.FixtureRequest,
    jaeger_api: str,
    environment: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    transport = "grpc" if protocol == "grpc" else "http"
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", request.getfixturevalue(f"{receiver}_{transport}"))
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with (
        LocalCluster(
            2, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
        ) as cluster,
        Client(cluster) as client,
    ):
        dask_otel.enable(client)
        trace_id = compute(client, tmp_path)
        assert dask_otel.flush(client)
        spans = wait_for_trace(jaeger_api, trace_id, whole)
    # A sender waits for the receiver's word, so its span may end after the receiver's; Jaeger remarks on that.
    assert [(s.name, s.warnings) for s in spans if s.warnings and s.name != names.GET_DATA] == []
    assert outline([s for s in spans if not moves_data(s)]) == TREE
    assert_attempts(spans)
    assert_transfers(spans)
    assert {s.service for s in spans} == {"dask-client", "dask-scheduler", "dask-worker"}


def whole(spans: list[Span]) -> bool:
    """Whether everything has come: the root, and every parent."""
    known = {s.span_id for s in spans}
    roots = [s.name for s in spans if s.parent_id is None]
    return (
        roots == [names.COMPUTE]
        and all(s.parent_id in known for s in spans if s.parent_id)
        and len(spans) > 30
    )


def compute(client: Client, folder: Path) -> int:
    """Run everything; the id of its trace, found by the span that is current in a task."""
    with span("shop"):
        total = dask.delayed(add)(
            *[dask.delayed(load)(i) for i in range(4)],
            dask.delayed(charge)(1, str(folder)),
            dask.delayed(nested)(2),
            dask.delayed(current_trace)(),
        )
    with dask.annotate(retries=2):
        result = total.compute()
    return result - (0 + 1 + 2 + 3 + 1 + 2)


def current_trace() -> int:
    return otel_trace.get_current_span().get_span_context().trace_id


def moves_data(s: Span) -> bool:
    """Where a task runs, and so whether its result has to travel, is Dask's choice."""
    return s.tags.get(names.OPERATION) == names.OP_TRANSFER or s.name in ("decompress", "deserialize")


def outline(spans: list[Span]) -> str:
    """Names by parent, siblings by name and outcome; equal ones stand once, with their number."""
    below: dict[str | None, list[Span]] = {}
    known = {s.span_id for s in spans}
    for s in spans:
        assert s.parent_id is None or s.parent_id in known, f"{s.name}: its parent is missing"
        below.setdefault(s.parent_id, []).append(s)

    def block(s: Span) -> tuple[str, ...]:
        outcome = s.tags.get(names.OUTCOME, names.SUCCESS)
        marked = s.name if outcome == names.SUCCESS else f"{s.name} [{outcome}]"
        return (f"{s.service}: {marked} ({s.kind})", *(f"  {line}" for line in lines(s.span_id)))

    def lines(parent: str | None) -> list[str]:
        blocks = sorted(block(s) for s in below.get(parent, []))
        different = list(dict.fromkeys(blocks))
        counted = [(blocks.count(b), b) for b in different]
        return [line if i or n == 1 else f"{line} ×{n}" for n, b in counted for i, line in enumerate(b)]

    return "\n".join(lines(None))


def assert_attempts(spans: list[Span]) -> None:
    failed, succeeded = sorted((s for s in spans if s.name == "charge"), key=lambda s: s.tags[names.ATTEMPT])
    assert (failed.status, failed.tags[names.ERROR_TYPE]) == ("ERROR", "ConnectionError")
    ((event, fields),) = failed.events
    assert (event, fields[names.EXCEPTION_MESSAGE]) == ("exception", "refused")
    assert (succeeded.status, succeeded.links) == ("UNSET", ((failed.trace_id, failed.span_id),))
    (computation,) = (
        s
        for s in spans
        if s.name == names.COMPUTATION
        and names.COMPUTATION_TASKS in s.tags
        and s.tags[names.COMPUTATION_TASKS] > 1
    )
    assert computation.tags[names.COMPUTATION_OUTCOMES + names.FAILED] == 1
    assert sorted(s.tags["rows"] for s in spans if s.name == "load") == [0, 10, 20, 20, 30]


def assert_transfers(spans: list[Span]) -> None:
    by_id = {s.span_id: s for s in spans}
    sent = [s for s in spans if s.name == names.GET_DATA]
    received = [s for s in spans if s.name == names.GATHER_DEP]
    assert received
    assert sorted(s.parent_id or "" for s in sent) == sorted(s.span_id for s in received)
    for s in received:
        parent = by_id[s.parent_id or ""]
        assert (parent.name, s.kind) == (names.COMPUTATION, "client")
        assert {by_id[span_id].name for _, span_id in s.links} == {"add"}


TREE = dedent("""\
    dask-client: dask.compute (client)
      dask-scheduler: dask.computation (server)
        dask-scheduler: dask.graph.update (internal)
          dask-scheduler: dask.graph.init (internal)
          dask-scheduler: dask.graph.materialize (internal)
          dask-scheduler: dask.graph.order (internal)
        dask-scheduler: shop (internal)
          dask-scheduler: add group (producer)
            dask-worker: add (consumer)
              dask-worker: book (internal)
              dask-worker: executor (internal)
                dask-worker: compute (internal)
          dask-scheduler: charge group (producer)
            dask-worker: charge (consumer)
              dask-worker: executor (internal)
                dask-worker: compute (internal)
            dask-worker: charge [failed] (consumer)
              dask-worker: executor (internal)
                dask-worker: compute (internal)
          dask-scheduler: current_trace group (producer)
            dask-worker: current_trace (consumer)
              dask-worker: executor (internal)
                dask-worker: compute (internal)
          dask-scheduler: load group (producer)
            dask-worker: load (consumer) ×4
              dask-worker: executor (internal)
                dask-worker: compute (internal)
                  dask-worker: parse (internal)
          dask-scheduler: nested group (producer)
            dask-worker: nested (consumer)
              dask-scheduler: dask.computation (internal)
                dask-scheduler: dask.graph.update (internal)
                  dask-scheduler: dask.graph.init (internal)
                  dask-scheduler: dask.graph.materialize (internal)
                  dask-scheduler: dask.graph.order (internal)
                dask-scheduler: shop (internal)
                  dask-scheduler: load group (producer)
                    dask-worker: load (consumer)
                      dask-worker: executor (internal)
                        dask-worker: compute (internal)
                          dask-worker: parse (internal)
              dask-worker: executor (internal)
                dask-worker: compute (internal)""")
