"""What was configured, read once: frozen records that pickle and travel to workers.

Rules
-----
1. Standard library only; nothing here reads the environment or Dask's configuration (`config` does).
2. Times are seconds (float), sizes bytes or counts (int). ``None`` means "no limit" or "not set".
3. Secrets (headers, key files' content) never show in a ``repr``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dask_otel.records import Attributes


@dataclass(frozen=True, slots=True)
class Otlp:
    """Where OTLP goes and how.

    ``endpoint`` is the whole URL of one signal's requests for ``http/protobuf`` and the target (``host:port``) for
    ``grpc``; a password that stood in it is a header now, a token may still stand in its path or query.
    ``insecure`` says whether ``grpc`` goes without TLS, whatever the URL's scheme was; HTTP has the scheme.
    """

    protocol: str = "http/protobuf"
    endpoint: str = field(default="http://localhost:4318/v1/traces", repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout: float = 10.0
    compression: str = "gzip"
    insecure: bool = False
    certificate: str | None = None
    client_key: str | None = None
    client_certificate: str | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """Bounds of what waits to be sent, per server: spans held, seconds between sends, spans in a request.

    ``timeout`` is how long (s) one export may take with its retries and the waits between them.
    """

    size: int = 65_536
    delay: float = 1.0
    batch: int = 8_192
    timeout: float = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """OpenTelemetry's limits of a span; ``nested_attribute_length`` is for attributes of events and links."""

    attributes: int | None = 128
    attribute_length: int | None = None
    events: int | None = 128
    links: int | None = 128
    event_attributes: int | None = 128
    link_attributes: int | None = 128
    nested_attribute_length: int | None = None


@dataclass(frozen=True, slots=True)
class Sampler:
    """OpenTelemetry's name of a sampler and its argument, as given."""

    name: str = "parentbased_always_on"
    argument: str | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Where metrics go, how often and in which form.

    ``exporters`` are as those of `Settings`, for metrics. ``interval`` is between exports, ``timeout`` how long one
    may take with its retries (s). ``temporality`` (``cumulative``, ``delta``, ``lowmemory``), ``histograms``
    (``explicit_bucket_histogram``, ``base2_exponential_bucket_histogram``) and ``exemplars`` (``trace_based``,
    ``always_on``, ``always_off``) are OpenTelemetry's words. ``span_names`` are the names of ``distributed.span()``
    that may be an attribute, ``exclude`` the metrics that are not sent.
    """

    enabled: bool = True
    exporters: tuple[str, ...] = ()
    interval: float = 60.0
    timeout: float = 30.0
    otlp: Otlp = Otlp(endpoint="http://localhost:4318/v1/metrics")
    temporality: str = "cumulative"
    histograms: str = "explicit_bucket_histogram"
    exemplars: str = "trace_based"
    span_names: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceBudget:
    """How many spans of ours a trace has, and how many bytes of OTLP, where its detail is not forced."""

    spans: int = 10_000
    size: int = 4_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that dask-otel can be told; what concerns one signal is about traces, but for ``metrics``.

    ``exporters`` are OpenTelemetry's names (``otlp``, ``console``, ``none``, or another entry point's); empty
    where nobody set one, which turns dask-otel off except for the context that travels.
    ``complaints`` are sentences about values that were wrong and what is used instead.
    """

    disabled: bool = False
    exporters: tuple[str, ...] = ()
    otlp: Otlp = Otlp()
    queue: Queue = Queue()
    limits: Limits = Limits()
    sampler: Sampler = Sampler()
    metrics: Metrics = Metrics()
    propagators: tuple[str, ...] = ("tracecontext", "baggage")
    service_name: str | None = None
    resource: Attributes = ()
    resource_detectors: tuple[str, ...] = ()
    cluster_name: str | None = None
    detail: str = "auto"
    budget: TraceBudget = TraceBudget()
    max_age: float = 600.0
    user_spans: bool = True
    traces_url: str | None = None
    complaints: tuple[str, ...] = ()

    @property
    def exporting(self) -> bool:
        """Whether spans of ours go anywhere by these settings alone (an application's provider aside)."""
        return not self.disabled and any(name != "none" for name in self.exporters)

    @property
    def exporting_metrics(self) -> bool:
        """Whether metrics of ours go anywhere by these settings alone (an application's provider aside)."""
        wanted = self.metrics.enabled and not self.disabled
        return wanted and any(name != "none" for name in self.metrics.exporters)
