"""Decisions: the effect of each piece of evidence, and invariants."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.report import CanaryResults, Doubt, EngineReport, ReportSource, Verdict
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.resilience import ResilienceSpec
from policies.route import ModelRoute
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY, DecisionMemory, EjectionMemory, PoolMemory
from xds_server.decide.decisions import Decisions, Health
from xds_server.decide.diff.decision_diff import ChangeKind, diff_decisions
from xds_server.decide.ejection.flap_damping import RECONNECT_DELAY_S
from xds_server.decide.ejection.report_evidence import stale_after_s
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import EngineId, Fleet, declared, redeclared, with_report, with_traffic
from xds_server.model.order import Order, OrderAction
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic

INFINITE = float("inf")
IN, OUT, LEAVING = Health.HEALTHY, Health.UNHEALTHY, Health.DRAINING


def policies(
    zones: str = "aabbcc",
    *,
    groups: tuple[str, ...] = (),
    resilience: dict[str, object] | None = None,
    probe: dict[str, object] | None = None,
    routes: dict[str, ModelRoute] | None = None,
) -> PolicySet:
    """One pool, one engine per letter, in the zone of that letter (``-`` for none): e0, e1, ..."""
    pool = EnginePool.model_validate(
        {
            "metadata": {"name": "pool"},
            "spec": {
                "model": "m",
                "endpoints": [
                    {
                        "name": f"e{place}",
                        "address": "10.0.0.1",
                        "port": 8000 + place,
                        "zone": zone.strip("-"),
                        "tensorParallelGroup": groups[place] if groups else "",
                    }
                    for place, zone in enumerate(zones)
                ],
                "probe": probe or {},
            },
        }
    )
    return PolicySet(
        pools={"pool": pool},
        routes=routes or {},
        policies={},
        effective={"pool": ResilienceSpec.model_validate(resilience or {})},
    )


class Story:
    """A fleet with arriving reports, decided on after each."""

    def __init__(self, setup: PolicySet, calling: str = "abc", gateways: int = 1) -> None:
        self.policies = setup
        self.fleet: Fleet = declared(setup)
        self.memory = NO_MEMORY
        self.calling = frozenset(calling)
        self.gateways = gateways
        self.now_s = 0.0
        self.orders: dict[EngineId, Order] = {}
        self._sequence = itertools.count(1)

    def hear(
        self,
        engine: str,
        verdict: Verdict,
        *,
        doubt: Doubt | None = None,
        times: int = 1,
        source: ReportSource = ReportSource.PROBE,
        answered: int | None = None,
    ) -> "Story":
        for _ in range(times):
            report = EngineReport(
                pool="pool",
                engine=engine,
                verdict=verdict,
                evidence="evidence",
                observed_at_s=self.now_s,
                sequence=next(self._sequence),
                doubt=doubt,
                source=source,
                canary=None if answered is None else CanaryResults(in_row=answered, at_s=self.now_s, took_s=0.1),
            )
            self.fleet = with_report(self.fleet, report, self.now_s)
        return self

    def decided(self, after_s: float = 0.0) -> Decisions:
        self.now_s += after_s
        proxies = ConnectedProxies(by_role={"gateway": self.gateways}, calling_zones=self.calling)
        decisions, self.memory = decide(
            self.policies, self.fleet, self.memory, proxies=proxies, now_s=self.now_s, orders=self.orders
        )
        return decisions

    def health(self) -> str:
        """One letter per engine: H, U or D."""
        engines = self.decided().engines
        return "".join(engines[engine.id].health.value[0] for engine in self.fleet.pools["pool"])

    def back(self) -> str:
        """The same, once cut engines have reconnected."""
        self.decided()
        self.now_s += RECONNECT_DELAY_S
        return self.health()

    def weights(self, caller: str) -> dict[str, int]:
        return dict(self.decided().zone_weights["pool", caller])

    def shares(self, caller: str) -> dict[str, float]:
        """Envoy's effective weights: each times the healthy share of the listed hosts."""
        decided = self.decided()
        product: dict[str, float] = {}
        for zone, weight in decided.zone_weights["pool", caller].items():
            listed = [
                decided.engines[engine.id]
                for engine in self.fleet.pools["pool"]
                if engine.zone == zone and not decided.engines[engine.id].gone
            ]
            product[zone] = weight * sum(one.health is IN for one in listed) / len(listed)
        return {zone: value / sum(product.values()) for zone, value in product.items()}


