"""Resources for a proxy that can cut; cutting an engine changes nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from policies.model import PolicySet
from policies.resilience import ResilienceSpec
from xds_server.decide.decisions import Decisions, EngineDecision, Health
from xds_server.model.fleet import EngineId, Fleet, declared
from xds_server.model.memo import Memo
from xds_server.model.snapshot import Snapshot, changed_names
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, PUSH_ORDER
from xds_server.model.view import View
from xds_server.reconcile.assembler import Assembler, assemble
from xds_server.reconcile.shrink_guard import view_parts
from xds_server.translate.internal_listeners import engine_listener_name, uses_internal_listeners
from xds_server.translate.view_resources import translate

POOLS = """kind: EnginePool
metadata: {name: p}
spec:
  model: m
  endpoints:
  - {address: 10.0.0.1, port: 1, name: x, zone: a}
  - {address: "2001:db8::1", port: 2, name: y, zone: a}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: r}
spec: {listener: {port: 8080}, pools: [{pool: p}]}"""
NO_RESET = "kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {retries: {conditions: [connect-failure]}}"
CUTS = View(zone="a", cuts=True)
ALL = ("p/x", "p/y")


def with_cut(decisions: Decisions, *cut: str) -> Decisions:
    return replace(
        decisions,
        engines={key: replace(one, cut=str(key) in cut) for key, one in decisions.engines.items()},
    )


def addresses(served: Snapshot) -> str:
    return served.of(ENDPOINT)["p"].value.decode(errors="replace")


@pytest.fixture
def made(policies: Callable[..., PolicySet], decided: Callable[..., Decisions]) -> Callable[..., Snapshot]:
    def snapshot_of(*documents: str, view: View = CUTS, cut: tuple[str, ...] = (), **more: Any) -> Snapshot:
        policy_set = policies(POOLS, *documents)
        fleet = declared(policy_set)
        return assemble(translate(policy_set, fleet, with_cut(decided(fleet, **more), *cut), view))

    return snapshot_of


def test_capable_proxy_reaches_engines_through_internal_listeners(made: Callable[..., Snapshot]) -> None:
    served = made()
    assert set(served.of(LISTENER)) == {"engine/p/x", "engine/p/y", "port-8080"}
    assert set(served.of(CLUSTER)) == {"p", "hop/p"}
    for expected in ("engine/p/x", "10.0.0.1:1", "engine/p/y", "[2001:db8::1]:2"):
        assert expected in addresses(served)


@pytest.mark.parametrize("view", [View(zone="a"), View(zone="a", role="grpc")])
def test_other_proxies_get_no_internal_listeners(made: Callable[..., Snapshot], view: View) -> None:
    served = made(view=view, cut=("p/x",))
    assert not [
        name for named in served.resources.values() for name in named if name.startswith(("engine", "hop"))
    ]
    assert "engine/p" not in addresses(served)


def test_cut_removes_one_internal_listener_only(made: Callable[..., Snapshot]) -> None:
    before, after = made(), made(cut=("p/x",))
    changed = {url: set(names) for url in PUSH_ORDER if (names := changed_names(before, after, url))}
    assert changed == {LISTENER: {"engine/p/x"}}
    assert "engine/p/x" not in after.of(LISTENER)


def test_pool_without_retry_on_reset_has_plain_addresses(
    made: Callable[..., Snapshot],
) -> None:
    served = made(NO_RESET)
    assert "engine/p" not in addresses(served)
    # Requests on a listener when the policy changes must not be cut.
    assert "engine/p/x" in served.of(LISTENER)


@pytest.mark.parametrize(
    ("conditions", "hop"),
    [
        (["reset"], True),
        (["5xx"], True),
        (["gateway-error"], True),
        (["connect-failure", "refused-stream"], False),
    ],
)
def test_internal_listeners_need_retry_on_reset(conditions: list[str], hop: bool) -> None:
    assert uses_internal_listeners(ResilienceSpec.model_validate({"retries": {"conditions": conditions}})) is hop


def test_engine_with_new_address_keeps_its_listener(policies: Callable[..., PolicySet], decided: Any) -> None:
    policy_set = policies(POOLS)
    fleet = declared(policy_set)
    moved = Fleet(
        pools={"p": tuple(replace(one, address="10.9.9.9") for one in fleet.pools["p"])}, places=fleet.places
    )
    before, after = (assemble(translate(policy_set, one, decided(one), CUTS)) for one in (fleet, moved))
    assert changed_names(before, after, LISTENER) == set()
    assert changed_names(before, after, ENDPOINT) == {"p"}


def test_engine_listeners_are_built_once(policies: Callable[..., PolicySet], decided: Any) -> None:
    policy_set = policies(POOLS)
    fleet = declared(policy_set)
    memo, assembler = Memo(), Assembler()

    def listeners(view: View, *cut: str) -> Mapping[str, Any]:
        items = translate(policy_set, fleet, with_cut(decided(fleet), *cut), view, memo)
        return assembler.assemble(items).of(LISTENER)

    first = listeners(CUTS)["engine/p/y"]
    assert listeners(View(zone="b", cuts=True, role="sidecar"))["engine/p/y"] is first
    assert listeners(CUTS, "p/x")["engine/p/y"] is first


def test_shrink_guard_counts_an_engine_once(made: Callable[..., Snapshot], policies: Any) -> None:
    fleet = declared(policies(POOLS))
    assert (
        view_parts(made(), fleet)
        == view_parts(made(cut=ALL), fleet)
        == view_parts(made(view=View(zone="a")), fleet)
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=50)
@given(steps=st.lists(st.sets(st.sampled_from(ALL)), min_size=1, max_size=8))
def test_engine_listeners_follow_the_last_decision(
    policies: Callable[..., PolicySet], decided: Any, steps: list[set[str]]
) -> None:
    policy_set = policies(POOLS)
    fleet = declared(policy_set)
    memo, assembler = Memo(), Assembler()
    for cut in steps:
        decisions = with_cut(decided(fleet), *cut)
        served = assembler.assemble(translate(policy_set, fleet, decisions, CUTS, memo))
        fresh = assemble(translate(policy_set, fleet, decisions, CUTS))
        assert {name: one.version for name, one in served.of(LISTENER).items()} == {
            name: one.version for name, one in fresh.of(LISTENER).items()
        }
        kept = {f"engine/{key}" for key in ALL if key not in cut}
        assert {name for name in served.of(LISTENER) if name.startswith("engine/")} == kept


def test_undecided_engine_keeps_its_listener(policies: Callable[..., PolicySet]) -> None:
    policy_set = policies(POOLS)
    fleet = declared(policy_set)
    sick = EngineDecision(health=Health.UNHEALTHY, reason="", since_s=0)
    decisions = Decisions(engines={EngineId("p", "x"): sick}, zone_weights={}, ceilings={})
    served = assemble(translate(policy_set, fleet, decisions, CUTS))
    assert {engine_listener_name("p", "x"), engine_listener_name("p", "y")} <= served.of(LISTENER).keys()


def test_draining_engine_keeps_its_internal_listener(policies: Callable[..., PolicySet], decided: Any) -> None:
    policy_set = policies(POOLS)
    fleet = declared(policy_set)
    decisions = replace(decided(fleet), leaving={EngineId("p", "gone"): 99.0, EngineId("q", "other"): 99.0})
    served = assemble(translate(policy_set, fleet, decisions, CUTS))
    assert set(served.of(LISTENER)) == {"engine/p/gone", "engine/p/x", "engine/p/y", "port-8080"}
    assert "gone" not in addresses(served)
