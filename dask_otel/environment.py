"""OpenTelemetry's environment variables, read as its specification says.

Rules
-----
1. Standard library only; the environment and the names of what is installed come as arguments.
2. Nothing raises: a value that is wrong gives a sentence and counts as not set.

Sources: OpenTelemetry's specification, ``configuration/sdk-environment-variables.md`` and ``resource/sdk.md``; what the
Python SDK does otherwise stands in ``docs/configuration.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from dask_otel.otlp_environment import METRICS, TRACES, export
from dask_otel.records import Attributes
from dask_otel.settings import Limits, Metrics, Queue, Sampler, Settings
from dask_otel.variables import (
    MILLISECONDS,
    Installed,
    Reader,
    choice,
    delay,
    integer,
    interval,
    items,
    positive,
    quoted,
    ratio,
    timeout,
)

PROPAGATOR_GROUP = "opentelemetry_propagator"
SAMPLER_GROUP = "opentelemetry_traces_sampler"

SAMPLERS = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)
#: The first of each is the default.
TEMPORALITIES = ("cumulative", "delta", "lowmemory")
HISTOGRAMS = ("explicit_bucket_histogram", "base2_exponential_bucket_histogram")
EXEMPLARS = ("trace_based", "always_on", "always_off")


def parse(environ: Mapping[str, str], installed: Installed = lambda group: ()) -> Settings:
    """Read every variable that concerns traces or metrics.

    Examples
    --------
    >>> settings = parse({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_BSP_SCHEDULE_DELAY": "soon"})
    >>> settings.exporters, settings.otlp.endpoint
    (('otlp',), 'http://collector:4318/v1/traces')
    >>> settings.complaints
    ("OTEL_BSP_SCHEDULE_DELAY is 'soon', which is not a whole number of milliseconds; 1000 ms is used instead.",)
    """
    read = Reader(environ, installed)
    if read.text("OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE"):
        read.complain(
            "dask-otel does not read OTEL_CONFIG_FILE; the other OTEL_* variables are used instead."
        )
    exporters, otlp = export(read, TRACES)
    service_name, resource = _resource(read)
    return Settings(
        disabled=read.flag("OTEL_SDK_DISABLED"),
        exporters=exporters,
        otlp=otlp,
        queue=_queue(read),
        limits=_limits(read),
        sampler=_sampler(read),
        metrics=_metrics(read),
        propagators=_propagators(read),
        service_name=service_name,
        resource=resource,
        resource_detectors=items(read.text("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS")),
        complaints=tuple(read.complaints),  # last: the lines above have collected them
    )


# -- queue and limits --------------------------------------------------------------------------------------------


def _queue(read: Reader) -> Queue:
    default = Queue()
    size = read.value({"OTEL_BSP_MAX_QUEUE_SIZE": positive}, "a whole number above 0", default.size)
    batch = read.value(
        {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": positive}, "a whole number above 0", min(default.batch, size)
    )
    if batch > size:
        read.complain(
            f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE is {batch}, which is more than the queue holds; {size} is used instead."
        )
    return Queue(
        size=size,
        delay=read.value({"OTEL_BSP_SCHEDULE_DELAY": delay}, MILLISECONDS, default.delay, _ms(default.delay)),
        batch=min(batch, size),
        timeout=read.value(
            {"OTEL_BSP_EXPORT_TIMEOUT": timeout}, MILLISECONDS, default.timeout, _ms(default.timeout)
        ),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:g} ms"


def _limits(read: Reader) -> Limits:
    def limit(key: str, default: int | None) -> int | None:
        return read.value({key: integer}, "a whole number", default, "no limit" if default is None else "")

    count = limit("OTEL_ATTRIBUTE_COUNT_LIMIT", 128)
    length = limit("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", None)
    return Limits(
        attributes=limit("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", count),
        attribute_length=limit("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", length),
        nested_attribute_length=length,
        events=limit("OTEL_SPAN_EVENT_COUNT_LIMIT", 128),
        links=limit("OTEL_SPAN_LINK_COUNT_LIMIT", 128),
        event_attributes=limit("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", count),
        link_attributes=limit("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", count),
    )


# -- metrics -----------------------------------------------------------------------------------------------------


def _metrics(read: Reader) -> Metrics:
    def word(key: str, *words: str) -> str:
        """The first of the words where none is set."""
        return read.value({key: choice(*words)}, f"{', '.join(words[:-1])} or {words[-1]}", words[0])

    exporters, otlp = export(read, METRICS)
    default = Metrics()
    return Metrics(
        exporters=exporters,
        interval=read.value(
            {"OTEL_METRIC_EXPORT_INTERVAL": interval},
            f"{MILLISECONDS} above 0",
            default.interval,
            _ms(default.interval),
        ),
        timeout=read.value(
            {"OTEL_METRIC_EXPORT_TIMEOUT": timeout}, MILLISECONDS, default.timeout, _ms(default.timeout)
        ),
        otlp=otlp,
        temporality=word(METRICS.option("TEMPORALITY_PREFERENCE"), *TEMPORALITIES),
        histograms=word(METRICS.option("DEFAULT_HISTOGRAM_AGGREGATION"), *HISTOGRAMS),
        exemplars=word("OTEL_METRICS_EXEMPLAR_FILTER", *EXEMPLARS),
    )


# -- sampler, propagators, resource ------------------------------------------------------------------------------


def _sampler(read: Reader) -> Sampler:
    given, argument = read.text("OTEL_TRACES_SAMPLER"), read.text("OTEL_TRACES_SAMPLER_ARG")
    name = read.spelled(given, SAMPLERS, SAMPLER_GROUP) if given else None
    if given and not name:
        read.complain(
            f"OTEL_TRACES_SAMPLER is {quoted(given)}, which is not one of {', '.join(SAMPLERS)} and not installed; "
            f"{Sampler().name} is used instead."
        )
    elif argument and not given:
        read.complain("OTEL_TRACES_SAMPLER_ARG is not used, since OTEL_TRACES_SAMPLER is not set.")
    if name in ("traceidratio", "parentbased_traceidratio"):
        argument = read.value({"OTEL_TRACES_SAMPLER_ARG": ratio}, "a number from 0 to 1", None, "1")
    elif argument and name in SAMPLERS:
        read.complain(f"OTEL_TRACES_SAMPLER_ARG is not used, since {name} takes no argument.")
        argument = None
    return Sampler(name, argument) if name else Sampler()


def _propagators(read: Reader) -> tuple[str, ...]:
    """``none`` anywhere in the list means none, as in the Python API."""
    names = read.names("OTEL_PROPAGATORS", ("tracecontext", "baggage", "none"), PROPAGATOR_GROUP)
    return () if "none" in names else names or Settings().propagators


def _resource(read: Reader) -> tuple[str | None, Attributes]:
    """The service's name and the other attributes; one malformed entry discards all of them (the specification)."""
    attributes: dict[str, str] = {}
    try:
        for number, entry in enumerate(items(read.text("OTEL_RESOURCE_ATTRIBUTES")), 1):  # noqa: B007 - said below
            key, value = _attribute(entry)
            attributes[key] = value
    except ValueError:
        attributes = {}
        read.complain(
            f"Entry {number} of OTEL_RESOURCE_ATTRIBUTES is not key=value in percent-encoded UTF-8; "
            "none of its entries is used."
        )
    service_name = attributes.pop("service.name", None)
    return read.text("OTEL_SERVICE_NAME") or service_name or None, tuple(attributes.items())


def _attribute(entry: str) -> tuple[str, str]:
    key, equals, value = entry.partition("=")
    if not equals or not key.strip():
        raise ValueError(entry)
    return unquote(key.strip(), errors="strict"), unquote(value.strip(), errors="strict")
