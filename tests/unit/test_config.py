"""`load`: the environment and Dask's configuration in one record."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import dask
import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_otel
from dask_otel import config
from dask_otel.config import explain, load
from dask_otel.instruments import INSTRUMENTS
from dask_otel.settings import Metrics, Otlp, Settings, TraceBudget

#: The package without what its ``__init__`` imports, for a new process.
ALONE = (
    "import sys, types; package = types.ModuleType('dask_otel'); "
    f"package.__path__ = {dask_otel.__path__!r}; sys.modules['dask_otel'] = package; "
)
DEFAULTS = yaml.safe_load(config.DEFAULTS.read_text())
SCHEMA = yaml.safe_load(config.SCHEMA.read_text())


# -- otel.yaml and its schema, tested as distributed tests its own ---------------------------------------------------


def test_the_defaults_fit_the_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(DEFAULTS, SCHEMA)


def test_defaults_and_schema_have_the_same_keys_in_the_same_order():
    def check(values, schema):
        assert list(values) == list(schema["properties"])
        for key, value in values.items():
            if isinstance(value, dict):
                check(value, schema["properties"][key])
            else:
                assert schema["properties"][key]["description"]

    check(DEFAULTS, SCHEMA)


def test_every_default_is_what_settings_has_and_every_key_is_read():
    assert {key for key, _ in config._leaves("otel", DEFAULTS["otel"])} == set(config._KEYS)
    assert load({}) == Settings()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("detail", "tasks"),
        ("url", "http://jaeger"),
        ("user-spans", "true"),
        ("computation", {"age": 1}),
        ("x", 1),
    ],
)
def test_the_schema_refuses_what_load_complains_about(key, value):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"otel": {"traces": {key: value}}}, SCHEMA)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("enabled", "yes"),
        ("enabled", None),
        ("span-names", [["a"]]),
        ("span-names", 1),
        ("exclude", [["a"]]),
        ("exclude", "dask.worker.*"),
        ("x", 1),
    ],
)
def test_the_schema_refuses_what_is_wrong_about_metrics(key, value):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"otel": {"metrics": {key: value}}}, SCHEMA)


def test_the_schema_takes_what_is_right_about_metrics():
    right = {"enabled": False, "span-names": ["load", "train"], "exclude": ["dask.worker.*"]}
    jsonschema.validate({"otel": {"metrics": right}}, SCHEMA)


# -- load --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("otel.traces.detail", "task", "detail", "task"),
        ("otel.traces.detail", " Group ", "detail", "group"),
        ("otel.traces.detail", "", "detail", "auto"),
        ("otel.traces.budget.spans", 500, "budget", TraceBudget(spans=500)),
        ("otel.traces.budget.spans", "2e3", "budget", TraceBudget(spans=2_000)),
        ("otel.traces.budget.size", "1.5 MB", "budget", TraceBudget(size=1_500_000)),
        ("otel.traces.budget.size", 1, "budget", TraceBudget(size=1)),
        ("otel.traces.user-spans", False, "user_spans", False),
        ("otel.traces.user_spans", "False", "user_spans", False),
        ("otel.traces.url", "http://j/trace/{trace_id}", "traces_url", "http://j/trace/{trace_id}"),
        ("otel.traces.url", None, "traces_url", None),
        ("otel.traces.computation.max-age", 90, "max_age", 90.0),
        ("otel.traces.computation.max-age", "5 min", "max_age", 300.0),
        ("otel.traces.computation.max-age", "2 hours", "max_age", 7200.0),
        ("otel.cluster.name", "blue", "cluster_name", "blue"),
        ("otel.cluster.name", 12, "cluster_name", "12"),
        ("otel.cluster.name", " ", "cluster_name", None),
        ("otel.cluster", None, "cluster_name", None),
        ("otel.metrics.enabled", False, "metrics", Metrics(enabled=False)),
        ("otel.metrics.enabled", " FALSE", "metrics", Metrics(enabled=False)),
        ("otel.metrics.enabled", None, "metrics", Metrics()),
        (
            "otel.metrics.span-names",
            ["load", "train", "load"],
            "metrics",
            Metrics(span_names=("load", "train")),
        ),
        ("otel.metrics.span_names", (" load ", 2024, ""), "metrics", Metrics(span_names=("load", "2024"))),
        ("otel.metrics.span-names", "load, train", "metrics", Metrics(span_names=("load", "train"))),
        ("otel.metrics.span-names", [], "metrics", Metrics()),
        (
            "otel.metrics.exclude",
            ["dask.worker.spill.*", " DASK.GC.PAUSE", "dask.worker.spill.activity.time"],
            "metrics",
            Metrics(
                exclude=(
                    "dask.worker.spill.activity.time",
                    "dask.worker.spill.size",
                    "dask.worker.spill.operations",
                    "dask.gc.pause",
                )
            ),
        ),
        (
            "otel.metrics.exclude",
            "dask.gc.pause,dask.event_loop.lag",
            "metrics",
            Metrics(exclude=("dask.gc.pause", "dask.event_loop.lag")),
        ),
        (
            "otel.metrics.exclude",
            "*",
            "metrics",
            Metrics(exclude=tuple(instrument.name for instrument in INSTRUMENTS)),
        ),
        ("otel.metrics.exclude", [], "metrics", Metrics()),
        ("otel.metrics", None, "metrics", Metrics()),
    ],
)
def test_a_key_of_dasks_configuration_is_used(key, value, field, expected):
    with dask.config.set({key: value}):
        assert load({}) == replace(Settings(), **{field: expected})


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        (
            "otel.traces.detail",
            "tasks",
            "otel.traces.detail is 'tasks', which is not auto, activity, task or group; auto is used instead.",
        ),
        (
            "otel.traces.detail",
            1,
            "otel.traces.detail is '1', which is not auto, activity, task or group; auto is used instead.",
        ),
        (
            "otel.traces.budget.spans",
            0,
            "otel.traces.budget.spans is '0', which is not a number of spans above 0; 10000 is used instead.",
        ),
        (
            "otel.traces.budget.spans",
            True,
            "otel.traces.budget.spans is 'True', which is not a number of spans above 0; 10000 is used instead.",
        ),
        (
            "otel.traces.budget.size",
            "much",
            "otel.traces.budget.size is 'much', which is not a number of bytes above 0, like 4 MB; 4000000 is used instead.",
        ),
        (
            "otel.traces.user-spans",
            "yes",
            "otel.traces.user-spans is 'yes', which is not true or false; true is used instead.",
        ),
        (
            "otel.traces.url",
            "http://me:secret@jaeger",
            "otel.traces.url is 'http://***@jaeger', which is not a URL with {trace_id} in it; none is used instead.",
        ),
        *(
            (
                "otel.traces.computation.max-age",
                value,
                (
                    f"otel.traces.computation.max-age is {str(value)!r}, which is not a time above 0, like 10 min; "
                    "600 s is used instead."
                ),
            )
            for value in ("soon", "0s", -1, float("inf"), float("nan"), True, [1], "1e999 s")
        ),
        (
            "otel.cluster.name",
            ["a"],
            "otel.cluster.name is \"['a']\", which is not a name; none is used instead.",
        ),
        (
            "otel.metrics.enabled",
            "off",
            "otel.metrics.enabled is 'off', which is not true or false; true is used instead.",
        ),
        *(
            (
                "otel.metrics.span-names",
                value,
                f"otel.metrics.span-names is {str(value)!r}, which is not a list of names; none is used instead.",
            )
            for value in (5, True, [1, [2]], [None], [False])
        ),
        (
            "otel.metric.enable",
            True,
            "otel.metric.enable is not a key of dask-otel; did you mean otel.metrics.enabled?",
        ),
        (
            "otel.trace.detial",
            "x",
            "otel.trace.detial is not a key of dask-otel; did you mean otel.traces.detail?",
        ),
        (
            "otel.exporter",
            "x",
            "otel.exporter is not a key of dask-otel; did you mean otel.cluster.name?",
        ),
        (
            "otel.exporter.otlp.endpoint.of.mine",
            "x",
            (
                "otel.exporter.otlp.endpoint.of.mine is not a key of dask-otel; it has otel.traces.detail, "
                "otel.traces.budget.spans, otel.traces.budget.size, "
                "otel.traces.user-spans, otel.traces.url, otel.traces.computation.max-age, otel.metrics.enabled, "
                "otel.metrics.span-names, otel.metrics.exclude, otel.cluster.name."
            ),
        ),
    ],
)
def test_a_wrong_key_or_value_gives_one_sentence_and_the_default(key, value, complaint):
    with dask.config.set({key: value}):
        assert load({}) == Settings(complaints=(complaint,))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("dask.worker.memory.used", "did you mean dask.worker.memory.usage"),
        ("dask.spill.size", "did you mean dask.worker.spill.size"),
        ("dask.works.*", "did you mean dask.worker.*"),
        ("dask.worker.spil.*", "did you mean dask.worker.spill.* or dask.worker.* or dask.worker.task.*?"),
        ("spill.*", None),
        ("x", None),
        ("", None),
    ],
)
def test_a_metric_that_is_excluded_and_unknown_gives_one_sentence_and_the_others_are_excluded(name, advice):
    with dask.config.set({"otel.metrics.exclude": ["dask.gc.pause", name]}):
        settings = load({})
    assert settings.metrics == Metrics(exclude=("dask.gc.pause",))
    if not name:
        assert settings.complaints == ()
        return
    (complaint,) = settings.complaints
    told = advice or "they look like dask.worker.activity.time, and patterns like dask.worker.*."
    assert complaint.startswith(
        f"otel.metrics.exclude names {name!r}, which is no metric of dask-otel; {told}"
    )


def test_a_section_that_is_no_section_is_complained_about():
    with dask.config.set({"otel": 5}):
        assert load({}).complaints[0].startswith("otel is not a key of dask-otel; ")


def test_both_sources_make_one_record():
    ours = {"otel.traces.detail": "group", "otel.cluster.nam": "x", "otel.metrics.span-names": ["load"]}
    with dask.config.set(ours):
        settings = load({"OTEL_TRACES_EXPORTER": "otlp,b", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"})
    assert settings == Settings(
        exporters=("otlp",),
        otlp=Otlp(endpoint="http://c/v1/traces"),
        metrics=Metrics(exporters=("otlp",), otlp=Otlp(endpoint="http://c/v1/metrics"), span_names=("load",)),
        detail="group",
        complaints=(
            (
                "OTEL_TRACES_EXPORTER names 'b', which is not one of otlp, console, none, otlp_proto_http, "
                "otlp_proto_grpc and not installed; it is left out."
            ),
            "otel.cluster.nam is not a key of dask-otel; did you mean otel.cluster.name?",
        ),
    )


def test_the_processs_own_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    assert load().service_name == "shop"


def test_an_exporter_that_is_installed_is_known(tmp_path, monkeypatch):
    info = tmp_path / "fake-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: fake\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[opentelemetry_traces_exporter]\nPigeon = fake:Pigeon\n[opentelemetry_metrics_exporter]\nRaven = fake:Raven\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load({"OTEL_TRACES_EXPORTER": "pigeon", "OTEL_METRICS_EXPORTER": "raven"}) == Settings(
        exporters=("Pigeon",), metrics=Metrics(exporters=("Raven",))
    )


def test_dasks_environment_variables_work_in_a_new_process():
    code = "from dask_otel.config import load; s = load(); print(s.detail, s.user_spans, s.max_age, s.metrics.span_names, s.metrics.exclude, s.complaints)"
    environ = {
        "DASK_OTEL__TRACES__DETAIL": "task",
        "DASK_OTEL__TRACES__USER_SPANS": "false",
        "DASK_OTEL__TRACES__COMPUTATION__MAX_AGE": "1 min",
        "DASK_OTEL__METRICS__SPAN_NAMES": "['load', 'train']",
        "DASK_OTEL__METRICS__EXCLUDE": "dask.gc.*",
        "PYTHONPATH": ":".join(sys.path),
    }
    out = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert out.stdout == "task False 60.0 ('load', 'train') ('dask.gc.pause',) ()\n"


def test_reading_it_imports_no_sdk():
    code = f"{ALONE}import dask_otel.config; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    environ = {"PYTHONPATH": ":".join(sys.path)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert out.stdout == "[]\n"


def test_an_environment_that_cannot_be_read_turns_everything_off():
    class Broken(dict):
        def get(self, key, default=None):
            raise RuntimeError("secret")

    assert load(Broken()) == Settings(
        complaints=("The configuration cannot be read (RuntimeError); dask-otel exports nothing.",)
    )


def test_explain_is_one_line_and_says_what_to_type():
    assert "\n" not in explain()
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in explain()
    assert "OTEL_TRACES_EXPORTER=console" in explain()


# -- whatever it is given ----------------------------------------------------------------------------------------

VARIABLES = [
    "OTEL_SDK_DISABLED",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_METRIC_EXPORT_TIMEOUT",
    "OTEL_METRICS_EXEMPLAR_FILTER",
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_PROPAGATORS",
    *(
        f"OTEL_EXPORTER_OTLP_{signal}{option}"
        for signal in ("", "TRACES_", "METRICS_")
        for option in ("ENDPOINT", "PROTOCOL", "HEADERS", "TIMEOUT", "COMPRESSION", "INSECURE", "CLIENT_KEY")
    ),
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS",
]
WORDS = st.sampled_from(
    [
        "otlp",
        "grpc",
        "http://",
        "https://c:4317",
        "true",
        "1",
        "-1",
        "a=b",
        ",",
        "%",
        "%0a",
        "@",
        "=",
        " ",
        "none",
    ]
)
TEXT = st.lists(WORDS | st.text(max_size=8), max_size=6).map("".join)
SECRET = "hunter2-hunter2"


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(VARIABLES), TEXT),
    st.recursive(
        TEXT | st.integers() | st.floats() | st.none(),
        lambda inner: st.dictionaries(
            st.sampled_from(
                [
                    "traces",
                    "detail",
                    "url",
                    "computation",
                    "max_age",
                    "metrics",
                    "span_names",
                    "exclude",
                    "cluster",
                    "name",
                    "x",
                ]
            ),
            inner,
        ),
        max_leaves=6,
    ),
)
def test_load_never_raises_nor_gives_up(environ, ours):
    with dask.config.set({"otel": ours}):
        loaded = load(environ)
    assert not any("cannot be read" in complaint for complaint in loaded.complaints)
    assert all(complaint.endswith((".", "?")) and "\n" not in complaint for complaint in loaded.complaints)


@settings(max_examples=300, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            **{
                f"OTEL_EXPORTER_OTLP_{signal}HEADERS": st.tuples(TEXT, TEXT).map(SECRET.join)
                for signal in ("", "TRACES_", "METRICS_")
            },
            **{
                f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT": st.tuples(
                    st.sampled_from(["http://", "https://", "", "HTTP://", "dns:///"]), TEXT, TEXT, TEXT
                ).map(lambda parts: f"{parts[0]}{parts[1]}{SECRET}{parts[2]}@{parts[3]}")
                for signal in ("", "TRACES_", "METRICS_")
            },
            "OTEL_EXPORTER_OTLP_PROTOCOL": st.sampled_from(["grpc", "http/protobuf", "x"]),
            "OTEL_EXPORTER_OTLP_TIMEOUT": TEXT,
        },
    )
)
def test_no_secret_shows_in_a_complaint_or_a_repr(environ):
    assert SECRET not in repr(load(environ))


def test_the_documentation_has_every_key():
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert [line.split("`")[1] for line in text.splitlines() if line.startswith("| `otel.")] == list(
        config._KEYS
    )
