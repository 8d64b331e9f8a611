"""`dask scheduler`, `dask worker` and applications as processes of their own, what they say in files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

from distributed import Client

from tests.cluster.support import DEADLINE

#: Where tasks of this package are found by workers.
ROOT = str(Path(__file__).parents[2])
PRELOAD = ("--preload", "dask_otel")
#: What says where to send, set away for a process that is to be told nothing.
NOTHING_SET = {"OTEL_EXPORTER_OTLP_ENDPOINT": None, "OTEL_BSP_SCHEDULE_DELAY": None}


def until(condition: Callable[[], object], shown: Callable[[], str] = str) -> None:
    """Wait until it is true; ``shown`` is said when it never is."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, shown()
        time.sleep(0.01)


class Command:
    """A process that was started, and its log."""

    def __init__(self, log: Path, arguments: list[str], environ: dict[str, str | None]) -> None:
        self._log = log
        environment: dict[str, str | None] = {**os.environ, "PYTHONPATH": ROOT, **environ}
        # Under pytest faults of ours are raised; these processes are users'.
        environment.pop("PYTEST_CURRENT_TEST", None)
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                env={key: value for key, value in environment.items() if value is not None},
                cwd=log.parent,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        """All that it has written."""
        return self._log.read_text()

    def said(self) -> list[str]:
        """The lines of dask-otel, from wherever in the package; not those where it is part of a path."""
        lines = [line for line in self.log.splitlines() if " - INFO - " not in line]
        return [line for line in lines if re.search(r"(?<![/\w])dask-otel(?![/\w-])", line)]

    def wait_until_said(self, word: str) -> str:
        """The line of dask-otel with a word in it."""
        until(lambda: any(word in line for line in self.said()), lambda: self.log)
        return next(line for line in self.said() if word in line)

    def wait(self) -> str:
        """Its log, when it has ended well."""
        assert self.process.wait(DEADLINE) == 0, self.log
        return self.log

    def terminate(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self.process.terminate()
        return self.process.wait(DEADLINE)


class Commands:
    """Starts processes of one cluster; a variable of the environment that is ``None`` is not set."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "scheduler.json"
        self.started: list[Command] = []

    def start(self, *arguments: str, **environ: str | None) -> Command:
        """Start Python."""
        command = Command(self._folder / f"{len(self.started)}.log", list(arguments), environ)
        self.started.append(command)
        return command

    def scheduler(self, *arguments: str, **environ: str | None) -> Command:
        return self.start("-m", "dask", "scheduler", "--port", "0", *self._common, *arguments, **environ)

    def worker(self, *arguments: str, **environ: str | None) -> Command:
        return self.start("-m", "dask", "worker", "--nthreads", "1", *self._common, *arguments, **environ)

    def application(self, source: str, *arguments: str, **environ: str | None) -> Command:
        """Start a script; ``sys.argv[1]`` is the scheduler's file."""
        script = self._folder / f"app{len(self.started)}.py"
        script.write_text(dedent(source))
        return self.start(*arguments, str(script), str(self._file), **environ)

    @contextmanager
    def client(self, workers: int, **kwargs: Any) -> Iterator[Client]:
        """A client in this process, once the workers are there."""
        until(self._file.exists, self.logs)
        with Client(scheduler_file=str(self._file), timeout=DEADLINE, **kwargs) as client:
            until(lambda: len(client.scheduler_info()["workers"]) >= workers, self.logs)
            yield client

    def logs(self) -> str:
        return "\n".join(command.log for command in self.started)

    @property
    def _common(self) -> tuple[str, ...]:
        return ("--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(self._file))


@contextmanager
def commands(folder: Path) -> Iterator[Commands]:
    """Processes that are gone afterwards, workers first."""
    started = Commands(folder)
    try:
        yield started
    finally:
        for command in started.started[::-1]:
            if command.process.poll() is None:
                command.terminate()
