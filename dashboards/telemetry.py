"""The row on dask-otel itself: whether everything arrives, and what it costs."""

from __future__ import annotations

from dashboards.records import A_SECOND, CLUSTER, NUMBER, Query, Row, by, legend, panel
from dask_otel import instruments as i
from dask_otel import names


def row() -> Row:
    """Of all servers of the cluster."""
    service = names.SERVICE_NAME
    return Row(
        "dask-otel itself, on all servers",
        (
            panel(
                "Spans taken",
                "Spans that left the queue to be sent, by service; with an `error.type` those for which there was no room in it: raise "
                "`OTEL_BSP_MAX_QUEUE_SIZE`, or send less (`otel.traces.detail`).",
                A_SECOND,
                by(CLUSTER, i.SPANS_PROCESSED, service, names.ERROR_TYPE),
            ),
            panel(
                "Spans sent",
                "With an `error.type` those that did not arrive: see the log of that server and of the Collector.",
                A_SECOND,
                by(CLUSTER, i.SPANS_EXPORTED, service, names.ERROR_TYPE),
            ),
            panel(
                "Spans not sent on purpose",
                "Attempts that were `rolled_up` into their group or `sampled_out`; spans that were sent and had no answer (`unknown`).",
                A_SECOND,
                by(CLUSTER, i.SPANS_BY_FATE, i.FATE),
            ),
            panel(
                "Queue",
                "Spans that wait to be sent, the fullest queue of each service, and its size.",
                NUMBER,
                Query(CLUSTER.now(i.SPANS_QUEUED, [service], how="max"), legend(service)),
                Query(CLUSTER.now(i.QUEUE_CAPACITY, [service], how="max"), legend(service) + " size"),
                width=6,
            ),
            panel(
                "Points sent",
                "Of metrics; with an `error.type` those that did not arrive.",
                A_SECOND,
                by(CLUSTER, i.POINTS_EXPORTED, service, names.ERROR_TYPE),
                width=6,
            ),
            panel(
                "Prefixes without series of their own",
                "They are counted as `other`. Many: keys that hold numbers or hashes where their prefix should be.",
                NUMBER,
                Query(CLUSTER.over("$__range").increase(i.PREFIXES_FOLDED, [service]), legend(service)),
                width=6,
            ),
            panel(
                "What dask-otel costs",
                "Seconds a second in its hooks and threads, all servers of a role together, estimated from samples.",
                NUMBER,
                Query(CLUSTER.rate(i.OVERHEAD_SECONDS, [names.ROLE]), legend(names.ROLE)),
                width=6,
            ),
            panel(
                "Faults of dask-otel",
                "Of its own code, caught, by the hook that they came from; the servers' logs say each in full. One that fails ten times within an hour is switched off.",
                NUMBER,
                Query(
                    # There is no series of a hook that has not failed.
                    f"{CLUSTER.over('$__range').increase(i.FAULTS, [names.ROLE, i.HOOK])} or vector(0)",
                    legend(names.ROLE, i.HOOK),
                ),
                width=24,
            ),
        ),
    )
