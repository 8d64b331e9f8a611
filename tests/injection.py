"""Functions of ours, found by looking at modules, and how one of them is made to fail."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread, current_thread
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest


class Injected(Exception):
    """What a function raises that was made to fail."""


class Target(NamedTuple):
    """A function of a module's or of one of its classes."""

    owner: Any
    name: str
    #: As it stands there: a function, a property, a classmethod.
    found: Any
    label: str


class Call(NamedTuple):
    """Of a function that failed."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    thread: Thread


class Bomb:
    """What takes a function's place."""

    def __init__(self, target: Target, times: int | None = None) -> None:
        self.target = target
        self._times = times
        self.calls: list[Call] = []

    def _explode(self, *args: Any, **kwargs: Any) -> Any:
        if self._times is not None and len(self.calls) >= self._times:
            return self.target.found(*args, **kwargs)
        self.calls.append(Call(args, kwargs, current_thread()))
        raise Injected(self.target.label)

    def make_up(self) -> None:
        """Call the function as it was called while it failed: what it undoes is undone now."""
        for call in self.calls:
            self.target.found(*call.args, **call.kwargs)
        self.calls.clear()

    def instead_of(self, found: Any) -> Any:
        """Of the same kind, so that it raises when the other would: when called, awaited, or first asked for an item."""
        if isinstance(found, property):
            return property(self._explode)
        if isinstance(found, (classmethod, staticmethod)):
            return type(found)(self.instead_of(found.__func__))

        if inspect.iscoroutinefunction(found):

            async def raises(*args: Any, **kwargs: Any) -> None:
                self._explode(*args, **kwargs)

        elif inspect.isgeneratorfunction(found):

            def raises(*args: Any, **kwargs: Any) -> Iterator[None]:  # type: ignore[misc]
                self._explode(*args, **kwargs)
                yield

        else:

            def raises(*args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
                return self._explode(*args, **kwargs)

        raises.__name__ = found.__name__
        return raises


def targets_of(module: ModuleType) -> Iterator[Target]:
    """Every function that is written in a module, but for those that only say what somebody else is to offer."""
    short = module.__name__.removeprefix("dask_otel.")
    for name, value in vars(module).items():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            yield Target(module, name, value, f"{short}.{name}")
        elif inspect.isclass(value) and not getattr(value, "_is_protocol", False):
            yield from _targets_of_class(value, f"{short}.{name}", module.__name__)


def _targets_of_class(cls: type, label: str, module: str) -> Iterator[Target]:
    for name, value in vars(cls).items() if cls.__module__ == module else ():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and function.__module__ == module and name != "__reduce__":
            yield Target(cls, name, value, f"{label}.{name}")


@contextmanager
def failing(target: Target, times: int | None = None) -> Iterator[Bomb]:
    """It raises, wherever in the package it was imported to; the first ``times`` times, else always."""
    bomb = Bomb(target, times)
    with pytest.MonkeyPatch.context() as patch:
        instead = bomb.instead_of(target.found)
        patch.setattr(target.owner, target.name, instead)
        if inspect.ismodule(target.owner):
            for module in [m for n, m in sys.modules.items() if n.startswith("dask_otel.")]:
                for name, value in list(vars(module).items()):
                    if value is target.found:
                        patch.setattr(module, name, instead)
        yield bomb
