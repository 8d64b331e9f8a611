"""How a worker's plugin of ours arrives at a worker that may lack dask-otel.

A worker that joins unpickles the plugins that are registered for all workers, and dies of an exception there
(distributed 2026.8.0). So what travels is source that asks first: it runs under any version of Python, which pickled
code does not.
"""

from __future__ import annotations

import pickle
from typing import Any

_SOURCE = """
def arrive(payload):
    import logging
    import pickle
    from distributed import WorkerPlugin
    try:
        made, arguments = pickle.loads(payload)
        return made(*arguments)
    except Exception as error:
        logging.getLogger("distributed.worker").warning(
            "dask-otel is turned on for this cluster and cannot be loaded by this worker (%s: %s): its tasks have no "
            "spans. Install it here, with the scheduler's version: pip install dask-otel.",
            type(error).__name__,
            error,
        )
        return WorkerPlugin()
"""


def reduced(made: type, *arguments: object) -> tuple[Any, ...]:
    """What ``__reduce__`` of a plugin returns; where the plugin cannot be made one that does nothing takes its place.

    Examples
    --------
    >>> function, (expression, names) = reduced(complex, 3, 4)
    >>> function(expression, names)
    (3+4j)
    """
    payload = pickle.dumps((made, arguments))
    return eval, ("(exec(source), arrive(payload))[1]", {"source": _SOURCE, "payload": payload})
