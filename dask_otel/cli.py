"""``dask otel``: what can be done from the command line.

Rules
-----
1. Importing this module is cheap, since every ``dask`` command does it: what a command needs it imports when it runs.
2. An error of the caller is one sentence on stderr and exit code 2; one of the run is one sentence and 1.
"""

from __future__ import annotations

import click

__all__ = ["otel"]


class _Mistake(click.ClickException):
    """What the caller got wrong; shown without the usage above it, since the sentence says what to type."""

    exit_code = 2


@click.group()
def otel() -> None:
    """OpenTelemetry for Dask: what a cluster does, as traces."""


@otel.command()
@click.option(
    "--endpoint",
    metavar="URL",
    help="Send to an OTLP endpoint, like http://localhost:4318, and print the trace's id. "
    "Without it everything stays in this process and the trace is printed.",
)
@click.option(
    "--protocol",
    type=click.Choice(["http/protobuf", "grpc"]),
    help="What the endpoint speaks; OTEL_EXPORTER_OTLP_PROTOCOL, else http/protobuf.",
)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Worker processes.")
@click.option(
    "--threads", type=click.IntRange(1), default=2, show_default=True, help="Threads of each worker."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds that the telemetry may take to arrive when the work is done.",
)
def demo(endpoint: str | None, protocol: str | None, workers: int, threads: int, timeout: float) -> None:
    """Run some real work on a cluster of this machine and show its trace.

    Starts a scheduler and worker processes, shuffles a DataFrame, multiplies arrays, submits tasks from inside
    tasks, lets one fail and be run again: all of it one trace. Needs nothing but this package and takes about ten
    seconds.

    \b
    dask otel demo
    dask otel demo --endpoint http://localhost:4318
    """
    from dask_otel.demo import endpoints, run

    try:
        target = endpoints.choose(endpoint, protocol)
    except endpoints.Refused as why:
        raise _Mistake(str(why)) from None
    raise SystemExit(run.demo(target, run.Size(workers, threads), timeout))
