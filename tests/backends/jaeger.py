"""What Jaeger has stored, read through the HTTP API that its own pages use."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """A span as Jaeger gives it; kind and status, which it keeps as tags, are fields here."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str | None
    kind: str
    status: str  # UNSET, OK or ERROR
    start: int  # µs since 1970
    duration: int  # µs
    tags: dict[str, Any]
    events: tuple[tuple[str, dict[str, Any]], ...]
    links: tuple[tuple[str, str], ...]  # (trace id, span id)
    resource: dict[str, Any]  # without service.name
    warnings: tuple[str, ...]  # what Jaeger found wrong with it


def services(api: str) -> list[str]:
    """The names of all services that have sent a span, sorted."""
    return sorted(get(f"{api}/api/services")["data"] or ())


def trace(api: str, trace_id: str | int) -> list[Span]:
    """All spans of a trace by start; none if Jaeger does not know it.

    `trace_id` is a number, as OpenTelemetry's API has it, or 32 hex digits.
    """
    if isinstance(trace_id, int):
        trace_id = f"{trace_id:032x}"
    try:
        (found,) = get(f"{api}/api/traces/{trace_id}")["data"]
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return []
        raise
    return in_order(read_span(span, found["processes"]) for span in found["spans"])


def wait_for_trace(
    api: str, trace_id: str | int, predicate: Callable[[list[Span]], bool], timeout: float = 60.0
) -> list[Span]:
    """The trace's spans as soon as `predicate` holds for them.

    Raises
    ------
    TimeoutError
        after `timeout` seconds, with the tree that had arrived by then.
    """
    deadline = time.monotonic() + timeout
    while not predicate(spans := trace(api, trace_id)):
        if time.monotonic() > deadline:
            arrived = tree(spans) or "nothing"
            raise TimeoutError(
                f"trace {trace_id} is not as expected after {timeout} s; Jaeger has:\n{arrived}"
            )
        time.sleep(0.05)
    return spans


def tree(spans: Iterable[Span]) -> str:
    """The spans as indented `service: name` lines, those of one parent by (start, name).

    A span whose parent is not among them stands at the top and says so.
    """
    spans = in_order(spans)
    known = {span.span_id for span in spans}
    below: dict[str | None, list[Span]] = defaultdict(list)
    for span in spans:
        below[span.parent_id if span.parent_id in known else None].append(span)

    def lines(parent: str | None, depth: int) -> Iterable[str]:
        # Jaeger gives a repeated span id twice; what is below it is shown once.
        for span in below.pop(parent, ()):
            orphan = " (its parent is missing)" if depth == 0 and span.parent_id else ""
            yield f"{'  ' * depth}{span.service}: {span.name}{orphan}"
            yield from lines(span.span_id, depth + 1)

    return "\n".join(lines(None, 0))


def in_order(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.start, span.name))


def read_span(span: dict, processes: dict) -> Span:
    tags = values(span["tags"])
    process = processes[span["processID"]]
    # Jaeger writes parent and links into one list.
    parents = [ref for ref in span["references"] if ref["refType"] == "CHILD_OF"]
    links = [ref for ref in span["references"] if ref["refType"] == "FOLLOWS_FROM"]
    tags.pop("error", None)  # repeats the status
    return Span(
        name=span["operationName"],
        service=process["serviceName"],
        trace_id=span["traceID"].zfill(32),  # Jaeger drops leading zeros
        span_id=span["spanID"],
        parent_id=parents[0]["spanID"] if parents else None,
        kind=tags.pop("span.kind", "internal"),
        status=tags.pop("otel.status_code", "UNSET"),
        start=span["startTime"],
        duration=span["duration"],
        tags=tags,
        events=tuple(read_event(log) for log in span["logs"] or ()),
        links=tuple((ref["traceID"].zfill(32), ref["spanID"]) for ref in links),
        resource=values(process["tags"]),
        warnings=tuple(span.get("warnings") or ()),
    )


def read_event(log: dict) -> tuple[str, dict[str, Any]]:
    fields = values(log["fields"])
    return fields.pop("event", ""), fields


def values(tags: list[dict] | None) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in tags or ()}


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)
