"""Whether a trace is recorded: asked once, where the trace starts.

Rules
-----
1. The samplers are those of the entry points ``opentelemetry_traces_sampler``, the SDK's own among them.
2. Below the root nobody is asked: the flag is followed, also where the sampler that was named would not. What an
   application's own provider does is its own.
3. A sampler that cannot be made or raises counts as ``parentbased_always_on``, and one line of the log says so.
"""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, set_span_in_context

from dask_otel import settings
from dask_otel.carried import Decision
from dask_otel.environment import SAMPLER_GROUP
from dask_otel.records import Value

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

logger = logging.getLogger(__name__)


class RootSampler:
    """Asks the configured sampler.

    Examples
    --------
    >>> sampler = RootSampler(settings.Sampler("traceidratio", "0.5"))
    >>> sampler.decide(2**64 - 1, "dask.computation", 1, {}, None)
    Decision(sampled=False, attributes=(), trace_state='')
    >>> sampler.decide(1, "dask.computation", 1, {}, None).sampled
    True
    """

    def __init__(self, sampler: settings.Sampler) -> None:
        self._name = sampler.name
        self._complained = False
        self._sampler: Sampler | None = None
        try:
            self._sampler = _load(sampler)
        except Exception as error:  # An entry point is anybody's code
            self._complain(error)

    @classmethod
    def of(cls, sampler: Sampler) -> RootSampler:
        """One that asks the sampler of an application's provider.

        Examples
        --------
        >>> from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
        >>> RootSampler.of(ALWAYS_OFF).always_off
        True
        """
        made = cls(settings.Sampler())
        made._sampler = sampler
        made._name = "always_off" if sampler is _always_off() else type(sampler).__name__
        return made

    @property
    def always_off(self) -> bool:
        """Whether this process sends no spans of ours at all, whatever a trace's flag says."""
        return self._name == "always_off"

    def decide(
        self, trace_id: int, name: str, kind: int, attributes: dict[str, Value], parent: SpanContext | None
    ) -> Decision:
        """Decide about the trace that starts here, or is joined here below `parent`; `kind` is OTLP's number."""
        if self._sampler is None:
            return _default(parent)
        try:
            return _ask(self._sampler, trace_id, name, kind, attributes, parent)
        except Exception as error:  # As above
            self._complain(error)
            return _default(parent)

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            _complain(self._name, error)


def make(sampler: settings.Sampler) -> Sampler:
    """The SDK's object, for a provider of ours; ``parentbased_always_on`` where it cannot be made.

    Examples
    --------
    >>> sampler = make(settings.Sampler("traceidratio", "0.5"))
    >>> sampler.get_description().partition(",")[0]
    'ParentBased{root:TraceIdRatioBased{0.5}'
    """
    from opentelemetry.sdk.trace.sampling import DEFAULT_ON, ParentBased

    try:
        made = _load(sampler)
    except Exception as error:  # As above
        _complain(sampler.name, error)
        return DEFAULT_ON
    if sampler.name == "always_off" or isinstance(made, ParentBased):
        return made
    return ParentBased(made)


def _complain(name: str, error: Exception) -> None:
    logger.warning(
        "The sampler %s failed with %s; parentbased_always_on is used wherever it fails.",
        name,
        type(error).__name__,
    )


def _always_off() -> Sampler:
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    return ALWAYS_OFF


def _load(sampler: settings.Sampler) -> Sampler:
    # Not at the top: importing the SDK raises where an `OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT` is no number (1.45.2).
    from opentelemetry.sdk.trace.sampling import Sampler

    entry = next(iter(entry_points(group=SAMPLER_GROUP, name=sampler.name)))
    # The SDK's convention: its ratios take a number, others' factories the text, "" for none.
    ratio = sampler.name in ("traceidratio", "parentbased_traceidratio")
    made = entry.load()(float(sampler.argument or 1) if ratio else sampler.argument or "")
    if not isinstance(made, Sampler):
        raise TypeError(sampler.name)
    return made


def _default(parent: SpanContext | None) -> Decision:
    """``parentbased_always_on``, which needs no SDK."""
    if parent is None or not parent.is_valid:
        return Decision(sampled=True)
    return Decision(parent.trace_flags.sampled, trace_state=parent.trace_state.to_header())


def _ask(
    sampler: Sampler,
    trace_id: int,
    name: str,
    kind: int,
    attributes: dict[str, Value],
    parent: SpanContext | None,
) -> Decision:
    # Never None for the context: the SDK would take the one that happens to be current.
    context = set_span_in_context(NonRecordingSpan(parent), Context()) if parent else Context()
    # OTLP counts kinds from 1, the API from 0.
    result = sampler.should_sample(context, trace_id, name, SpanKind(kind - 1), attributes=dict(attributes))
    sampled = result.decision.name == "RECORD_AND_SAMPLE"
    changed = tuple(
        (key, value) for key, value in result.attributes.items() if _differs(attributes, key, value)
    )
    trace_state = result.trace_state.to_header() if result.trace_state else ""
    return Decision(sampled, changed if sampled else (), trace_state)


def _differs(attributes: dict[str, Value], key: str, value: object) -> bool:
    return key not in attributes or attributes[key] is not value
