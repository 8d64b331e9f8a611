"""What a worker tells the scheduler of its attempts: exact sums, group by group.

Rules
-----
1. Sums go in pieces, `FLUSH_AFTER` seconds after the first that is new, once for many tasks.
2. A place is remembered while something of it waits; else it may be forgotten, and made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from dask_otel import current, names
from dask_otel.attempts import Origin
from dask_otel.guard import Guard
from dask_otel.intervals import Amounts
from dask_otel.keeping import Keeper, Keepers
from dask_otel.parents import Handed, Parent, unpack
from dask_otel.seam.run import Ended
from dask_otel.sums import Sums, used_wire

#: Seconds that sums wait for more of their kind.
FLUSH_AFTER = 0.25
#: Groups that are remembered between two flushes at least; more are forgotten when nothing of them waits.
MAX_PLACES = 1_000


class Place:
    """One group's attempts on this worker."""

    __slots__ = ("context", "ended", "handed", "keeper", "origin", "parent", "silent", "sums", "waiting")

    def __init__(self, handed: Handed, made: Origin, keeper: Keeper | None) -> None:
        self.handed = handed
        self.parent = handed.parent
        #: Whether the scheduler wants to know nothing of them.
        self.silent = not handed.parent.tells
        self.origin = made
        #: Decides of attempts that need not be told; there is none where they are, or never are.
        self.keeper = keeper
        #: What is current in those of its tasks that have no span.
        self.context = current.group_context(handed.parent)
        self.sums = Sums()
        #: Attempts that are to be added to the sums: many at once are cheaper than one by one.
        self.ended: list[tuple[str, float, Amounts, int | None]] = []
        #: Whether its sums wait to be sent.
        self.waiting = False

    def add(self, ended: Ended, seconds: float, amounts: Amounts | None, cause: str) -> None:
        """An attempt has ended; of one whose ``amounts`` nobody wants only how and after how long."""
        if amounts is None:
            self.sums.count(ended.outcome, seconds)
        else:
            self.ended.append((ended.outcome, seconds, amounts, ended.size))
        if cause and ended.outcome == names.SUCCESS:
            self.sums.recomputed += seconds

    def take(self) -> list[object]:
        """Its sums, which begin anew."""
        sums, self.sums, self.waiting = self.sums, Sums(), False
        ended, self.ended = self.ended, []
        sums.add_all(ended)
        return sums.to_wire()


class Places:
    """The groups that a worker has tasks of.

    Parameters
    ----------
    make_origin:
        What the attempts of a group share, by its parent and the key of one of its tasks.
    tell:
        Sends a message to the scheduler.
    """

    def __init__(
        self,
        make_origin: Callable[[Parent, Hashable], Origin],
        tell: Callable[[dict[str, Any]], None],
        guard: Guard,
    ) -> None:
        self._make_origin = make_origin
        self._tell = tell
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._places: dict[object, Place] = {}
        self._keepers: dict[bytes, Keepers] = {}
        self.waiting: list[Place] = []
        self._flushing = False
        #: Spans that were recorded beside those of attempts, by the group's address.
        self._used: dict[bytes, int] = {}

    def known(self, annotation: object) -> Place | None:
        """The place of a task at its first attempt, if there is one already."""
        return self._places.get(annotation) if type(annotation) is bytes else None

    def find(self, annotation: object, key: Hashable) -> tuple[Place, Handed] | tuple[None, None]:
        """The place of a task, and what came with it; nothing where it came without a context of ours."""
        if type(annotation) is bytes:
            place = self._places.get(annotation)
            if place is not None:
                return place, place.handed
        handed = unpack(annotation)
        if handed is None:
            return None, None
        identity: object = annotation if type(annotation) is bytes else handed.parent
        place = self._places.get(identity)
        if place is None:
            if len(self._places) >= MAX_PLACES:
                self._places.clear()
                self._keepers.clear()
            place = self._places[identity] = self._make(handed, key)
        return place, handed

    def _make(self, handed: Handed, key: Hashable) -> Place:
        parent, keeper = handed.parent, None
        if parent.keep is not None:
            keepers = self._keepers.setdefault(parent.computation_id, Keepers())
            keeper = keepers.of(parent.group_id)
            # Its tasks are told in that detail if they are told at all.
            parent = parent._replace(detail=parent.keep.detail)
        return Place(handed, self._make_origin(parent, key), keeper)

    def use(self, parent: Parent, spans: int) -> None:
        """So many spans were recorded for a group beside those of its attempts."""
        self._used[parent.address] = self._used.get(parent.address, 0) + spans
        self._flush_in_time()

    def flush_soon(self, place: Place) -> None:
        """Its sums have changed."""
        if not place.waiting:
            place.waiting = True
            self.waiting.append(place)
            self._flush_in_time()

    def _flush_in_time(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_later(FLUSH_AFTER, self.flush)

    def flush(self) -> None:
        """Tell the scheduler what is new."""
        self._flushing = False
        try:
            waiting, self.waiting = self.waiting, []
            used, self._used = self._used, {}
            told = [(place.parent.address, sums, place.origin.prefix) for place, sums in self._taken(waiting)]
            told += [(address, used_wire(spans), "") for address, spans in used.items()]
            if told:
                self._tell(
                    {
                        "groups": [[address, sums] for address, sums, _ in told],
                        "prefixes": [prefix for _, _, prefix in told],
                    }
                )
        except Exception:
            self._guard.fault("flush_sums")

    def _taken(self, places: list[Place]) -> Iterator[tuple[Place, list[object]]]:
        """The sums of each; what is wrong with one group's does not cost the others theirs."""
        for place in places:
            try:
                yield place, place.take()
            except Exception:
                self._guard.fault("flush_sums")
