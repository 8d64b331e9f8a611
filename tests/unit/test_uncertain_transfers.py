"""What a task waited for is told with it where that is known only when it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_otel import names, worker_data
from dask_otel.parents import ACTIVITY, GROUP, Keep, Parent, attempt_span_id, pack
from dask_otel.records import Link, Span
from dask_otel.seam.transfers import Transfer
from dask_otel.worker_data import WorkerData

CERTAIN = Parent(b"t" * 16, b"g" * 8, b"c" * 8, flags=1, detail=ACTIVITY, peers=True)
UNCERTAIN = CERTAIN._replace(detail=GROUP, keep=Keep(ACTIVITY, failed=1))
ROLLED_UP = CERTAIN._replace(detail=GROUP)


class Data:
    """One worker's transfers, and what is sent of them."""

    def __init__(self) -> None:
        self.emitted: list[Span] = []
        self.used: list[tuple[bytes, int]] = []
        standing = SimpleNamespace(
            tracing=True, peers=True, used=lambda parent, spans: self.used.append((parent.address, spans))
        )
        outlet: Any = SimpleNamespace(emit=lambda span: not self.emitted.append(span))
        metrics: Any = SimpleNamespace(meter=SimpleNamespace(on=False), transferred=lambda *args: None)
        self.data = WorkerData(standing, outlet, metrics, lambda: 0.0)

    def transfer(self, *waiting: tuple[Parent, int]) -> str:
        """One for which these tasks wait; what the sender is told."""
        transfer = Transfer("tcp://127.0.0.1:1", 1, 5.0)
        fragment = self.data.transfer_started(
            transfer, iter([(pack(parent), run_id) for parent, run_id in waiting]), False
        )
        transfer.end = 6.0
        self.data.transfer_ended(transfer)
        return fragment


def test_it_waits_for_the_end_of_the_most_urgent_task_that_may_be_told() -> None:
    data = Data()
    assert data.transfer((ROLLED_UP, 6), (UNCERTAIN, 7), (UNCERTAIN, 8)) == ""
    data.data.settle(8, told=True)
    assert (data.emitted, data.used) == ([], [])
    data.data.settle(7, told=True)
    data.data.settle(7, told=True)
    (span,) = data.emitted
    assert (span.name, span.trace_id, span.parent_id) == (names.GATHER_DEP, b"t" * 16, b"c" * 8)
    assert [(link.trace_id, link.span_id) for link in span.links] == [
        (b"t" * 16, attempt_span_id(b"c" * 8, 7))
    ]
    assert data.used == [(b"g" * 8, 1)]


def test_it_is_forgotten_where_the_task_is_not_told() -> None:
    data = Data()
    data.transfer((UNCERTAIN, 7))
    data.data.settle(7, told=False)
    data.data.settle(7, told=True)
    assert (data.emitted, data.data._held) == ([], {})


def test_a_task_that_is_told_in_any_case_comes_first_and_one_that_never_is_has_none() -> None:
    data = Data()
    assert data.transfer((UNCERTAIN, 7), (CERTAIN, 8)).endswith("-01")
    (span,) = data.emitted
    assert isinstance(span.links[0], Link)
    assert [link.span_id for link in span.links] == [attempt_span_id(b"c" * 8, 8)]
    assert data.used == [(b"g" * 8, 2)]
    assert data.transfer((ROLLED_UP, 9)) == ""
    assert len(data.emitted) == 1


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_data, "MAX_HELD", 2)
    data = Data()
    for run_id in (1, 2, 3):
        data.transfer((UNCERTAIN, run_id))
    for run_id in (1, 2, 3):
        data.data.settle(run_id, told=True)
    assert [[link.span_id for link in span.links] for span in data.emitted] == [
        [attempt_span_id(b"c" * 8, run_id)] for run_id in (2, 3)
    ]
