"""One experiment in simulated time, with the lab's scenario, subject and history format."""

from dataclasses import replace
from importlib.metadata import version
from typing import Final

from chaos.history.history_events import (
    SAMPLE_S,
    ExperimentAborted,
    ExperimentEnded,
    FaultBegan,
    FaultHealed,
    HistoryEvent,
    RequestRecord,
)
from chaos.history.history_reader import history_of
from chaos.history.recorded_history import History
from chaos.scenario.abort_condition import abort_reason
from chaos.scenario.experiment_plan import Experiment, PlannedOutage
from chaos.simulator.simulated_injector import NotSimulatedError, SimulatedInjector, refuse_unsupported
from chaos.simulator.simulated_lab import SimulatedLab, simulated_lab
from chaos.testbed.blueprint import experiment_began as first
from chaos.testbed.blueprint import lab_blueprint
from chaos.testbed.subjects import Subject

_GUARD_S: Final = 0.25
_STEP_S: Final = 1.0


def simulate(experiment: Experiment, subject: Subject, seed: int | None = None) -> History:
    """Simulate the experiment; deterministic. ``seed`` overrides the experiment's.

    Raises what ``Simulation`` raises.
    """
    return Simulation(experiment if seed is None else replace(experiment, seed=seed), subject).history()


class Simulation:
    """One experiment with one subject. ``rounds`` counts the control plane's decision rounds.

    Raises NotSimulatedError for an unsupported fault, and PolicyFitError if the policies cannot be rehearsed.
    """

    def __init__(self, experiment: Experiment, subject: Subject) -> None:
        if experiment.spec.topology.engine != "simulated":
            raise NotSimulatedError("the simulator supports simulated engines only; use switchgear-chaos run")
        refuse_unsupported(experiment.outages, agents=experiment.spec.topology.agents)
        self._plan = lab_blueprint(experiment, subject)
        self._events: list[HistoryEvent] = []
        self._site: SimulatedLab = simulated_lab(self._plan, self._events.append)
        self._timeline = self._site.timeline
        self._pulling = SimulatedInjector(self._site)
        self._stopped = False
        self._done = False

    @property
    def rounds(self) -> int:
        """Number of decision rounds."""
        return 0 if self._site.control_plane is None else self._site.control_plane.rounds

    def history(self) -> History:
        """History of the experiment."""
        return history_of(self.events())

    def events(self) -> tuple[HistoryEvent, ...]:
        """Events of the history; simulated on first use."""
        if not self._done:
            self._done = True
            self._play()
        began = first(
            self._plan,
            policies=self._site.policies_text,
            at_unix_s=0.0,
            versions={"switchgear": version("switchgear"), "simulated": "yes"},
        )
        return (began, *sorted(self._events, key=lambda one: one.at_s), ExperimentEnded(at_s=self._now_s()))

    def _play(self) -> None:
        timeline, experiment = self._timeline, self._plan.experiment
        timeline.run(timeline.began_s)
        for outage in experiment.outages:
            self._at(outage)
        self._site.callers.begin()
        self._sample()
        if experiment.spec.abort.goodput_below_percent:
            timeline.after(_GUARD_S, self._guard)
        until_s = timeline.began_s + experiment.seconds
        last_s = max([until_s, *(timeline.began_s + one.end_s for one in experiment.outages)])
        timeline.run(until_s)
        # Until the last request ends: each has a deadline.
        while self._site.callers.waiting or timeline.now_s < last_s:
            timeline.run(timeline.now_s + _STEP_S)

    def _now_s(self) -> float:
        return self._timeline.now_s - self._timeline.began_s

    def _at(self, outage: PlannedOutage) -> None:
        self._timeline.at(self._timeline.began_s + outage.start_s, lambda: self._begin(outage))

    def _begin(self, outage: PlannedOutage) -> None:
        if self._stopped:
            return
        fault = outage.fault.model_dump(mode="json", by_alias=True)
        self._events.append(FaultBegan(at_s=self._now_s(), id=outage.id, fault=fault, targets=outage.targets))
        pulls = [pull for target in outage.targets for pull in outage.fault.actions(target)]
        for pull in pulls:
            self._pulling.inject(pull)

        def heal() -> None:
            for pull in reversed(pulls):
                self._pulling.revert(pull)
            self._events.append(FaultHealed(at_s=self._now_s(), id=outage.id))

        self._timeline.at(self._timeline.began_s + outage.end_s, heal)

    def _sample(self) -> None:
        for proxy in self._site.proxies.values():
            self._events.append(proxy.sample(self._plan.pool))
        if self._now_s() < self._plan.experiment.seconds:
            self._timeline.after(SAMPLE_S, self._sample)

    def _guard(self) -> None:
        """Stop early if the abort condition is met."""
        experiment = self._plan.experiment
        ended = ((one.ended_at_s, one.ok) for one in self._events if isinstance(one, RequestRecord))
        why = abort_reason(experiment.spec.abort, ended, self._now_s(), experiment.rate_per_s)
        if why:
            self._stopped = True
            self._events.append(ExperimentAborted(at_s=self._now_s(), why=why))
            self._site.callers.stop()
        elif self._now_s() < experiment.seconds:
            self._timeline.after(_GUARD_S, self._guard)
