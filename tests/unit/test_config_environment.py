"""Every `OTEL_*` variable that concerns traces or metrics: right, wrong, empty."""

from __future__ import annotations

import base64
import pickle
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from dask_otel.environment import (
    EXEMPLARS,
    HISTOGRAMS,
    PROPAGATOR_GROUP,
    SAMPLER_GROUP,
    SAMPLERS,
    TEMPORALITIES,
    parse,
)
from dask_otel.otlp_environment import METRICS, TRACES
from dask_otel.settings import Limits, Metrics, Otlp, Queue, Sampler, Settings

HTTP, HTTP_METRICS = "http://localhost:4318/v1/traces", "http://localhost:4318/v1/metrics"
ENTRY_POINTS = {
    TRACES.group: ["otlp", "console", "zipkin_json"],
    METRICS.group: ["otlp", "console", "Statsd"],
    PROPAGATOR_GROUP: ["tracecontext", "baggage", "b3", "b3multi", "jaeger", "xray", "ottrace"],
    SAMPLER_GROUP: ["always_on", "Half"],
}
EXPORTERS = "otlp, console, none, otlp_proto_http, otlp_proto_grpc"
METRICS_EXPORTERS = "otlp, console, none, prometheus, otlp_proto_http, otlp_proto_grpc"


def read(**environ: str) -> Settings:
    return parse({f"OTEL_{key}": value for key, value in environ.items()}, lambda group: ENTRY_POINTS[group])


def otlp(**changes: object) -> Settings:
    return Settings(exporters=("otlp",), otlp=Otlp(**changes))


def metrics(**changes: object) -> Metrics:
    """Metrics that go by OTLP."""
    return Metrics(exporters=("otlp",), otlp=metrics_otlp(**changes))


def metrics_otlp(**changes: object) -> Otlp:
    return Otlp(**{"endpoint": HTTP_METRICS, **changes})


def without_metrics(settings: Settings) -> Settings:
    return replace(settings, metrics=Metrics())


def test_nothing_set_gives_the_defaults_and_no_complaint():
    assert parse({}) == Settings()
    assert not parse({}).exporting
    assert not parse({}).exporting_metrics


def test_settings_pickle_and_can_be_a_key():
    settings = read(
        EXPORTER_OTLP_ENDPOINT="http://c",
        EXPORTER_OTLP_HEADERS="a=b",
        RESOURCE_ATTRIBUTES="a=b",
        METRIC_EXPORT_INTERVAL="5000",
    )
    assert settings.metrics == replace(
        metrics(endpoint="http://c/v1/metrics", headers=(("a", "b"),)), interval=5.0
    )
    assert {settings: 1}[pickle.loads(pickle.dumps(settings))] == 1


@pytest.mark.parametrize(
    ("settings", "exporting", "exporting_metrics"),
    [
        (Settings(exporters=("otlp",)), True, False),
        (Settings(metrics=metrics()), False, True),
        (Settings(metrics=Metrics(exporters=("none",))), False, False),
        (Settings(metrics=replace(metrics(), enabled=False)), False, False),
        (Settings(disabled=True, exporters=("otlp",), metrics=metrics()), False, False),
    ],
)
def test_each_signal_is_exported_by_its_own_exporters(settings, exporting, exporting_metrics):
    assert (settings.exporting, settings.exporting_metrics) == (exporting, exporting_metrics)


