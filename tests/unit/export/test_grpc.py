"""The gRPC sender against a receiver that answers, refuses, hangs or breaks."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from dask_otel.export.grpc import GrpcSender
from dask_otel.export.outcome import DELIVERED, REJECTED, RETRY, UNKNOWN, Outcome
from dask_otel.settings import Otlp

from .receivers import LATE, free_port, grpc_receiver, partial, wait_until
from .test_http import certificates

__all__ = ["certificates"]

BODY = b"\x0a\x00" * 1_000


@pytest.fixture
def sender() -> Iterator[Callable[..., GrpcSender]]:
    """Makes senders, and closes them."""
    made: list[GrpcSender] = []

    def make(endpoint: str, **settings: Any) -> GrpcSender:
        made.append(GrpcSender(Otlp(protocol="grpc", endpoint=endpoint, insecure=True, **settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def aborting(code: grpc.StatusCode, details: str = "", retry: Duration | None = None) -> Any:
    """A behaviour that refuses with a code, and a time to wait where one is given."""

    def behave(context: grpc.ServicerContext) -> bytes:
        if retry is not None:
            packed = AnyMessage()
            packed.Pack(RetryInfo(retry_delay=retry))
            status = Status(code=code.value[0], message=details, details=[packed])
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(code, details)
        raise AssertionError("abort raises")

    return behave


def test_a_request_goes_as_it_is_with_our_name_and_the_users_headers(sender: Any) -> None:
    with grpc_receiver() as receiver:
        outcome = sender(f"127.0.0.1:{receiver.port}", headers=(("X-Scope", "team a"),)).send(BODY, 1)
    assert outcome == Outcome(DELIVERED)
    assert receiver.requests == [BODY]
    [metadata] = receiver.metadata
    assert metadata["x-scope"] == "team a"
    assert metadata["user-agent"].startswith("OTel-OTLP-Exporter-Python/dask-otel")


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:{}", "127.0.0.1:{}", "http://127.0.0.1:{}/ignored"])
def test_a_target_and_an_http_url_both_name_a_receiver_without_tls(sender: Any, endpoint: str) -> None:
    with grpc_receiver() as receiver:
        assert sender(endpoint.format(receiver.port)).send(BODY, 1) == Outcome(DELIVERED)


def test_without_compression_a_request_arrives_too(sender: Any) -> None:
    with grpc_receiver() as receiver:
        assert sender(f"127.0.0.1:{receiver.port}", compression="none").send(BODY, 1) == Outcome(DELIVERED)


def test_a_partial_success_is_delivered_with_what_was_refused(sender: Any) -> None:
    with grpc_receiver(lambda context: partial(3, "too old")) as receiver:
        outcome = sender(f"127.0.0.1:{receiver.port}").send(BODY, 5)
    assert outcome == Outcome(DELIVERED, "too old", 0.0, 3)


@pytest.mark.parametrize("code", ["UNAVAILABLE", "ABORTED", "OUT_OF_RANGE", "DATA_LOSS"])
def test_what_otlp_lists_is_to_be_tried_again(sender: Any, code: str) -> None:
    with grpc_receiver(aborting(grpc.StatusCode[code], "later")) as receiver:
        outcome = sender(f"127.0.0.1:{receiver.port}").send(BODY, 1)
    assert outcome == Outcome(RETRY, f"gRPC {code}: later")


@pytest.mark.parametrize(
    "code",
    [
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
        "INTERNAL",
    ],
)
def test_other_refusals_are_final_and_say_why(sender: Any, code: str) -> None:
    with grpc_receiver(aborting(grpc.StatusCode[code], "no such tenant")) as receiver:
        outcome = sender(f"127.0.0.1:{receiver.port}").send(BODY, 1)
    assert outcome == Outcome(REJECTED, f"gRPC {code}: no such tenant")


def test_exhausted_resources_are_to_be_tried_again_only_where_the_receiver_says_when(sender: Any) -> None:
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    with grpc_receiver(aborting(exhausted, "full")) as receiver:
        assert sender(f"127.0.0.1:{receiver.port}").send(BODY, 1).fate == REJECTED
    with grpc_receiver(aborting(exhausted, "full", Duration(seconds=2, nanos=500_000_000))) as receiver:
        outcome = sender(f"127.0.0.1:{receiver.port}").send(BODY, 1)
    assert outcome == Outcome(RETRY, "gRPC RESOURCE_EXHAUSTED: full", 2.5)


def test_an_unavailable_receivers_time_to_wait_is_heard(sender: Any) -> None:
    with grpc_receiver(aborting(grpc.StatusCode.UNAVAILABLE, "down", Duration(seconds=7))) as receiver:
        assert sender(f"127.0.0.1:{receiver.port}").send(BODY, 1).after == 7.0


def test_a_refused_connection_is_to_be_tried_again(sender: Any) -> None:
    outcome = sender(f"127.0.0.1:{free_port()}").send(BODY, 1)
    assert outcome.fate == RETRY
    assert outcome.reason.startswith("gRPC UNAVAILABLE: failed to connect")


def test_a_name_that_has_no_address_is_to_be_tried_again(sender: Any) -> None:
    outcome = sender("dns:///nobody.invalid:4317").send(BODY, 1)
    assert outcome.fate == RETRY


def test_an_answer_that_never_came_is_unknown(sender: Any) -> None:
    with grpc_receiver(lambda context: receiver.released.wait(30) and b"") as receiver:
        outcome = sender(f"127.0.0.1:{receiver.port}", timeout=0.2).send(BODY, 1)
        assert outcome.fate == UNKNOWN
        assert "no answer came: gRPC DEADLINE_EXCEEDED" in outcome.reason
        assert len(receiver.requests) == 1


def test_a_connection_that_breaks_after_the_request_is_unknown_and_not_sent_again(sender: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, grpc_receiver() as behind:
        proxy = threading.Thread(target=_relay_and_break, args=(listening, behind))
        behind.behave = lambda context: behind.released.wait(30) and b""
        proxy.start()
        outcome = sender(f"127.0.0.1:{listening.getsockname()[1]}").send(BODY, 1)
        assert outcome.fate == UNKNOWN, outcome
        assert len(behind.requests) == 1
        behind.released.set()
        proxy.join(10)


def _relay_and_break(listening: socket.socket, behind: Any) -> None:
    """Passes one connection on to a receiver and closes it when the receiver has the request."""
    near, _ = listening.accept()
    with near, socket.create_connection(("127.0.0.1", behind.port)) as far:
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()
        wait_until(lambda: behind.requests)
        near.shutdown(socket.SHUT_RDWR)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while read := source.recv(65_536):
            target.sendall(read)
    except OSError:
        pass


def test_closing_ends_a_send_that_waits_for_an_answer(sender: Any) -> None:
    with grpc_receiver(lambda context: receiver.released.wait(30) and b"") as receiver:
        one = sender(f"127.0.0.1:{receiver.port}", timeout=30.0)
        outcomes: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcomes.append(one.send(BODY, 1)))
        thread.start()
        wait_until(lambda: receiver.requests)
        began = time.monotonic()
        one.close()
        thread.join(10)
        assert time.monotonic() - began < LATE
        receiver.released.set()
    assert outcomes[0].fate == UNKNOWN
    assert one.send(BODY, 1).fate == RETRY


@pytest.mark.parametrize("header", [("X-Key", "se\ncret"), ("X-Key", "sécret"), ("X Key", "secret")])
def test_a_header_that_grpc_does_not_allow_is_refused_without_its_value(
    sender: Any, header: tuple[str, str]
) -> None:
    with pytest.raises(ValueError, match=f"the OTLP header '{header[0]}' has") as refused:
        sender("localhost:1", headers=(header,))
    assert "cret" not in str(refused.value)


def test_a_receiver_with_the_given_authority_is_trusted_and_sees_our_certificate(certificates: Path) -> None:
    key, certificate = (certificates / name for name in ("key.pem", "cert.pem"))
    pair = key.read_bytes(), certificate.read_bytes()
    credentials = grpc.ssl_server_credentials([pair], certificate.read_bytes(), require_client_auth=True)
    with grpc_receiver(credentials=credentials) as receiver:
        for own, fate in (
            ({"client_key": str(key), "client_certificate": str(certificate)}, DELIVERED),
            ({}, RETRY),
        ):
            otlp = Otlp("grpc", f"https://localhost:{receiver.port}", certificate=str(certificate), **own)
            one = GrpcSender(otlp)
            assert one.send(BODY, 1).fate == fate
            one.close()
        assert receiver.requests == [BODY]


def test_grpc_is_not_imported_before_a_sender_is_made() -> None:
    import subprocess
    import sys

    script = "import sys, dask_otel.export.pipeline; print('grpc' in sys.modules, 'requests' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
