"""Attempts that are alike, encoded whole: one join of bytes for a task's span and all its activities.

Rules
-----
1. What is encoded here decodes to the spans that `Attempt.spans` gives; a test compares the two on generated attempts.
2. Whatever is rare (a failure, a link, what the user wrote, an interval that does not nest by its lengths) is left to
   `Attempt.spans`.
3. A form is what decides which fields the spans have: the labels, units and depths of what was metered, and which of
   the optional values are there. Its code is generated once it was met a few times, of positions and names of ours,
   never of anything that a span holds. Forms, and the constants of a group in them, are bounded.
4. Forms belong to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from struct import Struct
from typing import Any, NamedTuple

from dask_otel import names
from dask_otel.attempts import (
    ACTIVITY_NAMES,
    ACTIVITY_STEP,
    MAX_KEY_LENGTH,
    Attempt,
    Origin,
    activity_common,
    amount_key,
)
from dask_otel.export.remembered import SPAN_ATTRIBUTE, Integers, Openings, Strings, float_opening, head
from dask_otel.export.values import encode_pair
from dask_otel.export.wire import Lengths, varint
from dask_otel.intervals import Outline, outline
from dask_otel.parents import ACTIVITY
from dask_otel.records import CONSUMER, INTERNAL, IS_REMOTE, IS_REMOTE_KNOWN

#: How often a form is met before code is made for it; how many posts one has at most; how many forms are kept, and
#: groups of each.
_OFTEN, _MAX_POSTS, _MAX_FORMS, _MAX_ORIGINS = 3, 64, 512, 256
_INTEGERS = ("bytes", "count")
_NS = "1e9"
_flags = Struct("<2sI").pack
_opening = Lengths(b"\x12")

#: What of a task's span may be missing: the field of `Attempt`, its attribute, its type.
_OPTIONAL: tuple[tuple[str, str, type], ...] = (
    ("size", names.RESULT_SIZE, int),
    ("type", names.RESULT_TYPE, str),
    ("wait_dependencies", names.WAIT_DEPENDENCIES, float),
    ("wait_slot", names.WAIT_SLOT, float),
    ("thread", names.THREAD_ID, int),
)


class Encoded(NamedTuple):
    """The spans of an attempt as fields of ScopeSpans, and how many they are."""

    data: bytes
    spans: int
    attempt: Attempt


class Form(NamedTuple):
    """The code for attempts of one form, and the constants of groups in it."""

    encode: Callable[..., bytes | None]
    constants: dict[int, tuple[Origin, tuple[bytes, ...]]]
    activities: tuple[str, ...]
    spans: int
    #: Attributes that a span of it has at most, beside those that its group's have in common.
    width: int


class Forms:
    """Encodes attempts whose form is common.

    Parameters
    ----------
    most:
        Attributes that a span may have; attempts with more take the way of limits.
    """

    def __init__(self, most: int | None) -> None:
        self._most = 2**63 if most is None else most
        self._forms: dict[Hashable, Form | int] = {}

    def encode(self, attempt: Attempt) -> Encoded | None:
        """The attempt's spans; ``None`` where they must take the way of any span."""
        # fmt: off
        (
            origin, key, span_id, ordinal, previous, cause, start, end, outcome, amounts, posts, moments, shift,
            compute, size, type_, dependencies, slot, seceded, thread, offset, failure, written, depths,
        ) = attempt
        # fmt: on
        if (
            outcome != names.SUCCESS
            or written is not None
            or failure is not None
            or ordinal != 1
            or previous
            or cause
            or seceded is not None
            or posts is not None
        ):
            return None
        labels, values, units = amounts
        # fmt: off
        kind = (
            labels, units, depths, origin.parent.detail, compute is None, size is None, type_ is None,
            dependencies is None, slot is None, thread is None, -1e-3 <= offset <= 1e-3,
        )
        # fmt: on
        found = self._forms.get(kind, 0)
        form = self._met(kind, found, attempt) if isinstance(found, int) else found
        if form is None:
            return None
        known = form.constants.get(id(origin))
        constants = known[1] if known is not None else self._new_constants(origin, form)
        if not constants:
            return None
        # fmt: off
        data = form.encode(
            constants, values, moments, shift, key, span_id, start, end, compute, size, type_, dependencies, slot,
            thread, offset,
        )
        # fmt: on
        return None if data is None else Encoded(data, form.spans, attempt)

    def _met(self, key: Hashable, times: int, attempt: Attempt) -> Form | None:
        if len(self._forms) >= _MAX_FORMS:
            self._forms.clear()
        labels = attempt.amounts.labels
        possible = len(labels) <= _MAX_POSTS and all(type(label) is str for label in labels)
        if times + 1 < _OFTEN or not possible:
            self._forms[key] = times + 1
            return None
        form = self._forms[key] = _make(attempt)
        return form

    def _new_constants(self, origin: Origin, form: Form) -> tuple[bytes, ...]:
        if len(form.constants) >= _MAX_ORIGINS:
            form.constants.clear()
        fits = not origin.parent.trace_state and len(origin.common) + form.width <= self._most
        made = _constants(origin, form) if fits else ()
        # The entry keeps its origin alive, hence no other one can have its id.
        form.constants[id(origin)] = origin, made
        return made


