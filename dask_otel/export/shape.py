"""Spans of one shape: a name, a kind, common attributes, and the same keys with values of the same types.

Rules
-----
1. A span of a shape is a plain tuple, ``(shape, trace_id, span_id, parent_id, flags, start, end, *values)``:
   the cheapest thing that Python makes. It goes wherever a `Span` goes in this package, and means
   `Shape.span`.
2. A shape is made once and kept by whoever makes its spans; it holds the code that encodes them.
3. The code that is generated is made of positions and names of ours, never of anything that a span holds.
4. What the generated code cannot encode (a value of another type, None, an end before the start) takes the
   way of any `Span`, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias

from dask_otel.export.remembered import Integers, Openings, float_opening, head
from dask_otel.export.wire import varint
from dask_otel.records import Attributes, Span

#: A span, or a span of a shape.
Record: TypeAlias = "Span | tuple[Any, ...]"

#: The position of the first value.
FIRST = 7


class Shape:
    """What spans have in common.

    Parameters
    ----------
    name, kind, common :
        As in `Span`.
    own : sequence of (str, type)
        The keys of the other attributes, and ``float``, ``int`` or ``str`` for each. An integer where a float
        was announced is written as a float. A value that is None is left out.

    Examples
    --------
    >>> shape = Shape("inc", 5, (("dask.operation", "task"),), [("dask.task.attempt", int), ("wait", float)])
    >>> shape.span((shape, b"\\x01" * 16, b"\\x02" * 8, b"", 1, 1_000, 2_000, 1, None)).attributes
    (('dask.task.attempt', 1),)
    """

    __slots__ = ("_child", "_length", "_root", "common", "keys", "kind", "name", "width")

    def __init__(
        self,
        name: str,
        kind: int,
        common: Attributes,
        own: list[tuple[str, type]] | tuple[tuple[str, type], ...],
    ) -> None:
        self.name = name
        self.kind = kind
        self.common = common
        self.keys = tuple([key for key, _ in own])
        #: Attributes that a span of this shape has at most.
        self.width = len(common) + len(self.keys)
        self._length = FIRST + len(self.keys)
        encoded = head(name, kind, common)
        self._root = _encoder(encoded, own, parent=False)
        self._child = _encoder(encoded, own, parent=True)

    def span(self, record: tuple[Any, ...]) -> Span:
        """The span that a tuple of this shape stands for."""
        _, trace_id, span_id, parent_id, flags, start, end = record[:FIRST]
        own = tuple([pair for pair in zip(self.keys, record[FIRST:], strict=True) if pair[1] is not None])
        common = self.common
        return Span(self.name, self.kind, trace_id, span_id, parent_id, flags, "", start, end, common, own)

    def encode(self, record: tuple[Any, ...]) -> bytes | None:
        """The Span message of a tuple of this shape; None where it must take the way of any span."""
        parent_id = record[3]
        if (
            len(record) != self._length
            or len(record[1]) != 16
            or len(record[2]) != 8
            or record[6] < record[5]
        ):
            return None
        try:
            if not parent_id:
                return self._root(record)
            return self._child(record) if len(parent_id) == 8 else None
        except Exception:
            return None


def as_span(record: Record) -> Span:
    """A span of a shape as a `Span`; a `Span` as it is."""
    if isinstance(record, Span):
        return record
    span: Span = record[0].span(record)
    return span


def _encoder(
    encoded: bytes, own: list[tuple[str, type]] | tuple[tuple[str, type], ...], parent: bool
) -> Callable[[tuple[Any, ...]], bytes]:
    """One call of ``Struct.pack`` for all that has a constant length, and the rest joined to it.

    For a root with a float and a string it is ``lambda r: join((pack(k0, r[1], k1, r[2], …, k6, r[7]),
    o8[len(raw := r[8].encode(…))], raw))``.
    """
    plan = _Plan()
    plan.field(b"\n\x10", 1, "16s")
    plan.field(b"\x12\x08", 2, "8s")
    if parent:
        plan.field(b'"\x08', 3, "8s")
    plan.field(b"\x85\x01", 4, "I")
    plan.field(b"\x39", 5, "Q")
    plan.field(b"\x41", 6, "Q")
    plan.constant(encoded)
    for position, (key, kind) in enumerate(own, FIRST):
        plan.attribute(position, key, kind)
    return plan.compile()


class _Plan:
    """What an encoder is made of while it is put together."""

    def __init__(self) -> None:
        self._format = "<"
        self._packed: list[str] = []
        self._joined: list[str] = []
        self._names: dict[str, Any] = {}

    def constant(self, content: bytes) -> None:
        self._packed.append(self._name("k", content))
        self._format += f"{len(content)}s"

    def field(self, tag: bytes, position: int, kind: str) -> None:
        self.constant(tag)
        self._packed.append(f"r[{position}]")
        self._format += kind

    def attribute(self, position: int, key: str, kind: type) -> None:
        if kind is float:
            self.field(float_opening(key), position, "d")
        elif kind is int:
            self._joined.append(f"{self._name('i', Integers(key))}[r[{position}]]")
        elif kind is str:
            openings = self._name("o", Openings(key, lambda length: b"\x0a" + varint(length)))
            self._joined.append(f"{openings}[len(raw := r[{position}].encode('utf-8', 'replace'))], raw")
        else:
            raise ValueError(f"{key!r} is announced as {kind!r}, which is not float, int or str")

    def compile(self) -> Callable[[tuple[Any, ...]], bytes]:
        self._names |= {"pack": Struct(self._format).pack, "join": b"".join}
        body = f"pack({', '.join(self._packed)})"
        if self._joined:
            body = f"join(({body}, {', '.join(self._joined)}))"
        parameters = ", ".join([f"{name}={name}" for name in self._names])
        encoder: Callable[[tuple[Any, ...]], bytes] = eval(f"lambda r, {parameters}: {body}", self._names)
        return encoder

    def _name(self, letter: str, value: Any) -> str:
        name = f"{letter}{len(self._names)}"
        self._names[name] = value
        return name
