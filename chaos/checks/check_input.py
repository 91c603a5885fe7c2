"""What every check looks at: a history, what its scenario promised, and what both were worked out to once."""

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
    """``spec`` is None where this version does not understand the scenario; then nothing is promised.

    The history ends where its last event is when it breaks off, and ``flaws`` say why it does not tell everything.
    """

    history: History
    spec: ScenarioSpec | None
    flaws: tuple[str, ...]
    breaks_off: bool = False

    @property
    def hypothesis(self) -> Hypothesis:
        """What must hold."""
        return Hypothesis() if self.spec is None else self.spec.hypothesis

    @cached_property
    def impairments(self) -> tuple[Impairment, ...]:
        """What was wrong with which engine, when."""
        return impairments(self.history)

    @cached_property
    def phases(self) -> ExperimentPhases:
        """Its times."""
        return experiment_phases(self.history)

    @property
    def from_s(self) -> float:
        """When what is judged begins: with the first fault, or with the experiment where it has none."""
        return self.phases.fault_s if self.history.outages else 0.0

    @property
    def end_s(self) -> float:
        """When it ends: with the last arrival."""
        return self.phases.end_s

    @cached_property
    def questions(self) -> tuple[RequestRecord, ...]:
        """The questions of the whole experiment, each as one request."""
        return tuple(questions(self.history.requests))

    @cached_property
    def judged_requests(self) -> tuple[RequestRecord, ...]:
        """The requests of the time that is judged."""
        from_s, end_s = self.from_s, self.end_s
        return tuple(one for one in self.history.requests if from_s <= one.at_s < end_s)

    @cached_property
    def missing_requests(self) -> float:
        """Requests that were still to end, or to come, when the history broke off; 0 for a whole one."""
        began = self.history.began
        if not self.breaks_off:
            return 0.0
        told = sum(one.at_s >= self.from_s for one in self.history.requests)
        return max(0.0, began.rate_per_s * (began.seconds - self.from_s) - told)

    @property
    def has_engine_logs(self) -> bool:
        """Whether engines' books are there, or nothing that could stand in them."""
        return bool(self.history.attempts) or not any(one.ok for one in self.history.requests)

    @property
    def has_control_plane(self) -> bool:
        """Whether there was a control plane."""
        return bool(self.history.began.policies)


def check_input(history: History) -> CheckInput:
    """The history as checks look at it."""
    spec = _spec(history.began.scenario)
    flaws = tuple(_flaws(history, spec))
    breaks_off = history.ended_s is None
    if breaks_off:
        history = replace(history, ended_s=last_event_s(history))
    return CheckInput(history=history, spec=spec, flaws=flaws, breaks_off=breaks_off)


def last_event_s(history: History) -> float:
    """When the last event of it was seen."""
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
        yield "its scenario is not one that this version understands"
    if history.ended_s is None:
        yield f"it breaks off at {last_event_s(history):.1f} s of {history.began.seconds:.1f} s"
    if history.unread:
        yield f"not all of its lines were understood ({history.unread[0]})"
    if history.aborted is not None:
        yield f"it was stopped at {history.aborted.at_s:.1f} s of {history.began.seconds:.1f} s"
    for one in history.outages:
        if fault_of_event(one.fault) is None:
            yield f"this version does not know the fault {one.kind!r}"
        elif one.end_s is None and history.ended_s is not None:
            yield f"{one.kind} ({one.id}) was never healed"
    if history.aborted is None and history.ended_s is not None and spec is not None:
        missing = len(spec.faults) - len({one.id for one in history.outages})
        if missing > 0:
            yield f"{missing} of its faults never began"
    for gone in history.gone:
        yield f"{gone.process} ended by itself at {gone.at_s:.1f} s"