def reason(story: Story, engine: str) -> str:
    return story.decided().engines[EngineId("pool", engine)].reason


def test_unreported_engines_are_admitted() -> None:
    story = Story(policies())
    assert story.health() == "HHHHHH"
    assert "no report yet" in reason(story, "e0")


@pytest.mark.parametrize("verdict", [Verdict.DEAD, Verdict.HUNG, Verdict.STARTING])
def test_hard_evidence_ejects_after_two_consecutive_readings(verdict: Verdict) -> None:
    story = Story(policies("aa"))
    for engine in ("e0", "e1"):
        story.hear(engine, verdict)
    assert story.health() == "HH"
    assert "1 of 2 failed probes" in reason(story, "e0")
    for engine in ("e0", "e1"):
        story.hear(engine, verdict)
    assert story.health() == "UU"
    assert story.hear("e0", Verdict.READY).back() == "HU"


def test_soft_evidence_ejections_stop_at_pool_and_zone_floor() -> None:
    story = Story(policies("aabb"))
    for engine in ("e0", "e1", "e2"):
        story.hear(engine, Verdict.DEGRADED, times=2)
    assert story.health() == "UHUH"
    assert "floor: 50 %" in reason(story, "e1")
    # The same two stay out while nothing changes, and make room for the hard evidence.
    assert story.hear("e1", Verdict.DEGRADED).health() == "UHUH"
    assert story.hear("e3", Verdict.DEAD, times=2).health() == "UHHU"


def test_draining_report_ejects_at_once() -> None:
    story = Story(policies("aa"))
    assert story.hear("e0", Verdict.DRAINING).hear("e1", Verdict.DRAINING).health() == "DD"
    assert story.hear("e0", Verdict.READY).health() == "HD"


def test_worst_member_decides_for_its_group() -> None:
    story = Story(policies("aaaa", groups=("g", "g", "", "")))
    assert story.hear("e0", Verdict.READY).hear("e1", Verdict.HUNG, times=2).health() == "UUHH"
    assert "shares GPUs with e1" in reason(story, "e0")
    assert story.hear("e1", Verdict.READY).back() == "HHHH"


def test_pool_wide_reading_ejects_no_engine() -> None:
    story = Story(policies("aaa"))
    for engine in ("e0", "e1", "e2"):
        story.hear(engine, Verdict.DEGRADED, doubt=Doubt.REFUSED, times=5)
    assert story.health() == "HHH"
    assert "policy or probe" in reason(story, "e0")
    silent = Story(policies("aaa"))
    for engine in ("e0", "e1", "e2"):
        silent.hear(engine, Verdict.DEAD, doubt=Doubt.SILENT, times=5)
    assert silent.health() == "HHH"
    assert silent.hear("e2", Verdict.READY).health() == "UHH", "silence is soft: the floor holds"


def test_misconfigured_engine_is_ejected_while_a_peer_answers() -> None:
    story = Story(policies("ab")).hear("e1", Verdict.READY, answered=1)
    story.hear("e0", Verdict.MISCONFIGURED, doubt=Doubt.REFUSED, times=2)
    assert story.health() == "UH", "also half of the pool, and alone in its zone"
    # Its own next answer shows the fault in the policy, or a dead peer leaves none that answers.
    story.hear("e1", Verdict.DEAD, times=2)
    assert story.back() == "HU"
    assert "no peer answers" in reason(story, "e0")


@pytest.mark.parametrize("verdict", [Verdict.MISCONFIGURED, Verdict.STARTING])
def test_engine_with_a_refused_probe_stays_while_no_peer_answers(verdict: Verdict) -> None:
    story = Story(policies("aaa"))
    for engine in ("e0", "e1"):
        story.hear(engine, verdict, doubt=Doubt.REFUSED, times=2)
    assert story.hear("e2", Verdict.BUSY).health() == "HHH", "busy without a canary proves no answer"
    story.hear("e2", Verdict.READY, answered=1, source=ReportSource.AGENT)
    assert story.health() == "HHH", "the agent's probe is another one"
    assert story.hear("e2", Verdict.READY, answered=1).health() == "UUH"


def test_operator_order_holds_for_an_engine_with_a_refused_probe() -> None:
    story = Story(policies("aa"))
    for engine in ("e0", "e1"):
        story.hear(engine, Verdict.MISCONFIGURED, doubt=Doubt.REFUSED, times=2)
    place = EngineId("pool", "e0")
    story.orders[place] = Order(
        engine=place, action=OrderAction.EJECT, until_s=99.0, reason="maintenance", force=True
    )
    assert story.health() == "UH"


