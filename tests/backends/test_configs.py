"""Every file in collector-config/ is accepted by its program, and carries what it says it carries."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Status, StatusCode

from .collector import CONFIG, free_addresses, running
from .jaeger import get, trace, wait_for_trace

#: compose.yaml and what is mounted by it have tests in tests/unit/test_dashboards.py, alerts in test_dashboards.py.
STACK = {"alerts.yaml", "compose-tempo.yaml", "compose.yaml", "grafana", "tempo.yaml"}
OTHERS = {"README.md", "jaeger.yaml", "prometheus.yaml"} | STACK
COLLECTOR = {
    "collector-agent.yaml",
    "collector-debug.yaml",
    "collector-file.yaml",
    "collector-jaeger.yaml",
    "collector-tail-sampling.yaml",
    "collector-tempo.yaml",
    "collector-vendor.yaml",
}
#: Names an exporter that cannot be built here: what of it another exporter has in common is run, the rest compared with
#: its documentation.
BALANCING = "collector-gateway-lb.yaml"
VENDOR = {"VENDOR_ENDPOINT": "https://otlp.example.com", "VENDOR_KEY": "Bearer 123"}


def test_every_file_is_tested_here():
    assert {path.name for path in CONFIG.iterdir()} == COLLECTOR | OTHERS | {BALANCING}


@pytest.mark.parametrize("file", sorted(COLLECTOR))
def test_the_collector_accepts(file, otelcol):
    assert validate(otelcol, file) == (0, "")


def test_jaeger_accepts_its_file(jaeger_binary):
    code, said = validate(jaeger_binary, "jaeger.yaml")

    assert code == 0, said


def test_without_a_vendors_endpoint_the_collector_says_what_is_missing(otelcol):
    code, said = validate(otelcol, "collector-vendor.yaml", VENDOR_ENDPOINT="")

    assert code != 0
    assert "at least one endpoint must be specified" in said


def test_the_collector_accepts_the_gateway_but_for_its_balancing(otelcol, tmp_path):
    assert validate(otelcol, unbalanced(tmp_path)) == (0, "")


def test_the_gateway_balances_by_trace_id_and_in_the_words_of_the_exporters_documentation():
    """Of `load_balancing` at 0.161.0; a queue or retries below `protocol` would keep from others what waits there."""
    config = gateway()
    balancing = config["exporters"]["load_balancing"]
    (resolver,) = balancing["resolver"].items()

    assert set(balancing) <= {
        "protocol",
        "resolver",
        "retry_on_failure",
        "routing_attributes",
        "routing_key",
        "sending_queue",
        "timeout",
    }
    assert balancing["routing_key"] == "traceID"
    assert resolver[0] == "dns"
    assert set(resolver[1]) <= {"hostname", "interval", "port", "timeout"}
    assert type(resolver[1]["port"]) is str
    assert set(balancing["protocol"]) == {"otlp"}
    assert "endpoint" not in balancing["protocol"]["otlp"]
    queues = [balancing, balancing["protocol"]["otlp"]]
    assert [one["sending_queue"]["enabled"] for one in queues] == [True, False]
    assert [one["retry_on_failure"]["enabled"] for one in queues] == [True, False]
    pipelines = config["service"]["pipelines"]
    assert {signal: one["exporters"] for signal, one in pipelines.items()} == {
        "traces": ["load_balancing"],
        "metrics": ["otlp_http/prometheus"],
    }


def test_prometheus_runs_on_its_file_and_the_flags_that_it_names(prometheus):
    config = get(f"{prometheus}/api/v1/status/config")["data"]["yaml"]
    flags = get(f"{prometheus}/api/v1/status/flags")["data"]

    assert "promote_all_resource_attributes: true" in config
    assert "out_of_order_time_window: 30m" in config
    assert flags["web.enable-otlp-receiver"] == "true"
    assert flags["enable-feature"] == "exemplar-storage,otlp-deltatocumulative"


def test_traces_pass_to_tempos_address(otelcol, jaeger_grpc, jaeger_api, tmp_path):
    # Jaeger stands where Tempo would: both take OTLP over gRPC.
    tempo = urllib.parse.urlsplit(jaeger_grpc).netloc
    with running(otelcol, "collector-tempo.yaml", tmp_path / "log", TEMPO_ENDPOINT=tempo) as collector:
        trace_id = send_span(collector)

        wait_for_trace(jaeger_api, trace_id, lambda spans: [span.name for span in spans] == ["work"])


def test_a_vendor_gets_the_key_in_the_header(otelcol, tmp_path):
    with vendor() as (endpoint, requests):
        settings = {"VENDOR_ENDPOINT": endpoint, "VENDOR_KEY": "Bearer 123"}
        with running(otelcol, "collector-vendor.yaml", tmp_path / "log", **settings) as collector:
            send_span(collector)

    ((path, key, encoding, body),) = requests
    assert (path, key, encoding) == ("/v1/traces", "Bearer 123", "gzip")
    assert names(ExportTraceServiceRequest.FromString(body)) == ["work"]


def test_tail_sampling_keeps_errors_and_slow_traces_of_others_too(otelcol, jaeger_grpc, jaeger_api, tmp_path):
    jaeger = urllib.parse.urlsplit(jaeger_grpc).netloc
    settings = {"JAEGER_ENDPOINT": jaeger, "KEEP_PERCENT": "0", "SLOW_MS": "2000"}
    with running(otelcol, "collector-tail-sampling.yaml", tmp_path / "log", **settings) as collector:
        plain = send_span(collector)
        failed = send_span(collector, status=Status(StatusCode.ERROR))
        slow = send_span(collector, seconds=3)

        for kept in (failed, slow):
            wait_for_trace(jaeger_api, kept, lambda spans: len(spans) == 1)

    # The Collector has ended and sent what it held.
    assert trace(jaeger_api, plain) == []


def test_an_agent_a_gateway_and_a_sampler_pass_on_what_is_to_be_kept(
    otelcol, jaeger_grpc, jaeger_api, prometheus, tmp_path
):
    """The three files of a large cluster, one behind the other."""
    sampler, behind = free_addresses(2)
    jaeger = urllib.parse.urlsplit(jaeger_grpc).netloc
    sampling = {"JAEGER_ENDPOINT": jaeger, "KEEP_PERCENT": "0", "SLOW_MS": "2000"}
    last = running(
        otelcol, "collector-tail-sampling.yaml", tmp_path / "0", COLLECTOR_OTLP_GRPC=sampler, **sampling
    )
    between = running(
        otelcol,
        unbalanced(tmp_path),
        tmp_path / "1",
        COLLECTOR_OTLP_GRPC=behind,
        SAMPLERS=sampler,
        PROMETHEUS_ENDPOINT=prometheus,
    )
    first = running(otelcol, "collector-agent.yaml", tmp_path / "2", GATEWAY_ENDPOINT=f"dns:///{behind}")
    with last, between, first as agent:
        plain = send_span(agent)
        failed = send_span(agent, status=Status(StatusCode.ERROR))
        instance = send_count(agent)

        wait_for_trace(jaeger_api, failed, lambda spans: len(spans) == 1)
        wait_for_series(prometheus, f'made_compute_time_seconds_total{{instance="{instance}"}}')

    # Each has ended and sent what it held.
    assert trace(jaeger_api, plain) == []


def test_an_agent_without_a_gateway_takes_what_its_queue_holds_and_then_asks_to_be_tried_again(
    otelcol, tmp_path
):
    (nobody,) = free_addresses(1)
    settings = {"GATEWAY_ENDPOINT": nobody, "AGENT_QUEUE_BYTES": "4000000"}
    body = request_of(1_000_000)
    with running(otelcol, "collector-agent.yaml", tmp_path / "log", **settings) as agent:
        # A request is with the exporter, and counts, until it is given up: never.
        answers = [post(f"{agent}/v1/traces", body) for _ in range(6)]

    assert answers == [200, 200, 200, 503, 503, 503]


def test_a_file_holds_otlp_json_lines(otelcol, tmp_path):
    file = tmp_path / "telemetry.jsonl"
    with running(otelcol, "collector-file.yaml", tmp_path / "log", TELEMETRY_FILE=str(file)) as collector:
        trace_id = send_span(collector)

    (line,) = file.read_text().splitlines()
    (span,) = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (span["traceId"], span["name"]) == (f"{trace_id:032x}", "work")


def test_debug_prints_every_span(otelcol, tmp_path):
    log = tmp_path / "log"
    with running(otelcol, "collector-debug.yaml", log) as collector:
        trace_id = send_span(collector)

    assert f"{trace_id:032x}" in log.read_text()


def test_metrics_pass_the_collector_into_prometheus(collector_http, prometheus):
    instance = send_count(collector_http)

    series = f'made_compute_time_seconds_total{{instance="{instance}"}}'
    (found,) = wait_for_series(prometheus, series)

    assert found["value"][1] == "2.5"
    labels = {key: found["metric"][key] for key in ("job", "instance", "dask_role")}
    assert labels == {"job": "made", "instance": instance, "dask_role": "worker"}


def gateway() -> dict:
    return yaml.safe_load((CONFIG / BALANCING).read_text())


def unbalanced(folder: Path) -> str:
    """The gateway's file with, for the exporter that balances, the one that it makes for each sampler; `SAMPLERS` is one's address."""
    config = gateway()
    exporters = config["exporters"]
    balancing = exporters.pop("load_balancing")
    below = balancing["protocol"]["otlp"] | {"endpoint": "${env:SAMPLERS}"}
    above = {key: balancing[key] for key in ("sending_queue", "retry_on_failure")}
    exporters |= {"otlp_grpc/above": below | above, "otlp_grpc/below": below}
    pipelines = config["service"]["pipelines"]
    pipelines["traces"]["exporters"] = ["otlp_grpc/above"]
    # Checked, though nothing comes to it.
    pipelines["logs"] = pipelines["traces"] | {"exporters": ["otlp_grpc/below"]}
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(config))
    return str(file)


def validate(binary: str, file: str, **settings: str) -> tuple[int, str]:
    """Exit code and all that was said."""
    done = subprocess.run(
        [binary, "validate", "--config", CONFIG / file],
        check=False,
        env=os.environ | VENDOR | {"SAMPLERS": "samplers:4317"} | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


def send_span(collector: str, seconds: int = 1, status: Status | None = None) -> int:
    """The trace id of a root span that the Collector has taken."""
    provider = TracerProvider(resource=Resource({"service.name": "made"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{collector}/v1/traces")))
    end = time.time_ns()
    span = provider.get_tracer("made-by-hand").start_span("work", start_time=end - seconds * 1_000_000_000)
    if status:
        span.set_status(status)
    span.end(end)
    provider.shutdown()
    return span.get_span_context().trace_id


def send_count(collector: str) -> str:
    """The instance of which the Collector has taken a counter, `made.compute.time`, of 2.5 s."""
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{collector}/v1/metrics"))
    instance = f"test-{time.time_ns()}"
    resource = Resource({"service.name": "made", "service.instance.id": instance, "dask.role": "worker"})
    provider = MeterProvider(metric_readers=[reader], resource=resource)
    provider.get_meter("made-by-hand").create_counter("made.compute.time", "s").add(2.5)
    provider.shutdown()
    return instance


def request_of(size: int) -> bytes:
    """A request of one span whose name is so long."""
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.name = b"t" * 16, b"s" * 8, "x" * size
    return request.SerializeToString()


def post(url: str, body: bytes) -> int:
    """The answer's status."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/x-protobuf"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@contextmanager
def vendor():
    """A server that takes OTLP over HTTP: its URL, and what it got as (path, key, encoding, body)."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers = self.headers
            body = gzip.decompress(self.rfile.read(int(headers["Content-Length"])))
            requests.append((self.path, headers["authorization"], headers["Content-Encoding"], body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def names(request: ExportTraceServiceRequest) -> list[str]:
    return [
        span.name
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def wait_for_series(prometheus: str, query: str, timeout: float = 60.0) -> list[dict]:
    """What an instant query gives, as soon as it gives anything."""
    deadline = time.monotonic() + timeout
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    while not (found := get(url)["data"]["result"]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{query} is not in Prometheus after {timeout} s")
        time.sleep(0.05)
    return found
