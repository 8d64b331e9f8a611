"""Those that count on a server, as one."""

from __future__ import annotations

import pytest

from dask_otel.meter import Several


class Counting:
    def __init__(self, name: str, did: list[str], fails: bool = False) -> None:
        self.name = name
        self.did = did
        self.fails = fails

    def install(self) -> None:
        self.did.append(f"+{self.name}")
        if self.fails:
            raise LookupError(self.name)

    def uninstall(self) -> None:
        self.did.append(f"-{self.name}")


def test_they_come_in_their_order_and_go_in_the_other() -> None:
    did: list[str] = []
    several = Several(*(Counting(name, did) for name in "abc"))
    several.install()
    several.uninstall()
    assert did == ["+a", "+b", "+c", "-c", "-b", "-a"]


def test_where_one_cannot_none_is_left_installed() -> None:
    did: list[str] = []
    several = Several(Counting("a", did), Counting("b", did, fails=True), Counting("c", did))
    with pytest.raises(LookupError, match="b"):
        several.install()
    assert did == ["+a", "+b", "-b", "-a"]