def test_engine_refusing_the_probe_is_ejected() -> None:
    story = Story(policies("aaa"))
    story.hear("e0", Verdict.DEGRADED, doubt=Doubt.REFUSED, times=2).hear("e1", Verdict.READY)
    assert story.hear("e2", Verdict.READY).health() == "UHH"


def test_stale_report_ejects_no_engine_and_delays_readmission() -> None:
    setup = policies("aa")
    story = Story(setup).hear("e0", Verdict.READY).hear("e1", Verdict.HUNG, times=2)
    assert story.health() == "HU"
    stale_s = stale_after_s(setup.pools["pool"].spec.probe)
    story.decided(stale_s)
    assert story.health() == "HU"
    assert "stale" in reason(story, "e0")
    story.decided(12 * stale_s)
    assert story.back() == "HH"


def test_policy_edit_changes_decisions() -> None:
    story = Story(policies("aa")).hear("e0", Verdict.HUNG, times=2)
    assert story.health() == "UH"
    story.policies = policies("aab")
    story.fleet = redeclared(story.policies, story.fleet)
    assert story.health() == "UHH"


def test_unchanged_pool_keeps_the_same_decision_objects() -> None:
    story = Story(policies()).hear("e0", Verdict.READY)
    first = story.decided()
    assert story.decided(0.6).pools["pool"] is not None
    again = story.decided(0.1)
    assert again.pools["pool"] is story.decided(0.1).pools["pool"]
    assert again.engines[EngineId("pool", "e0")] is first.engines[EngineId("pool", "e0")]


def test_changes_are_reported_once() -> None:
    story = Story(policies("aa"))
    start = story.decided()
    assert {one.kind for one in diff_decisions(None, start)} == {ChangeKind.CEILING, ChangeKind.ZONES}
    assert diff_decisions(start, story.decided()) == ()
    dead = story.hear("e0", Verdict.DEAD, times=2).decided()
    told = [one for one in diff_decisions(start, dead) if one.kind is ChangeKind.HEALTH]
    assert [(str(one.subject), one.before, one.after) for one in told] == [("pool/e0", "HEALTHY", "UNHEALTHY")]
    assert told[0].reason
    assert diff_decisions(dead, story.hear("e0", Verdict.DEAD).decided()) == ()


# -- zones ----------------------------------------------------------------------------------------------------


def test_zone_aware_routing_stays_local_while_capacity_lasts() -> None:
    assert Story(policies()).weights("a") == {"a": 1000, "b": 1, "c": 1}
    assert Story(policies()).weights("") == {"a": 330, "b": 330, "c": 330}


def test_zone_overflow_goes_to_spare_capacity() -> None:
    story = Story(policies("aabbcc")).hear("e0", Verdict.HUNG, times=2)
    # Five engines left for three zones: 1.67 each; the own one holds 0.6 of that.
    assert story.shares("a") == pytest.approx({"a": 0.6, "b": 0.2, "c": 0.2}, abs=0.02)
    assert story.shares("b") == pytest.approx({"a": 0.0, "b": 1.0, "c": 0.0}, abs=0.01)


def test_dead_engine_is_neither_listed_nor_counted() -> None:
    story = Story(policies("aabbcc")).hear("e0", Verdict.DEAD, times=2)
    assert story.shares("a") == pytest.approx({"a": 0.6, "b": 0.2, "c": 0.2}, abs=0.02)


def test_lost_zone_is_absent_and_no_ready_engine_keeps_the_last_zone_weights() -> None:
    story = Story(policies("abc"))
    before = story.weights("a")
    story.hear("e0", Verdict.HUNG, times=2)
    assert set(story.weights("a")) == {"b", "c"}
    for engine in ("e1", "e2"):
        story.hear(engine, Verdict.HUNG, times=2)
    assert set(story.weights("a")) == {"b", "c"}
    for engine in ("e0", "e1", "e2"):
        story.hear(engine, Verdict.READY)
    assert story.back() == "HHH"
    assert story.weights("a") == before


@pytest.mark.parametrize(
    ("zones", "shares"),
    [
        ({"spill": False}, {"a": 1.0}),
        ({"maxCrossZonePercent": 0}, {"a": 1.0}),
        ({"maxCrossZonePercent": 10}, {"a": 0.9, "b": 0.05, "c": 0.05}),
        ({"preferLocal": False}, {"a": 0.2, "b": 0.4, "c": 0.4}),
    ],
)
def test_policy_bounds_cross_zone_traffic(zones: dict[str, object], shares: dict[str, float]) -> None:
    story = Story(policies("aabbcc", resilience={"zones": zones})).hear("e0", Verdict.HUNG, times=2)
    assert story.shares("a") == pytest.approx(shares, abs=0.02)


