"""What a Collector needs: CPU per span and per point, memory per span that it holds, on the files of ``collector-config/``.

A hundred thousand spans as workers send them, a thousand to a request and to a trace, go over HTTP to a real Collector, which sends them on to another one; then
points, as workers with thirty busy prefixes send them. CPU is all of its process, from the first request until all has arrived
behind it; memory is what it has more (RSS) than before, when it has taken everything.

- *agent*: ``collector-agent.yaml``, spans and then points.
- *agent, no gateway*: the same with nobody behind it: what waits in its queue until it refuses more.
- *tail sampling*: ``collector-tail-sampling.yaml``, spans, all of which are held for ten seconds and then kept.

A gateway that balances the load is not among them: the Collector that this repository builds does not have that exporter.

    python benchmarks/collector.py --otelcol "$(.ci/backends | sed -n s/^otelcol=//p)"
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from pipeline import RESOURCE, SCOPE, SPANS, make_tasks

from dask_otel import instruments as i
from dask_otel import names
from dask_otel.distributions import Distributions
from dask_otel.export.bodies import Bodies, Source
from dask_otel.export.http import compress
from dask_otel.export.metric_bodies import Batch, Series
from dask_otel.records import Scope
from dask_otel.series import measured

CONFIG = Path(__file__).parents[1] / "collector-config"
SOURCE = Source(RESOURCE, Scope(*SCOPE))
#: Spans of a request and of a trace.
TRACE = 1_000
#: Seconds that tail sampling holds them.
HELD = 10
TICKS = os.sysconf("SC_CLK_TCK")

SINK = """
receivers:
  otlp:
    protocols:
      grpc: {endpoint: "${env:COLLECTOR_OTLP_GRPC}"}
      http: {endpoint: "${env:COLLECTOR_OTLP_HTTP}"}
exporters:
  debug: {use_internal_logger: false, verbosity: basic}
extensions:
  health_check: {endpoint: "${env:COLLECTOR_HEALTH}"}
service:
  extensions: [health_check]
  telemetry: {metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp], exporters: [debug]}
    metrics: {receivers: [otlp], exporters: [debug]}
"""


class Running(NamedTuple):
    """A Collector that runs: where it listens, its process, what it says."""

    grpc: str
    http: str
    pid: int
    log: Path

    def cpu(self) -> float:
        """Seconds of CPU so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> int:
        """Bytes of RSS."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def seen(self, what: str) -> int:
        """How many ``spans`` or ``data points`` a sink has had."""
        return sum(map(int, re.findall(rf'"{what}": (\d+)', self.log.read_text())))

    def await_all(self, what: str, count: int) -> None:
        """Until a sink has had so many."""
        await_that(lambda: self.seen(what) >= count, f"{count} {what} arrive")

    def send(self, path: str, bodies: Sequence[bytes]) -> int:
        """How many it took before it refused one."""
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
        for number, body in enumerate(bodies):
            request = urllib.request.Request(f"http://{self.http}{path}", body, headers)
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    assert answer.status == 200, answer.status
            except urllib.error.HTTPError as error:
                if error.code == 503:
                    return number
                raise
        return len(bodies)


@contextmanager
def collector(otelcol: str, config: Path, **settings: str) -> Iterator[Running]:
    """One that runs on this file, with what it says in a file."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("wb") as log:
        grpc, http, health = free_addresses(3)
        own = {"COLLECTOR_OTLP_GRPC": grpc, "COLLECTOR_OTLP_HTTP": http, "COLLECTOR_HEALTH": health}
        env = os.environ | own | {"COLLECTOR_METRICS_LEVEL": "none"} | settings
        process = subprocess.Popen([otelcol, "--config", str(config)], env=env, stdout=log, stderr=log)
        try:
            await_that(lambda: answers(health), f"{config.name}: healthy")
            yield Running(grpc, http, process.pid, Path(log.name))
        finally:
            process.kill()
            process.wait()


def free_addresses(count: int) -> list[str]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in listeners]
    for one in listeners:
        one.close()
    return addresses


