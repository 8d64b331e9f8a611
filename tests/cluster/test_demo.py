from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from textwrap import dedent

import pytest
from click.testing import CliRunner

from dask_otel import names
from dask_otel.cli import otel
from dask_otel.demo import texts
from dask_otel.receiver import Receiver
from dask_otel.tree import outline

#: Durations are masked; of what the scheduler decides anew in each run, only what does not change is compared: which
#: inputs move, which of P2P's outputs run first where they are not, which activities last long enough to be shown.
SHOWN = """\
demo
  dask.computation
    dask.graph.update
    dask.graph.update
    stock
      audit group
        audit
          dask.computation
            dask.graph.update
            stock
              count_stock group
                count_stock ×10
        audit
          dask.computation
            dask.graph.update
            stock
              count_stock group
                count_stock ×10
  dask.computation
    dask.graph.update
    payment
      charge group
        charge [attempt 2]
        charge ✗ ConnectionError
  dask.compute
    dask.computation
      array
        chunk_sum group
          chunk_sum ×27
        chunk_sum-aggregate-sum group
          chunk_sum-aggregate-sum ×8
        chunk_sum-aggregate-sum-sum-partial group
          chunk_sum-aggregate-sum-sum-partial
        finalize-hlgfinalizecompute group
          finalize-hlgfinalizecompute
        random group
          random ×9
        sum group
          sum ×8
        sum-aggregate group
          sum-aggregate
        sum-partial group
          sum-partial ×4
      dask.graph.update
  dask.compute
    dask.computation
      dask.graph.update
      dataframe
        best_hour group
          best_hour ×8
        chunk group
          chunk ×8
        getitem group
          getitem ×8
        max-tree group
          max-tree
        operation group
          operation ×8
        p2pshuffle group
          p2pshuffle
        read_sales group
          read_sales ×8
        shuffle-barrier group
          shuffle-barrier
        shuffle-transfer group
          shuffle-transfer ×8
        to_string_dtype group
          to_string_dtype ×8
  dask.gather
  dask.gather
  dask.map
    dask.computation
      dask.graph.update
      forecast
        forecast group
          forecast ×40
            monte-carlo ×40"""

#: A line of the tree: its branches, what it shows, how long that lasted.
LINE = re.compile(r"(?P<branches>[│├└─ ]*)(?P<shows>[^│├└─ ]+(?: \S+)*) {2,}\d.* (?:s|ms|µs|ns|min)\b.*")
CHANGES = re.compile(
    r"(executor|compute|deserialize|serialize|compress|decompress|disk-.*|p2p-.*"
    r"|dask\.graph\.(materialize|order|init)|gather-dep|get-data)( ×\d+)?"
)


