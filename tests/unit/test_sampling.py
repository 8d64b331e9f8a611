"""One decision at a trace's root, by the SDK's samplers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import sampling as sdk
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, TraceState

import dask_otel
from dask_otel.carried import Decision
from dask_otel.environment import SAMPLERS
from dask_otel.records import CLIENT, CONSUMER, INTERNAL, PRODUCER, SERVER
from dask_otel.sampling import RootSampler, make
from dask_otel.settings import Sampler

LOW, HIGH = 1, 2**64 - 1  # ids that a ratio of a half takes, and leaves

#: The package without what its ``__init__`` imports, for a new process.
ALONE = (
    "import sys, types; package = types.ModuleType('dask_otel'); "
    f"package.__path__ = {dask_otel.__path__!r}; sys.modules['dask_otel'] = package; "
)

FAKE = """
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import TraceState

class Fake(Sampler):
    calls = []

    def __init__(self, argument):
        self.argument = argument

    def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, links=None, trace_state=None):
        Fake.calls.append((trace_id, name, kind, dict(attributes)))
        if self.argument == "raise":
            raise RuntimeError("no")
        if self.argument == "record":
            return SamplingResult(Decision.RECORD_ONLY, {"a": 9})
        return SamplingResult(Decision.RECORD_AND_SAMPLE, {**attributes, "a": 2, "p": 0.5}, TraceState([("ot", "th:8")]))

    def get_description(self):
        return "Fake"

def broken(argument):
    raise OSError("no")

def thing(argument):
    return object()