def _constants(origin: Origin, form: Form) -> tuple[bytes, ...]:
    """What all spans of one group begin with: the task's, then those of the activities in their order."""
    parent = origin.parent
    trace = b"\n\x10" + parent.trace_id
    remote = _flags(b"\x85\x01", parent.flags | IS_REMOTE_KNOWN | IS_REMOTE)
    local = _flags(b"\x85\x01", parent.flags | IS_REMOTE_KNOWN)
    own = encode_pair(SPAN_ATTRIBUTE, names.ATTEMPT, 1) + encode_pair(
        SPAN_ATTRIBUTE, names.OUTCOME, names.SUCCESS
    )
    task = trace + b'"\x08' + parent.group_id + remote + head(origin.name, CONSUMER, origin.common) + own
    activities = [
        trace + local + head(ACTIVITY_NAMES.name(label), INTERNAL, activity_common(origin.prefix, label))
        for label in form.activities
    ]
    return (task, *activities)


# -- code --------------------------------------------------------------------------------------------------------


def _make(attempt: Attempt) -> Form:
    """The form of an attempt."""
    outlines: list[Outline] = []
    if attempt.origin.parent.detail >= ACTIVITY:
        posted = attempt.posted
        outlines = outline(posted.labels, posted.units, attempt.depths)
    code = _Code(attempt, outlines)
    return Form(code.compile(), {}, tuple([one.label for one in outlines]), 1 + len(outlines), code.width)


