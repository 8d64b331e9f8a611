"""What dask-otel adds to the messages between the scheduler and its workers, and what it costs the scheduler to take what they tell.

Four times a second at most a worker sends the sums of the attempts that have ended since, one entry for each of their groups, in Dask's
own stream. Its bytes are as msgpack, which Dask uses, packs them; an attempt has six amounts, as one that reads its input from
disk has. CPU is that of unpacking it and of adding it up in our model; what Dask does with any message is not in it. The
fastest of the rounds counts. With each task's message travels what its worker must know, which is told first.

    python benchmarks/messages.py
"""

from __future__ import annotations

import random
import time
from itertools import count

import msgpack

from dask_otel.carried import Carried, Decision
from dask_otel.computations import Activated, Computations
from dask_otel.parents import ACTIVITY, unpack
from dask_otel.seam import TOPIC
from dask_otel.sums import Sums

ROUNDS = 500
LABELS = (
    ("deserialize", "seconds"),
    ("disk-read", "seconds"),
    ("thread-cpu", "seconds"),
    ("thread-noncpu", "seconds"),
    ("executor", "seconds"),
    ("other", "seconds"),
)


def computation(groups: int) -> tuple[Computations, list[bytes], int]:
    """A computation that goes on, where its groups are known by, and the bytes that go with a task."""
    ids = count(1)
    model = Computations(
        emit=lambda span: None,
        emit_lost=lambda address, span: None,
        new_trace_id=lambda: next(ids).to_bytes(16, "big"),
        new_span_id=lambda: next(ids).to_bytes(8, "big"),
        sample=lambda trace_id, kind: Decision(True),
        detail=ACTIVITY,
        max_age=600.0,
    )
    graph = model.receive("graph", "client", Carried(b"t" * 16, b"c" * 8, 1), "compute", 0.0)
    model.create("graph")
    names = [f"task{number}" for number in range(groups)]
    for name in names:
        model.activate(Activated(name, "graph", name, name, ((), ()), (), (), None, False), lambda: 0.0)
    model.finish(graph, 0.0)
    annotations = [
        model.dispatch(name, number, "tcp://worker", 0.0, False) for number, name in enumerate(names)
    ]
    handed = [unpack(one) for one in annotations]
    return model, [one.parent.address for one in handed if one], len(annotations[0])  # type: ignore[arg-type]


def message(addresses: list[bytes], attempts: int) -> dict[str, object]:
    """As a worker sends it, of so many attempts in all."""
    rng = random.Random(4711)
    sums = [Sums() for _ in addresses]
    for number in range(attempts):
        amounts = [(label, rng.expovariate(50), unit) for label, unit in LABELS]
        of = sums[number % len(sums)]
        of.add("success", sum(seconds for _, seconds, _ in amounts), amounts, size=8_000_000)
        of.spans, of.bytes, of.emitted = of.spans + 6, of.bytes + 6 * 350, of.emitted + 1
    groups = [[address, one.to_wire()] for address, one in zip(addresses, sums)]
    prefixes = [f"read-parquet-{number}" for number in range(len(groups))]
    return {"op": "log-event", "topic": TOPIC, "msg": {"groups": groups, "prefixes": prefixes}}


def take(model: Computations, packed: bytes) -> None:
    told = msgpack.unpackb(packed, strict_map_key=False)["msg"]
    for (group_id, sums), prefix in zip(told["groups"], told["prefixes"]):
        model.add(group_id, sums, prefix)


def seconds(model: Computations, packed: bytes) -> float:
    """CPU of taking it, at best."""
    best = float("inf")
    for _ in range(ROUNDS):
        before = time.perf_counter()
        take(model, packed)
        best = min(best, time.perf_counter() - before)
    return best


def main() -> None:
    print(f"with each task: {computation(1)[2]} bytes\n")
    print(f"{'attempts':>8} {'groups':>6} {'bytes':>6} {'an attempt':>10} {'µs':>6} {'an attempt':>10}")
    for attempts, groups in ((1, 1), (4, 1), (4, 4), (100, 1), (100, 10)):
        model, addresses, _ = computation(groups)
        packed = msgpack.packb(message(addresses, attempts))
        took = 1e6 * seconds(model, packed)
        print(
            f"{attempts:>8} {groups:>6} {len(packed):>6} {len(packed) / attempts:>10.1f} {took:>6.1f} {took / attempts:>10.2f}"
        )


if __name__ == "__main__":
    main()
