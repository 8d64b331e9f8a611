"""The demo's work: a day at a chain of shops, in plain Dask.

Rules
-----
1. Nothing here knows of dask-otel or OpenTelemetry: what the trace shows, it shows of anybody's code.
2. Each part is one function of a client, under one `distributed.span`; the same run submits the same tasks.
"""

# Dask's functions are typed in part only.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import uuid
from collections.abc import Callable

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd  # type: ignore[import-untyped, unused-ignore]
from distributed import Client, Event, span, worker_client
from distributed.metrics import context_meter

__all__ = ["PARTS"]

SHOPS = 40
SALES = 20_000


def read_sales(day: int) -> pd.DataFrame:
    """One day's sales."""
    random = np.random.default_rng(day)
    return pd.DataFrame(
        {"shop": random.integers(SHOPS, size=SALES), "amount": random.exponential(20.0, SALES)}
    )


def best_hour(sales: pd.DataFrame) -> pd.DataFrame:
    """What needs all rows of a shop in one place."""
    return sales.groupby("shop").amount.agg(["median", "max"])


def shuffle(client: Client) -> float:
    """Bring the rows of each shop together, which lie on all workers."""
    sales = dd.from_map(read_sales, list(range(8)), meta=read_sales(0).head(0))
    by_shop = sales.shuffle("shop", shuffle_method="p2p").map_partitions(best_hour)["median"].max()
    with span("dataframe"):
        return float(by_shop.compute(scheduler=client))


def multiply(client: Client) -> float:
    """Multiply an array with its transpose: every worker needs blocks that the other has."""
    blocks = da.random.default_rng(0).random((1200, 1200), chunks=(400, 400))
    total = (blocks @ blocks.T).sum()
    with span("array"):
        return float(total.compute(scheduler=client))


def forecast(shop: int) -> float:
    """Simulate, with what the author wants to know metered under a name of their own."""
    random = np.random.default_rng(shop)
    with context_meter.meter("monte-carlo"):
        return float(random.normal(1.0, 0.1, 400_000).mean())


def simulate(client: Client) -> float:
    """Map a function over many inputs."""
    with span("forecast"):
        return float(sum(client.gather(client.map(forecast, range(SHOPS), key="forecast"))))


def count_stock(shop: int) -> int:
    """One of the small tasks that a task submits."""
    return shop * 7 % 100


def audit(region: int) -> int:
    """A task that submits others and waits for them."""
    with worker_client() as client:
        counts = client.map(count_stock, range(region, SHOPS, 4), key=f"count_stock-{region}")
        return int(sum(client.gather(counts)))


def nest(client: Client) -> int:
    """Submit tasks that submit tasks."""
    with span("stock"):
        return int(
            sum(client.gather([client.submit(audit, region, key=f"audit-{region}") for region in range(2)]))
        )


def charge(card: str) -> str:
    """Fails the first time, wherever that is, as a service that was asked too often does."""
    tried = Event(card)
    if not tried.is_set():
        tried.set()
        raise ConnectionError("the card terminal did not answer")
    return card


def retry(client: Client) -> str:
    """Run a task that fails once and is run again."""
    card = f"card-{uuid.uuid4().hex}"
    with span("payment"):
        return str(client.submit(charge, card, retries=1, key="charge-0").result())


#: What is done, in this order, and what to say meanwhile.
PARTS: tuple[tuple[str, Callable[[Client], object]], ...] = (
    ("shuffling a DataFrame", shuffle),
    ("multiplying an array with its transpose", multiply),
    ("metering a function of our own", simulate),
    ("submitting tasks from inside tasks", nest),
    ("retrying a task that fails once", retry),
)
