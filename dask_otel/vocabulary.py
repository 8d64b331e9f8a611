"""Span names that come from the user's code, kept few.

Standard library only. Backends index span names: a program that makes up a prefix a task must not fill them.
"""

from __future__ import annotations

from dask_otel.names import MAX_SPAN_NAMES


class Vocabulary:
    """The first `limit` different names are themselves, all later ones are ``overflow`` and counted.

    Examples
    --------
    >>> tags = Vocabulary("tag", limit=1)
    >>> tags.name("load"), tags.name("train"), tags.name("load"), tags.folded
    ('load', 'tag', 'load', 1)
    """

    def __init__(self, overflow: str, limit: int = MAX_SPAN_NAMES) -> None:
        self._overflow = overflow
        self._limit = limit
        self._known: set[str] = set()
        #: How many times a name was replaced.
        self.folded = 0

    def name(self, name: str) -> str:
        """``name``, or what stands for it."""
        if name in self._known:
            return name
        if len(self._known) < self._limit:
            self._known.add(name)
            return name
        self.folded += 1
        return self._overflow
