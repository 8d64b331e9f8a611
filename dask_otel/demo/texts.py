"""What the demo says.

Rules
-----
1. Text comes out, nothing is printed; durations and ids aside, the same run gives the same text.
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_otel.demo.endpoints import GRPC, Target
from dask_otel.table import activity_table
from dask_otel.tree import Received, tree

__all__ = ["incomplete", "not_delivered", "not_sampled", "sent", "set_aside", "shown"]

LEGEND = """\
×8 … Σ: eight spans that are alike, the shortest–the longest, and their sum. A span includes what
is below it. [rescheduled]: the task asked to run on another worker, as P2P does."""
HEADING = """\
Thread-seconds of tasks by prefix and activity, each second once. `executor` is the way to a
thread and back, `other` what Dask does not meter."""
NEXT = """\
In Jaeger:          docker run --rm -p 4318:4318 -p 16686:16686 jaegertracing/jaeger:latest
                    dask otel demo --endpoint http://localhost:4318
On a real cluster:  set OTEL_EXPORTER_OTLP_ENDPOINT for every process, then
                    call dask_otel.enable(client), or start `dask scheduler` and `dask worker`
                    with --preload dask_otel"""


def shown(spans: Sequence[Received], trace_id: str, width: int) -> str:
    """The trace as a tree, where its thread-seconds went, what to do next."""
    own = [item for item in spans if item.span.trace_id.hex() == trace_id]
    lasted = max(item.span.end for item in own) - min(item.span.start for item in own)
    parts = [f"Trace {trace_id}, {len(own)} spans\n\n{tree(own, width=width, floor=lasted // 100)}", LEGEND]
    if others := len(spans) - len(own):
        parts.append(f"{others} more spans are in traces of their own.")
    parts.append(f"{HEADING}\n\n{activity_table(own, width=width)}")
    return "\n\n".join([*parts, NEXT])


def set_aside(variables: Sequence[str]) -> str:
    """Which of the user's variables do not count.

    Examples
    --------
    >>> set_aside(["OTEL_TRACES_SAMPLER"])
    'Not used here, where everything stays in this process: OTEL_TRACES_SAMPLER.'
    """
    return f"Not used here, where everything stays in this process: {', '.join(variables)}."


def sent(target: Target, trace_id: str, url: str | None) -> str:
    """Where it went and how to find it there.

    Examples
    --------
    >>> print(sent(Target("http://localhost:4318"), "0af7", "http://localhost:16686/trace/{trace_id}"))
    Sent to http://localhost:4318.
    trace id: 0af7
    http://localhost:16686/trace/0af7
    """
    lines = [f"Sent to {target.endpoint}.", f"trace id: {trace_id}"]
    if url:
        return "\n".join([*lines, url.replace("{trace_id}", trace_id)])
    example = "DASK_OTEL__TRACES__URL='http://localhost:16686/trace/{trace_id}'"
    return "\n".join([*lines, f"For a link here, set otel.traces.url, for Jaeger {example}."])


def not_delivered(target: Target) -> str:
    """What to check.

    Examples
    --------
    >>> not_delivered(Target("http://localhost:4317"))
    'Not everything arrived at http://localhost:4317 by http/protobuf; check that a backend listens there \
(4317 is the usual port of --protocol grpc, 4318 of http/protobuf).'
    """
    usual, other = ("4317", "4318") if target.protocol == GRPC else ("4318", "4317")
    hint = ""
    if f":{other}" in target.endpoint:
        spoken = "http/protobuf" if target.protocol == GRPC else "grpc"
        hint = f" ({other} is the usual port of --protocol {spoken}, {usual} of {target.protocol})"
    return f"Not everything arrived at {target.endpoint} by {target.protocol}; check that a backend listens there{hint}."


def not_sampled(sampler: str) -> str:
    """Why there is nothing."""
    return f"The sampler of the environment, OTEL_TRACES_SAMPLER={sampler}, said no to this trace; nothing was sent."


def incomplete(timeout: float) -> str:
    """What to do about what is missing."""
    return f"Not everything arrived within {timeout:g} s; --timeout waits longer."