#: What traces make of it; what metrics make of the same variables is compared below.
GOOD = [
    # General
    ({"SDK_DISABLED": "TRUE"}, Settings(disabled=True)),
    ({"SDK_DISABLED": "False"}, Settings()),
    ({"SERVICE_NAME": "shop"}, Settings(service_name="shop")),
    ({"RESOURCE_ATTRIBUTES": "service.name=shop"}, Settings(service_name="shop")),
    ({"RESOURCE_ATTRIBUTES": "service.name=shop", "SERVICE_NAME": "till"}, Settings(service_name="till")),
    (
        {"RESOURCE_ATTRIBUTES": "a=1, b = x%2Cy%3Dz ,c=,"},
        Settings(resource=(("a", "1"), ("b", "x,y=z"), ("c", ""))),
    ),
    ({"RESOURCE_ATTRIBUTES": "k%3D1=Zo%C3%AB,a=b=c"}, Settings(resource=(("k=1", "Zoë"), ("a", "b=c")))),
    ({"RESOURCE_ATTRIBUTES": "a=1,a=2"}, Settings(resource=(("a", "2"),))),
    (
        {"EXPERIMENTAL_RESOURCE_DETECTORS": "process, os,process"},
        Settings(resource_detectors=("process", "os")),
    ),
    # Exporters
    ({"TRACES_EXPORTER": "otlp"}, otlp()),
    ({"TRACES_EXPORTER": "OTLP"}, otlp()),
    ({"TRACES_EXPORTER": "console"}, Settings(exporters=("console",))),
    ({"TRACES_EXPORTER": "console, otlp,console"}, Settings(exporters=("console", "otlp"))),
    ({"TRACES_EXPORTER": "Zipkin_JSON"}, Settings(exporters=("zipkin_json",))),
    ({"TRACES_EXPORTER": "otlp_proto_http"}, otlp()),
    (
        {"TRACES_EXPORTER": "otlp_proto_grpc", "EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
        otlp(protocol="grpc", endpoint="localhost:4317", insecure=True),
    ),
    (
        {"TRACES_EXPORTER": "none", "EXPORTER_OTLP_ENDPOINT": "http://c:4318"},
        Settings(exporters=("none",), otlp=Otlp(endpoint="http://c:4318/v1/traces")),
    ),
    # Endpoint, OTLP/HTTP
    ({"EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, otlp(endpoint="http://c:4318/v1/traces")),
    ({"EXPORTER_OTLP_ENDPOINT": "HTTPS://c/base/"}, otlp(endpoint="https://c/base/v1/traces")),
    ({"EXPORTER_OTLP_ENDPOINT": "http://c/b?k=v#f"}, otlp(endpoint="http://c/b/v1/traces?k=v")),
    ({"EXPORTER_OTLP_ENDPOINT": "http://[::1]:4318"}, otlp(endpoint="http://[::1]:4318/v1/traces")),
    ({"EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, otlp(endpoint="http://c:4318/")),
    (
        {"EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/x/", "EXPORTER_OTLP_ENDPOINT": "http://d"},
        otlp(endpoint="http://c/x/"),
    ),
    (
        {"EXPORTER_OTLP_TRACES_ENDPOINT": "", "EXPORTER_OTLP_ENDPOINT": " http://d "},
        otlp(endpoint="http://d/v1/traces"),
    ),
    (
        {"EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317", "EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
        otlp(endpoint="http://c:4317/"),
    ),
    # Endpoint, OTLP/gRPC
    (
        {"TRACES_EXPORTER": "otlp", "EXPORTER_OTLP_PROTOCOL": "grpc"},
        otlp(protocol="grpc", endpoint="localhost:4317", insecure=True),
    ),
    (
        {"EXPORTER_OTLP_ENDPOINT": "http://c:4317", "EXPORTER_OTLP_PROTOCOL": "GRPC"},
        otlp(protocol="grpc", endpoint="c:4317", insecure=True),
    ),
    (
        {
            "EXPORTER_OTLP_TRACES_ENDPOINT": "https://c:4317/ignored",
            "EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            "EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "EXPORTER_OTLP_INSECURE": "true",
        },
        otlp(protocol="grpc", endpoint="c:4317", insecure=False),
    ),
    (
        {"EXPORTER_OTLP_ENDPOINT": "c:4317", "EXPORTER_OTLP_PROTOCOL": "grpc"},
        otlp(protocol="grpc", endpoint="c:4317", insecure=False),
    ),
    (
        {
            "EXPORTER_OTLP_ENDPOINT": "dns:///c:4317",
            "EXPORTER_OTLP_PROTOCOL": "grpc",
            "EXPORTER_OTLP_INSECURE": "false",
            "EXPORTER_OTLP_TRACES_INSECURE": "True",
        },
        otlp(protocol="grpc", endpoint="dns:///c:4317", insecure=True),
    ),
    # The other options
    ({"EXPORTER_OTLP_INSECURE": "true"}, Settings()),
    (
        {"EXPORTER_OTLP_HEADERS": "A=b, k = x%20y ,c==,d="},
        Settings(otlp=Otlp(headers=(("a", "b"), ("k", "x y"), ("c", "="), ("d", "")))),
    ),
    (
        {"EXPORTER_OTLP_HEADERS": "Authorization=Bearer x;y"},
        Settings(otlp=Otlp(headers=(("authorization", "Bearer x;y"),))),
    ),
    (
        {"EXPORTER_OTLP_HEADERS": "a=b", "EXPORTER_OTLP_TRACES_HEADERS": "c=d"},
        Settings(otlp=Otlp(headers=(("c", "d"),))),
    ),
    ({"EXPORTER_OTLP_TIMEOUT": "2500"}, Settings(otlp=Otlp(timeout=2.5))),
    (
        {"EXPORTER_OTLP_TIMEOUT": "2500", "EXPORTER_OTLP_TRACES_TIMEOUT": "100"},
        Settings(otlp=Otlp(timeout=0.1)),
    ),
    ({"EXPORTER_OTLP_TIMEOUT": "0"}, Settings(otlp=Otlp(timeout=2147483.647))),
    ({"EXPORTER_OTLP_COMPRESSION": "None"}, Settings(otlp=Otlp(compression="none"))),
    ({"EXPORTER_OTLP_COMPRESSION": "none", "EXPORTER_OTLP_TRACES_COMPRESSION": "gzip"}, Settings()),
    (
        {
            "EXPORTER_OTLP_CERTIFICATE": "/ca",
            "EXPORTER_OTLP_CLIENT_KEY": "/k",
            "EXPORTER_OTLP_CLIENT_CERTIFICATE": "/c",
        },
        Settings(otlp=Otlp(certificate="/ca", client_key="/k", client_certificate="/c")),
    ),
    (
        {
            "EXPORTER_OTLP_CERTIFICATE": "/ca",
            "EXPORTER_OTLP_TRACES_CERTIFICATE": "/ca2",
            "EXPORTER_OTLP_TRACES_CLIENT_KEY": "/k2",
            "EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE": "/c2",
        },
        Settings(otlp=Otlp(certificate="/ca2", client_key="/k2", client_certificate="/c2")),
    ),
    # Batch span processor
    ({"BSP_SCHEDULE_DELAY": "500"}, Settings(queue=Queue(delay=0.5))),
    ({"BSP_SCHEDULE_DELAY": "0"}, Settings(queue=Queue(delay=0.001))),
    ({"BSP_EXPORT_TIMEOUT": "500"}, Settings(queue=Queue(timeout=0.5))),
    ({"BSP_EXPORT_TIMEOUT": "0"}, Settings(queue=Queue(timeout=2147483.647))),
    ({"BSP_MAX_QUEUE_SIZE": "100"}, Settings(queue=Queue(size=100, batch=100))),
    ({"BSP_MAX_EXPORT_BATCH_SIZE": "512"}, Settings(queue=Queue(batch=512))),
    # Limits
    (
        {"ATTRIBUTE_COUNT_LIMIT": "7"},
        Settings(limits=Limits(attributes=7, event_attributes=7, link_attributes=7)),
    ),
    (
        {
            "ATTRIBUTE_COUNT_LIMIT": "7",
            "SPAN_ATTRIBUTE_COUNT_LIMIT": "8",
            "EVENT_ATTRIBUTE_COUNT_LIMIT": "9",
            "LINK_ATTRIBUTE_COUNT_LIMIT": "0",
        },
        Settings(limits=Limits(attributes=8, event_attributes=9, link_attributes=0)),
    ),
    (
        {"ATTRIBUTE_VALUE_LENGTH_LIMIT": "7"},
        Settings(limits=Limits(attribute_length=7, nested_attribute_length=7)),
    ),
    (
        {"ATTRIBUTE_VALUE_LENGTH_LIMIT": "7", "SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "8"},
        Settings(limits=Limits(attribute_length=8, nested_attribute_length=7)),
    ),
    (
        {"SPAN_EVENT_COUNT_LIMIT": "1", "SPAN_LINK_COUNT_LIMIT": "2147483647"},
        Settings(limits=Limits(events=1, links=2147483647)),
    ),
    # Sampler
    *(({"TRACES_SAMPLER": name.upper()}, Settings(sampler=Sampler(name))) for name in SAMPLERS),
    (
        {"TRACES_SAMPLER": "traceidratio", "TRACES_SAMPLER_ARG": "0.25"},
        Settings(sampler=Sampler("traceidratio", "0.25")),
    ),
    (
        {"TRACES_SAMPLER": "parentbased_traceidratio", "TRACES_SAMPLER_ARG": "1e-3"},
        Settings(sampler=Sampler("parentbased_traceidratio", "1e-3")),
    ),
    (
        {"TRACES_SAMPLER": "half", "TRACES_SAMPLER_ARG": "any=thing"},
        Settings(sampler=Sampler("Half", "any=thing")),
    ),
    # Propagators
    ({"PROPAGATORS": "b3,TraceContext , b3"}, Settings(propagators=("b3", "tracecontext"))),
    (
        {"PROPAGATORS": "b3multi,jaeger,xray,ottrace"},
        Settings(propagators=("b3multi", "jaeger", "xray", "ottrace")),
    ),
    ({"PROPAGATORS": "none"}, Settings(propagators=())),
    ({"PROPAGATORS": "b3,none"}, Settings(propagators=())),
]


@pytest.mark.parametrize(("environ", "expected"), GOOD, ids=[str(environ) for environ, _ in GOOD])
def test_a_right_value_is_used_without_a_complaint(environ, expected):
    assert without_metrics(read(**environ)) == expected


def both(**changes: object) -> Settings:
    """Settings of two signals that go by OTLP in the same way, each to its path of http://c."""
    return Settings(
        exporters=("otlp",),
        otlp=Otlp(**{"endpoint": "http://c/v1/traces", **changes}),
        metrics=metrics(**{"endpoint": "http://c/v1/metrics", **changes}),
    )


C = "http://c"
GOOD_OF_METRICS = [
    # Exporters
    ({"METRICS_EXPORTER": "OTLP"}, Settings(metrics=metrics())),
    ({"METRICS_EXPORTER": "Prometheus"}, Settings(metrics=Metrics(exporters=("prometheus",)))),
    (
        {"METRICS_EXPORTER": "console, otlp,console"},
        Settings(metrics=replace(metrics(), exporters=("console", "otlp"))),
    ),
    ({"METRICS_EXPORTER": "statsd"}, Settings(metrics=Metrics(exporters=("Statsd",)))),
    (
        {"METRICS_EXPORTER": "otlp_proto_grpc", "EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
        Settings(metrics=metrics(protocol="grpc", endpoint="localhost:4317", insecure=True)),
    ),
    # The general variables are for both signals, each signal's own for itself.
    ({"EXPORTER_OTLP_ENDPOINT": C}, both()),
    (
        {"EXPORTER_OTLP_ENDPOINT": C, "METRICS_EXPORTER": "none"},
        replace(both(), metrics=replace(both().metrics, exporters=("none",))),
    ),
    ({"EXPORTER_OTLP_ENDPOINT": C, "TRACES_EXPORTER": "none"}, replace(both(), exporters=("none",))),
    (
        {"EXPORTER_OTLP_METRICS_ENDPOINT": "http://m/write"},
        Settings(metrics=metrics(endpoint="http://m/write")),
    ),
    ({"EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}, otlp(endpoint="http://t/x")),
    (
        {"EXPORTER_OTLP_ENDPOINT": C, "EXPORTER_OTLP_METRICS_ENDPOINT": "http://m/write"},
        replace(both(), metrics=metrics(endpoint="http://m/write")),
    ),
    (
        {"EXPORTER_OTLP_ENDPOINT": "http://c:4317", "EXPORTER_OTLP_PROTOCOL": "grpc"},
        both(endpoint="c:4317", protocol="grpc", insecure=True),
    ),
    (
        {"EXPORTER_OTLP_ENDPOINT": C, "EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"},
        replace(both(), metrics=metrics(endpoint="c", protocol="grpc", insecure=True)),
    ),
    *(
        case
        for option, general, expected, own, of_own in (
            ("HEADERS", "api-key=g", {"headers": (("api-key", "g"),)}, "k=m", {"headers": (("k", "m"),)}),
            ("TIMEOUT", "2500", {"timeout": 2.5}, "0", {"timeout": 2147483.647}),
            ("COMPRESSION", "none", {"compression": "none"}, "GZIP", {"compression": "gzip"}),
            ("CERTIFICATE", "/g", {"certificate": "/g"}, "/m", {"certificate": "/m"}),
            ("CLIENT_CERTIFICATE", "/g", {"client_certificate": "/g"}, "/m", {"client_certificate": "/m"}),
        )
        for case in (
            ({"EXPORTER_OTLP_ENDPOINT": C, f"EXPORTER_OTLP_{option}": general}, both(**expected)),
            (
                {
                    "EXPORTER_OTLP_ENDPOINT": C,
                    f"EXPORTER_OTLP_{option}": general,
                    f"EXPORTER_OTLP_METRICS_{option}": own,
                },
                replace(both(**expected), metrics=both(**of_own).metrics),
            ),
        )
    ),
    (
        {
            "EXPORTER_OTLP_METRICS_CLIENT_KEY": "/k",
            "EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE": "/c",
        },
        Settings(metrics=Metrics(otlp=metrics_otlp(client_key="/k", client_certificate="/c"))),
    ),
    (
        {
            "EXPORTER_OTLP_PROTOCOL": "grpc",
            "EXPORTER_OTLP_ENDPOINT": "c:1",
            "EXPORTER_OTLP_METRICS_INSECURE": "true",
        },
        replace(
            both(endpoint="c:1", protocol="grpc"),
            metrics=metrics(endpoint="c:1", protocol="grpc", insecure=True),
        ),
    ),
    # A signal that is not sent by OTLP does not mind an endpoint for the other's protocol.
    (
        {
            "TRACES_EXPORTER": "otlp_proto_grpc",
            "METRICS_EXPORTER": "none",
            "EXPORTER_OTLP_ENDPOINT": "c:4317",
        },
        replace(otlp(protocol="grpc", endpoint="c:4317"), metrics=Metrics(exporters=("none",))),
    ),
    # What only metrics have
    ({"METRIC_EXPORT_INTERVAL": "5000"}, Settings(metrics=Metrics(interval=5.0))),
    ({"METRIC_EXPORT_INTERVAL": "1"}, Settings(metrics=Metrics(interval=0.001))),
    ({"METRIC_EXPORT_TIMEOUT": "500"}, Settings(metrics=Metrics(timeout=0.5))),
    ({"METRIC_EXPORT_TIMEOUT": "0"}, Settings(metrics=Metrics(timeout=2147483.647))),
    *(
        (
            {"EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": word.upper()},
            Settings(metrics=Metrics(temporality=word)),
        )
        for word in TEMPORALITIES
    ),
    *(
        (
            {"EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": word.title()},
            Settings(metrics=Metrics(histograms=word)),
        )
        for word in HISTOGRAMS
    ),
    *(
        ({"METRICS_EXEMPLAR_FILTER": f" {word}"}, Settings(metrics=Metrics(exemplars=word)))
        for word in EXEMPLARS
    ),
]


@pytest.mark.parametrize(
    ("environ", "expected"), GOOD_OF_METRICS, ids=[str(environ) for environ, _ in GOOD_OF_METRICS]
)
def test_a_right_value_about_metrics_is_used_without_a_complaint(environ, expected):
    assert read(**environ) == expected


@pytest.mark.parametrize("key", sorted({key for environ, _ in GOOD + GOOD_OF_METRICS for key in environ}))
@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_value_is_as_good_as_none(key, value):
    assert read(**{key: value}) == Settings()


WHOLE, ABOVE, MS = "a whole number", "a whole number above 0", "a whole number of milliseconds"


def wrong(key: str, value: str, allowed: str, used: str) -> str:
    return f"OTEL_{key} is {value!r}, which is not {allowed}; {used} is used instead."


def entry(number: int, key: str) -> str:
    return (
        f"Entry {number} of OTEL_{key}, not shown since it may be secret, is not name=value with the value "
        "percent-encoded; it is left out."
    )


def resource_entry(number: int) -> str:
    return (
        f"Entry {number} of OTEL_RESOURCE_ATTRIBUTES is not key=value in percent-encoded UTF-8; "
        "none of its entries is used."
    )


def unknown(key: str, value: str, known: str) -> str:
    return f"OTEL_{key} names {value!r}, which is not one of {known} and not installed; it is left out."


NO_SAMPLER = (
    f"which is not one of {', '.join(SAMPLERS)} and not installed; parentbased_always_on is used instead."
)
PORT = (
    "OTEL_EXPORTER_OTLP_{}ENDPOINT has port 4317, by convention gRPC's, and http/protobuf is used: set "
    "OTEL_EXPORTER_OTLP_PROTOCOL=grpc, or port 4318."
)
URL = "a URL like http://collector:4318"
BAD = [
    ({"SDK_DISABLED": "yes"}, Settings(), [wrong("SDK_DISABLED", "yes", "true or false", "false")]),
    ({"RESOURCE_ATTRIBUTES": "a=1,secret,b=2"}, Settings(), [resource_entry(2)]),
    ({"RESOURCE_ATTRIBUTES": "a=1,=2"}, Settings(), [resource_entry(2)]),
    ({"RESOURCE_ATTRIBUTES": "a=%FF", "SERVICE_NAME": "x"}, Settings(service_name="x"), [resource_entry(1)]),
    (
        {"CONFIG_FILE": "/otel.yaml"},
        Settings(),
        ["dask-otel does not read OTEL_CONFIG_FILE; the other OTEL_* variables are used instead."],
    ),
    # Exporters
    ({"TRACES_EXPORTER": "zipkni"}, Settings(), [unknown("TRACES_EXPORTER", "zipkni", EXPORTERS)]),
    ({"TRACES_EXPORTER": "logging,otlp"}, otlp(), [unknown("TRACES_EXPORTER", "logging", EXPORTERS)]),
    (
        {"TRACES_EXPORTER": "none,console"},
        Settings(exporters=("console",)),
        ["OTEL_TRACES_EXPORTER names none beside others; console is used."],
    ),
    (
        {"TRACES_EXPORTER": "otlp_proto_http,otlp_proto_grpc"},
        otlp(),
        ["OTEL_TRACES_EXPORTER names OTLP twice; otlp_proto_http is used."],
    ),
    (
        {"EXPORTER_OTLP_PROTOCOL": "http/json"},
        Settings(),
        [wrong("EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf or grpc", "http/protobuf")],
    ),
    # Endpoint: one that is wrong does not turn anything on.
    *(
        (
            {"EXPORTER_OTLP_ENDPOINT": given},
            Settings(),
            [wrong("EXPORTER_OTLP_ENDPOINT", shown, URL, "no endpoint")],
        )
        for given, shown in {
            "collector:4318": "collector:4318",
            "http://": "http://",
            "ftp://c": "ftp://c",
            "http://c:port": "http://c:port",
            "http://c:0": "http://c:0",
            "http://c:99999": "http://c:99999",
            "http://[c": "http://[c",
            "http://c /x": "http://c /x",
            "http://c\u00e9": "http://c\u00e9",
            "http://user:pa/ss@c": "http://***@c",
            "user:pass@c?k=v": "***@c?***",
            "x" * 99: "x" * 79 + "…",
        }.items()
    ),
    (
        {"TRACES_EXPORTER": "otlp", "EXPORTER_OTLP_ENDPOINT": "c"},
        otlp(),
        [wrong("EXPORTER_OTLP_ENDPOINT", "c", URL, HTTP)],
    ),
    (
        {"EXPORTER_OTLP_TRACES_ENDPOINT": "c", "EXPORTER_OTLP_ENDPOINT": "http://c"},
        otlp(endpoint="http://c/v1/traces"),
        [wrong("EXPORTER_OTLP_TRACES_ENDPOINT", "c", URL, "OTEL_EXPORTER_OTLP_ENDPOINT")],
    ),
    (
        {"EXPORTER_OTLP_ENDPOINT": "a b", "EXPORTER_OTLP_PROTOCOL": "grpc"},
        Settings(otlp=Otlp(protocol="grpc", endpoint="localhost:4317", insecure=True)),
        [
            wrong(
                "EXPORTER_OTLP_ENDPOINT",
                "a b",
                "host:port or a URL like http://collector:4317",
                "no endpoint",
            )
        ],
    ),
    (
        {"EXPORTER_OTLP_ENDPOINT": "http://c:4317"},
        otlp(endpoint="http://c:4317/v1/traces"),
        [PORT.format("")],
    ),
    (
        {"EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317/x", "EXPORTER_OTLP_ENDPOINT": "http://c:4318"},
        otlp(endpoint="http://c:4317/x"),
        [PORT.format("TRACES_")],
    ),
    # The other options
    (
        {"EXPORTER_OTLP_INSECURE": "1"},
        Settings(),
        [wrong("EXPORTER_OTLP_INSECURE", "1", "true or false", "false")],
    ),
    (
        {
            "EXPORTER_OTLP_TRACES_INSECURE": "yes",
            "EXPORTER_OTLP_INSECURE": "true",
            "EXPORTER_OTLP_PROTOCOL": "grpc",
            "EXPORTER_OTLP_ENDPOINT": "c:1",
        },
        otlp(protocol="grpc", endpoint="c:1", insecure=False),
        [wrong("EXPORTER_OTLP_TRACES_INSECURE", "yes", "true or false", "false")],
    ),
    (
        {"EXPORTER_OTLP_HEADERS": "a=b,c3VwZXJzZWNyZXQ,x y=z,k=%0Aevil,e=%C3%A9"},
        Settings(otlp=Otlp(headers=(("a", "b"),))),
        [entry(number, "EXPORTER_OTLP_HEADERS") for number in (2, 3, 4, 5)],
    ),
    (
        {"EXPORTER_OTLP_TRACES_HEADERS": "=v", "EXPORTER_OTLP_HEADERS": "a=b"},
        Settings(),
        [entry(1, "EXPORTER_OTLP_TRACES_HEADERS")],
    ),
    *(
        ({key: given}, Settings(), [wrong(key, given, MS, f"{default} ms")])
        for key, default in {
            "EXPORTER_OTLP_TIMEOUT": 10000,
            "BSP_SCHEDULE_DELAY": 1000,
            "BSP_EXPORT_TIMEOUT": 30000,
        }.items()
        for given in ("-1", "1.5", "10s", "1e3", "2147483648", "9" * 30, "٣")
    ),
    (
        {"EXPORTER_OTLP_TRACES_TIMEOUT": "x", "EXPORTER_OTLP_TIMEOUT": "500"},
        Settings(otlp=Otlp(timeout=0.5)),
        [wrong("EXPORTER_OTLP_TRACES_TIMEOUT", "x", MS, "OTEL_EXPORTER_OTLP_TIMEOUT")],
    ),
    (
        {"EXPORTER_OTLP_TIMEOUT": "10"},
        Settings(otlp=Otlp(timeout=0.01)),
        [
            (
                "OTEL_EXPORTER_OTLP_TIMEOUT is 10 ms, by the specification (the Python SDK reads seconds), and so it is "
                "used: for 10 s set 10000."
            )
        ],
    ),
    (
        {"EXPORTER_OTLP_COMPRESSION": "deflate"},
        Settings(),
        [wrong("EXPORTER_OTLP_COMPRESSION", "deflate", "gzip or none", "gzip")],
    ),
    *(
        (
            {f"EXPORTER_OTLP_{signal}CLIENT_KEY": "/k"},
            Settings(otlp=Otlp(client_key="/k")),
            [
                (
                    f"OTEL_EXPORTER_OTLP_{signal}CLIENT_KEY is set without OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE; no client "
                    "certificate is used."
                )
            ],
        )
        for signal in ("", "TRACES_")
    ),
    # Batch span processor
    ({"BSP_MAX_QUEUE_SIZE": "0"}, Settings(), [wrong("BSP_MAX_QUEUE_SIZE", "0", ABOVE, "65536")]),
    (
        {"BSP_MAX_EXPORT_BATCH_SIZE": "x"},
        Settings(),
        [wrong("BSP_MAX_EXPORT_BATCH_SIZE", "x", ABOVE, "8192")],
    ),
    (
        {"BSP_MAX_EXPORT_BATCH_SIZE": "200", "BSP_MAX_QUEUE_SIZE": "100"},
        Settings(queue=Queue(size=100, batch=100)),
        ["OTEL_BSP_MAX_EXPORT_BATCH_SIZE is 200, which is more than the queue holds; 100 is used instead."],
    ),
    # Limits
    *(
        ({key: "-1"}, Settings(), [wrong(key, "-1", WHOLE, used)])
        for key, used in {
            "ATTRIBUTE_COUNT_LIMIT": "128",
            "ATTRIBUTE_VALUE_LENGTH_LIMIT": "no limit",
            "SPAN_ATTRIBUTE_COUNT_LIMIT": "128",
            "SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "no limit",
            "SPAN_EVENT_COUNT_LIMIT": "128",
            "SPAN_LINK_COUNT_LIMIT": "128",
            "EVENT_ATTRIBUTE_COUNT_LIMIT": "128",
            "LINK_ATTRIBUTE_COUNT_LIMIT": "128",
        }.items()
    ),
    # Sampler
    *(
        (
            {"TRACES_SAMPLER": name, "TRACES_SAMPLER_ARG": "x"},
            Settings(),
            [f"OTEL_TRACES_SAMPLER is {name!r}, {NO_SAMPLER}"],
        )
        for name in ("jaeger_remote", "parentbased_jaeger_remote", "xray", "always")
    ),
    (
        {"TRACES_SAMPLER_ARG": "0.1"},
        Settings(),
        ["OTEL_TRACES_SAMPLER_ARG is not used, since OTEL_TRACES_SAMPLER is not set."],
    ),
    (
        {"TRACES_SAMPLER": "always_off", "TRACES_SAMPLER_ARG": "0.1"},
        Settings(sampler=Sampler("always_off")),
        ["OTEL_TRACES_SAMPLER_ARG is not used, since always_off takes no argument."],
    ),
    *(
        (
            {"TRACES_SAMPLER": "traceidratio", "TRACES_SAMPLER_ARG": given},
            Settings(sampler=Sampler("traceidratio")),
            [wrong("TRACES_SAMPLER_ARG", given, "a number from 0 to 1", "1")],
        )
        for given in ("1.1", "-0.1", "nan", "half")
    ),
    # Propagators
    (
        {"PROPAGATORS": "b4,b3"},
        Settings(propagators=("b3",)),
        [unknown("PROPAGATORS", "b4", "tracecontext, baggage, none")],
    ),
    ({"PROPAGATORS": "b4"}, Settings(), [unknown("PROPAGATORS", "b4", "tracecontext, baggage, none")]),
]


@pytest.mark.parametrize(
    ("environ", "expected", "complaints"), BAD, ids=[str(environ) for environ, _, _ in BAD]
)
def test_a_wrong_value_gives_one_sentence_and_counts_as_not_set(environ, expected, complaints):
    assert without_metrics(read(**environ)) == replace(expected, complaints=tuple(complaints))


BAD_OF_METRICS = [
    # Exporters
    (
        {"METRICS_EXPORTER": "statds,zipkin_json"},
        Settings(),
        [unknown("METRICS_EXPORTER", name, METRICS_EXPORTERS) for name in ("statds", "zipkin_json")],
    ),
    ({"TRACES_EXPORTER": "prometheus"}, Settings(), [unknown("TRACES_EXPORTER", "prometheus", EXPORTERS)]),
    (
        {"METRICS_EXPORTER": "none,prometheus,console"},
        Settings(metrics=Metrics(exporters=("prometheus", "console"))),
        ["OTEL_METRICS_EXPORTER names none beside others; prometheus, console is used."],
    ),
    # A general variable that is wrong is told of once, with what is used instead.
    *(
        (
            {"EXPORTER_OTLP_ENDPOINT": "c", **named},
            replace(
                Settings(),
                exporters=("otlp",) if "TRACES_EXPORTER" in named else (),
                metrics=metrics() if "METRICS_EXPORTER" in named else Metrics(),
            ),
            [f"OTEL_EXPORTER_OTLP_ENDPOINT is 'c', which is not {URL}; {used} used instead."],
        )
        for named, used in (
            ({}, "no endpoint is"),
            ({"TRACES_EXPORTER": "otlp"}, f"{HTTP} is"),
            ({"METRICS_EXPORTER": "otlp"}, f"{HTTP_METRICS} is"),
            ({"TRACES_EXPORTER": "otlp", "METRICS_EXPORTER": "otlp"}, f"{HTTP} and {HTTP_METRICS} are"),
        )
    ),
    (
        {"EXPORTER_OTLP_METRICS_ENDPOINT": "m", "EXPORTER_OTLP_ENDPOINT": C},
        both(),
        [wrong("EXPORTER_OTLP_METRICS_ENDPOINT", "m", URL, "OTEL_EXPORTER_OTLP_ENDPOINT")],
    ),
    (
        {"EXPORTER_OTLP_METRICS_ENDPOINT": "m"},
        Settings(),
        [wrong("EXPORTER_OTLP_METRICS_ENDPOINT", "m", URL, "no endpoint")],
    ),
    # An endpoint that suits one signal's protocol and not the other's
    (
        {"EXPORTER_OTLP_TRACES_PROTOCOL": "grpc", "EXPORTER_OTLP_ENDPOINT": "c:4317"},
        otlp(protocol="grpc", endpoint="c:4317"),
        [wrong("EXPORTER_OTLP_ENDPOINT", "c:4317", URL, "no endpoint")],
    ),
    (
        {"EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4317"},
        Settings(metrics=metrics(endpoint="http://c:4317/")),
        [PORT.format("METRICS_")],
    ),
    # What only metrics have
    *(
        (
            {"METRIC_EXPORT_INTERVAL": given},
            Settings(),
            [wrong("METRIC_EXPORT_INTERVAL", given, f"{MS} above 0", "60000 ms")],
        )
        for given in ("0", "-1", "1.5", "60s", "2147483648")
    ),
    *(
        (
            {"METRIC_EXPORT_TIMEOUT": given},
            Settings(),
            [wrong("METRIC_EXPORT_TIMEOUT", given, MS, "30000 ms")],
        )
        for given in ("-1", "1.5", "30s", "2147483648")
    ),
    *(
        ({key: given}, Settings(), [wrong(key, given, allowed, used)])
        for key, given, allowed, used in (
            (
                "EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
                "deltas",
                "cumulative, delta or lowmemory",
                "cumulative",
            ),
            (
                "EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
                "exponential",
                "explicit_bucket_histogram or base2_exponential_bucket_histogram",
                "explicit_bucket_histogram",
            ),
            ("METRICS_EXEMPLAR_FILTER", "off", "trace_based, always_on or always_off", "trace_based"),
        )
    ),
]


@pytest.mark.parametrize(
    ("environ", "expected", "complaints"),
    BAD_OF_METRICS,
    ids=[str(environ) for environ, _, _ in BAD_OF_METRICS],
)
def test_a_wrong_value_about_metrics_gives_one_sentence_and_counts_as_not_set(environ, expected, complaints):
    assert read(**environ) == replace(expected, complaints=tuple(complaints))


def test_a_signal_that_is_not_sent_by_otlp_has_no_sentence_about_it():
    wrong_for_all = {
        f"EXPORTER_OTLP_{signal}{option}": value
        for signal in ("", "TRACES_", "METRICS_")
        for option, value in {"ENDPOINT": "c", "PROTOCOL": "x", "TIMEOUT": "x", "HEADERS": "x"}.items()
    }
    settings = read(TRACES_EXPORTER="console", METRICS_EXPORTER="prometheus", **wrong_for_all)
    assert settings == Settings(exporters=("console",), metrics=Metrics(exporters=("prometheus",)))


def mirrored(text: str) -> str:
    """The same about the other signal."""
    other = {
        "TRACES": "METRICS",
        "METRICS": "TRACES",
        "/v1/traces": "/v1/metrics",
        "/v1/metrics": "/v1/traces",
    }
    return re.sub("/v1/traces|/v1/metrics|TRACES|METRICS", lambda found: other[found[0]], text)


OTLP = [
    environ
    for environ in [case[0] for case in GOOD + GOOD_OF_METRICS + BAD + BAD_OF_METRICS]
    if all(re.fullmatch("EXPORTER_OTLP_.*|(TRACES|METRICS)_EXPORTER", key) for key in environ)
    and not re.search("prometheus|statsd|zipk|TEMPORALITY|HISTOGRAM", str(environ), re.IGNORECASE)
]


@pytest.mark.parametrize("environ", OTLP, ids=map(str, OTLP))
def test_where_metrics_go_is_read_as_where_traces_go(environ):
    one, other = read(**environ), read(**{mirrored(key): value for key, value in environ.items()})
    for traces, of_metrics in ((one, other.metrics), (other, one.metrics)):
        assert of_metrics == Metrics(
            exporters=traces.exporters,
            otlp=replace(traces.otlp, endpoint=mirrored(traces.otlp.endpoint)),
        )
    assert in_any_order(map(mirrored, one.complaints)) == in_any_order(other.complaints)


def in_any_order(sentences: Iterable[str]) -> set[frozenset[str]]:
    """Traces come first, in what is said and within a sentence that is about both; `prometheus` is for metrics only."""
    return {frozenset(sentence.split()) - {"prometheus,"} for sentence in sentences}


def test_names_that_are_not_installed_are_complained_about():
    for name in ("b3", "b3multi", "jaeger", "xray", "ottrace"):
        settings = parse({"OTEL_PROPAGATORS": f"{name},baggage"})
        assert settings.propagators == ("baggage",)
        assert settings.complaints == (unknown("PROPAGATORS", name, "tracecontext, baggage, none"),)


def test_what_is_installed_is_looked_up_only_for_a_name_that_is_not_built_in():
    groups = []
    environ = {
        "OTEL_TRACES_EXPORTER": "otlp,console",
        "OTEL_METRICS_EXPORTER": "otlp,prometheus",
        "OTEL_PROPAGATORS": "tracecontext,baggage",
        "OTEL_TRACES_SAMPLER": "always_on",
    }
    parse(environ, lambda group: groups.append(group) or ())
    assert groups == []


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_user_and_password_of_a_url_become_a_header_and_leave_the_endpoint(protocol):
    settings = read(EXPORTER_OTLP_ENDPOINT="https://me:s%3Acret@c:1", EXPORTER_OTLP_PROTOCOL=protocol)
    assert settings.otlp.endpoint == {"grpc": "c:1", "http/protobuf": "https://c:1/v1/traces"}[protocol]
    assert settings.otlp.headers == (("authorization", "Basic " + base64.b64encode(b"me:s:cret").decode()),)


def test_a_header_that_is_given_has_precedence_over_the_urls_password():
    settings = read(
        EXPORTER_OTLP_ENDPOINT="https://me:secret@c", EXPORTER_OTLP_HEADERS="Authorization=Bearer x"
    )
    assert settings.otlp.headers == (("authorization", "Bearer x"),)


def test_bytes_that_are_not_utf_8_cannot_break_an_encoder():
    settings = read(SERVICE_NAME="caf\udce9", RESOURCE_ATTRIBUTES="a=\udce9")
    assert settings == Settings(service_name="caf?", resource=(("a", "?"),))


class Recording(dict):
    """An environment that is empty and remembers what it was asked for."""

    def __init__(self):
        super().__init__()
        self.asked = set()

    def get(self, key, default=None):
        self.asked.add(key)
        return default


def test_the_documentation_has_every_variable_that_is_read_and_no_other():
    environ = Recording()
    parse(environ)
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `OTEL_")]
    named = {name for row in rows for name in re.findall(r"`(OTEL_[A-Z_()]+)`", row)}
    all_of_them = {
        name.replace("(SIGNAL_)", signal) for name in named for signal in ("", "TRACES_", "METRICS_")
    }
    assert all_of_them == environ.asked