def test_fleet_without_zones_has_one() -> None:
    assert Story(policies("--"), calling="").weights("") == {"": 1000}


def test_zone_weight_updates_are_damped() -> None:
    story = Story(policies("a" * 10 + "b" * 10), calling="ab")
    story.decided(1.0)
    chosen = story.decided().pools["pool"].zones["a"]
    story.hear("e0", Verdict.HUNG, times=2)
    assert story.decided(0.0).pools["pool"].zones["a"] is chosen, "too soon after the last"
    moved = story.decided(0.6).pools["pool"].zones["a"]
    assert moved.weights != chosen.weights
    story.hear("e0", Verdict.READY)
    assert story.decided(0.1).pools["pool"].zones["a"] is moved
    assert story.decided(0.5).pools["pool"].zones["a"].weights == chosen.weights


@pytest.mark.parametrize(
    ("limits", "factors"), [({}, [1, 0.293]), ({"learn": False}, [1, 1]), ({"mode": "shadow"}, [1, 1])]
)
def test_engines_are_filled_by_measured_speed(limits: dict[str, object], factors: list[float]) -> None:
    story = Story(policies("--", resilience={"limits": limits}))
    for _ in range(40):
        engines = {
            name: EngineTraffic(done_per_s=8 / service_s, busy=8.0, heard_at_s=story.now_s)
            for name, service_s in (("e0", 0.25), ("e1", 0.5))
        }
        story.fleet = with_traffic(story.fleet, {"pool": PoolTraffic(engines=engines, heard_at_s=story.now_s)})
        pool = story.decided(0.5).pools["pool"]
    known = [pool.weight_factors.get(one.id, 1) for one in story.fleet.pools["pool"]]
    assert known == pytest.approx(factors, abs=0.03)


def test_capacity_shares_keep_weights_when_engines_fail() -> None:
    story = Story(policies("aaabbb"))
    before = story.weights("")
    story.hear("e0", Verdict.HUNG, times=2).hear("e1", Verdict.HUNG, times=2)
    story.decided(1.0)
    assert story.weights("") == before
    assert story.shares("") == pytest.approx({"a": 0.25, "b": 0.75}, abs=0.01)


# -- for every fleet ------------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(Verdict), st.floats(0, 2), st.sampled_from([1, 2])), max_size=40
)


@settings(max_examples=60)
@given(EVENTS, st.sampled_from(["aabbcc", "aaaaaa", "abcabc", "------", "aaaabb"]), st.sampled_from([0, 50, 100]))
def test_decision_invariants(events: list[tuple[int, Verdict, float, int]], zones: str, floor: int) -> None:
    story = Story(policies(zones, resilience={"breaker": {"capacityFloorPercent": floor}}))
    for place, verdict, pause_s, times in events:
        story.now_s += pause_s
        story.hear(f"e{place}", verdict, times=times)
        decided = story.decided()
        out_softly = 0
        for engine in story.fleet.pools["pool"]:
            decision = decided.engines[engine.id]
            assert decision.reason
            assert decision.since_s <= story.now_s
            if engine.report is None:
                assert decision.health is IN
                continue
            if engine.report.verdict.good:
                assert decision.health is IN or decision.until_s is not None, "recovery is never refused"
                assert story.now_s < (decision.until_s or INFINITE)
            if engine.report.verdict is Verdict.DRAINING:
                assert decision.health is LEAVING
            if engine.report.verdict.hard and engine.bad_looks >= 2:
                assert decision.health is OUT or story.now_s - (engine.received_at_s or 0) > 5
            out_softly += decision.health is OUT and engine.report.verdict is Verdict.DEGRADED
        if out_softly:
            healthy = sum(one.health is IN for one in decided.engines.values())
            assert 100 * healthy / 6 >= floor, "soft evidence went below the floor"
        for weights in decided.zone_weights.values():
            assert all(1 <= weight <= 1000 for weight in weights.values())
            assert 950 <= sum(weights.values()) <= 1050


@given(st.lists(st.sampled_from([Verdict.READY, Verdict.HUNG]), min_size=1, max_size=30))
def test_alternating_readings_cause_no_flapping(verdicts: list[Verdict]) -> None:
    story = Story(policies("aa"))
    for verdict in itertools.chain.from_iterable(zip(verdicts, itertools.repeat(Verdict.READY), strict=False)):
        story.now_s += 0.5
        assert story.hear("e0", verdict).health() == "HH"