"""
ENTRY_POINTS = """
[opentelemetry_traces_sampler]
fake = fake_sampler:Fake
broken = fake_sampler:broken
thing = fake_sampler:thing
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A distribution with samplers of its own."""
    info = tmp_path / "fake_sampler-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: fake-sampler\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "fake_sampler.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fake_sampler", raising=False)
    import fake_sampler

    return fake_sampler.Fake


def parent(*, sampled: bool, remote: bool = False) -> SpanContext:
    return SpanContext(7, 8, remote, TraceFlags(int(sampled)), TraceState([("vendor", "x")]))


def decide(sampler: RootSampler, trace_id: int = HIGH, parent: SpanContext | None = None) -> Decision:
    return sampler.decide(trace_id, "dask.computation", INTERNAL, {"a": 1}, parent)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("always_on", True, True),
        ("always_off", False, False),
        ("traceidratio", True, False),
        ("parentbased_always_on", True, True),
        ("parentbased_always_off", False, False),
        ("parentbased_traceidratio", True, False),
    ],
)
def test_a_root_is_sampled_as_the_samplers_name_says(name, low, high):
    sampler = RootSampler(Sampler(name, "0.5"))
    assert decide(sampler, LOW) == Decision(low)
    assert decide(sampler, HIGH) == Decision(high)


@pytest.mark.parametrize("remote", [True, False])
@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("name", [name for name in SAMPLERS if name.startswith("parentbased")])
def test_a_parents_flag_is_obeyed_and_its_trace_state_kept(name, flag, remote):
    sampler = RootSampler(Sampler(name, "0.5"))
    for trace_id in (LOW, HIGH):
        decision = decide(sampler, trace_id, parent(sampled=flag, remote=remote))
        assert decision == Decision(flag, (), "vendor=x")


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize(
    ("name", "expected"), [("always_on", True), ("always_off", False), ("traceidratio", False)]
)
def test_a_sampler_that_is_not_parent_based_disregards_the_flag(name, expected, flag):
    assert decide(RootSampler(Sampler(name, "0.5")), HIGH, parent(sampled=flag)) == Decision(
        expected, (), "vendor=x"
    )


def test_a_ratio_without_an_argument_is_one():
    assert decide(RootSampler(Sampler("traceidratio")), HIGH).sampled


def test_an_invalid_parent_is_no_parent():
    assert decide(RootSampler(Sampler()), parent=trace.INVALID_SPAN_CONTEXT) == Decision(True)


def test_the_context_that_happens_to_be_current_is_not_asked():
    token = attach(trace.set_span_in_context(NonRecordingSpan(parent(sampled=False))))
    try:
        assert decide(RootSampler(Sampler())) == Decision(True)
    finally:
        detach(token)


@pytest.mark.parametrize("name", SAMPLERS)
def test_only_always_off_silences_a_process(name):
    assert RootSampler(Sampler(name)).always_off == (name == "always_off")


def test_an_entry_points_sampler_decides_with_attributes_and_trace_state(fake):
    sampler = RootSampler(Sampler("fake", "x"))
    assert sampler.decide(LOW, "n", CLIENT, {"a": 1, "b": 3}, None) == Decision(
        True, (("a", 2), ("p", 0.5)), "ot=th:8"
    )
    assert sampler._sampler.argument == "x"
    assert fake.calls == [(LOW, "n", SpanKind.CLIENT, {"a": 1, "b": 3})]


def test_an_entry_points_sampler_gets_an_empty_argument_where_none_was_given(fake):
    assert RootSampler(Sampler("fake"))._sampler.argument == ""


def test_recorded_only_is_not_sampled(fake):
    assert decide(RootSampler(Sampler("fake", "record"))) == Decision(False)


def test_every_kind_reaches_the_sampler_as_the_apis(fake):
    sampler = RootSampler(Sampler("fake"))
    for kind in (INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER):
        sampler.decide(LOW, "n", kind, {}, None)
    assert [call[2] for call in fake.calls] == list(SpanKind)


def test_a_sampler_that_raises_counts_as_the_default_and_is_told_of_once(fake, caplog):
    sampler = RootSampler(Sampler("fake", "raise"))
    assert decide(sampler) == Decision(True)
    assert decide(sampler, parent=parent(sampled=False)) == Decision(False, (), "vendor=x")
    assert caplog.messages == [
        "The sampler fake failed with RuntimeError; parentbased_always_on is used wherever it fails."
    ]


@pytest.mark.parametrize(
    ("name", "error"), [("broken", "OSError"), ("thing", "TypeError"), ("missing", "StopIteration")]
)
def test_a_sampler_that_cannot_be_made_counts_as_the_default(fake, caplog, name, error):
    assert decide(RootSampler(Sampler(name))) == Decision(True)
    assert caplog.messages == [
        f"The sampler {name} failed with {error}; parentbased_always_on is used wherever it fails."
    ]


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("always_on", sdk.DEFAULT_ON.get_description()),
        ("always_off", sdk.ALWAYS_OFF.get_description()),
        ("traceidratio", sdk.ParentBasedTraceIdRatio(0.5).get_description()),
        ("parentbased_always_on", sdk.DEFAULT_ON.get_description()),
        ("parentbased_always_off", sdk.DEFAULT_OFF.get_description()),
        ("parentbased_traceidratio", sdk.ParentBasedTraceIdRatio(0.5).get_description()),
        ("missing", sdk.DEFAULT_ON.get_description()),
    ],
)
def test_a_provider_gets_the_same_sampler_which_follows_the_flag_below_a_root(name, description):
    assert make(Sampler(name, "0.5")).get_description() == description


def test_an_sdk_that_cannot_be_imported_counts_as_the_default():
    """The SDK raises when it is imported while this variable is wrong (1.45.2)."""
    code = (
        f"{ALONE}from dask_otel.sampling import RootSampler; from dask_otel.settings import Sampler;"
        "print(RootSampler(Sampler('always_off')).decide(1, 'n', 1, {}, None))"
    )
    environ = {"PYTHONPATH": ":".join(sys.path), "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert out.stdout == "Decision(sampled=True, attributes=(), trace_state='')\n"
    assert "The sampler always_off failed with ValueError" in out.stderr
