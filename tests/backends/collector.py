"""A Collector for one test, on a file of collector-config/, on ports of its own."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

CONFIG = Path(__file__).parents[2] / "collector-config"


@contextlib.contextmanager
def running(otelcol: str, file: str, log: Path, **settings: str) -> Iterator[str]:
    """The OTLP/HTTP URL of a Collector that runs on `file` with `settings` in its environment.

    It is stopped in the ordinary way at the end, so that what it holds is sent or written; `log` has what it
    said.
    """
    grpc, http, health = free_addresses(3)
    env = os.environ | {
        "COLLECTOR_OTLP_GRPC": grpc,
        "COLLECTOR_OTLP_HTTP": http,
        "COLLECTOR_HEALTH": health,
        "COLLECTOR_METRICS_LEVEL": "none",
        **settings,
    }
    with log.open("wb") as out:
        process = subprocess.Popen([otelcol, "--config", str(CONFIG / file)], env=env, stdout=out, stderr=out)
    try:
        await_health(process, f"http://{health}/", log)
        yield f"http://{http}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()


def free_addresses(count: int) -> list[str]:
    """Addresses that differ, below the range from which the kernel serves clients."""
    with contextlib.ExitStack() as bound:
        addresses = []
        for port in random.SystemRandom().sample(range(20000, 32000), 1000):
            listener = bound.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", port))
                addresses.append(f"127.0.0.1:{port}")
            if len(addresses) == count:
                break
        return addresses


def await_health(process: subprocess.Popen, url: str, log: Path, timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the Collector is not healthy at {url}; it said:\n{log.read_text()}")
