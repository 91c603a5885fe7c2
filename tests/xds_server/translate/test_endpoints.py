"""Listed engines, their health, and the share of each zone."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from engine.report import Verdict
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import Health, ShareRamp
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import EngineId, declared
from xds_server.model.memo import Memo
from xds_server.model.type_urls import ENDPOINT
from xds_server.model.view import View
from xds_server.translate.endpoints import EndpointForm, engine_weights, load_assignment, trial_weights
from xds_server.translate.view_resources import translate

ENGINES = """kind: EnginePool
metadata: {name: p}
spec:
  model: m
  endpoints:
  - {address: 10.0.0.1, port: 1, name: x, zone: a, labels: {gpu: h200}}
  - {address: 10.0.0.2, port: 1, name: y, zone: a, slots: 4}
  - {address: 10.0.0.3, port: 1, name: z, zone: b, weight: 3}"""


@pytest.fixture
def seen(policies, decided):
    """Zone -> (weight, {engine: health}) for callers in zone a."""

    def made(**decisions):
        fleet = declared(policies(ENGINES))
        spec = load_assignment("p", fleet.pools["p"], decided(fleet, **decisions), "a", Memo())
        return {
            one.zone: (one.weight, {dict(each.labels)["engine"]: each.health for each in one.endpoints})
            for one in spec.localities
        }

    return made


def test_locality_with_zero_weight_stays_in_eds(seen):
    assert seen(zone_weights={("p", "a"): {"a": 100}}) == {"a": (100, {"x": 1, "y": 1}), "b": (None, {"z": 1})}


def test_undecided_calling_zones_use_locality_weights_by_slots(seen):
    assert seen() == {"a": (12, {"x": 1, "y": 1}), "b": (8, {"z": 1})}
    assert seen(out={"p/y": Health.DRAINING}) == {"a": (8, {"x": 1, "y": 3}), "b": (8, {"z": 1})}
    assert seen(zone_weights={("p", ""): {"b": 5}})["a"] == (None, {"x": 1, "y": 1})


@pytest.mark.parametrize("verdict", [Verdict.HUNG, Verdict.DEGRADED, Verdict.STARTING])
def test_ejected_engine_stays_in_eds_as_unhealthy(seen, verdict):
    assert seen(verdict=verdict, out={"p/x": Health.UNHEALTHY})["a"][1] == {"x": 2, "y": 1}


def test_dead_engine_is_removed_from_eds_unless_kept_by_the_floor(seen):
    assert seen(verdict=Verdict.DEAD, out={"p/x": Health.UNHEALTHY})["a"][1] == {"y": 1}
    assert seen(verdict=Verdict.DEAD)["a"][1] == {"x": 1, "y": 1}


def test_endpoint_labels_have_engine_and_operator_labels(policies, decided):
    fleet = declared(policies(ENGINES))
    spec = load_assignment("p", fleet.pools["p"], decided(fleet), "a", Memo())
    first, second = spec.localities[0].endpoints
    assert dict(first.labels) == {"engine": "x", "gpu": "h200"}
    assert (first.weight, second.weight, spec.localities[1].endpoints[0].weight) == (4, 1, 3)


@pytest.mark.parametrize(
    ("engines", "weights"),
    [
        (["slots: 8", "slots: 8", "slots: 8"], (1, 1, 1)),
        (["weight: 2", "weight: 6"], (2, 6)),  # the operator's own, as written
        (["slots: 8", "slots: 16", "slots: 32"], (1, 4, 16)),  # squares: Envoy's picking takes the root
        (["slots: 8, weight: 4", "slots: 16"], (1, 1)),
        (["slots: 1", "slots: 65536", "slots: 32768"], (1, 10_000, 2500)),
    ],
)
def test_endpoint_weights_follow_slots(policies, engines, weights):
    text = "kind: EnginePool\nmetadata: {name: p}\nspec:\n  model: m\n  endpoints:\n"
    for number, spec in enumerate(engines):
        text += f"  - {{address: 10.0.0.{number}, port: 1, {spec}}}\n"
    assert engine_weights(declared(policies(text)).pools["p"]) == weights


@pytest.mark.parametrize(
    ("slots", "factors", "weights"),
    [
        ((8, 8, 8), {"1": 0.358}, (500, 179, 500)),
        ((8, 8), {}, (1, 1)),
        ((8, 16), {"1": 0.5}, (1, 2)),
        ((8, 8), {"elsewhere": 0.5}, (1, 1)),
    ],
)
def test_engines_found_slower_weigh_less(policies, slots, factors, weights):
    text = "kind: EnginePool\nmetadata: {name: p}\nspec:\n  model: m\n  endpoints:\n"
    for number, some in enumerate(slots):
        text += f"  - {{name: '{number}', address: 10.0.0.{number}, port: 1, slots: {some}}}\n"
    engines = declared(policies(text)).pools["p"]
    assert engine_weights(engines, {EngineId("p", name): one for name, one in factors.items()}) == weights


def test_changed_factors_change_endpoints(policies):
    read, memo = policies(ENGINES), Memo()
    fleet = declared(read)
    proxies = ConnectedProxies(by_role={"gateway": 1}, calling_zones=frozenset({"a"}))
    decisions, _ = decide(read, fleet, NO_MEMORY, proxies=proxies, now_s=0.0)
    factors = {EngineId("p", "x"): 0.5}
    slower = replace(decisions, pools={"p": replace(decisions.pools["p"], weight_factors=factors)})
    seen = []
    for one in (decisions, slower, decisions):
        [item] = [item for item in translate(read, fleet, one, View(zone="a"), memo) if item.type_url == ENDPOINT]
        seen.append([[each.weight for each in there.endpoints] for there in item.message.localities])
    assert seen == [[[4, 1], [3]], [[2, 1], [3]], [[4, 1], [3]]]


def test_engine_in_slow_start_has_a_reduced_endpoint_weight(policies):
    read, memo = policies(ENGINES.replace(", slots: 4", "")), Memo()
    fleet, ramping = declared(read), EngineId("p", "x")
    proxies = ConnectedProxies(by_role={"gateway": 1}, calling_zones=frozenset({"a"}))
    decisions, _ = decide(read, fleet, NO_MEMORY, proxies=proxies, now_s=0.0)
    found = []
    for percent, trial in ((100.0, 100.0), (10.0, 100.0), (50.0, 100.0), (50.0, 10.0)):
        ramps = {} if percent == 100 else {ramping: ShareRamp(percent=percent, full_at_s=9.0)}
        engines = {**decisions.engines, ramping: replace(decisions.engines[ramping], traffic_percent=trial)}
        pools = {"p": replace(decisions.pools["p"], ramps=ramps, engines=engines)}
        now = replace(decisions, engines=engines, pools=pools)
        [item] = [item for item in translate(read, fleet, now, View(zone="a"), memo) if item.type_url == ENDPOINT]
        x, y = (one.weight for one in item.message.localities[0].endpoints)
        found.append(x / y)
    assert found == pytest.approx([1.0, 0.046, 0.35, 0.046], rel=0.01)


def test_half_open_engine_has_a_reduced_endpoint_weight_in_its_zone(policies, decided):
    fleet = declared(policies(ENGINES.replace(", slots: 4", "")))
    decisions = decided(fleet)
    on_trial = EngineId("p", "x")
    engines = decisions.engines | {on_trial: replace(decisions.engines[on_trial], traffic_percent=25.0)}
    spec = load_assignment("p", fleet.pools["p"], replace(decisions, engines=engines), "a", Memo())
    weights = {dict(one.labels)["engine"]: one.weight for zone in spec.localities for one in zone.endpoints}
    assert weights["x"] / weights["y"] == pytest.approx(0.1375, rel=0.01)
    assert weights["z"] == 3


def test_ejected_engine_does_not_change_trial_weights(policies, decided):
    fleet = declared(policies(ENGINES.replace(", slots: 4", "")))
    decisions = decided(fleet, out={"p/x": Health.UNHEALTHY})
    waiting = EngineId("p", "x")
    engines = decisions.engines | {waiting: replace(decisions.engines[waiting], traffic_percent=25.0)}
    spec = load_assignment("p", fleet.pools["p"], replace(decisions, engines=engines), "a", Memo())
    assert [one.weight for one in spec.localities[0].endpoints] == [1, 1]


@given(
    weights=st.lists(st.integers(1, 10_000), min_size=1, max_size=6),
    percents=st.lists(st.floats(0, 100), min_size=6, max_size=6),
)
def test_reduced_weights_keep_their_order_and_envoys_limits(weights, percents):
    lowered = trial_weights(weights, percents[: len(weights)])
    assert len(lowered) == len(weights)
    assert all(1 <= weight <= 10_000_000 for weight in lowered)
    assert trial_weights(weights, [100.0] * len(weights)) == tuple(weights)
    for one, percent in zip(range(len(weights)), percents, strict=False):
        for other, less in zip(range(len(weights)), percents, strict=False):
            if weights[one] >= weights[other] and percent >= less:
                assert lowered[one] >= lowered[other]


def test_hashed_weights_are_shares_themselves(policies):
    slots = "".join(f"  - {{address: 10.0.0.{one}, port: 1, slots: {one}}}\n" for one in (8, 16, 32))
    engines = declared(
        policies(f"kind: EnginePool\nmetadata: {{name: p}}\nspec:\n  model: m\n  endpoints:\n{slots}")
    )
    assert engine_weights(engines.pools["p"], hashed=True) == (1, 2, 4)
    assert trial_weights((1, 1), (25, 100), hashed=True) == (1, 4)
    assert trial_weights((1, 2), (100, 50), hashed=True) == (1, 1)


def test_hashed_zone_weights_count_the_healthy(policies, decided):
    fleet = declared(policies(ENGINES))
    weights = {("p", "a"): {"a": 600, "b": 200}}
    half_out = decided(fleet, out={"p/x": Health.UNHEALTHY}, zone_weights=weights)

    def shares(decisions, *, hashed):
        form = EndpointForm(hashed=hashed)
        spec = load_assignment("p", fleet.pools["p"], decisions, "a", Memo(), form=form)
        return {one.zone: one.weight for one in spec.localities}

    assert shares(half_out, hashed=False) == {"a": 600, "b": 200}
    assert shares(half_out, hashed=True) == {"a": 300_000, "b": 200_000}
    assert shares(decided(fleet, zone_weights=weights), hashed=True) == {"a": 600, "b": 200}
    # Shares by slots count only healthy engines already.
    undecided = decided(fleet, out={"p/x": Health.UNHEALTHY})
    assert shares(undecided, hashed=True) == shares(undecided, hashed=False)
