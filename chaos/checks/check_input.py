"""Input of all checks: a history, its hypothesis, and values derived once from both."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from pydantic import ValidationError

from chaos.history.history_events import RequestRecord
from chaos.history.recorded_history import History
from chaos.measures.impairments import Impairment, fault_of_event, impairments
from chaos.measures.request_periods import ExperimentPhases, experiment_phases, questions
from chaos.scenario.scenario_model import Hypothesis, Scenario, ScenarioSpec


@dataclass(frozen=True, kw_only=True)
class CheckInput:
    """A history with its scenario.

    ``spec`` is None if this version cannot read the scenario; then no limits apply. A truncated history ends at
    its last event; ``flaws`` are the reasons why it is incomplete.
    """

    history: History
    spec: ScenarioSpec | None
    flaws: tuple[str, ...]
    breaks_off: bool = False

    @property
    def hypothesis(self) -> Hypothesis:
        """Limits that must hold."""
        return Hypothesis() if self.spec is None else self.spec.hypothesis

    @cached_property
    def impairments(self) -> tuple[Impairment, ...]:
        """Faults per engine under test, with times."""
        return impairments(self.history)

    @cached_property
    def impairments_of_all_pools(self) -> tuple[Impairment, ...]:
        """The same of all engines, such as those of a fallback pool."""
        return impairments(self.history, of_all_pools=True)

    @cached_property
    def phases(self) -> ExperimentPhases:
        """Phases of the experiment."""
        return experiment_phases(self.history)

    @property
    def from_s(self) -> float:
        """Start of the judged period: the first fault, or the experiment's start without one."""
        return self.phases.fault_s if self.history.outages else 0.0

    @property
    def end_s(self) -> float:
        """End of the judged period: the last arrival."""
        return self.phases.end_s

    @cached_property
    def questions(self) -> tuple[RequestRecord, ...]:
        """All caller requests of the experiment, each merged with its client retries."""
        return tuple(questions(self.history.requests))

    @cached_property
    def judged_requests(self) -> tuple[RequestRecord, ...]:
        """Requests of the judged period."""
        from_s, end_s = self.from_s, self.end_s
        return tuple(one for one in self.history.requests if from_s <= one.at_s < end_s)

    @cached_property
    def missing_requests(self) -> float:
        """Requests unfinished or not yet sent when the history was truncated; 0 for a complete one."""
        began = self.history.began
        if not self.breaks_off:
            return 0.0
        told = sum(one.at_s >= self.from_s for one in self.history.requests)
        return max(0.0, began.rate_per_s * (began.seconds - self.from_s) - told)

    @property
    def has_engine_logs(self) -> bool:
        """Whether engine logs are present, or no request could be in them."""
        return bool(self.history.attempts) or not any(one.ok for one in self.history.requests)

    @property
    def has_control_plane(self) -> bool:
        """Whether the experiment had a control plane."""
        return bool(self.history.began.policies)


def check_input(history: History) -> CheckInput:
    """Prepare a history for the checks."""
    spec = _spec(history.began.scenario)
    flaws = tuple(_flaws(history, spec))
    breaks_off = history.ended_s is None
    if breaks_off:
        history = replace(history, ended_s=last_event_s(history))
    return CheckInput(history=history, spec=spec, flaws=flaws, breaks_off=breaks_off)


def last_event_s(history: History) -> float:
    """Time of the last event."""
    requests_s = (one.at_s + one.latency_s for one in history.requests)
    others_s = chain(
        (one.at_s for one in history.samples),
        (one.at_s for one in history.detected),
        (one.at_s for one in history.decided),
        (one.at_s for one in history.pushed),
        (one.at_s for one in history.answered),
        (one.at_s for one in history.gone),
    )
    outages_s = (at_s for one in history.outages for at_s in (one.start_s, one.end_s) if at_s is not None)
    return max(chain(requests_s, others_s, outages_s), default=0.0)


def _spec(scenario: Mapping[str, object]) -> ScenarioSpec | None:
    try:
        return Scenario.model_validate(dict(scenario)).spec
    except ValidationError:
        return None


def _flaws(history: History, spec: ScenarioSpec | None) -> Iterable[str]:
    if spec is None:
        yield "this version cannot read its scenario"
    if history.ended_s is None:
        yield f"truncated at {last_event_s(history):.1f} s of {history.began.seconds:.1f} s"
    if history.unread:
        yield f"unreadable lines ({history.unread[0]})"
    if history.aborted is not None:
        yield f"stopped at {history.aborted.at_s:.1f} s of {history.began.seconds:.1f} s"
    for one in history.outages:
        if fault_of_event(one.fault) is None:
            yield f"unknown fault kind {one.kind!r}"
        elif one.end_s is None and history.ended_s is not None:
            yield f"{one.kind} ({one.id}) was never healed"
    if history.aborted is None and history.ended_s is not None and spec is not None:
        missing = len(spec.faults) - len({one.id for one in history.outages})
        if missing > 0:
            yield f"planned faults that never started: {missing}"
    for gone in history.gone:
        yield f"{gone.process} exited unexpectedly at {gone.at_s:.1f} s"