class _Code:
    """The source of one form's encoder while it is put together.

    In it ``k`` are the constants, ``v`` the amounts, ``m`` the moments, ``b`` is the task span's id as a number; ``s0``
    and ``e0`` are the task's begin and end, ``s1``, ``e1``, … those of its activities, in the order of their ends.
    """

    def __init__(self, attempt: Attempt, outlines: Sequence[Outline]) -> None:
        self._attempt = attempt
        self._outlines = outlines
        self._globals: dict[str, Any] = {
            "join": b"".join,
            "opening": _opening,
            "from_bytes": int.from_bytes,
            "of": type,
        }
        self._checks: list[str] = []
        self._lines: list[str] = []
        self._pieces: list[str] = []
        self.width = 0
        self._offset = [(names.CLOCK_OFFSET, "offset")] if abs(attempt.offset) > 1e-3 else []

    def compile(self) -> Callable[..., bytes | None]:
        constants = "".join(f"k{i}, " for i in range(1 + len(self._outlines)))
        self._times()
        self._task()
        for i, one in enumerate(self._outlines, 1):
            self._activity(i, one)
        lines = [
            f"{constants} = k",
            "b = from_bytes(span_id, 'little')",
            *[f"if of({value}) is not int: return None" for value in dict.fromkeys(self._checks)],
            "if e0 < s0 or len(span_id) != 8: return None",
            *self._lines,
            f"return join(({', '.join(self._pieces)}))",
        ]
        parameters = "k, v, m, shift, key, span_id, s0, e0, compute, " + ", ".join(
            [field for field, _, _ in _OPTIONAL] + ["offset"]
        )
        source = f"def encode({parameters}):\n" + "\n".join(f"    {line}" for line in lines)
        exec(source, self._globals)
        encode: Callable[..., bytes | None] = self._globals["encode"]
        return encode

    # -- when ------------------------------------------------------------------------------------------------

    def _times(self) -> None:
        """As `intervals.nest` and `intervals.clamp` find them."""
        put = self._lines.append
        for i, one in enumerate(self._outlines, 1):
            put(f"e{i} = m[{one.post}] + shift")
            put(f"d{i} = {self._length(one)}")
            put(f"s{i} = e{i} - d{i}")
            if one.children:
                first, last = one.children[0] + 1, one.children[-1] + 1
                put(f"if s{first} < s{i}: s{i} = s{first}; e{i} = max(s{i} + d{i}, e{last})")
        for i in reversed(range(1, 1 + len(self._outlines))):
            put_in = next((j for j, one in enumerate(self._outlines, 1) if i - 1 in one.children), 0)
            put(f"if s{i} < s{put_in} or e{i} > e{put_in}:")
            put(f"    s{i} = min(max(s{i}, s{put_in}), e{put_in})")
            put(f"    e{i} = max(min(e{i}, e{put_in}), s{i})")

    def _length(self, one: Outline) -> str:
        if one.noncpu is not None and self._attempt.compute is not None:
            return "compute"
        own = f"v[{one.post}] + {'0.0' if one.cpu is None else f'v[{one.cpu}]'}"
        return " + ".join([own, *[f"(e{child + 1} - s{child + 1})" for child in one.children]])

    # -- spans -----------------------------------------------------------------------------------------------

    def _task(self) -> None:
        floats, rest = [*self._offset], []
        for field, key, kind in _OPTIONAL:
            if getattr(self._attempt, field) is not None:
                floats += [(key, field)] if kind is float else []
                rest += [(key, field, kind)] if kind is not float else []
        amounts: dict[tuple[str, type], list[str]] = {}
        for i, (label, _, unit) in enumerate(self._attempt.amounts.posts):
            kind = int if unit in _INTEGERS else float
            amounts.setdefault((amount_key(label, unit), kind), []).append(f"v[{i}]")
        for (key, kind), values in amounts.items():
            if kind is float:
                floats.append((key, " + ".join(values)))
            else:
                self._checks += values
                rest.append((key, " + ".join(values), int))
        self._lines += [
            "t = key if of(key) is str else str(key)",
            f"if len(t) > {MAX_KEY_LENGTH}: return None",
            "t = t.encode('utf-8', 'replace')",
        ]
        key_opening = self._name(Openings(names.TASK_KEY, lambda length: b"\x0a" + varint(length)))
        self._lines.append(f"x0 = {key_opening}[len(t)]")
        self._checks += [value for _, value, kind in rest if kind is int and not value.startswith("v[")]
        self.width = 3 + len(floats) + len(rest)
        self._span(0, "b", "", floats, rest, ["x0", "t"])

    def _activity(self, i: int, one: Outline) -> None:
        floats = [
            (key, f"v[{index}]")
            for key, index in ((names.THREAD_CPU_TIME, one.cpu), (names.THREAD_NONCPU_TIME, one.noncpu))
            if index is not None
        ]
        floats += self._offset
        rest: list[tuple[str, str, type]] = []
        for key, indices in ((names.ACTIVITY_SIZE, one.sizes), (names.ACTIVITY_COUNT, one.counts)):
            if indices:
                rest.append((key, " + ".join(f"v[{index}]" for index in indices), int))
        above = next((j for j, other in enumerate(self._outlines, 1) if i - 1 in other.children), 0)
        self._span(i, self._id(i), self._id(above), floats, rest, [])

    def _id(self, i: int) -> str:
        """The number of a span's id: activities are numbered from the outermost to the innermost, the first first."""
        if i == 0:
            return "b"
        step = self._order()[i] * ACTIVITY_STEP & 0xFFFF_FFFF_FFFF_FFFF
        return f"((b + {step} & 0xFFFFFFFFFFFFFFFF) or 1)"

    def _order(self) -> dict[int, int]:
        inside = {child for one in self._outlines for child in one.children}
        order: dict[int, int] = {}

        def visit(index: int) -> None:
            order[index + 1] = len(order) + 1
            for child in self._outlines[index].children:
                visit(child)

        for index in range(len(self._outlines)):
            if index not in inside:
                visit(index)
        return order

    def _span(
        self,
        i: int,
        own_id: str,
        parent_id: str,
        floats: Sequence[tuple[str, str]],
        rest: Sequence[tuple[str, str, type]],
        also: Sequence[str],
    ) -> None:
        """Its length, its group's constant, what has a constant length, the rest."""
        layout, arguments = "<2sQ", [r"b'\x12\x08'", own_id]
        if parent_id:
            layout, arguments = layout + "2sQ", [*arguments, r"""b'"\x08'""", parent_id]
        layout += "BQBQ"
        arguments += ["0x39", f"int(s{i} * {_NS})", "0x41", f"int(e{i} * {_NS})"]
        for key, value in floats:
            opening = float_opening(key)
            layout += f"{len(opening)}sd"
            arguments += [self._name(opening), value]
        fixed = Struct(layout)
        pieces = list(also)
        for key, value, kind in rest:
            store = self._name(Integers(key) if kind is int else Strings(key))
            piece = f"y{i}_{len(pieces)}"
            self._lines.append(f"{piece} = {store}[{value}]")
            pieces.append(piece)
        size = " + ".join([f"{fixed.size} + len(k{i})", *[f"len({piece})" for piece in pieces]])
        self._pieces += [
            f"opening[{size}]",
            f"k{i}",
            f"{self._name(fixed.pack)}({', '.join(arguments)})",
            *pieces,
        ]

    def _name(self, value: Any) -> str:
        name = f"c{len(self._globals)}"
        self._globals[name] = value
        return name
