"""Requests: what stands in them, how large they get, and what they lose."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dask_otel.export.bodies import MAX_BODY, Bodies, Body, Source
from dask_otel.export.cut import cut
from dask_otel.records import Event, Link, Scope, Span

from . import spans as samples
from .spans import TRACE, message, numbered, span
from .test_forms import attempt, encoded

WORKER = Source((("service.name", "worker"),), Scope("dask_otel", "1.0", "https://schema/1", (("a", 1),)))
USERS = Source((("service.name", "worker"),), Scope("app"))


def lost_nothing(failed: Span, error: Exception) -> None:
    raise error


def decoded(body: Body) -> list[tuple[str, str, list[str]]]:
    """Service, scope and the spans' names of each block in a request."""
    request = ExportTraceServiceRequest.FromString(body.data)
    return [
        (
            block.resource.attributes[0].value.string_value,
            scope.scope.name,
            [span.name for span in scope.spans],
        )
        for block in request.resource_spans
        for scope in block.scope_spans
    ]


def test_a_request_groups_spans_by_who_made_them() -> None:
    [body] = Bodies(lost_nothing).build([(WORKER, numbered(1, 2)), (USERS, numbered(3, 3))])
    assert decoded(body) == [("worker", "dask_otel", ["span-1", "span-2"]), ("worker", "app", ["span-3"])]
    assert body.spans == 3


def test_a_request_holds_resource_scope_schema_and_spans_exactly() -> None:
    [body] = Bodies(lost_nothing).build([(WORKER, [span(1)])])
    expected = ExportTraceServiceRequest()
    block = expected.resource_spans.add()
    block.resource.attributes.extend(samples.pairs(WORKER.resource))
    spans = block.scope_spans.add(schema_url="https://schema/1", spans=[message(span(1))])
    spans.scope.name, spans.scope.version = "dask_otel", "1.0"
    spans.scope.attributes.extend(samples.pairs((("a", 1),)))
    assert ExportTraceServiceRequest.FromString(body.data) == expected


def test_attempts_that_are_encoded_whole_stand_beside_spans_and_count_as_many() -> None:
    whole = encoded(attempt())
    assert whole is not None
    [body] = Bodies(lost_nothing).build([(WORKER, [span(1), whole])])
    [(_, _, found)] = decoded(body)
    assert sorted(found) == sorted(["span-1", *[one.name for one in attempt().spans()]])
    assert body.spans == len(found)


