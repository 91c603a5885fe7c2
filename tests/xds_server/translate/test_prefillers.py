"""Which prefill engines are named to which decode engine."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.report import EngineReport, Verdict
from policies.load import load_contents
from policies.model import PolicySet
from xds_server.decide.decisions import (
    Decisions,
    Ejector,
    EngineDecision,
    Health,
    PoolDecisions,
    PrefillDecision,
    ShareRamp,
)
from xds_server.model.fleet import EngineId, Fleet, declared, with_report
from xds_server.model.type_urls import CLUSTER, ENDPOINT, ROUTE
from xds_server.model.view import View
from xds_server.translate.prefillers import (
    MOST_PREFILLERS,
    PrefillState,
    named_shares,
    parsed_list,
    prefiller_lists,
    prefillers,
)
from xds_server.translate.view_resources import translate

HEAD = "---\napiVersion: switchgear.dev/v1alpha1\nkind:"


def policies(prefill: Mapping[str, str], decode: Mapping[str, str], more: str = "") -> PolicySet:
    """Engines by name, each with its zone; ``eu/a`` is zone a of region eu."""

    def engines(network: int, zones: Mapping[str, str]) -> str:
        listed = []
        for number, (name, at) in enumerate(zones.items()):
            region, _, zone = at.rpartition("/")
            address = f"10.{network}.{number // 250}.{number % 250}"
            listed.append(f"{{name: {name}, address: {address}, port: 80, zone: {zone}, region: '{region}'}}")
        return ", ".join(listed)

    return load_contents(
        {
            Path("p.yaml"): f"""{HEAD} EnginePool
