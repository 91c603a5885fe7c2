"""Resolved experiments: pure, seeded, and within the blast radius."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.faults.crash import CrashFault
from chaos.faults.hang import HangFault
from chaos.faults.target_kind import TargetKind
from chaos.scenario.experiment_plan import CONTROL_PLANE, Experiment
from chaos.scenario.fault_timeline import fault_timeline
from chaos.scenario.resolve_experiment import resolve_experiment
from chaos.scenario.scenario_model import (
    BlastRadius,
    EngineGroupSpec,
    FaultSpec,
    FaultTarget,
    Scenario,
    ScenarioSpec,
    Topology,
)
from chaos.scenario.scenario_rules import scenario_problems
from chaos.scenario.scenario_schema import fault_kinds
from policies.document import Metadata
from policies.findings import PolicyErrors
from tests.chaos.scenario.conftest import Make, problems_of, written


def spec_of(*, count: int, strikes: Sequence[FaultSpec], seed: int = 1, radius: float = 100.0) -> ScenarioSpec:
    return ScenarioSpec(
        title="t",
        incident="i",
        topology=Topology(zones=["a", "b", "c"], engines=[EngineGroupSpec(count=count)]),
        faults=list(strikes),
        blast_radius=BlastRadius(engines_percent=radius),
        seed=seed,
    )


def experiment(*, count: int, strikes: Sequence[FaultSpec], seed: int = 1) -> Experiment:
    spec = spec_of(count=count, strikes=strikes, seed=seed)
    return resolve_experiment(Scenario(metadata=Metadata(name="drawn"), spec=spec))


def hang(at: float = 8.0, lasts: float = 10.0, *, in_turn: bool = False, **target: object) -> FaultSpec:
    # Authors write durations as text; `model_construct` takes validated seconds.
    return FaultSpec.model_construct(
        name="",
        fault=HangFault(),
        target=FaultTarget.model_validate(target),
        at=at,
        lasts=lasts,
        in_turn=in_turn,
        pause_percent=0.0,
    )


counts = st.integers(1, 60)
seeds = st.integers(0, 10_000)
fractions = st.floats(0.01, 1.0)


@given(count=counts, seed=seeds, fraction=fractions)
def test_fraction_selection_is_deterministic_per_seed(count: int, seed: int, fraction: float) -> None:
    strikes = [hang(fraction=fraction)]
    first = experiment(count=count, strikes=strikes, seed=seed)
    (outage,) = first.outages
    assert len(outage.targets) == max(1, int(fraction * count + 0.5))
    assert len(set(outage.targets)) == len(outage.targets)
    assert {*outage.targets} <= {one.name for one in first.engines}
    assert experiment(count=count, strikes=strikes, seed=seed) == first


def test_another_seed_selects_other_targets() -> None:
    picked = {experiment(count=20, strikes=[hang(count=5)], seed=seed).outages[0].targets for seed in range(20)}
    assert len(picked) > 15


@given(count=counts, seed=seeds, taken=st.integers(1, 30))
def test_skip_avoids_targets_of_another_fault(count: int, seed: int, taken: int) -> None:
    taken = min(taken, count)
    strikes = [hang(count=taken)]
    if taken < count:
        strikes.append(hang(skip=taken))
    hit = [one.targets for one in experiment(count=count, strikes=strikes, seed=seed).outages]
    assert sorted(name for names in hit for name in names) == sorted(f"e{n}" for n in range(count)) or (
        taken == count and len(hit[0]) == count
    )


@given(count=counts, seed=seeds, fraction=st.none() | fractions)
def test_in_turn_hits_all_targets_one_at_a_time(count: int, seed: int, fraction: float | None) -> None:
    together = experiment(count=count, strikes=[hang(fraction=fraction)], seed=seed).outages
    turns = experiment(count=count, strikes=[hang(fraction=fraction, in_turn=True)], seed=seed).outages
    assert sorted(name for one in turns for name in one.targets) == sorted(together[0].targets)
    assert turns[0].start_s == 8.0
    assert turns[-1].end_s == pytest.approx(18.0)
    for before, after in pairwise(turns):
        assert before.end_s == pytest.approx(after.start_s)
    assert len({one.id for one in turns}) == len(turns)


@given(
    count=counts,
    seed=seeds,
    radius=st.floats(0, 100),
    times=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 18), fractions, st.booleans()), max_size=4),
)
def test_experiments_stay_within_the_blast_radius(
    count: int, seed: int, radius: float, times: list[tuple[int, int, float, bool]]
) -> None:
    strikes = [hang(at, lasts, fraction=fraction, in_turn=turn) for at, lasts, fraction, turn in times]
    spec = spec_of(count=count, strikes=strikes, seed=seed, radius=radius)
    found = fault_timeline(spec)
    most, twice = 0, False
    for moment in (one.start_s + 1e-6 for one in found):  # turns end as the next begin, within rounding
        bad = [name for one in found if one.start_s <= moment < one.end_s for name in one.targets]
        most, twice = max(most, len(set(bad))), twice or len(set(bad)) < len(bad)
    codes = {one.code for one in scenario_problems(spec)}
    assert ("SC007" in codes) == (100 * most / count > radius + 1e-6)
    # No target is hit twice at once: one fault would heal the other.
    assert ("SC006" in codes) == twice


def test_default_zones_of_engines_and_proxies(scenario: Make) -> None:
    found = resolve_experiment(
        scenario(
            "topology:\n  zones: [a, b]\n"
            "  engines: [{count: 3}, {count: 1, zone: b, slots: 4, slowness: 2}, {count: 1}]\n"
            "  proxies: [{count: 2}, {zone: b, demand: 3}]\n"
        )
    )
    assert [(one.name, one.zone) for one in found.engines] == [
        ("e0", "a"),
        ("e1", "b"),
        ("e2", "a"),
        ("e3", "b"),
        ("e4", "b"),
    ]
    assert [(one.name, one.zone, one.demand) for one in found.proxies] == [
        ("p0", "a", 1),
        ("p1", "a", 1),
        ("p2", "b", 3),
    ]
    assert found.capacity_per_s == pytest.approx(4 * 16 + 4)
    assert found.rate_per_s == pytest.approx(0.8 * found.capacity_per_s)


def test_targets_of_every_kind(scenario: Make) -> None:
    found = resolve_experiment(
        scenario(
            "topology: {zones: [a, b], proxies: [{count: 2}, {zone: b}]}\n"
            "faults:\n"
            "- {fault: {kind: hang}, target: {zone: b}, at: 1s, lasts: 1s}\n"
            "- {fault: {kind: crash}, target: {engine: 3}, at: 3s, lasts: 1s}\n"
            "- {fault: {kind: proxy_frozen}, target: {zone: a}, at: 5s, lasts: 1s}\n"
            "- {fault: {kind: control_plane_killed}, at: 7s, lasts: 1s}\n"
            "- {fault: {kind: retry_storm}, at: 9s, lasts: 1s}\n"
            "- {fault: {kind: partition}, target: {zone: b}, at: 11s, lasts: 1s}\n"
            "- {name: all, fault: {kind: crash}, at: 13s, lasts: 1s}\n"
        )
    )
    assert [one.targets for one in found.outages] == [
        ("e1", "e3", "e5", "e7"),
        ("e3",),
        ("p0", "p1"),
        (CONTROL_PLANE,),
        ("clients",),
        ("e1", "e3", "e5", "e7", "p2"),
        tuple(f"e{number}" for number in range(8)),
    ]
    assert found.fault_s == 1.0
    assert found.healed_s == 14.0


def test_in_turn_with_a_pause(scenario: Make) -> None:
    found = resolve_experiment(
        scenario(
            "faults:\n"
            "- {name: restart, fault: {kind: crash}, at: 4s, lasts: 16s, inTurn: true, pausePercent: 25}\n"
        )
    )
    assert [(one.id, one.start_s, one.end_s) for one in found.outages[:2]] == [
        ("restart/e0", 4.0, 5.5),
        ("restart/e1", 6.0, 7.5),
    ]


def test_per_second_and_trace(scenario: Make) -> None:
    assert resolve_experiment(scenario("load: {perSecond: 12}")).rate_per_s == 12


def test_contradictions_are_refused_without_a_file(scenario: Make) -> None:
    sound = scenario("faults:\n- {fault: {kind: crash}, target: {engine: 7}, at: 4s, lasts: 6s}\n")
    fewer = sound.spec.topology.model_copy(update={"engines": [EngineGroupSpec(count=2)]})
    wrong = sound.model_copy(update={"spec": sound.spec.model_copy(update={"topology": fewer})})
    with pytest.raises(PolicyErrors) as caught:
        resolve_experiment(wrong)
    assert "scenario rehearsal: SC002: spec.faults[0].target.engine: unknown engine 7" in str(
        caught.value.exceptions[0]
    )


def test_resolved_fault_keeps_its_settings(scenario: Make) -> None:
    found = resolve_experiment(
        scenario("faults:\n- {fault: {kind: crash}, target: {engine: 0}, at: 4s, lasts: 6s}\n")
    )
    assert found.outages[0].fault == CrashFault()


@pytest.mark.parametrize("kind", fault_kinds())
def test_overlapping_faults_on_one_target_are_refused(kind: str) -> None:
    target = "target: {zone: b}, " if kind in {"partition", "zone_loss"} else ""
    strike = f"- {{fault: {{kind: {kind}}}, {target}at: AT, lasts: 6s}}\n"
    zones = "load: {adapter: sql}\ntopology: {zones: [a, b], proxies: [{count: 1}, {zone: b}]}\nfaults:\n"
    apart, meeting = (zones + strike.replace("AT", "2s") + strike.replace("AT", at) for at in ("8s", "7s"))
    assert not problems_of(written(apart))
    # Load changes may overlap; everything else holds one state at a time.
    expected = set() if fault_kinds()[kind].aim is TargetKind.CLIENTS else {"SC006"}
    assert {one.code for one in problems_of(written(meeting))} == expected
