"""What a task costs with dask-otel, with the same tree by OpenTelemetry's SDK, and with nothing: CPU of all processes and of the scheduler.

One cluster of processes, in which each way is turned on and off again, in another order each round; the graph, the counting and
the receiver are those of `overhead.py`. The ways:

- *nothing*;
- *dask-otel*, traces only, and with metrics;
- *SDK*: plugins of this file make for each attempt a span and its two activities, for each transfer two, and on the scheduler those of
  computation, graph and groups, with as many attributes of the same kinds, by ``Tracer.start_span`` and ``end``, ``BatchSpanProcessor``
  and OTLP/HTTP as they come. What is expensive to find out (the metering of activities, outcomes, the parent that travels with a
  task) they do without: the numbers are made up where Dask does not show them to plugins. So it is the least that the SDK's way takes;
- *dask-opentelemetry*, where that is installed: 0.0.1a0 makes a span for each task and each of its ``startstops``, on workers only, each its own
  trace. It does not run with a current SDK: its ``setup`` ends with ``TypeError: _initialize_components() got an unexpected keyword argument
  'OTEL_TRACES_EXPORTER'``. What is measured is its ``transition`` with a provider of this file, as that of *SDK*.

    python benchmarks/alternatives.py --tasks 2000 --rounds 7
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin
from overhead import SINK, Cluster, process, reductions

import dask_otel
from dask_otel.receiver import Receiver

try:
    from dask_opentelemetry import TaskTracingPlugin
except ImportError:
    TaskTracingPlugin = None

NAME = "alternatives"


def make_provider(url: str, role: str) -> Any:
    """A provider as the SDK's documentation sets it up."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource({"service.name": f"dask-{role}"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{url}/v1/traces")))
    return provider


class SdkWorker(WorkerPlugin):
    """Spans of attempts and transfers by the SDK."""

    name = NAME

    def __init__(self, url: str) -> None:
        self.url = url

    def setup(self, worker: Any) -> None:
        from opentelemetry import trace

        self.worker = worker
        self.provider = worker.alternative = make_provider(self.url, "worker")
        self.tracer = self.provider.get_tracer("alternatives")
        self.kind = trace.SpanKind
        self.below = trace.set_span_in_context
        above = trace.SpanContext(4711 << 64, 4711, True, trace.TraceFlags(1))
        self.group = self.below(trace.NonRecordingSpan(above))
        self.ready: dict[Any, float] = {}
        worker.transfer_incoming_log.clear()
        worker.transfer_outgoing_log.clear()

    def teardown(self, worker: Any) -> None:
        self.provider.shutdown()

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if finish == "ready":
            self.ready[key] = time.time()
        elif start == "executing" and finish == "memory":
            self.attempt(key)
            for log, name in (
                (self.worker.transfer_incoming_log, "gather-dep"),
                (self.worker.transfer_outgoing_log, "get-data"),
            ):
                while log:
                    self.transfer(log.popleft(), name)

    def attempt(self, key: Any) -> None:
        worker = self.worker
        ts = worker.state.tasks[key]
        began, ended = ts.startstops[-1]["start"], ts.startstops[-1]["stop"]
        start, end, seconds = int(began * 1e9), int(ended * 1e9), ended - began
        attributes = {
            "dask.operation": "task",
            "dask.task.prefix": ts.prefix,
            "dask.task.group": ts.prefix,
            "dask.worker.address": worker.address,
            "dask.worker.name": str(worker.name),
            "dask.task.key": str(key)[:256],
            "dask.task.attempt": 1,
            "dask.task.outcome": "success",
            "thread.id": worker.threads.get(key, 0),
            "dask.task.result.size": ts.nbytes or 0,
            "dask.task.result.type": ts.type.__name__ if ts.type else "",
            "dask.task.wait.dependencies": seconds / 3,
            "dask.task.wait.slot": began - self.ready.pop(key, began),
            "dask.task.activity.thread-cpu.seconds": seconds / 7,
            "dask.task.activity.thread-noncpu.seconds": seconds / 11,
            "dask.task.activity.executor.seconds": seconds / 13,
            "dask.task.activity.other.seconds": seconds / 17,
        }
        task = self.tracer.start_span(ts.prefix, self.group, self.kind.CONSUMER, attributes, start_time=start)
        outer = self.activity(self.below(task), "executor", ts.prefix, start, {})
        inner = self.activity(
            self.below(outer),
            "compute",
            ts.prefix,
            start,
            {
                "dask.activity.thread_cpu_time": seconds / 7,
                "dask.activity.thread_noncpu_time": seconds / 11,
            },
        )
        for span in (inner, outer, task):
            span.end(end)

    def activity(self, above: Any, name: str, prefix: str, start: int, extra: dict[str, float]) -> Any:
        attributes = {
            "dask.operation": "activity",
            "dask.activity.name": name,
            "dask.task.prefix": prefix,
            **extra,
        }
        return self.tracer.start_span(name, above, self.kind.INTERNAL, attributes, start_time=start)

    def transfer(self, logged: dict[str, Any], name: str) -> None:
        attributes = {
            "dask.operation": "transfer",
            "dask.transfer.keys": len(logged["keys"]),
            "dask.transfer.size": logged["total"],
            "dask.transfer.outcome": "success",
        }
        if name == "gather-dep":
            attributes |= {"server.address": logged["who"], "server.port": 0}
        span = self.tracer.start_span(
            name,
            self.group,
            self.kind.CLIENT if name == "gather-dep" else self.kind.SERVER,
            attributes,
            start_time=int(logged["start"] * 1e9),
        )
        span.end(int(logged["stop"] * 1e9))


