"""Resolve a scenario into an experiment: all names and random choices fixed."""

from pathlib import Path

from chaos.scenario.experiment_plan import Experiment
from chaos.scenario.fault_timeline import fault_timeline
from chaos.scenario.placement import engine_placements, fallback_placements, prefill_placements, proxy_placements
from chaos.scenario.scenario_model import Scenario, ScenarioSpec
from chaos.scenario.scenario_rules import scenario_problems
from policies.findings import PolicyError, PolicyErrors
from policies.origin import WHOLE_FILE, origin, path_text


def resolve_experiment(scenario: Scenario, folder: Path = Path()) -> Experiment:
    """Resolve the experiment; deterministic for a scenario.

    Raises PolicyErrors with all contradictions; scenarios from ``chaos.scenario.scenario_reader`` have none.
    ``folder`` is the base of a relative trace path.
    """
    wrong = scenario_problems(scenario.spec)
    if wrong:
        where = origin(f"scenario {scenario.metadata.name}", WHOLE_FILE)
        raise PolicyErrors.of(
            (
                PolicyError(
                    code=one.code,
                    origin=where,
                    path=path_text(one.steps),
                    message=one.message,
                    found=one.found,
                    allowed=one.allowed,
                    hint=one.hint,
                )
                for one in wrong
            ),
            "scenario",
        )
    spec = _with_trace_in(scenario.spec, folder)
    everyone = engine_placements(spec)
    capacity_per_s = sum(one.slots / (spec.topology.service_time * one.slowness) for one in everyone)
    asked_per_s = spec.load.per_second
    return Experiment(
        name=scenario.metadata.name,
        spec=spec,
        engines=everyone,
        proxies=proxy_placements(spec),
        outages=fault_timeline(spec),
        service_s=spec.topology.service_time,
        rate_per_s=capacity_per_s * spec.load.percent / 100 if asked_per_s is None else asked_per_s,
        seconds=spec.lasts,
        seed=spec.seed,
        fallbacks=fallback_placements(spec),
        prefill=prefill_placements(spec),
    )


def _with_trace_in(spec: ScenarioSpec, folder: Path) -> ScenarioSpec:
    if spec.load.trace is None:
        return spec
    load = spec.load.model_copy(update={"trace": str(folder / spec.load.trace)})
    return spec.model_copy(update={"load": load})
