"""What encoded spans have in common, encoded once.

Rules
-----
1. Every store is bounded and starts anew when it is full.
2. A store holds values of one exact type: ``1``, ``True`` and ``1.0`` are one key to a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dask_otel.export.values import encode_attributes, encode_pair
from dask_otel.export.wire import block, utf8, varint
from dask_otel.records import Attributes

#: Keys, and values of a key, that are remembered.
MAX_KEYS, MAX_VALUES = 512, 256

SPAN_ATTRIBUTE = b"\x4a"


def head(name: str, kind: int, common: Attributes) -> bytes:
    """The fields that spans of one kind share: name, kind and common attributes."""
    encoded = block(b"\x2a", utf8(name)) + b"\x30" + varint(kind)
    return encoded + encode_attributes(SPAN_ATTRIBUTE, common)


class Openings(dict[int, bytes]):
    """What stands before a value of some length in a key's attribute; ``lead`` is the AnyValue's own tag."""

    def __init__(self, key: str, lead: Callable[[int], bytes]) -> None:
        super().__init__()
        self._name = block(b"\x0a", utf8(key))
        self._lead = lead

    def __missing__(self, length: int) -> bytes:
        if len(self) >= MAX_VALUES:
            self.clear()
        lead = self._lead(length)
        opening = self._name + b"\x12" + varint(len(lead) + length) + lead
        opening = self[length] = SPAN_ATTRIBUTE + varint(len(opening) + length) + opening
        return opening


class Strings(dict[str, bytes]):
    """The attributes that one key makes with short strings; longer ones seldom repeat."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.openings = Openings(key, lambda length: b"\x0a" + varint(length))

    def __missing__(self, value: str) -> bytes:
        if len(self) >= MAX_VALUES:
            self.clear()
        raw = utf8(value)
        encoded = self[value] = self.openings[len(raw)] + raw
        return encoded


class Integers(dict[int, bytes]):
    """The attributes that one key makes with integers."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key
        self._openings = Openings(key, lambda length: b"\x18")

    def __missing__(self, value: int) -> bytes:
        if not -(2**63) <= value < 2**63:
            return encode_pair(SPAN_ATTRIBUTE, self._key, value)
        raw = varint(value & 0xFFFF_FFFF_FFFF_FFFF)
        if len(self) >= MAX_VALUES:
            self.clear()
        encoded = self[value] = self._openings[len(raw)] + raw
        return encoded


def float_opening(key: str) -> bytes:
    """Everything of a key's attribute but the float: its length is always the same."""
    return encode_pair(SPAN_ATTRIBUTE, key, 0.0)[:-8]


_Kept = TypeVar("_Kept")


class ByKey(dict[str, _Kept]):
    """Something for each key."""

    def __init__(self, make: Callable[[str], _Kept]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: str) -> _Kept:
        if len(self) >= MAX_KEYS:
            self.clear()
        made = self[key] = self._make(key if type(key) is str else str(key))
        return made
