"""What several wrap is put back whole, in whatever order they let go of it."""

from __future__ import annotations

import functools
from itertools import permutations

import pytest

from dask_otel.seam import Wraps


class Owner:
    def greet(self) -> str:
        return "hello"


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_wrappers_are_undone_in_any_order(order: tuple[int, ...]) -> None:
    owner, handlers = Owner(), {"greet": Owner().greet}
    original = handlers["greet"]
    layers = [Wraps() for _ in range(3)]
    for n, wraps in enumerate(layers):
        below, entry = owner.greet, handlers["greet"]
        wraps.attribute(owner, "greet", functools.wraps(below)(lambda n=n, below=below: f"{n} {below()}"))
        wraps.entry(handlers, "greet", functools.wraps(entry)(lambda n=n, entry=entry: f"{n} {entry()}"))
    assert (owner.greet(), handlers["greet"]()) == ("2 1 0 hello", "2 1 0 hello")
    for n in order:
        layers[n].undo()
    assert (vars(owner), handlers) == ({}, {"greet": original})


def test_a_strangers_wrapper_stays_and_what_is_below_it_too() -> None:
    owner, ours, later = Owner(), Wraps(), Wraps()
    ours.attribute(owner, "greet", lambda: "ours")
    below = owner.greet
    owner.greet = strangers = lambda: f"strange {below()}"  # type: ignore[method-assign]
    ours.undo()
    assert owner.greet() == "strange ours"
    # The stranger lets go: what we had wrapped is there again, and may be wrapped again.
    owner.greet = below  # type: ignore[method-assign]
    later.attribute(owner, "greet", functools.wraps(below)(lambda: f"later {below()}"))
    top = Wraps()
    top.attribute(owner, "greet", strangers)
    top.undo()
    assert owner.greet() == "later ours"
    later.undo()
    assert vars(owner) == {}
