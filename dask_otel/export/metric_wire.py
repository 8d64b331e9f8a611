"""Metrics in OTLP's wire format: points, and the metrics that they are of.

Rules
-----
1. What a series bears is encoded once; a point is that, two moments and a value.
2. A least or greatest value that is not known is left out.

Source: opentelemetry/proto/metrics/v1/metrics.proto, v1.7.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, pack

from dask_otel.export.values import encode_attributes
from dask_otel.export.wire import Lengths, block, utf8, varint
from dask_otel.histograms import Exemplar, Histogram, Value
from dask_otel.instruments import COUNTER, GAUGE, HISTOGRAM, Instrument
from dask_otel.records import Attributes

_NS = 1e9
_DELTA, _CUMULATIVE = b"\x10\x01", b"\x10\x02"
#: Field 8 of a number's point: the flag that there is no value.
_NO_VALUE = b"\x40\x01"
_moments = Struct("<BQBQ").pack
_double = Struct("<Bd").pack
_fixed = Struct("<Bq").pack
_count_and_sum = Struct("<BQBd").pack
_point = Lengths(b"\x0a")
#: Tags of a point's attributes, of its exemplars, its least and its greatest value.
_NUMBER, _EXPLICIT, _EXPONENTIAL = b"\x3a", b"\x4a", b"\x0a"


def head(instrument: Instrument, pairs: Attributes, value: Value | None) -> bytes:
    """What all points of a series bear: its attributes, and the boundaries of a histogram that has them."""
    if not isinstance(value, Histogram):
        return encode_attributes(_NUMBER, pairs)
    if value.scale is not None:
        return encode_attributes(_EXPONENTIAL, pairs)
    boundaries = pack(f"<{len(instrument.boundaries)}d", *instrument.boundaries)
    return encode_attributes(_EXPLICIT, pairs) + (block(b"\x3a", boundaries) if boundaries else b"")


def moments(start: float, now: float) -> bytes:
    """When a point's series began and when it is of (s since the epoch)."""
    return _moments(0x11, int(start * _NS), 0x19, int(now * _NS))


def point(head: bytes, moments: bytes, value: Value | None) -> bytes:
    """A data point in its field; ``None`` ends the series."""
    if type(value) is float:
        told = _double(0x21, value)
    elif value is None:
        told = _NO_VALUE
    elif isinstance(value, Histogram):
        told = _explicit(value) if value.scale is None else _exponential(value)
    elif isinstance(value, int):
        told = _fixed(0x31, value)
    else:
        told = _double(0x21, float(value))
    body = head + moments + told
    return _point[len(body)] + body


def metric(instrument: Instrument, points: Iterable[bytes], *, delta: bool, exponential: bool) -> bytes:
    """A metric in its field of ScopeMetrics."""
    data = b"".join(points)
    if instrument.kind == GAUGE:
        tag = b"\x2a"
    else:
        data += _DELTA if delta else _CUMULATIVE
        tag = b"\x3a" if instrument.kind != HISTOGRAM else b"\x52" if exponential else b"\x4a"
        data += b"\x18\x01" if instrument.kind == COUNTER else b""
    texts = ((b"\x0a", instrument.name), (b"\x12", instrument.brief), (b"\x1a", instrument.unit))
    head = b"".join([block(mark, utf8(text)) for mark, text in texts if text])
    return block(b"\x12", head + block(tag, data))


def _explicit(value: Histogram) -> bytes:
    counts = block(b"\x32", pack(f"<{len(value.counts)}Q", *value.counts))
    ends = _ends(value, 0x59, 0x61)
    return _count_and_sum(0x21, value.total, 0x29, value.sum) + counts + _exemplars(b"\x42", value) + ends


def _exponential(value: Histogram) -> bytes:
    found = _count_and_sum(0x21, value.total, 0x29, value.sum)
    found += b"\x30" + varint(_zigzag(value.scale or 0))
    found += pack("<BQ", 0x39, value.zeros)
    if value.counts:
        counts = b"".join([varint(count) for count in value.counts])
        found += block(b"\x42", b"\x08" + varint(_zigzag(value.offset)) + block(b"\x12", counts))
    return found + _exemplars(b"\x5a", value) + _ends(value, 0x61, 0x69)


def _ends(value: Histogram, least: int, greatest: int) -> bytes:
    return _double(least, value.min) + _double(greatest, value.max) if value.min <= value.max else b""


def _exemplars(tag: bytes, value: Histogram) -> bytes:
    return b"".join([block(tag, _exemplar(exemplar)) for exemplar in value.exemplars])


def _exemplar(exemplar: Exemplar) -> bytes:
    found = pack("<BQBd", 0x11, int(exemplar.time * _NS), 0x19, exemplar.value)
    for tag, mark in ((b"\x22", exemplar.span_id), (b"\x2a", exemplar.trace_id)):
        found += block(tag, mark) if mark else b""
    return found


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1