class SdkScheduler(SchedulerPlugin):
    """Spans of a graph, its groups and its computation by the SDK."""

    name = NAME

    def __init__(self, url: str) -> None:
        self.url = url

    async def start(self, scheduler: Any) -> None:
        from opentelemetry import trace

        self.scheduler = scheduler
        self.provider = scheduler.alternative = make_provider(self.url, "scheduler")
        self.tracer = self.provider.get_tracer("alternatives")
        self.below = trace.set_span_in_context
        self.groups: dict[str, Any] = {}
        self.done: Counter[str] = Counter()
        self.computation: Any = None

    async def close(self) -> None:
        self.provider.shutdown()

    def update_graph(self, scheduler: Any, *, tasks: Any, **kwargs: Any) -> None:
        attributes = {f"dask.computation.{number}": number for number in range(13)}
        self.computation = self.tracer.start_span("dask.computation", attributes=attributes)
        self.left = len(tasks)
        above = self.below(self.computation)
        for name in ("update", "materialize", "order", "init"):
            self.tracer.start_span(f"dask.graph.{name}", above, attributes=attributes).end()

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish != "memory" or self.computation is None:
            return
        group = self.scheduler.tasks[key].group.name
        if group not in self.groups:
            above = self.below(self.computation)
            self.groups[group] = self.tracer.start_span(f"{group} group", above)
        self.done[group] += 1
        self.left -= 1
        if not self.left:
            self.end()

    def end(self) -> None:
        for name, span in self.groups.items():
            span.set_attributes({f"dask.group.{number}": self.done[name] for number in range(15)})
            span.end()
        self.computation.end()
        self.computation = None
        self.groups.clear()
        self.done.clear()


# -- the ways ------------------------------------------------------------------------------------------------


class Nothing:
    """The way without."""

    def on(self, client: Client) -> None:
        pass

    def flush(self, client: Client) -> None:
        time.sleep(0.1)

    def off(self, client: Client) -> None:
        pass


class Ours(Nothing):
    """dask-otel, its metrics sent by this exporter."""

    def __init__(self, metrics: str) -> None:
        self._metrics = metrics

    def on(self, client: Client) -> None:
        os.environ["OTEL_METRICS_EXPORTER"] = self._metrics
        dask_otel.enable(client)

    def flush(self, client: Client) -> None:
        dask_otel.flush(client)

    def off(self, client: Client) -> None:
        dask_otel.disable(client)


def flush_worker(dask_worker: Any) -> None:
    dask_worker.alternative.force_flush()


def flush_scheduler(dask_scheduler: Any) -> None:
    dask_scheduler.alternative.force_flush()


class Sdk(Nothing):
    """The plugins of this file."""

    def __init__(self, url: str) -> None:
        self._url = url

    def on(self, client: Client) -> None:
        client.register_plugin(SdkWorker(self._url))
        client.register_plugin(SdkScheduler(self._url))

    def flush(self, client: Client) -> None:
        client.run(flush_worker)
        client.run_on_scheduler(flush_scheduler)

    def off(self, client: Client) -> None:
        client.unregister_worker_plugin(NAME)
        client.unregister_scheduler_plugin(NAME)