def answers(health: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{health}/", timeout=2):
            return True
    except OSError:
        return False


def await_that(condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {timeout:.0f} s: {what}")
        time.sleep(0.1)


def make_spans(number: int) -> list[bytes]:
    """Requests, compressed, each with a trace of its own."""
    found = [span for task in make_tasks(number // SPANS) for span, _, _ in task.spans]
    bodies = Bodies(failed=lambda span, error: print("not encoded:", span, error))
    requests = []
    for start in range(0, len(found), TRACE):
        trace_id = os.urandom(16)
        spans = [span._replace(trace_id=trace_id) for span in found[start : start + TRACE]]
        requests += [compress(body.data, "gzip") for body in bodies.build([(SOURCE, spans)])]
    return requests


def make_points(requests: int) -> tuple[list[bytes], int]:
    """Requests as of a worker of 30 prefixes with 15 activities each, and how many points they have in all."""
    activities: dict[tuple[str, ...], float] = {}
    durations = Distributions(i.TASK_DURATION)
    for prefix in (f"prefix-{number}" for number in range(30)):
        activities.update({("execute", prefix, f"activity-{number}"): 1.5 for number in range(15)})
        for seconds in (0.01, 0.1, 1.0):
            durations.record((prefix, names.SUCCESS, ""), seconds)
    found = [measured(i.ACTIVITY_SECONDS, activities), measured(i.TASK_DURATION, durations.snapshots())]
    series, made, points = Series(), [], 0
    series.request(Batch(SOURCE, time.time() - 60, time.time(), found))
    series.taken()
    for _ in range(requests):
        body, more = series.request(Batch(SOURCE, time.time() - 60, time.time(), found))
        series.taken()
        made.append(compress(body, "gzip"))
        points += more
    return made, points


def passing(otelcol: str, spans: list[bytes], number: int, points: list[bytes], pointed: int) -> None:
    with sink(otelcol) as behind, agent(otelcol, behind.grpc) as one:
        before = one.memory()
        for what, path, bodies, count in (
            ("spans", "/v1/traces", spans, number),
            ("data points", "/v1/metrics", points, pointed),
        ):
            start = one.cpu()
            assert one.send(path, bodies) == len(bodies)
            behind.await_all(what, count)
            print(f"agent: CPU {1e6 * (one.cpu() - start) / count:.1f} µs a {what.removesuffix('s')}")
        print(f"agent: {before / 1e6:.0f} MB at rest, {one.memory() / 1e6:.0f} MB after all that")


def waiting(otelcol: str, spans: list[bytes]) -> None:
    (nobody,) = free_addresses(1)
    with agent(otelcol, nobody) as one:
        before = one.memory()
        taken = TRACE * one.send("/v1/traces", spans)
        assert taken < TRACE * len(spans), "its queue takes more than all spans"
        print(f"agent, no gateway: {taken} spans taken, {(one.memory() - before) / taken:.0f} bytes each")


def holding(otelcol: str, spans: list[bytes], number: int) -> None:
    settings = {"SLOW_MS": str(HELD * 1000), "KEEP_PERCENT": "100"}
    with sink(otelcol) as behind:
        settings["JAEGER_ENDPOINT"] = behind.grpc
        with collector(otelcol, CONFIG / "collector-tail-sampling.yaml", **settings) as one:
            before, start = one.memory(), one.cpu()
            assert one.send("/v1/traces", spans) == len(spans)
            print(f"tail sampling: {(one.memory() - before) / number:.0f} bytes a span that is held")
            assert behind.seen("spans") == 0, "judged before all had come"
            behind.await_all("spans", number)
            print(f"tail sampling: CPU {1e6 * (one.cpu() - start) / number:.1f} µs a span, all kept")


@contextmanager
def sink(otelcol: str) -> Iterator[Running]:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(SINK)
        file.flush()
        with collector(otelcol, Path(file.name)) as running:
            yield running


def agent(otelcol: str, gateway: str) -> AbstractContextManager[Running]:
    return collector(otelcol, CONFIG / "collector-agent.yaml", GATEWAY_ENDPOINT=gateway)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--otelcol", required=True, help="path of a Collector")
    parser.add_argument("--spans", type=int, default=100_000)
    parser.add_argument("--exports", type=int, default=100, help="of metrics, of one server each")
    arguments = parser.parse_args()
    spans = make_spans(arguments.spans)
    points, pointed = make_points(arguments.exports)
    number = arguments.spans // SPANS * SPANS
    print(
        f"{number} spans in {len(spans)} requests, {sum(map(len, spans)) / number:.1f} bytes each compressed"
    )
    print(
        f"{pointed} points in {len(points)} requests, {sum(map(len, points)) / pointed:.1f} bytes each compressed"
    )
    passing(arguments.otelcol, spans, number, points, pointed)
    waiting(arguments.otelcol, spans)
    holding(arguments.otelcol, spans, number)


if __name__ == "__main__":
    main()
