"""How a variable of the environment is looked up, read and, where it is wrong, told about.

Rules
-----
1. Standard library only; the environment and the names of what is installed come as arguments.
2. A value that is wrong gives one sentence, however many signals read it, and counts as not set. An empty value is
   no value.
3. No sentence holds a secret: of a URL, whatever stands before ``@`` or behind ``?`` is masked.
4. Parsers take text that is not empty and raise ValueError.

Source: OpenTelemetry's specification, ``configuration/sdk-environment-variables.md`` and ``configuration/common.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")

#: Gives the names that are installed as entry points of a group.
Installed = Callable[[str], Iterable[str]]

MILLISECONDS = "a whole number of milliseconds"
#: The largest integer that the specification asks for; in milliseconds its "no limit".
_MAX = 2**31 - 1


def masked(text: str) -> str:
    """Leave out of a URL what may be secret: its user, password and query.

    Examples
    --------
    >>> masked("https://user:secret@collector:4318/v1/traces?token=secret")
    'https://***@collector:4318/v1/traces?***'
    """
    # Greedy up to the last "@": a password may hold any character, and a slip may put it before the scheme.
    text = re.sub(r"(?is)^(https?://)?.*@", r"\1***@", text)
    return re.sub(r"(?s)[?#].*", "?***", text)


def quoted(value: object) -> str:
    """What was given, for a sentence: masked, and at most 80 characters of it.

    Examples
    --------
    >>> quoted("tasks"), len(quoted("x" * 1000))
    ("'tasks'", 82)
    """
    text = masked(str(value))
    return repr(text if len(text) <= 80 else text[:79] + "…")


class Reader:
    """Looks values up and collects the sentences about wrong ones.

    Examples
    --------
    >>> read = Reader({"SIZE": "-1", "SIZES": "7"})
    >>> read.value({"SIZE": positive, "SIZES": positive}, "a whole number above 0", 5)
    7
    >>> read.complaints
    ["SIZE is '-1', which is not a whole number above 0; SIZES is used instead."]
    """

    def __init__(self, environ: Mapping[str, str], installed: Installed = lambda group: ()) -> None:
        self._environ = environ
        self._installed = installed
        #: What is wrong: what is used instead, and whether that is nothing. Empty for a sentence that is whole.
        self._said: dict[str, dict[str, bool]] = {}

    def quiet(self) -> Reader:
        """One of the same environment whose sentences nobody hears."""
        return Reader(self._environ, self._installed)

    @property
    def complaints(self) -> list[str]:
        """The sentences, each once, in the order in which they came up."""
        return [
            f"{said}; {_instead(used)} used instead." if used else said for said, used in self._said.items()
        ]

    def complain(self, sentence: str) -> None:
        """Say something that is said once, however many signals it concerns."""
        self._said.setdefault(sentence, {})

    def key(self, *keys: str) -> str | None:
        """The first of the variables that is set."""
        return next((key for key in keys if (self._environ.get(key) or "").strip()), None)

    def text(self, *keys: str) -> str | None:
        """The value of the first that is set, without the bytes that are not UTF-8 (nothing can send them)."""
        key = self.key(*keys)
        return self._environ[key].strip().encode("utf-8", "replace").decode() if key else None

    def value(self, parsers: Mapping[str, Callable[[str], T]], allowed: str, default: T, used: str = "") -> T:
        """The first variable that is set and right; `used` says in words what `default` is."""
        wrong, result, used = [], default, used or str(default)
        for key, parse in parsers.items():
            if (text := self.text(key)) is None:
                continue
            try:
                result, used = parse(text), key
                break
            except ValueError:
                wrong.append((key, text))
        for key, text in wrong:
            said = self._said.setdefault(f"{key} is {quoted(text)}, which is not {allowed}", {})
            said[used] = result is None
        return result

    def flag(self, *keys: str) -> bool:
        """True for ``true`` alone: the specification allows no other word, and takes every other as false."""
        key = self.key(*keys)
        text = (self.text(key) if key else None) or "false"
        if text.lower() not in ("true", "false"):
            self.complain(f"{key} is {quoted(text)}, which is not true or false; false is used instead.")
        return text.lower() == "true"

    def names(self, key: str, known: Iterable[str], group: str) -> tuple[str, ...]:
        """The names in a list that are known or installed, each once."""
        found = {name: self.spelled(name, known, group) for name in items(self.text(key))}
        for name in (name for name, spelling in found.items() if spelling is None):
            self.complain(
                f"{key} names {quoted(name)}, which is not one of {', '.join(known)} and not installed; "
                "it is left out."
            )
        return tuple(dict.fromkeys(spelling for spelling in found.values() if spelling))

    def spelled(self, name: str, known: Iterable[str], group: str) -> str | None:
        """The right spelling of a name; looks at what is installed only if it must, since that reads files."""
        if name.lower() in known:
            return name.lower()
        return next((other for other in self._installed(group) if other.lower() == name.lower()), None)


def _instead(used: Mapping[str, bool]) -> str:
    """What signals use in place of a wrong value; one that uses nothing is passed over where another has something."""
    words = [word for word, nothing in used.items() if not nothing] or list(used)[:1]
    return f"{' and '.join(words)} {'is' if len(words) == 1 else 'are'}"


def items(text: str | None) -> tuple[str, ...]:
    """The items of a comma-separated list, each once."""
    return tuple(dict.fromkeys(item.strip() for item in (text or "").split(",") if item.strip()))


def choice(*words: str) -> Callable[[str], str]:
    """One of some words, which are lower case."""
    return lambda text: words[words.index(text.lower())]


def integer(text: str, least: int = 0) -> int:
    """A whole number up to 2³¹ − 1."""
    if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= _MAX:
        raise ValueError(text)
    return int(text)


def positive(text: str) -> int:
    """A whole number from 1."""
    return integer(text, 1)


def delay(text: str) -> float:
    """Milliseconds, as seconds. Zero is allowed: 1 ms is close to it and leaves the processor alone."""
    return max(integer(text), 1) / 1000


def interval(text: str) -> float:
    """Milliseconds, as seconds. Zero is wrong."""
    return integer(text, 1) / 1000


def timeout(text: str) -> float:
    """Milliseconds, as seconds. Zero means no limit."""
    return (integer(text) or _MAX) / 1000


def ratio(text: str) -> str:
    """A number from 0 to 1, as it was given."""
    if not 0 <= float(text) <= 1:
        raise ValueError(text)
    return text
