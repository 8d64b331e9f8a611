"""What an instrumented client adds to each graph: its context, and which of its calls submitted the graph."""

from __future__ import annotations

from dask_otel import names, propagation
from dask_otel.carried import Carried

_OPERATIONS = ("", names.OP_COMPUTE, names.OP_PERSIST, names.OP_MAP)


def pack(carried: Carried | None, operation: str) -> list[object]:
    """As it travels in the graph's annotations.

    Examples
    --------
    >>> unpack(pack(Carried(b"t" * 16, b"s" * 8, 1), "compute"))
    (Carried(trace_id=b'tttttttttttttttt', span_id=b'ssssssss', flags=1, trace_state='', baggage=''), 'compute')
    >>> unpack(pack(None, "")), unpack({"something": "else"})
    ((None, ''), (None, ''))
    """
    return [operation, *(propagation.pack(carried) if carried is not None else ())]


def unpack(annotation: object) -> tuple[Carried | None, str]:
    """Read what `pack` wrote; nothing for anything else."""
    if not isinstance(annotation, (list, tuple)) or not annotation or annotation[0] not in _OPERATIONS:
        return None, ""
    return propagation.unpack(list(annotation[1:])), str(annotation[0])
