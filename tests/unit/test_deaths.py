"""What lost attempts say of why, whoever says it first."""

from __future__ import annotations

import pytest

from dask_otel import names
from dask_otel.deaths import Deaths
from dask_otel.records import CONSUMER, ERROR, Span

W1, W2 = "tcp://w1:1", "tcp://w2:1"


def lost(address: str, error_type: str = names.WORKER_LOST) -> Span:
    return Span(
        "inc",
        CONSUMER,
        b"t" * 16,
        b"s" * 8,
        attributes=((names.ATTEMPT, 1), (names.ERROR_TYPE, error_type)),
        status=ERROR,
        message=f"worker {address} was lost",
    )


def over_limit(address: str) -> Span:
    return lost(address, names.OVER_MEMORY_LIMIT)._replace(
        message=f"worker {address} exceeded its memory limit"
    )


@pytest.fixture
def told() -> list[Span]:
    return []


@pytest.fixture
def deaths(told: list[Span]) -> Deaths:
    return Deaths(told.append)


def test_a_nanny_s_word_counts_whether_it_comes_before_or_after(deaths: Deaths, told: list[Span]) -> None:
    deaths.over_limit(W1, alive=True)
    deaths.lost(W1, lost(W1, names.KILLED_WORKER))
    deaths.lost(W2, lost(W2))
    deaths.lost(W2, lost(W2))
    assert told == [over_limit(W1)]
    deaths.over_limit(W2, alive=False)
    assert told == [over_limit(W1), *[over_limit(W2)] * 2]
    assert not deaths


def test_without_it_a_worker_was_lost(deaths: Deaths, told: list[Span]) -> None:
    deaths.lost(W1, lost(W1))
    deaths.lost(W2, lost(W2))
    assert (told, bool(deaths)) == ([], True)
    deaths.conclude(W1)
    assert (told, bool(deaths)) == ([lost(W1)], True)
    deaths.conclude_all()
    assert (told, bool(deaths)) == ([lost(W1), lost(W2)], False)


def test_it_is_of_one_worker_and_not_of_the_next_with_its_address(deaths: Deaths, told: list[Span]) -> None:
    deaths.over_limit(W1, alive=True)
    deaths.conclude(W1)
    deaths.over_limit(W1, alive=False)  # Too late.
    deaths.lost(W1, lost(W1))
    deaths.conclude(W1)
    assert told == [lost(W1)]
