"""Attribute values in OTLP's wire format: AnyValue and KeyValue messages.

Rules
-----
1. Whatever OpenTelemetry allows is written as it is, anything else as text.
2. Nesting has a bound, since a parser refuses a whole request for what is nested too deep (100 messages).

Source: opentelemetry/proto/common/v1/common.proto, v1.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from numbers import Integral, Real
from struct import Struct
from typing import Any

from dask_otel.export.wire import block, utf8, varint
from dask_otel.records import Attributes

#: Levels of lists and dictionaries in a value; what is deeper is written as text. A level takes up to three
#: of the hundred messages within messages that parsers allow.
MAX_DEPTH = 16

_double = Struct("<d").pack


def encode_value(value: object, depth: int = 0) -> bytes:
    """An AnyValue: whatever OpenTelemetry allows as it is, anything else as text.

    Integers beyond 64 bits are text too. ``None`` is an AnyValue that holds nothing.

    Examples
    --------
    >>> encode_value("µ"), encode_value(True), encode_value(-1) == encode_value(2**64 - 1)
    (b'\\n\\x02\\xc2\\xb5', b'\\x10\\x01', False)
    """
    encode = _BY_TYPE.get(type(value))
    return encode(value, depth) if encode else _other(value, depth)


def _string(value: str, depth: int = 0) -> bytes:
    return block(b"\x0a", utf8(value))


def _bool(value: bool, depth: int = 0) -> bytes:
    return b"\x10\x01" if value else b"\x10\x00"


def _int(value: int, depth: int = 0) -> bytes:
    if -(2**63) <= value < 2**63:
        return b"\x18" + varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    return _string(_digits(value))


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # more digits than sys.get_int_max_str_digits()
        return hex(value)


def _float(value: float, depth: int = 0) -> bytes:
    return b"\x21" + _double(value)


def _bytes(value: bytes, depth: int = 0) -> bytes:
    return block(b"\x3a", value)


def _none(value: None, depth: int = 0) -> bytes:
    return b""


def _sequence(value: Iterable[object], depth: int = 0) -> bytes:
    if depth >= MAX_DEPTH:
        return _string(str(value))
    return block(b"\x2a", b"".join([block(b"\x0a", encode_value(element, depth + 1)) for element in value]))


def _mapping(value: Mapping[Any, object], depth: int = 0) -> bytes:
    if depth >= MAX_DEPTH:
        return _string(str(value))
    return block(b"\x32", b"".join([encode_pair(b"\x0a", k, v, depth + 1) for k, v in value.items()]))


_BY_TYPE: dict[type, Callable[[Any, int], bytes]] = {
    str: _string,
    bool: _bool,
    int: _int,
    float: _float,
    bytes: _bytes,
    type(None): _none,
    tuple: _sequence,
    list: _sequence,
    dict: _mapping,
}


def _other(value: object, depth: int) -> bytes:
    """What is not exactly one of OpenTelemetry's types: subclasses, NumPy's scalars, other containers."""
    if isinstance(value, str):
        return _string(str.__str__(value))
    if isinstance(value, Integral):
        return _int(int(value))
    if isinstance(value, Real):
        return _float(float(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _bytes(bytes(value))
    if isinstance(value, Mapping):
        return _mapping(value, depth)
    if isinstance(value, (Sequence, Set)):
        return _sequence(value, depth)
    return _string(str(value))


def encode_pair(tag: bytes, key: object, value: object, depth: int = 0) -> bytes:
    """One KeyValue, after the tag of the field that it stands in."""
    name = block(b"\x0a", utf8(key if type(key) is str else str(key)))
    return block(tag, name + block(b"\x12", encode_value(value, depth)))


def encode_attributes(tag: bytes, attributes: Attributes) -> bytes:
    """Attributes in their order, each after the tag of the field that they stand in."""
    return b"".join([encode_pair(tag, key, value) for key, value in attributes])
