"""Protobuf's wire format, as far as OTLP's traces need it: a few functions instead of a library.

Rules
-----
1. Standard library only, no knowledge of OpenTelemetry's messages: field numbers live in `encode` and
   `outcome`.
2. Text never raises: what UTF-8 cannot hold (lone surrogates) is written as ``?``.

Source: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

#: What a field holds when it is read: a number, or the bytes of a string or of a message.
Field: TypeAlias = "int | bytes"

_CACHED = 4_096


def varint(number: int) -> bytes:
    """A number from 0 to 2**64 - 1, seven bits a byte, the least first.

    Examples
    --------
    >>> varint(300)
    b'\\xac\\x02'
    """
    if number < 0x80:
        return number.to_bytes(1, "little")
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def utf8(text: str) -> bytes:
    """Text as UTF-8.

    Examples
    --------
    >>> utf8("µ"), utf8("\\ud800")
    (b'\\xc2\\xb5', b'?')
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace")


def block(tag: bytes, body: bytes) -> bytes:
    """A field that says its length: a string, bytes or a message.

    Examples
    --------
    >>> block(b"\\x0a", b"abc")
    b'\\n\\x03abc'
    """
    return tag + varint(len(body)) + body


class Lengths(dict[int, bytes]):
    """The openings (tag and length) of one field by the length of what follows; a few thousand are kept.

    Examples
    --------
    >>> Lengths(b"\\x12")[300]
    b'\\x12\\xac\\x02'
    """

    def __init__(self, tag: bytes) -> None:
        super().__init__()
        self._tag = tag

    def __missing__(self, length: int) -> bytes:
        if len(self) >= _CACHED:
            self.clear()
        opening = self[length] = self._tag + varint(length)
        return opening


def fields(message: bytes) -> Iterator[tuple[int, Field]]:
    """Read a message: number and content of each field in their order.

    Raises
    ------
    ValueError
        What was given is no protobuf message.

    Examples
    --------
    >>> list(fields(b"\\x08\\x96\\x01\\x12\\x02hi"))
    [(1, 150), (2, b'hi')]
    """
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        content, at = _read(message, at, tag & 7)
        yield tag >> 3, content


def _read(message: bytes, at: int, wire_type: int) -> tuple[Field, int]:
    if wire_type == 0:
        return _read_varint(message, at)
    if wire_type == 2:
        length, at = _read_varint(message, at)
        return _slice(message, at, length), at + length
    if wire_type in (1, 5):
        length = 8 if wire_type == 1 else 4
        return int.from_bytes(_slice(message, at, length), "little"), at + length
    raise ValueError(f"wire type {wire_type} is not one of 0, 1, 2, 5")


def _slice(message: bytes, at: int, length: int) -> bytes:
    if at + length > len(message):
        raise ValueError(f"a field of {length} bytes at {at} exceeds the message's {len(message)}")
    return message[at : at + length]


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for position, byte in enumerate(message[at : at + 10]):
        number |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return number, at + position + 1
    raise ValueError(f"no number ends within ten bytes of {at}")