@settings(max_examples=60)
@given(EVENTS)
def test_decide_is_deterministic_and_memory_is_only_a_cache(
    events: list[tuple[int, Verdict, float, int]],
) -> None:
    story = Story(policies())
    for place, verdict, pause_s, times in events:
        story.now_s += pause_s
        before = story.memory
        story.hear(f"e{place}", verdict, times=times)
        once, twice = story.decided(), story.decided()
        assert once.engines == twice.engines
        assert once.zone_weights == twice.zone_weights
        if before is not NO_MEMORY:
            # The same memory without the inputs that the decisions follow from.
            bare = DecisionMemory(
                pools={
                    name: PoolMemory(
                        decided=replace(pool.decided, declared=()),
                        inputs=(None, None),
                        valid_until_s=pool.valid_until_s,
                        ejection=EjectionMemory(flaps=pool.ejection.flaps),
                        zones=pool.zones,
                    )
                    for name, pool in before.pools.items()
                },
            )
            proxies = ConnectedProxies(by_role={"gateway": 1}, calling_zones=story.calling)
            fresh, _ = decide(story.policies, story.fleet, bare, proxies=proxies, now_s=story.now_s)
            assert fresh.engines == once.engines
            assert fresh.zone_weights == once.zone_weights


@given(EVENTS)
def test_missing_reports_eject_no_engine(events: list[tuple[int, Verdict, float, int]]) -> None:
    story = Story(policies())
    for place, verdict, pause_s, times in events:
        story.now_s += pause_s
        story.hear(f"e{place}", verdict, times=times).decided()
    was = {key: one.health for key, one in story.decided().engines.items()}
    for _ in range(40):
        story.decided(5.0)
        for key, one in story.decided().engines.items():
            assert one.health is was[key] or one.health is IN
            was[key] = one.health


def keyed(affinity: dict[str, object]) -> PolicySet:
    route = ModelRoute.model_validate(
        {
            "metadata": {"name": "r"},
            "spec": {"listener": {"port": 80}, "pools": [{"pool": "pool"}], "affinity": affinity},
        }
    )
    return policies("aaaa", routes={"r": route})


@pytest.mark.parametrize(
    ("affinity", "in_flight", "held"),
    [
        ({"header": "x-s", "returnAfter": "60s"}, 1, True),
        ({"header": "x-s", "returnAfter": "60s"}, 16, False),
        ({"header": "x-s"}, 1, False),
        ({"header": "x-s", "mode": "strict", "returnAfter": "60s"}, 1, False),
    ],
)
def test_keys_of_a_returned_engine_are_held_back_while_there_is_room(
    affinity: dict[str, object], in_flight: int, held: bool
) -> None:
    story = Story(keyed(affinity))
    e0 = EngineId("pool", "e0")

    def reported() -> None:
        calls = {f"e{number}": EngineTraffic(in_flight=in_flight if number else 0) for number in range(4)}
        story.fleet = with_traffic(story.fleet, {"pool": PoolTraffic(engines=calls, heard_at_s=story.now_s)})

    story.decided()
    story.orders = {e0: Order(engine=e0, action=OrderAction.EJECT, until_s=math.inf, reason="test")}
    assert story.decided(1.0).engines[e0].health is OUT
    story.orders = {}
    story.now_s += 1.0
    reported()
    found = story.decided()
    assert found.engines[e0].health is IN
    assert (e0 in found.pools["pool"].ramps) is held
    reported()
    assert story.decided(61.0).pools["pool"].ramps == {}


def test_edit_of_the_time_in_which_sessions_move_takes_effect_at_once() -> None:
    story = Story(keyed({"header": "x-s", "mode": "strict", "moveWithin": "60s"}))
    e0 = EngineId("pool", "e0")
    story.decided()
    story.orders = {e0: Order(engine=e0, action=OrderAction.DRAIN, until_s=math.inf, reason="test")}
    story.decided(1.0)
    kept = story.decided(20.0).pools["pool"].sessions[e0]
    # An edit of a route leaves the pool's own documents as they are.
    edited = keyed({"header": "x-s", "mode": "strict", "moveWithin": "600s"})
    story.policies = replace(story.policies, routes=edited.routes)
    assert story.decided(0.1).pools["pool"].sessions[e0] > kept