class Theirs(Sdk):
    """dask-opentelemetry, with another setup."""

    def on(self, client: Client) -> None:
        class Mended(TaskTracingPlugin):  # type: ignore[misc, valid-type]
            name = NAME
            url = self._url

            def setup(self, worker: Any) -> None:
                self._worker = worker
                worker.alternative = make_provider(self.url, "worker")
                self._tracer = worker.alternative.get_tracer("dask_opentelemetry")

            def teardown(self, worker: Any) -> None:
                worker.alternative.shutdown()

        client.register_plugin(Mended())

    def flush(self, client: Client) -> None:
        client.run(flush_worker)

    def off(self, client: Client) -> None:
        client.unregister_worker_plugin(NAME)


def make_ways(url: str) -> dict[str, Nothing]:
    ways = {
        "nothing": Nothing(),
        "dask-otel, traces": Ours("none"),
        "dask-otel, metrics too": Ours("otlp"),
        "SDK": Sdk(url),
    }
    return ways if TaskTracingPlugin is None else {**ways, "dask-opentelemetry": Theirs(url)}


def run(cluster: Cluster, way: Nothing, tasks: int) -> tuple[float, float, float]:
    """CPU seconds of the scheduler, of the workers, and of all with the client."""
    way.on(cluster.client)
    cluster.compute(100)
    before = cluster.cpu()
    cluster.compute(tasks)
    way.flush(cluster.client)
    scheduler, workers, client = (b - a for a, b in zip(before, cluster.cpu(), strict=True))
    way.off(cluster.client)
    return scheduler, workers, scheduler + workers + client


def spans_per_task(cluster: Cluster, tasks: int = 500) -> dict[str, float]:
    """What each way makes, by a receiver."""
    made = {}
    with Receiver() as receiver:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.endpoint
        for name, way in make_ways(receiver.endpoint).items():
            before = len(receiver.spans())
            way.on(cluster.client)
            cluster.compute(tasks)
            way.flush(cluster.client)
            way.off(cluster.client)
            made[name] = (len(receiver.spans()) - before) / graph_size(tasks)
    return made


def graph_size(tasks: int) -> int:
    return tasks + sum(1 for _ in reductions(tasks))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    rounds = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sink = stack.enter_context(process("-c", SINK))
        assert sink.stdout is not None
        cluster = Cluster(stack, folder, arguments.workers)
        made = spans_per_task(cluster)
        url = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{sink.stdout.readline().strip()}"
        ways = make_ways(url)
        for number in range(arguments.rounds + 1):
            order = list(ways)
            order = order[number % len(order) :] + order[: number % len(order)]
            taken = {name: run(cluster, ways[name], arguments.tasks) for name in order}
            if number:  # The first warms up.
                rounds.append(taken)
                print(".", end="", flush=True)
    print()
    report(rounds, made, arguments)


def report(
    rounds: list[dict[str, tuple[float, float, float]]], made: dict[str, float], arguments: argparse.Namespace
) -> None:
    ways, tasks = list(made), graph_size(arguments.tasks)
    print(f"{tasks} tasks a graph, {arguments.workers} workers, {len(rounds)} rounds of each, alternating\n")
    for index, what in enumerate(("scheduler", "workers", "everything")):
        print(
            f"{'CPU of ' + what:<26}{'µs/task':>9}{'added':>9}{'quartiles':>20}{'ratio':>9}{'quartiles':>18}{'spans/task':>13}"
        )
        for name in ways:
            each = statistics.median(taken[name][index] for taken in rounds) / tasks * 1e6
            print(f"  {name:<24}{each:>9.0f}", end="")
            if name == ways[0]:
                print()
                continue
            pairs = [(taken[ways[0]][index], taken[name][index]) for taken in rounds]
            low, added, high = statistics.quantiles([(b - a) / tasks * 1e6 for a, b in pairs], n=4)
            least, ratio, most = statistics.quantiles([b / a for a, b in pairs], n=4)
            print(
                f"{added:>9.0f}{low:>11.0f} – {high:<6.0f}{ratio:>9.3f}{least:>9.3f} – {most:<6.3f}{made[name]:>13.2f}"
            )
        print()


if __name__ == "__main__":
    main()
