from __future__ import annotations

import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

from dask_otel import records
from dask_otel.decode import decode
from dask_otel.receiver import ACCEPT, Receiver, Request, Response


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def sdk(endpoint: str, compression: Compression = Compression.NoCompression) -> TracerProvider:
    exporter = OTLPSpanExporter(endpoint + "/v1/traces", compression=compression, timeout=5)
    provider = TracerProvider(resource=Resource({"service.name": "here"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def post(url: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    headers = {"content-type": "application/x-protobuf"} | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_everything_about_a_span_of_the_sdk_is_decoded(receiver: Receiver) -> None:
    tracer = sdk(receiver.endpoint).get_tracer("library", "1.2")
    other = SpanContext(0xABC, 0xDEF, True, TraceFlags(1), TraceState([("a", "b")]))
    attributes = {"s": "x", "b": True, "i": 7, "f": 0.5, "a": ["p", "q"]}
    links = [SdkLink(other, {"why": "test"})]
    span = tracer.start_span(
        "name", kind=SpanKind.CLIENT, attributes=attributes, links=links, start_time=1_000
    )
    span.add_event("happened", {"n": 1}, timestamp=1_500)
    span.set_status(StatusCode.ERROR, "broken")
    span.end(2_000)

    (received,) = receiver.wait(len)

    context = span.get_span_context()
    assert received.resource == {"service.name": "here"}
    assert received.scope == ("library", "1.2")
    assert received.span._replace(links=(), flags=0) == records.Span(
        name="name",
        kind=records.CLIENT,
        trace_id=context.trace_id.to_bytes(16, "big"),
        span_id=context.span_id.to_bytes(8, "big"),
        flags=0,
        start=1_000,
        end=2_000,
        attributes=(("s", "x"), ("b", True), ("i", 7), ("f", 0.5), ("a", ("p", "q"))),
        events=(records.Event("happened", 1_500, (("n", 1),)),),
        status=records.ERROR,
        message="broken",
    )
    (link,) = received.span.links
    assert link[:2] == ((0xABC).to_bytes(16, "big"), (0xDEF).to_bytes(8, "big"))
    assert link.attributes == (("why", "test"),)


@pytest.mark.parametrize("compression", list(Compression))
def test_a_body_may_be_compressed(receiver: Receiver, compression: Compression) -> None:
    sdk(receiver.endpoint, compression).get_tracer("t").start_span("it").end()
    assert [r.span.name for r in receiver.wait(len)] == ["it"]
    (request,) = receiver.requests()
    assert request.headers.get("content-encoding", "none") == compression.value
    assert decode(request.body) == receiver.spans()


def test_waiting_in_vain_shows_what_was_received(receiver: Receiver) -> None:
    sdk(receiver.endpoint).get_tracer("t").start_span("lonely").end()
    with pytest.raises(TimeoutError, match=r"(?s)within 0 s: 1 spans came in 1 requests\n.*lonely"):
        receiver.wait(lambda spans: len(spans) > 1, timeout=0)


def test_waiting_sees_what_comes_later(receiver: Receiver) -> None:
    tracer = sdk(receiver.endpoint).get_tracer("t")
    thread = threading.Thread(target=lambda: [tracer.start_span(name).end() for name in "ab"])
    thread.start()
    assert [r.span.name for r in receiver.wait(lambda spans: len(spans) == 2)] == ["a", "b"]
    thread.join()


@pytest.mark.parametrize(
    ("path", "headers", "status", "says"),
    [
        (
            "/v1/traces",
            {"content_type": "application/json"},
            415,
            b"only application/x-protobuf is understood",
        ),
        ("/v1/traces", {"content_encoding": "br"}, 415, b"br is not gzip, deflate or identity"),
        ("/v1/traces", {"content_encoding": "gzip"}, 400, b"the body is not gzip: "),
        ("/v1/traces", {}, 400, b"not an ExportTraceServiceRequest: "),
        ("/v2/traces", {}, 404, b"/v2/traces is not /v1/traces, /v1/metrics or /v1/logs"),
    ],
)
def test_what_is_not_understood_is_refused_and_says_why(
    receiver: Receiver, path: str, headers: dict[str, str], status: int, says: bytes
) -> None:
    answered, body = post(receiver.endpoint + path, b"\xff\xff", **headers)
    assert answered == status
    assert body.startswith(says)
    assert receiver.spans() == []
    assert receiver.requests() == []


@pytest.mark.parametrize("path", ["/v1/metrics", "/v1/logs"])
def test_metrics_and_logs_are_accepted_and_kept_as_requests(receiver: Receiver, path: str) -> None:
    assert post(receiver.endpoint + path, b"\x01") == (200, b"")
    assert [(r.path, r.body) for r in receiver.requests()] == [(path, b"\x01")]


def test_a_test_may_answer_as_it_likes_and_only_accepted_spans_are_kept() -> None:
    answers = iter([Response(503, {"retry-after": "7"}, b"later"), ACCEPT])

    def respond(request: Request) -> Response:
        return next(answers)

    with Receiver(respond) as receiver:
        body = b"\n\x0e\x12\x0c\x12\n*\x08accepted"
        assert post(receiver.endpoint + "/v1/traces", body) == (503, b"later")
        assert receiver.spans() == []
        assert post(receiver.endpoint + "/v1/traces", body) == (200, b"")
        assert [r.span.name for r in receiver.spans()] == ["accepted"]
        assert len(receiver.requests()) == 2


def test_a_respond_that_raises_cuts_the_connection_without_an_answer() -> None:
    def respond(request: Request) -> Response:
        raise RuntimeError("no answer")

    with Receiver(respond) as receiver, pytest.raises(http.client.RemoteDisconnected):
        post(receiver.endpoint + "/v1/traces")


def ask_again(connection: http.client.HTTPConnection, headers: dict[str, str]) -> None:
    """On the same connection: it is not opened anew."""
    connection.auto_open = False
    connection.request("POST", "/v1/traces", b"", headers)
    connection.getresponse()


def test_closing_is_fast_and_cuts_open_connections(receiver: Receiver) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=5)
    headers = {"content-type": "application/x-protobuf"}
    connection.request("POST", "/v1/traces", b"", headers)
    assert connection.getresponse().read() == b""
    started = time.monotonic()
    receiver.close()
    assert time.monotonic() - started < 5  # The connection's own timeout.
    with pytest.raises(ConnectionError):
        ask_again(connection, headers)
    with pytest.raises(urllib.error.URLError, match="refused"):
        post(receiver.endpoint + "/v1/traces")
    receiver.close()


def test_a_receiver_can_come_back_at_the_same_port() -> None:
    with Receiver() as first:
        port = first.port
    with Receiver(port=port) as second:
        assert second.endpoint == first.endpoint
        assert post(second.endpoint + "/v1/traces") == (200, b"")