def demo(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "DASK_OTEL__"))}
    return subprocess.run(
        [sys.executable, "-m", "dask", "otel", "demo", *arguments],
        env=kept | {"COLUMNS": "100", "PYTHONUTF8": "1"} | environ,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def assert_only_progress(stderr: str) -> None:
    masked = [re.sub(r"\d+\.\d s$", "# s", line) for line in stderr.splitlines()]
    assert masked == [
        "1/7 starting 2 workers with 2 threads each: # s",
        "2/7 shuffling a DataFrame: # s",
        "3/7 multiplying an array with its transpose: # s",
        "4/7 metering a function of our own: # s",
        "5/7 submitting tasks from inside tasks: # s",
        "6/7 retrying a task that fails once: # s",
        "7/7 waiting for the telemetry: # s",
    ]


def structure(lines: Iterable[str]) -> str:
    """What a drawn tree shows but for durations and what changes, siblings in the order of the alphabet."""
    found = [(len(match["branches"]), match["shows"]) for match in map(LINE.fullmatch, lines) if match]
    return "\n".join(line for block in blocks(found) for line in block)


def blocks(lines: list[tuple[int, str]]) -> list[tuple[str, ...]]:
    """Each outermost line with all that is below it."""
    result: list[tuple[str, ...]] = []
    starts = [i for i, (depth, _) in enumerate(lines) if depth == lines[0][0]]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        shows, below = lines[start][1], blocks(lines[start + 1 : end])
        if CHANGES.fullmatch(shows):
            result += below
        else:
            result.append((shows, *(f"  {line}" for block in below for line in block)))
    return sorted(result)


def test_the_trace_is_received_and_printed_with_nothing_running() -> None:
    result = demo()
    assert_only_progress(result.stderr)
    assert result.returncode == 0
    title, shown, legend, heading, table, *rest = result.stdout.split("\n\n")
    assert re.fullmatch(r"Trace [0-9a-f]{32}, \d+ spans", title)
    # P2P runs an output first wherever there is room, and again where its rows are.
    once = re.sub(r"(\n +p2pshuffle)( ×\d+)?( \[.*\])?(\1.*)*", r"\1", structure(shown.splitlines()))
    assert once == SHOWN
    assert (legend, heading) == (texts.LEGEND, texts.HEADING)
    assert {line.split()[0] for line in table.splitlines()} >= {
        "prefix",
        "forecast",
        "p2pshuffle",
        "charge",
        "total",
    }
    assert "dask otel demo --endpoint http://localhost:4318" in rest[0]


def test_what_the_environment_says_is_set_aside_and_named() -> None:
    said = {
        "OTEL_SDK_DISABLED": "true",
        "OTEL_TRACES_SAMPLER": "always_off",
        "DASK_OTEL__TRACES__DETAIL": "group",
    }
    result = demo("--workers", "1", "--threads", "1", **said)
    first, *progress = result.stderr.splitlines()
    assert first == f"Not used here, where everything stays in this process: {', '.join(sorted(said))}."
    assert len(progress) == 7
    assert result.returncode == 0
    assert "forecast ×40" in result.stdout


def test_with_an_endpoint_the_trace_goes_there_and_its_id_and_link_are_printed() -> None:
    with Receiver() as receiver:
        link = "http://jaeger/trace/{trace_id}"
        result = demo("--endpoint", receiver.endpoint, DASK_OTEL__TRACES__URL=link, OTEL_SERVICE_NAME="shop")
        spans = receiver.spans()
    assert_only_progress(result.stderr)
    (trace_id,) = {item.span.trace_id.hex() for item in spans if item.span.name == "demo"}
    assert result.stdout == dedent(
        f"""\
        Sent to {receiver.endpoint}.
        trace id: {trace_id}
        {link.replace("{trace_id}", trace_id)}
        """
    )
    assert result.returncode == 0
    assert "(parent not received)" not in outline(spans)
    assert {item.resource[names.SERVICE_NAME] for item in spans} == {"shop"}


def test_an_endpoint_where_nothing_listens_is_told_in_one_sentence() -> None:
    with Receiver() as receiver:
        gone = receiver.endpoint
    result = demo("--endpoint", gone, "--timeout", "1")
    assert (result.returncode, result.stdout) == (1, "")
    says = f"Not everything arrived at {gone} by http/protobuf; check that a backend listens there."
    # Each process tells why, in lines of its own, before or after.
    assert [line for line in result.stderr.splitlines() if "dask-otel: " not in line][7:] == [says]
    assert f"dask-otel: {gone}: no connection: ConnectionRefusedError" in result.stderr


def test_a_sampler_that_says_no_is_named() -> None:
    with Receiver() as receiver:
        result = demo("--endpoint", receiver.endpoint, OTEL_TRACES_SAMPLER="always_off")
        assert receiver.spans() == []
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == (
        "The sampler of the environment, OTEL_TRACES_SAMPLER=always_off, said no to this trace; nothing was sent."
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--endpoint", "localhost:4318"],
            (
                "--endpoint is 'localhost:4318', which is not an http:// or https:// URL; "
                "try --endpoint http://localhost:4318"
            ),
        ),
        (
            ["--endpoint", "http://localhost:4318/v1/traces"],
            (
                "--endpoint is 'http://localhost:4318/v1/traces', which is one signal's URL; "
                "try --endpoint http://localhost:4318, to which /v1/traces is added"
            ),
        ),
        (
            ["--endpoint", "http://localhost:http"],
            (
                "--endpoint is 'http://localhost:http', which is not a URL "
                "(Port could not be cast to integer value as 'http'); try --endpoint http://localhost:4318"
            ),
        ),
        (
            ["--protocol", "grpc"],
            "--protocol says how to send, and nothing says where to; add --endpoint http://localhost:4318",
        ),
    ],
)
def test_a_mistake_is_told_in_one_sentence_with_exit_code_2(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(otel, ["demo", *arguments])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"Error: {says}\n")


def test_a_disabled_sdk_is_told_before_anything_is_started() -> None:
    runner = CliRunner(env={"OTEL_SDK_DISABLED": "true"})
    result = runner.invoke(otel, ["demo", "--endpoint", "http://localhost:4318"])
    assert result.exit_code == 2
    assert (
        result.stderr
        == "Error: OTEL_SDK_DISABLED is true in the environment, so nothing would be sent; unset it\n"
    )


def test_help_says_what_there_is() -> None:
    assert "demo  Run some real work" in CliRunner().invoke(otel, ["--help"]).stdout
    assert (
        "dask otel demo --endpoint http://localhost:4318"
        in CliRunner().invoke(otel, ["demo", "--help"]).stdout
    )
