"""The real Collector, on the file for tail sampling, keeps what failed and what is slow whole, and drops the rest."""

from __future__ import annotations

import logging
import os
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster, wait, worker_client
from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import dask_otel

from .collector import running
from .jaeger import Span, trace, wait_for_trace

#: A span's name and that of its parent, and how often.
Edges = Counter[tuple[str, str]]

FOR_ITS_TIME = pytest.mark.skipif(
    os.environ.get("DASK_OTEL_TEST_SLOW") != "1", reason="takes two minutes: set DASK_OTEL_TEST_SLOW=1"
)


# -- what runs inside tasks, and says in which trace ---------------------------------------------------------------


def here() -> str:
    return f"{api.get_current_span().get_span_context().trace_id:032x}"


def nap(seconds: float = 0.0) -> str:
    time.sleep(seconds)
    return here()


def fail(seconds: float = 0.0) -> str:
    time.sleep(seconds)
    raise ValueError(here())


def nest(seconds: float) -> str:
    """A computation within, which ends long before this one does."""
    with worker_client() as client:
        client.submit(nap, key=f"quick-{here()}").result()
    time.sleep(seconds)
    return here()


# -- what a client does, and the trace's id ------------------------------------------------------------------------


def compute(function: Callable[[float], str], seconds: float) -> str:
    try:
        (trace_id,) = dask.compute(dask.delayed(function, pure=False)(seconds))
    except ValueError as error:
        return str(error)
    return str(trace_id)


def persist(function: Callable[[float], str], seconds: float) -> str:
    """Returns while the computation has hardly begun, and its root has been sent."""
    future = dask.persist(dask.delayed(function, pure=False)(seconds))[0]
    try:
        return str(future.compute())
    except ValueError as error:
        return str(error)


def send_off(client: Client, function: Callable[[float], str], seconds: float) -> str:
    (future,) = client.map(function, [seconds], pure=False)
    wait(future)
    return str(future.exception() or future.result())


def request(client: Client, collector: str, function: Callable[[float], str], seconds: float) -> str:
    """An application with spans of its own, whose root ends at once, and no call of Dask's has a span."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{collector}/v1/traces")))
    with provider.get_tracer("shop").start_as_current_span("request"):
        future = client.submit(function, seconds, pure=False)
    provider.shutdown()
    return str(future.result())


# -- what is to be in Jaeger ---------------------------------------------------------------------------------------


def below(parent: str, prefix: str) -> Edges:
    """A computation of one task."""
    of_graph = ("dask.graph.init", "dask.graph.materialize", "dask.graph.order")
    return Counter(
        [
            ("dask.computation", parent),
            ("dask.graph.update", "dask.computation"),
            *((phase, "dask.graph.update") for phase in of_graph),
            (f"{prefix} group", "dask.computation"),
            (prefix, f"{prefix} group"),
            ("executor", prefix),
            ("compute", "executor"),
        ]
    )


def whole(root: str, prefix: str) -> Edges:
    found = below(root, prefix) + Counter([(root, "")])
    return found + below("nest", "quick") if prefix == "nest" else found


def edges(spans: list[Span]) -> Edges:
    """Without transfers, and what a worker does once for a function: whether there are any is Dask's choice."""
    named = {span.span_id: span.name for span in spans}
    chosen = [
        span for span in spans if span.name not in ("decompress", "deserialize", "gather-dep", "get-data")
    ]
    return Counter([(span.name, named.get(span.parent_id or "", "")) for span in chosen])


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("threshold", "longer"), [(4, 6), pytest.param(30, 40, marks=FOR_ITS_TIME)], ids=["scaled", "as shipped"]
)
def test_failed_and_slow_computations_are_kept_whole_and_others_dropped(
    otelcol: str,
    jaeger_grpc: str,
    jaeger_api: str,
    environment: pytest.MonkeyPatch,
    tmp_path: Path,
    threshold: int,
    longer: int,
) -> None:
    """Also where the root ends at once, where another computation of the trace has ended, where the failure comes late."""
    settings = {
        "JAEGER_ENDPOINT": urllib.parse.urlsplit(jaeger_grpc).netloc,
        "SLOW_MS": str(threshold * 1000),
        "KEEP_PERCENT": "0",
    }
    environment.setenv("OTEL_METRICS_EXPORTER", "none")
    with running(otelcol, "collector-tail-sampling.yaml", tmp_path / "log", **settings) as collector:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector)
        with (
            LocalCluster(
                n_workers=2, threads_per_worker=4, dashboard_address=":0", silence_logs=logging.CRITICAL
            ) as cluster,
            Client(cluster) as client,
            ThreadPoolExecutor() as pool,
        ):
            dask_otel.enable(client)
            dropped = [
                compute(nap, 0),
                persist(nap, 0),
                send_off(client, nap, 0),
                request(client, collector, nap, 0),
                compute(nest, 0),
            ]
            kept = {
                ("dask.compute", "fail"): [pool.submit(compute, fail, s) for s in (0, longer)],
                ("dask.persist", "fail"): [pool.submit(persist, fail, s) for s in (0, longer)],
                ("dask.map", "fail"): [pool.submit(send_off, client, fail, s) for s in (0, longer)],
                ("dask.compute", "nap"): [pool.submit(compute, nap, longer)],
                ("dask.compute", "nest"): [pool.submit(compute, nest, longer)],
                ("dask.persist", "nest"): [pool.submit(persist, nest, longer)],
                ("dask.map", "nap"): [pool.submit(send_off, client, nap, longer)],
                ("request", "nap"): [pool.submit(request, client, collector, nap, longer)],
            }
            for (root, prefix), submitted in kept.items():
                expected = whole(root, prefix)
                for one in submitted:
                    wait_for_trace(
                        jaeger_api, one.result(), lambda spans, e=expected: edges(spans) == e, threshold + 20
                    )
            dask_otel.disable(client)
    # The Collector has ended and sent what it held.
    assert [trace(jaeger_api, trace_id) for trace_id in dropped] == [[]] * 5
