"""Spans of every kind that can be generated are taken by the real Collector and by the real Jaeger, none refused."""

from __future__ import annotations

import secrets
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dask_otel.export.bodies import Bodies, Source
from dask_otel.export.outcome import DELIVERED, Outcome
from dask_otel.export.sinks import make_sender
from dask_otel.records import Attributes, Event, Link, Scope, Span
from dask_otel.settings import Otlp

from .jaeger import wait_for_trace

texts = st.text(max_size=20) | st.sampled_from(["\ud800", "µ" * 200, "x" * 5_000, "\0", "🜁 ок"])
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = texts | numbers | st.booleans() | st.binary(max_size=50) | st.none()
values = scalars | st.lists(scalars, max_size=4) | st.dictionaries(texts, scalars, max_size=3)
keys = st.text(min_size=1, max_size=20, alphabet=st.characters(exclude_categories=["Cs"]))
attributes = st.dictionaries(keys, values, max_size=6).map(lambda pairs: tuple(pairs.items()))
moments = st.integers(1_700_000_000_000_000_000, 1_700_000_000_000_000_000 + 10**12)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    start = draw(moments)
    ids = st.integers(1, 2**64 - 1).map(lambda n: n.to_bytes(8, "big"))
    links = st.builds(Link, st.just(b"l" * 16), ids, st.just(1), st.just(""), attributes)
    return Span(
        draw(texts),
        draw(st.integers(1, 5)),
        b"?" * 16,
        draw(ids),
        draw(st.just(b"") | ids),
        draw(st.sampled_from([1, 3, 0x101, 0x301])),
        draw(st.sampled_from(["", "vendor=x", "a=1,b=2"])),
        start,
        draw(moments.map(lambda end: max(end, start))),
        (("dask.operation", "task"),),
        draw(attributes),
        tuple(draw(st.lists(st.builds(Event, texts, moments, attributes), max_size=3))),
        tuple(draw(st.lists(links, max_size=3))),
        draw(st.integers(0, 2)),
        draw(texts),
    )


def generated() -> list[Span]:
    """A hundred lists of spans, all of one new trace, ids not repeated."""
    trace_id = secrets.token_bytes(16)
    made: dict[bytes, Span] = {}

    @settings(
        max_examples=100,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(st.lists(spans(), max_size=5))
    def collect(drawn: list[Span]) -> None:
        made.update((span.span_id, span._replace(trace_id=trace_id)) for span in drawn)

    collect()
    return list(made.values())


@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize("receiver", ["collector", "jaeger"])
def test_generated_spans_are_taken_and_found_in_jaeger(
    receiver: str, transport: str, request: pytest.FixtureRequest, jaeger_api: str
) -> None:
    sent = generated()
    endpoint = request.getfixturevalue(f"{receiver}_{transport}")
    assert send(endpoint, transport, sent) == [Outcome(DELIVERED)]
    trace_id = sent[0].trace_id.hex()
    found = wait_for_trace(jaeger_api, trace_id, lambda spans: len(spans) >= len(sent))
    assert Counter(span.span_id for span in found) == Counter(span.span_id.hex() for span in sent)


def send(endpoint: str, transport: str, spans: list[Span]) -> list[Outcome]:
    resource: Attributes = (("service.name", "generated"),)
    failed: list[object] = []
    bodies = Bodies(failed=lambda span, error: failed.append((span, error)))
    if transport == "grpc":
        otlp = Otlp("grpc", endpoint.removeprefix("http://"), insecure=True)
    else:
        otlp = Otlp(endpoint=f"{endpoint}/v1/traces")
    sender = make_sender(otlp)
    try:
        batch = [(Source(resource, Scope("dask_otel", "1")), spans)]
        outcomes = [sender.send(body.data, body.spans) for body in bodies.build(batch)]
    finally:
        sender.close()
    assert failed == []
    return outcomes
