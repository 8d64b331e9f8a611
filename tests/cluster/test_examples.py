"""What is in ``examples/`` runs, and shows what it says."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from dask_otel import names
from dask_otel.receiver import Receiver
from dask_otel.tree import outline
from tests.cluster.support import DEADLINE, attributes, without_transfers

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def serving(script: str) -> Iterator[str]:
    """The address that a script prints; it ends as by Ctrl-C."""
    command = [sys.executable, str(EXAMPLES / script), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(DEADLINE)


def test_the_traceparent_of_a_web_request_is_the_root_of_a_computation(receiver: Receiver) -> None:
    """The span that is not received is the caller's."""
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with serving("web_request.py") as address:
        request = urllib.request.Request(
            f"{address}?n=10", headers={"traceparent": f"00-{trace_id}-{span_id}-01"}
        )
        with urllib.request.urlopen(request, timeout=DEADLINE) as response:
            assert response.read() == b"285\n"
    spans = [r for r in receiver.spans() if r.span.trace_id.hex() == trace_id]
    assert outline(without_transfers(spans)) == dedent("""\
        (parent not received)
          dask.compute
            dask.computation
              dask.graph.update
                dask.graph.init
                dask.graph.materialize
                dask.graph.order
              square group
                square ×10
                  executor
                    compute
              sum group
                sum
                  executor
                    compute""")
    (root,) = (r for r in spans if r.span.parent_id.hex() == span_id)
    assert (root.span.name, attributes(root)[names.OPERATION]) == (names.COMPUTE, names.OP_COMPUTE)