def test_what_is_encoded_whole_and_exceeds_a_request_is_taken_apart() -> None:
    whole = encoded(attempt())
    assert whole is not None
    around = len(next(iter(Bodies(lost_nothing).build([(WORKER, [span(1)])]))).data)
    bodies = list(Bodies(lost_nothing, around + len(whole.data) // 2).build([(WORKER, [whole])]))
    assert len(bodies) > 1
    names = [name for body in bodies for _, _, found in decoded(body) for name in found]
    assert sorted(names) == sorted(one.name for one in attempt().spans())
    assert sum(body.spans for body in bodies) == len(names)


def test_no_spans_make_no_request() -> None:
    assert list(Bodies(lost_nothing).build([])) == []
    assert list(Bodies(lost_nothing).build([(WORKER, [])])) == []


@settings(samples.steady, max_examples=50)
@given(
    st.lists(
        st.tuples(st.sampled_from([WORKER, USERS]), st.lists(st.integers(0, 400), max_size=12)), max_size=4
    ),
    st.integers(600, 2_000),
)
def test_requests_stay_under_their_limit_and_lose_no_span(
    batch: list[tuple[Source, list[int]]], limit: int
) -> None:
    spans = [(source, [span(i + 1, message="x" * n) for i, n in enumerate(sizes)]) for source, sizes in batch]
    bodies = list(Bodies(lost_nothing, limit).build(spans))
    assert all(len(body.data) <= limit for body in bodies)
    names = [name for body in bodies for _, _, names in decoded(body) for name in names]
    assert names == [made.name for _, many in spans for made in many]
    assert [body.spans for body in bodies] == [sum(len(n) for _, _, n in decoded(body)) for body in bodies]


def test_real_requests_stay_under_four_mebibytes() -> None:
    many = [span(i, attributes=(("text", "x" * 100_000),)) for i in range(1, 121)]
    bodies = list(Bodies(lost_nothing).build([(WORKER, many)]))
    assert [len(body.data) < 4 * 2**20 for body in bodies] == [True, True, True]
    assert sum(body.spans for body in bodies) == 120


def test_spans_that_just_fill_a_request_stay_in_one() -> None:
    empty = len(next(Bodies(lost_nothing).build([(WORKER, [span(1, message="x" * 1_000)])])).data) - 1_000
    fill = MAX_BODY - empty - 40
    bodies = list(Bodies(lost_nothing).build([(WORKER, [span(1, message="x" * fill)])]))
    assert (len(bodies), len(bodies[0].data) <= MAX_BODY) == (1, True)
    assert len(ExportTraceServiceRequest.FromString(bodies[0].data).SerializeToString()) > MAX_BODY - 100


def test_a_span_that_exceeds_a_request_is_cut_and_says_so() -> None:
    huge = span(
        1,
        common=(("common", "c"), ("large common", "x" * 5_000_000)),
        attributes=(("kept", 1), ("large", b"x" * 5_000_000)),
        events=(Event("kept", 1, (("large", ["x"] * 2_000_000),)), Event("x" * 9_000, 1)),
        links=(Link(TRACE, b"\x02" * 8, attributes=(("large", "x" * 9_000), ("kept", 1))),),
        dropped_attributes=1,
    )
    [body] = Bodies(lost_nothing).build([(WORKER, [span(2), huge, span(3)])])
    first, between, last = (
        ExportTraceServiceRequest.FromString(body.data).resource_spans[0].scope_spans[0].spans
    )
    assert (first, last) == (message(span(2)), message(span(3)))
    assert between == message(
        span(
            1,
            common=(("common", "c"),),
            attributes=(("kept", 1),),
            events=(Event("kept", 1, (), 1),),
            links=(Link(TRACE, b"\x02" * 8, attributes=(("kept", 1),), dropped_attributes=1),),
            dropped_attributes=3,
            dropped_events=1,
        )
    )


def test_a_span_that_is_still_too_large_when_cut_fails_alone() -> None:
    failed: list[str] = []
    wide = span(1, attributes=tuple([(f"key-{i}", "x" * 8_000) for i in range(600)]))
    bodies = Bodies(lambda made, error: failed.append(f"{made.name}: {error}")).build(
        [(WORKER, [wide, span(2)])]
    )
    assert [decoded(body)[0][2] for body in bodies] == [["span-2"]]
    assert len(failed) == 1
    assert failed[0].startswith("span-1: 4")
    assert "exceed a request's" in failed[0]


def test_a_span_without_anything_large_is_not_cut() -> None:
    made = span(1, attributes=(("a", 1),), links=(Link(TRACE, b"\x02" * 8),), events=(Event("e", 1),))
    assert cut(made) == made


def test_a_resource_that_cannot_be_encoded_costs_its_own_spans_only() -> None:
    class Sour:
        def __str__(self) -> str:
            raise RuntimeError("sour")

    failed: list[Span] = []
    sour = Source((("a", Sour()),), Scope("sour"))  # type: ignore[arg-type]
    batch = [(USERS, [span(1)]), (sour, numbered(2, 3)), (USERS, [span(4)])]
    [body] = Bodies(lambda made, error: failed.append(made)).build(batch)
    assert [names for _, _, names in decoded(body)] == [["span-1"], ["span-4"]]
    assert failed == numbered(2, 3)


def test_spans_that_cannot_be_encoded_cost_nobody_else() -> None:
    failed: list[Span] = []
    bad = span(9, trace_id=b"")
    batch = [(WORKER, [bad]), (USERS, [span(1), bad, span(2)])]
    [body] = Bodies(lambda made, error: failed.append(made)).build(batch)
    assert decoded(body) == [("worker", "app", ["span-1", "span-2"])]
    assert failed == [bad, bad]