metadata: {{name: first}}
spec: {{model: m, stage: prefill, slotsPerEngine: 4, serviceTime: 1s, endpoints: [{engines(1, prefill)}]}}
{HEAD} EnginePool
metadata: {{name: chat}}
spec: {{model: m, stage: decode, endpoints: [{engines(2, decode)}]}}
{HEAD} ModelRoute
metadata: {{name: chat}}
spec: {{listener: {{port: 8080}}, pools: [{{pool: chat}}], prefill: {{pool: first}}}}
{more}""".encode()
        }
    )


def decided(
    health: Mapping[str, EngineDecision] | None = None,
    ramps: Mapping[str, float] | None = None,
    pool: str = "first",
) -> Decisions:
    engines = {EngineId(pool, name): one for name, one in (health or {}).items()}
    of_pool = PoolDecisions(
        engines=engines,
        zones={},
        ceilings={},
        ramps={
            EngineId(pool, name): ShareRamp(percent=part, full_at_s=9.0) for name, part in (ramps or {}).items()
        },
    )
    return Decisions(engines=engines, zone_weights={}, ceilings={}, pools={pool: of_pool})


def decision(health: Health = Health.HEALTHY, **more: Any) -> EngineDecision:
    return EngineDecision(health=health, reason="", since_s=0.0, **more)


def lists(
    given: PolicySet, decisions: Decisions | None = None, fleet: Fleet | None = None
) -> dict[str, dict[str, int]]:
    """Weights by name of the prefill engine, for each decode engine with a list."""
    fleet, decisions = fleet or declared(given), decisions or decided()
    found = prefillers(given, fleet, decisions, "first")
    names = {one.address: one.engine.id.engine for one in found}
    made = prefiller_lists(fleet.pools["chat"], decisions, found)
    return {
        key.engine: {names[address]: weight for address, weight in parsed_list(text)} for key, text in made.items()
    }


@pytest.mark.parametrize(
    ("health", "said"),
    [
        (decision(Health.UNHEALTHY, verdict=Verdict.HUNG), "ejected"),
        (decision(Health.UNHEALTHY, verdict=Verdict.DEAD), "ejected"),
        (decision(Health.DRAINING), "draining"),
        (decision(floor=True, ejector=Ejector.ERRORS), "kept in rotation by the capacity floor alone"),
    ],
)
def test_engine_that_is_out_is_on_no_list(health: EngineDecision, said: str) -> None:
    given = policies({"p0": "a", "p1": "a"}, {"d0": "a"})
    out = decided({"p0": health})
    assert lists(given, out) == {"d0": {"p1": 100}}
    found = prefillers(given, declared(given), out, "first")
    assert [one.why_not for one in found] == [said, ""]
    named = PrefillState(said.split(maxsplit=1)[0].replace("kept", "floor"))
    assert [one.state for one in found] == [named, PrefillState.NAMED]
    assert lists(given, decided({"p0": health, "p1": health})) == {}, "no list: engines prefill themselves"


def reported(fleet: Fleet, engine: str, in_flight: int) -> Fleet:
    report = EngineReport(
        pool="first", engine=engine, verdict=Verdict.READY, evidence="", observed_at_s=0.0, sequence=1,
        requests_in_flight=in_flight,
    )  # fmt: skip
    return with_report(fleet, report, 0.0)


def test_full_engine_is_on_no_list() -> None:
    # 4 slots x (1 + 2 s wait / 1 s service) = 12
    limits = (
        f"{HEAD} ResiliencePolicy\nmetadata: {{name: first}}\nspec: {{pools: [first], limits: {{maxWait: 2s}}}}\n"
    )
    given = policies({"p0": "a", "p1": "a"}, {"d0": "a"}, limits)
    assert lists(given, fleet=reported(declared(given), "p0", 11)) == {"d0": {"p0": 100, "p1": 100}}
    full = reported(declared(given), "p0", 12)
    assert lists(given, fleet=full) == {"d0": {"p1": 100}}
    (found, _) = prefillers(given, full, decided(), "first")
    assert (found.state, found.why_not) == (PrefillState.FULL, "full: 12 requests in flight (limit 12)")
    assert lists(given, fleet=reported(full, "p1", 30)) == {}


def test_engine_on_trial_or_in_slow_start_gets_part_of_its_share() -> None:
    given = policies({"p0": "a", "p1": "a", "p2": "a"}, {"d0": "a"})
    weak = decided({"p0": decision(traffic_percent=25)}, ramps={"p1": 10})
    assert lists(given, weak) == {"d0": {"p0": 25, "p1": 10, "p2": 100}}


def test_engines_of_the_own_zone_come_first() -> None:
    given = policies({"p0": "a", "p1": "b"}, {"d0": "a", "d1": "b"})
    assert lists(given) == {"d0": {"p0": 100}, "d1": {"p1": 100}}


def test_a_zone_that_lacks_engines_uses_those_that_others_have_left() -> None:
    given = policies({"p0": "a", "p1": "b", "p2": "b", "p3": "c"}, {"d0": "a", "d1": "b", "d2": "c"})
    # Zone a has a quarter of the prefill engines and a third of the decode engines; only b has more than it needs.
    found = lists(given)
    assert found["d0"] == {"p0": 100, "p1": 17, "p2": 17}
    assert found["d1"] == {"p1": 100, "p2": 100}
    assert found["d2"] == {"p1": 17, "p2": 17, "p3": 100}
    assert lists(given, decided({"p0": decision(Health.UNHEALTHY)}))["d0"] == {"p1": 100, "p2": 100}


def test_prompts_stay_in_the_region() -> None:
    given = policies({"p0": "eu/a", "p1": "us/b"}, {"d0": "eu/a", "d1": "us/b", "d2": "asia/c"})
    assert lists(given) == {"d0": {"p0": 100}, "d1": {"p1": 100}}
    assert lists(given, decided({"p0": decision(Health.UNHEALTHY)})) == {"d1": {"p1": 100}}


@given(
    prefill=st.lists(st.sampled_from("abc"), min_size=1, max_size=9),
    decode=st.lists(st.sampled_from("abcd"), min_size=1, max_size=9),
)
def test_every_prefill_engine_gets_its_share(prefill: list[str], decode: list[str]) -> None:
    given_policies = policies(
        {f"p{number}": zone for number, zone in enumerate(prefill)},
        {f"d{number}": zone for number, zone in enumerate(decode)},
    )
    found = lists(given_policies)
    assert len(found) == len(decode)
    got: Counter[str] = Counter()
    for weights in found.values():
        for name, weight in weights.items():
            got[name] += weight / sum(weights.values()) / len(decode)  # type: ignore[assignment]
    for number in range(len(prefill)):
        # Weights are whole numbers up to 100.
        assert got[f"p{number}"] == pytest.approx(1 / len(prefill), rel=0.1)


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=20),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=9),
)
def test_named_shares_are_those_of_the_lists(prefill: list[str], decode: list[str]) -> None:
    given = policies(
        {f"p{number}": zone for number, zone in enumerate(prefill)},
        {f"d{number}": zone for number, zone in enumerate(decode)},
    )
    fleet, decisions = declared(given), decided({"p0": decision(Health.UNHEALTHY)})
    found = prefillers(given, fleet, decisions, "first")
    shares = {name.engine: one for name, one in named_shares(fleet.pools["chat"], decisions, found).items()}
    assert len(shares) == len(prefill)
    drawn = lists(given, decisions, fleet)
    assert sum(one.percent for one in shares.values()) == pytest.approx(100 if drawn else 0)
    for name, share in shares.items():
        assert (share.decoders, share.all_decoders) == (sum(name in one for one in drawn.values()), len(decode))
        whole = sum(one.get(name, 0) / sum(one.values()) for one in drawn.values())
        assert share.percent == pytest.approx(100 * whole / len(drawn) if drawn else 0)


def test_an_entry_without_address_has_the_requests_that_get_no_name() -> None:
    given = policies({"p0": "a", "p1": "a"}, {"d0": "a"})
    some = PrefillDecision(named_percent=5.0, reason="", since_s=0.0)
    chat = PoolDecisions(engines={}, zones={}, ceilings={}, prefill=some)
    decisions = replace(decided(), pools={**decided().pools, "chat": chat})
    fleet = declared(given)
    found = prefillers(given, fleet, decisions, "first")
    (text,) = prefiller_lists(fleet.pools["chat"], decisions, found).values()
    assert text == "10.1.0.0:80=100,10.1.0.1:80=100,=3800"
    shares = named_shares(fleet.pools["chat"], decisions, found)
    assert {one.percent for one in shares.values()} == {50.0}, "of those that get a name"
    out = decided({"p0": decision(Health.UNHEALTHY), "p1": decision(Health.UNHEALTHY)})
    none = replace(out, pools={**out.pools, "chat": chat})
    assert prefiller_lists(fleet.pools["chat"], none, prefillers(given, fleet, none, "first")) == {}


def test_shares_count_decode_engines_in_rotation_only() -> None:
    given = policies({"p0": "a", "p1": "b"}, {"d0": "a", "d1": "b"})
    fleet, out = declared(given), decided({"d0": decision(Health.UNHEALTHY)}, pool="chat")
    shares = named_shares(fleet.pools["chat"], out, prefillers(given, fleet, out, "first"))
    assert {one.all_decoders for one in shares.values()} == {1}
    assert sum(one.percent for one in shares.values()) == pytest.approx(100)


def test_lists_are_bounded_and_differ() -> None:
    given = policies({f"p{number}": "a" for number in range(200)}, {f"d{number}": "a" for number in range(100)})
    found = lists(given)
    assert {len(one) for one in found.values()} == {MOST_PREFILLERS}
    got = Counter(name for one in found.values() for name in one)
    assert len(got) > 195
    assert max(got.values()) < 3 * sum(got.values()) / 200
    gone = lists(given, decided({"p7": decision(Health.UNHEALTHY)}))
    assert {name for name in found if gone[name] != found[name]} == {name for name in found if "p7" in found[name]}


def resources(given: PolicySet, view: View, decisions: Decisions | None = None) -> dict[tuple[str, str], str]:
    items = translate(given, declared(given), decisions or decided(), view)
    return {(one.type_url, one.name): repr(one.message) for one in items}


def test_a_verdict_changes_endpoints_alone() -> None:
    given = policies({"p0": "a", "p1": "a"}, {"d0": "a"})
    before, after = (
        resources(given, View(role="gateway"), one)
        for one in (decided(), decided({"p0": decision(Health.UNHEALTHY)}))
    )
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {(ENDPOINT, "chat"), (ENDPOINT, "first")}


def test_a_proxy_that_may_not_see_the_pool_learns_no_address() -> None:
    given = policies({"p0": "a"}, {"d0": "a"})
    hidden = resources(given, View(role="gateway", allowed=frozenset({"chat"})))
    assert "10.1.0.0" not in "".join(hidden.values())
    assert not [name for kind, name in hidden if kind == ROUTE]
    seen = resources(given, View(role="gateway"))
    assert "10.1.0.0:80=100" in seen[ENDPOINT, "chat"]


def test_operator_labels_cannot_name_an_engine() -> None:
    given = policies({"p0": "a"}, {"d0": "a"})
    chat = given.pools["chat"]
    [one] = chat.spec.endpoints
    forged = one.model_copy(update={"labels": {"switchgear.dev/prefillers": "6.6.6.6:80=100", "x": "y"}})
    spec = chat.spec.model_copy(update={"endpoints": (forged,)})
    pools = {**given.pools, "chat": chat.model_copy(update={"spec": spec})}
    out = decided({"p0": decision(Health.UNHEALTHY)})
    assert "6.6.6.6" not in resources(replace(given, pools=pools), View(role="gateway"), out)[ENDPOINT, "chat"]


def test_only_clusters_of_decode_pools_have_the_filters() -> None:
    given = policies({"p0": "a"}, {"d0": "a"})
    found = resources(given, View(role="gateway"))
    assert "x-prefiller-host-port" in found[CLUSTER, "chat"]
    assert "x-prefiller-host-port" not in found[CLUSTER, "first"]
