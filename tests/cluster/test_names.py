"""What is sent bears the names and types of the reference, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from distributed import Client

from dask_otel import names
from dask_otel.demo.workload import PARTS
from dask_otel.tree import Received
from tests.cluster.support import Traced, attributes

_TYPES = {"string": str, "int": int, "boolean": bool, "double": float, "string[]": tuple}
#: What `dask.operation` says of a span, as the reference calls it.
_TARGETS = {names.OP_GRAPH: "graph update"}


class Counter:
    n = 0

    def increment(self, by: int) -> int:
        self.n += by
        return self.n


def undeclared(received: Received) -> list[str]:
    """What is on a span and not in `names`, or is of another type there."""
    found = attributes(received)
    operation = found[names.OPERATION]
    targets = {"every span", "every span of a worker", _TARGETS.get(operation, operation), received.span.name}
    if operation == names.OP_ACTIVITY and received.span.name == names.ACTIVITY_COMPUTE:
        targets.add("`compute` activity")
    known = [a for a in names.ATTRIBUTES if targets & set(a.on.split(", "))]
    return [
        f"{operation}: {key}={value!r}" for key, value in found.items() if not declared(key, value, known)
    ]


def declared(key: str, value: Any, known: list[names.Attribute]) -> bool:
    for attribute in known:
        fixed, _, rest = attribute.key.partition("<")
        if key == fixed or (rest and key.startswith(fixed)):
            types = [_TYPES[name.partition(" ")[0]] for name in attribute.type.split(", ")]
            return type(value) in types
    return False


@pytest.mark.parametrize("part", [part for _, part in PARTS], ids=lambda part: part.__name__)
def test_every_attribute_of_a_workload_is_in_the_reference(part: Any, shared: Traced) -> None:
    part(shared.client)
    spans = shared.spans()
    assert [said for received in spans for said in undeclared(received)] == []
    assert {attributes(r)[names.OPERATION] for r in spans} >= {
        names.OP_COMPUTATION,
        names.OP_GROUP,
        names.OP_TASK,
    }


def test_every_attribute_of_actors_is_in_the_reference(shared: Traced) -> None:
    _count(shared.client)
    assert [said for received in shared.spans() for said in undeclared(received)] == []


def _count(client: Client) -> None:
    counter = client.submit(Counter, actor=True).result()
    assert counter.increment(2).result() == 2
