"""A removed engine may finish its requests until the drain deadline."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from policies.load import load
from policies.model import PolicySet
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY, DecisionMemory, PoolMemory
from xds_server.decide.decisions import UNDECIDED, Decisions, EngineDecision, Health
from xds_server.decide.ejection.removed_engines import removed_engines
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import EngineId, declared

FINE = EngineDecision(health=Health.HEALTHY, reason="", since_s=0)
X, Y = EngineId("p", "x"), EngineId("p", "y")
DEADLINE_S = 900.0


def memory(leaving: Mapping[EngineId, float], decided: Mapping[EngineId, EngineDecision]) -> DecisionMemory:
    """The memory after a round in which these engines were leaving, and these had a decision."""
    pool = PoolMemory(decided=replace(UNDECIDED, engines=decided))
    return DecisionMemory(pools={"p": pool}, leaving=leaving)


@pytest.fixture
def policies(tmp_path: Path) -> Callable[..., PolicySet]:
    def made(*engines: str, pool: str = "p") -> PolicySet:
        listed = ", ".join(
            f"{{address: 10.0.0.1, port: {port}, name: {name}, zone: a}}" for port, name in enumerate(engines, 1)
        )
        path = tmp_path / "policy.yaml"
        path.write_text(
            "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\n"
            f"metadata: {{name: {pool}}}\nspec: {{model: m, endpoints: [{listed}]}}\n"
        )
        return load([path])

    return made


def test_removed_engine_lasts_for_the_drain_timeout(policies: Callable[..., PolicySet]) -> None:
    one = policies("y")
    fleet = declared(one)
    first = removed_engines(one, fleet, memory({}, {X: FINE, Y: FINE}), 10.0)
    assert first == {X: 10.0 + DEADLINE_S}
    later = removed_engines(one, fleet, memory(first, {Y: FINE}), 500.0)
    assert later == first
    assert removed_engines(one, fleet, memory(later, {Y: FINE}), 10.0 + DEADLINE_S) == {}


def test_cut_engine_stays_cut_after_removal(policies: Callable[..., PolicySet]) -> None:
    one = policies("y")
    assert removed_engines(one, declared(one), memory({}, {X: replace(FINE, cut=True)}), 10.0) == {}


def test_redeclared_engine_stops_draining(policies: Callable[..., PolicySet]) -> None:
    one = policies("x", "y")
    assert removed_engines(one, declared(one), memory({X: 99.0}, {Y: FINE}), 10.0) == {}


def test_removed_pool_keeps_no_engines(policies: Callable[..., PolicySet]) -> None:
    one = policies("x", pool="other")
    assert removed_engines(one, declared(one), memory({Y: 99.0}, {X: FINE}), 10.0) == {}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
@given(st.lists(st.tuples(st.sets(st.sampled_from("xy")), st.floats(0.1, 600)), min_size=1, max_size=8))
def test_only_undeclared_engines_drain_and_never_forever(
    policies: Callable[..., PolicySet], steps: list[tuple[set[str], float]]
) -> None:
    now_s = 0.0
    known: dict[EngineId, float] = {}
    decided: dict[EngineId, EngineDecision] = {}
    for engines, pause_s in steps:
        now_s += pause_s
        one = policies("always", *sorted(engines))
        fleet = declared(one)
        known = dict(removed_engines(one, fleet, memory(known, decided), now_s))
        decided = {engine.id: FINE for engine in fleet.pools["p"]}
        assert not known.keys() & decided.keys()
        assert all(now_s < until_s <= now_s + DEADLINE_S for until_s in known.values())


def test_removed_engines_are_carried_between_rounds(policies: Callable[..., PolicySet]) -> None:
    def round_of(one: PolicySet, last: DecisionMemory, now_s: float) -> tuple[Decisions, DecisionMemory]:
        return decide(one, declared(one), last, proxies=ConnectedProxies(by_role={"gateway": 1}), now_s=now_s)

    _, first = round_of(policies("x", "y"), NO_MEMORY, 1.0)
    edited = policies("y")
    decisions, second = round_of(edited, first, 2.0)
    assert decisions.leaving == round_of(edited, second, 3.0)[0].leaving == {X: 2.0 + DEADLINE_S}
