"""Large fleets: the same decisions, coarser calls, and agreement with the exact simulation."""

from pathlib import Path

import pytest

from chaos.measures.experiment_measures import measures_summary
from chaos.scenario.experiment_plan import Experiment
from chaos.simulator.large import simulate_large
from chaos.simulator.simulated_injector import NotSimulatedError
from chaos.simulator.simulation import simulate
from chaos.simulator.slices import Fleetwide, amplification, goodput_percent
from chaos.testbed.subjects import PolicySubject, subjects
from tests.chaos.lab.experiments import experiment

EXAMPLE = Path(__file__).parents[3] / "policies" / "examples" / "single-pool.yaml"


@pytest.fixture(scope="module")
def steered() -> PolicySubject:
    (subject,) = subjects([str(EXAMPLE)])
    assert isinstance(subject, PolicySubject)
    return subject


def site(kind: str, fraction: float, engines: int = 40) -> Experiment:
    fault = {"fault": {"kind": kind}, "target": {"fraction": fraction}, "at": "10s", "lasts": "20s"}
    return experiment(fault, engines=engines, slots=8, seconds=45.0, load={"percent": 80})


@pytest.fixture(scope="module")
def crashed(steered: PolicySubject) -> Fleetwide:
    return simulate_large(site("crash", 0.5), steered)


def test_the_same_seed_gives_the_same_run(crashed: Fleetwide, steered: PolicySubject) -> None:
    assert simulate_large(site("crash", 0.5), steered) == crashed


def test_engines_that_crash_leave_and_come_back(crashed: Fleetwide) -> None:
    assert {one.engines_in for one in crashed.between(2, 10)} == {40}
    assert {one.engines_in for one in crashed.between(12, 30)} == {20}
    assert crashed.slices[-1].engines_in == 40


def test_what_is_left_serves_as_much_as_it_can(crashed: Fleetwide) -> None:
    assert goodput_percent(crashed.between(12, 30)) == pytest.approx(100 * 0.5 / 0.8, abs=3)
    assert amplification(crashed.between(12, 30)) < 0.75, "what cannot be served reaches nobody"


@pytest.mark.parametrize("kind", ["hang", "engine_error"])
def test_trouble_is_found_and_left(kind: str, steered: PolicySubject) -> None:
    run = simulate_large(site(kind, 0.2), steered)
    assert min(one.engines_in for one in run.between(13, 30)) == 32
    assert run.slices[-1].engines_in == 40
    assert goodput_percent(run.slices) > 95


def test_it_agrees_with_the_exact_simulation(steered: PolicySubject) -> None:
    small = site("crash", 0.5, engines=8)
    exact, coarse = measures_summary(simulate(small, steered)).measures, simulate_large(small, steered)
    assert goodput_percent(coarse.between(10, 30)) == pytest.approx(exact.fault.goodput_percent, abs=5)
    assert amplification(coarse.between(10, 30)) == pytest.approx(exact.calls_per_request, abs=0.1)


def test_the_control_plane_looks_seldom_at_what_is_calm_and_at_once_at_what_is_not(steered: PolicySubject) -> None:
    fault = {"fault": {"kind": "crash"}, "target": {"fraction": 0.25}, "at": "70s", "lasts": "4s"}
    run = simulate_large(experiment(fault, engines=8, slots=8, seconds=78.0, load={"percent": 50}), steered)
    assert {one.engines_in for one in run.between(10, 70)} == {8}
    assert {one.engines_in for one in run.between(71, 74)} == {6}
    assert run.rounds < 45, "twice a second would be 156"


def test_other_faults_are_refused(steered: PolicySubject) -> None:
    with pytest.raises(NotSimulatedError, match="knows crashes, hangs and errors"):
        simulate_large(site("shed", 0.2), steered)
