"""What became of a request, and what a receiver's answer says about it.

Rules
-----
1. `RETRY` means that the receiver cannot have taken the spans: it said so, or never had the whole request.
2. `UNKNOWN` means that it may have: the request was sent and no answer came. Sending again could double
   spans.
3. An answer is a stranger's: it is read up to a bound, and what cannot be read is no error.
"""

from __future__ import annotations

from typing import NamedTuple

from dask_otel.export.wire import Field, fields

DELIVERED, REJECTED, RETRY, UNKNOWN = "delivered", "rejected", "retry", "unknown"

#: Bytes of an answer that are read, characters of a reason that are told.
MAX_ANSWER, MAX_REASON = 65_536, 300


class Outcome(NamedTuple):
    """The fate of a request.

    ``reason`` is a piece of a sentence; ``after`` the seconds that the receiver asks to wait (0: it does
    not); ``rejected`` the spans that it refused of a request that it took.
    """

    fate: str
    reason: str = ""
    after: float = 0.0
    rejected: int = 0


def delivered(answer: bytes) -> Outcome:
    """The outcome of a request that was taken, by its ExportTraceServiceResponse.

    Examples
    --------
    >>> delivered(b"")
    Outcome(fate='delivered', reason='', after=0.0, rejected=0)
    >>> delivered(b"\\x0a\\x07\\x08\\x02\\x12\\x03bad")
    Outcome(fate='delivered', reason='bad', after=0.0, rejected=2)
    """
    partial = _fields(_bytes(_fields(answer).get(1, b"")))
    rejected = partial.get(1, 0)
    count = rejected if isinstance(rejected, int) and rejected < 2**63 else 0
    return Outcome(DELIVERED, reason=text(_bytes(partial.get(2, b""))), rejected=count)


def status_message(answer: bytes) -> str:
    """The message of a google.rpc.Status, which is what OTLP receivers answer when they refuse; else ``""``.

    Examples
    --------
    >>> status_message(b"\\x08\\x03\\x12\\x07too big")
    'too big'
    """
    return text(_bytes(_fields(answer).get(2, b"")))


def retry_delay(info: bytes) -> float:
    """Seconds of a google.rpc.RetryInfo.

    Examples
    --------
    >>> retry_delay(b"\\x0a\\x08\\x08\\x02\\x10\\x80\\xca\\xb5\\xee\\x01")
    2.5
    """
    duration = _fields(_bytes(_fields(info).get(1, b"")))
    seconds, nanoseconds = duration.get(1, 0), duration.get(2, 0)
    if isinstance(seconds, int) and isinstance(nanoseconds, int) and seconds < 2**63:
        return seconds + nanoseconds * 1e-9
    return 0.0


def details(status: bytes) -> list[tuple[str, bytes]]:
    """Type's name and content of each detail in a google.rpc.Status."""
    try:
        found = [
            dict(fields(content))
            for number, content in fields(status)
            if number == 3 and type(content) is bytes
        ]
    except ValueError:
        return []
    return [(text(_bytes(any_.get(1, b""))).rpartition("/")[2], _bytes(any_.get(2, b""))) for any_ in found]


def text(raw: bytes) -> str:
    """What a receiver wrote, as one line that can be shown."""
    line = " ".join(raw[: 4 * MAX_REASON].decode(errors="replace").split())
    return "".join(character for character in line if character.isprintable())[:MAX_REASON]


def _fields(message: bytes) -> dict[int, Field]:
    try:
        return dict(fields(message))
    except ValueError:
        return {}


def _bytes(content: Field) -> bytes:
    return content if isinstance(content, bytes) else b""
