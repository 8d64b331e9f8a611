"""What a client's submission carries to the scheduler, and what a sampler says of a new trace.

Standard library only: both are plain data that the models are handed.
"""

from __future__ import annotations

from typing import NamedTuple

from dask_otel.records import Attributes


class Carried(NamedTuple):
    """A context on its way: the ids and flags of a ``traceparent``, ``tracestate`` verbatim, ``baggage`` as a header.

    ``trace_id`` and ``span_id`` are empty where no span was current.
    """

    trace_id: bytes = b""
    span_id: bytes = b""
    flags: int = 0
    trace_state: str = ""
    baggage: str = ""


class Decision(NamedTuple):
    """A sampler's decision on a new trace, and what it wants on the root span and in ``tracestate``."""

    sampled: bool
    attributes: Attributes = ()
    trace_state: str = ""
