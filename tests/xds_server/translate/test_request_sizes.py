"""Rules by the size of requests: the largest first, and each only where it changes something."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.resilience import ResilienceSpec
from xds_server.decide.decisions import TokenTimeLimit
from xds_server.translate.request_sizes import (
    SizeRule,
    depends_on_size,
    full_key,
    size_rules,
    time_limit_metadata,
)

HEDGES = {"enabled": True, "delay": "1s"}
LIMIT = TokenTimeLimit(wait_s=2.0, per_token_s=0.03)


def spec(**said: Any) -> ResilienceSpec:
    return ResilienceSpec.model_validate(said)


def rules(said: ResilienceSpec) -> list[SizeRule]:
    return list(size_rules(said, gated=True))


def numbers(said: ResilienceSpec, *, hurried: bool = False) -> dict[str, float]:
    found = time_limit_metadata(said, LIMIT, streaming=False, hurried=hurried)
    assert found is not None
    ((_, outer),) = found.filter_metadata.items()
    ((_, rule),) = outer.fields.items()
    assert rule.struct_value is not None
    return {key: value.number_value or 0.0 for key, value in rule.struct_value.fields.items()}


def test_without_sizes_there_is_one_rule() -> None:
    assert rules(spec()) == [SizeRule(spec=spec(), gated=True)]
    assert not depends_on_size(spec())


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({"retries": {"large": {"tokensAbove": 9}}}, ["/above-9-full", "/above-9", ""]),
        ({"retries": {"large": {"tokensAbove": 9, "attempts": 0}}}, ["/above-9", ""]),
        # As many retries as others while the pool has room.
        ({"retries": {"large": {"tokensAbove": 9, "attempts": 3}}}, ["/above-9-full", ""]),
        ({"retries": {"attempts": 0, "large": {"tokensAbove": 9}}}, [""]),
        ({"hedging": {"maxTokens": 5}}, [""]),
        ({"hedging": {**HEDGES, "maxTokens": 5}}, ["/above-5", ""]),
        (
            {"hedging": {**HEDGES, "maxTokens": 5}, "retries": {"large": {"tokensAbove": 9}}},
            ["/above-9-full", "/above-9", "/above-5", ""],
        ),
        (
            {"hedging": {**HEDGES, "maxTokens": 9}, "retries": {"large": {"tokensAbove": 5}}},
            ["/above-9-full", "/above-9", "/above-5-full", "/above-5", ""],
        ),
    ],
)
def test_rules_come_in_matching_order(said: dict[str, Any], names: list[str]) -> None:
    assert [one.name for one in rules(spec(**said))] == names


@given(
    large=st.none() | st.integers(1, 20),
    attempts=st.integers(0, 4),
    retries=st.integers(0, 4),
    most=st.none() | st.integers(1, 20),
    hedged=st.booleans(),
    tokens=st.integers(1, 30),
)
def test_request_has_the_rules_of_its_size(
    large: int | None, attempts: int, retries: int, most: int | None, hedged: bool, tokens: int
) -> None:
    said = spec(
        retries={"attempts": retries, "large": {"tokensAbove": large, "attempts": attempts}},
        hedging={"enabled": hedged, "delay": "1s", "maxTokens": most},
    )
    for full in (True, False):
        first = next(
            one
            for one in size_rules(said, gated=True)
            if (one.above is None or tokens > one.above) and (full or not one.full)
        )
        is_large = large is not None and tokens > large
        if most is not None and tokens > most:
            assert not first.spec.hedging.enabled
        if is_large and not full and attempts:
            assert first.spec.retries.attempts <= attempts or not retries or attempts >= retries
        if is_large and (full or not attempts):
            assert not first.spec.hedging.enabled
            assert first.spec.retries.statuses == () or not retries
        if not is_large:
            assert first.spec.retries == said.retries


def test_rule_of_the_script_has_the_tries_of_the_route() -> None:
    said = {"timeouts": {"nonStreaming": {"total": "90s", "byTokens": {"enabled": True, "min": "5s"}}}}
    assert numbers(spec(**said, retries={"attempts": 2, "retryAfter": {"max": "3s"}})) == {
        "base": 2000.0,
        "per_token": 30.0,
        "least": 5000.0,
        "most": 90_000.0,
        "tries": 3.0,
        "pauses": 6000.0,
        "each": 1.0,
    }
    assert numbers(spec(**said, retries={"attempts": 0}))["each"] == 0.0
    assert numbers(spec(**said, hedging=HEDGES))["each"] == 0.0
    assert numbers(spec(**said, hedging=HEDGES))["tries"] == 2.0
    assert numbers(spec(**said), hurried=True)["each"] == 0.0
    assert time_limit_metadata(spec(**said), LIMIT, streaming=True, hurried=False) is None
    assert time_limit_metadata(spec(**said), None, streaming=False, hurried=False) is None


def test_key_names_the_pool() -> None:
    assert full_key("chat") == "switchgear.large_retries_off.chat"
