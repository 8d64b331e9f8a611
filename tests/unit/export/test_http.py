"""The HTTP sender against a receiver that answers, refuses, hangs or breaks."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from google.rpc.status_pb2 import Status

from dask_otel.export import http
from dask_otel.export.http import HttpSender
from dask_otel.export.outcome import DELIVERED, MAX_ANSWER, REJECTED, RETRY, UNKNOWN, Outcome
from dask_otel.settings import Otlp

from .receivers import LATE, Answer, free_port, http_receiver, partial, silent_socket, wait_until

BODY = b"\x0a\x00" * 1_000


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., HttpSender]]:
    """Makes senders in an environment without proxies, and closes them."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    made: list[HttpSender] = []

    def make(endpoint: str, **settings: Any) -> HttpSender:
        made.append(HttpSender(Otlp(endpoint=endpoint, **settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


# -- what is sent --------------------------------------------------------------------------------------------


def test_a_request_is_a_zipped_post_with_our_name_and_the_users_headers(sender: Any) -> None:
    with http_receiver() as receiver:
        outcome = sender(receiver.url + "?a=b", headers=(("X-Scope", "team a"),)).send(BODY, 1)
    assert outcome == Outcome(DELIVERED)
    [request] = receiver.requests
    assert (request.path, request.unzipped) == ("/v1/traces?a=b", BODY)
    assert request.headers.pop("user-agent").startswith("OTel-OTLP-Exporter-Python/dask-otel")
    assert request.headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "content-type": "application/x-protobuf",
        "content-encoding": "gzip",
        "content-length": str(len(request.body)),
        "accept-encoding": "identity",
        "x-scope": "team a",
    }


def test_without_compression_the_body_goes_as_it_is(sender: Any) -> None:
    with http_receiver() as receiver:
        sender(receiver.url, compression="none").send(BODY, 1)
    assert receiver.requests[0].body == BODY
    assert "content-encoding" not in receiver.requests[0].headers


def test_gzip_needs_no_more_than_zlib(sender: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "deflate", zlib)
    with http_receiver() as receiver:
        sender(receiver.url).send(BODY, 1)
    assert receiver.requests[0].unzipped == BODY


def test_deflate_is_a_zlib_stream(sender: Any) -> None:
    with http_receiver() as receiver:
        sender(receiver.url, compression="deflate").send(BODY, 1)
    assert zlib.decompress(receiver.requests[0].body) == BODY
    assert receiver.requests[0].headers["content-encoding"] == "deflate"


def test_a_users_header_wins_over_ours_whatever_its_case(sender: Any) -> None:
    with http_receiver() as receiver:
        sender(receiver.url, headers=(("user-AGENT", "mine"),)).send(BODY, 1)
    assert receiver.requests[0].headers["user-agent"] == "mine"


def test_a_password_in_the_url_becomes_a_header(sender: Any) -> None:
    with http_receiver() as receiver:
        sender(receiver.url.replace("//", "//us%40er:secret@")).send(BODY, 1)
    assert receiver.requests[0].headers["authorization"] == "Basic dXNAZXI6c2VjcmV0"


@pytest.mark.parametrize("header", [("X-Key", "se\ncret"), ("X-Key", "secre\u2713t"), ("X Key", "secret")])
def test_a_header_that_http_does_not_allow_is_refused_without_its_value(
    sender: Any, header: tuple[str, str]
) -> None:
    with pytest.raises(ValueError, match=f"the OTLP header '{header[0]}' has") as refused:
        sender("http://localhost:1/", headers=(header,))
    assert "secr" not in str(refused.value)


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://localhost/", "http:///v1/traces"])
def test_an_endpoint_that_is_no_http_url_is_refused_in_a_sentence(sender: Any, endpoint: str) -> None:
    with pytest.raises(ValueError, match="must be a URL such as http://localhost:4318/v1/traces"):
        sender(endpoint)


def test_requests_share_one_connection(sender: Any) -> None:
    with http_receiver() as receiver:
        one = sender(receiver.url)
        assert [one.send(BODY, 1).fate for _ in range(5)] == [DELIVERED] * 5
        assert len({request.connection for request in receiver.requests}) == 1


def test_a_refusal_keeps_the_connection_too(sender: Any) -> None:
    with http_receiver(Answer(503, b"later"), Answer()) as receiver:
        one = sender(receiver.url)
        assert [one.send(BODY, 1).fate for _ in range(2)] == [RETRY, DELIVERED]
        assert len({request.connection for request in receiver.requests}) == 1


def test_a_connection_that_the_receiver_closed_meanwhile_is_made_anew(sender: Any) -> None:
    with http_receiver(Answer(headers={"Connection": "close"})) as receiver:
        one = sender(receiver.url)
        assert [one.send(BODY, 1).fate for _ in range(3)] == [DELIVERED] * 3
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        one = sender(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        for _ in range(2):  # Says nothing of it and closes: the next request finds the connection readable.
            thread = threading.Thread(target=_answer_and_close, args=(listening,))
            thread.start()
            assert one.send(BODY, 1) == Outcome(DELIVERED)
            thread.join()


def _answer_and_close(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        read = b""
        while b"\r\n\r\n" not in read:
            read += connection.recv(65_536)
        head, _, body = read.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        while len(body) < length:
            body += connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


# -- what becomes of it --------------------------------------------------------------------------------------


GRPC_HINT = " (a gRPC port does so too: if it is one, set OTEL_EXPORTER_OTLP_PROTOCOL=grpc)"


@pytest.mark.parametrize("status", [200, 202, 204])
def test_an_answer_of_success_is_delivered(sender: Any, status: int) -> None:
    with http_receiver(Answer(status)) as receiver:
        assert sender(receiver.url).send(BODY, 1) == Outcome(DELIVERED)


def test_a_partial_success_is_delivered_with_what_was_refused(sender: Any) -> None:
    with http_receiver(Answer(200, partial(3, "too old"))) as receiver:
        assert sender(receiver.url).send(BODY, 5) == Outcome(DELIVERED, "too old", 0.0, 3)


@pytest.mark.parametrize("status", [400, 401, 403, 413, 500, 501])
def test_other_refusals_are_final_and_say_why(sender: Any, status: int) -> None:
    why = Status(code=3, message="no\nsuch   tenant").SerializeToString()
    with http_receiver(Answer(status, why)) as receiver:
        outcome = sender(receiver.url).send(BODY, 1)
    assert outcome.fate == REJECTED
    assert outcome.reason.startswith(f"HTTP {status} ")
    assert outcome.reason.endswith(": no such tenant")


@pytest.mark.parametrize("status", [404, 405])
def test_a_server_that_has_nothing_there_gives_rise_to_a_hint(sender: Any, status: int) -> None:
    with http_receiver(Answer(status)) as receiver:
        outcome = sender(receiver.url).send(BODY, 1)
    assert outcome.fate == REJECTED
    assert outcome.reason.endswith(
        " (OTLP's usual path is /v1/traces, which is added to OTEL_EXPORTER_OTLP_ENDPOINT)"
    )


def test_a_redirect_is_not_followed(sender: Any) -> None:
    with http_receiver(Answer(302, headers={"Location": "http://localhost:1/"})) as receiver:
        assert sender(receiver.url).send(BODY, 1) == Outcome(REJECTED, "HTTP 302 Found")


def test_a_refusal_in_plain_text_is_told_shortened(sender: Any) -> None:
    with http_receiver(Answer(400, b"x" * 10_000)) as receiver:
        reason = sender(receiver.url).send(BODY, 1).reason
    assert reason == "HTTP 400 Bad Request: " + "x" * 300


def test_an_answer_is_read_up_to_a_bound(sender: Any) -> None:
    with http_receiver(Answer(400, b"x" * 10 * MAX_ANSWER), Answer()) as receiver:
        one = sender(receiver.url)
        assert [one.send(BODY, 1).fate for _ in range(2)] == [REJECTED, DELIVERED]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_four_statuses_are_to_be_tried_again(sender: Any, status: int) -> None:
    with http_receiver(Answer(status)) as receiver:
        outcome = sender(receiver.url).send(BODY, 1)
    assert (outcome.fate, outcome.after) == (RETRY, 0.0)


def test_the_receivers_time_to_wait_is_heard_in_seconds_and_as_a_date(sender: Any) -> None:
    date = formatdate(time.time() + 100, usegmt=True)
    answers = [Answer(429, headers={"Retry-After": header}) for header in ("17", date, "soon")]
    with http_receiver(*answers) as receiver:
        one = sender(receiver.url)
        seconds = [one.send(BODY, 1).after for _ in answers]
    assert seconds[0] == 17.0
    assert 90 < seconds[1] < 101
    assert seconds[2] == 0.0


def test_a_refused_connection_is_to_be_tried_again(sender: Any) -> None:
    outcome = sender(f"http://127.0.0.1:{free_port()}/").send(BODY, 1)
    assert outcome.fate == RETRY
    assert outcome.reason.startswith("no connection: ConnectionRefusedError")


def test_a_name_that_has_no_address_is_to_be_tried_again(sender: Any) -> None:
    outcome = sender("http://nobody.invalid:4318/").send(BODY, 1)
    assert outcome.fate == RETRY
    assert outcome.reason.startswith("no connection: gaierror")


def test_a_host_that_is_none_is_no_connection(sender: Any) -> None:
    outcome = sender(f"http://{'a' * 70}.example/").send(BODY, 1)
    assert outcome.fate == RETRY
    assert outcome.reason.startswith("no connection: ")


def test_an_answer_that_never_came_is_unknown_and_not_sent_again(sender: Any) -> None:
    with http_receiver(Answer(hang=True)) as receiver:
        outcome = sender(receiver.url, timeout=0.2).send(BODY, 1)
        assert outcome.fate == UNKNOWN
        assert "no answer came: TimeoutError" in outcome.reason
        assert len(receiver.requests) == 1


def test_a_connection_that_breaks_after_the_request_is_unknown_and_not_sent_again(sender: Any) -> None:
    with http_receiver(Answer(drop=True)) as receiver:
        outcome = sender(receiver.url).send(BODY, 1)
        assert outcome.fate == UNKNOWN
        assert "no answer came: RemoteDisconnected" in outcome.reason
        assert outcome.reason.endswith(GRPC_HINT)
        assert len(receiver.requests) == 1


def test_one_that_has_answered_before_is_no_grpc_port(sender: Any) -> None:
    with http_receiver(Answer(), Answer(drop=True)) as receiver:
        one = sender(receiver.url)
        assert one.send(BODY, 1).fate == DELIVERED
        assert not one.send(BODY, 1).reason.endswith(GRPC_HINT)


def test_an_answer_that_is_no_http_is_unknown(sender: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_babble, args=(listening,))
        thread.start()
        outcome = sender(f"http://127.0.0.1:{listening.getsockname()[1]}/").send(BODY, 1)
        thread.join()
    assert outcome.fate == UNKNOWN
    assert outcome.reason.endswith(GRPC_HINT)


def _babble(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(65_536)
        connection.sendall(b"SSH-2.0-OpenSSH\r\n")


def test_a_request_that_could_not_be_sent_whole_is_to_be_tried_again(sender: Any) -> None:
    with silent_socket() as port:
        outcome = sender(f"http://127.0.0.1:{port}/", timeout=0.2, compression="none").send(b"x" * 2**25, 1)
    assert outcome.fate == RETRY
    assert outcome.reason.startswith("the connection broke while the request was sent: TimeoutError")


def test_a_connection_that_is_reset_while_the_request_is_sent_is_to_be_tried_again(sender: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_reset, args=(listening,))
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        outcome = sender(url, compression="none", timeout=5.0).send(b"x" * 2**25, 1)
        thread.join()
    assert outcome.fate == RETRY
    assert outcome.reason.startswith("the connection broke while the request was sent: ")


def _reset(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    connection.recv(1_000)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_an_answer_without_end_is_left(sender: Any) -> None:
    let_go = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_answer_without_end, args=(listening, let_go))
        thread.start()
        outcome = sender(f"http://127.0.0.1:{listening.getsockname()[1]}/", timeout=5.0).send(BODY, 1)
        let_go.set()
        thread.join()
    assert outcome.fate == REJECTED


def _answer_without_end(listening: socket.socket, let_go: threading.Event) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(65_536)
        connection.sendall(
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 999999999\r\n\r\n" + b"x" * MAX_ANSWER
        )
        let_go.wait(30)


def test_a_receiver_that_refuses_before_the_request_is_whole_is_heard(sender: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_refuse_early, args=(listening,))
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        outcome = sender(url, compression="none", timeout=5.0).send(b"x" * 2**25, 1)
        thread.join()
    assert (outcome.fate, outcome.reason) in [
        (REJECTED, "HTTP 413 Too Large"),
        # The system may throw the answer away with the connection.
        (RETRY, outcome.reason),
    ]


def _refuse_early(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(1_000)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)


# -- closing -------------------------------------------------------------------------------------------------


def closing(one: HttpSender, sent: Callable[[], object]) -> tuple[Outcome, float]:
    """What a send that hangs returns when the sender is closed, and how long (s) after."""
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(one.send(BODY, 1)))
    thread.start()
    wait_until(sent)
    began = time.monotonic()
    one.close()
    thread.join(10)
    return outcomes[0], time.monotonic() - began


def test_closing_ends_a_send_that_waits_for_an_answer(sender: Any) -> None:
    with http_receiver(Answer(hang=True)) as receiver:
        one = sender(receiver.url, timeout=30.0)
        outcome, seconds = closing(one, lambda: receiver.requests)
    assert (outcome.fate, seconds < LATE) == (UNKNOWN, True)
    assert not outcome.reason.endswith(GRPC_HINT)


def test_closing_ends_a_send_that_still_makes_its_tls_connection(sender: Any) -> None:
    with silent_socket() as port:
        one = sender(f"https://127.0.0.1:{port}/", timeout=30.0)
        outcome, seconds = closing(one, lambda: one._handle is not None)
    assert (outcome.fate, seconds < LATE) == (RETRY, True)


def test_a_closed_sender_sends_nothing(sender: Any) -> None:
    with http_receiver() as receiver:
        one = sender(receiver.url)
        one.close()
        assert one.send(BODY, 1).fate == RETRY
        assert receiver.requests == []


# -- TLS and proxies -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that signs itself, and its key."""
    where = tmp_path_factory.mktemp("certificates")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(where / "key.pem"), "-out", str(where / "cert.pem")]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run(["openssl", "req", *kind, *files, *names], check=True, capture_output=True)
    return where


def server_context(certificates: Path, client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    if client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / "cert.pem")
    return context


def test_a_receiver_with_the_given_authority_is_trusted(sender: Any, certificates: Path) -> None:
    with http_receiver(context=server_context(certificates)) as receiver:
        one = sender(receiver.url, certificate=str(certificates / "cert.pem"))
        assert [one.send(BODY, 1).fate for _ in range(3)] == [DELIVERED] * 3
        assert len({request.connection for request in receiver.requests}) == 1


def test_a_receiver_of_an_unknown_authority_is_not_trusted(sender: Any, certificates: Path) -> None:
    with http_receiver(context=server_context(certificates)) as receiver:
        outcome = sender(receiver.url).send(BODY, 1)
        assert (outcome.fate, receiver.requests) == (RETRY, [])
        assert "certificate verify failed" in outcome.reason


def test_a_client_certificate_is_shown_to_a_receiver_that_asks(sender: Any, certificates: Path) -> None:
    paths = {"certificate": str(certificates / "cert.pem")}
    own = {"client_certificate": str(certificates / "cert.pem"), "client_key": str(certificates / "key.pem")}
    with http_receiver(context=server_context(certificates, client=True)) as receiver:
        assert sender(receiver.url, **paths, **own).send(BODY, 1).fate == DELIVERED
        assert sender(receiver.url, **paths).send(BODY, 1).fate in (RETRY, UNKNOWN)
        assert len(receiver.requests) == 1


def test_a_missing_file_of_certificates_is_an_error_of_the_system(sender: Any) -> None:
    with pytest.raises(FileNotFoundError):
        sender("https://localhost:1/", certificate="/nowhere.pem")


def test_the_environments_proxy_is_asked_with_the_whole_url(
    sender: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_receiver() as proxy:
        monkeypatch.setenv("http_proxy", f"http://us:pw@127.0.0.1:{proxy.port}")
        assert sender("http://collector.invalid:4318/v1/traces").send(BODY, 1).fate == DELIVERED
    [request] = proxy.requests
    assert request.path == "http://collector.invalid:4318/v1/traces"
    assert request.headers["host"] == "collector.invalid:4318"
    assert request.headers["proxy-authorization"] == "Basic dXM6cHc="


def test_a_proxy_is_asked_for_a_tunnel_to_a_tls_receiver(
    sender: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_receiver(Answer(407)) as proxy:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")
        outcome = sender("https://collector.invalid/v1/traces").send(BODY, 1)
    assert (outcome.fate, [request.path for request in proxy.requests]) == (RETRY, ["collector.invalid:443"])
    assert "Tunnel connection failed: 407" in outcome.reason


@pytest.mark.parametrize("excluded", ["127.0.0.1", "127.0.0.0/8", "*"])
def test_no_proxy_is_heard_as_requests_does(
    sender: Any, monkeypatch: pytest.MonkeyPatch, excluded: str
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", excluded)
    with http_receiver() as receiver:
        assert sender(receiver.url).send(BODY, 1).fate == DELIVERED


def test_a_proxy_of_another_kind_is_refused_in_a_sentence(
    sender: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", "socks5://secret@localhost:1")
    with pytest.raises(ValueError, match="of kind socks5; only http:// proxies are supported") as refused:
        sender("http://collector.invalid/")
    assert "secret" not in str(refused.value)
