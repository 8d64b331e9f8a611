"""One line that says what is being done: overwritten on a terminal, one a step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["Progress"]


class Progress:
    """Says which of how many steps is being done, and where it is not overwritten, how long it took.

    Examples
    --------
    >>> import sys
    >>> progress = Progress(2, sys.stdout, clock=iter([0.0, 1.25]).__next__)
    >>> with progress.step("starting"):
    ...     pass
    1/2 starting: 1.2 s
    """

    def __init__(self, steps: int, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps = steps
        self._stream = stream
        self._clock = clock
        self._number = 0
        self._overwrite = stream.isatty()

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Announce `what` on a terminal while the block runs; elsewhere tell of it when it is done."""
        self._number += 1
        line = f"{self._number}/{self._steps} {what}"
        if self._overwrite:
            self._write(f"\r\x1b[K{line} …")
            try:
                yield
            finally:
                self._write("\r\x1b[K")
        else:
            started = self._clock()
            yield
            self._write(f"{line}: {self._clock() - started:.1f} s\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
