"""Attempts that are added at once are added as one by one, whatever they metered."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from dask_otel.intervals import Amounts
from dask_otel.sums import Sums

POSTS = st.lists(
    st.tuples(
        st.sampled_from(["compute", "other", ("mine", 1), 7]),
        st.integers(-5, 5) | st.floats(0, 1e6) | st.just("no number"),
        st.sampled_from(["seconds", "bytes", "rows"]),
    ),
    max_size=5,
)
ENDED = st.lists(
    st.tuples(
        st.sampled_from(["success", "failed"]),
        st.floats(0, 1e4),
        POSTS.map(Amounts.of),
        st.none() | st.integers(0, 10**9),
    ),
    max_size=20,
)


@given(ENDED)
def test_attempts_that_are_added_at_once_are_added_as_one_by_one(
    ended: list[tuple[str, float, Amounts, int | None]],
) -> None:
    one_by_one, at_once = Sums(), Sums()
    for outcome, seconds, amounts, size in ended:
        one_by_one.add(outcome, seconds, amounts.posts, size)
    at_once.add_all(ended)
    for name in Sums.__slots__:
        expected, found = getattr(one_by_one, name), getattr(at_once, name)
        if name == "amounts":
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                same = math.isclose(found[key], value, rel_tol=1e-9, abs_tol=1e-9)
                assert same or (math.isnan(value) and math.isnan(found[key]))
        elif name == "seconds":
            assert found.keys() == expected.keys()
            assert all(math.isclose(found[key], value) for key, value in expected.items())
        else:
            assert found == expected, name
