"""Prefill engines are named to most requests only while they are quicker to the first token."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pool import EnginePoolSpec
from xds_server.decide.decisions import PrefillDecision
from xds_server.decide.routing.prefill_choice import CHANGES_EACH_S, MIN_STREAMS, OTHER_PERCENT, prefill_choice
from xds_server.model.pool_traffic import LatencyTail, PrefillUse

GATED = EnginePoolSpec.model_validate({"model": "m", "stage": "decode", "firstTokenGate": True})
MOST, FEW = 100 - OTHER_PERCENT, OTHER_PERCENT


def use(named_s: float, local_s: float, streams: tuple[int, int] = (400, 40)) -> PrefillUse:
    tails = [
        LatencyTail(p50_s=p50_s, p95_s=2 * p50_s, p99_s=3 * p50_s, calls=calls) if calls else None
        for p50_s, calls in zip((named_s, local_s), streams, strict=True)
    ]
    return PrefillUse(named=400, local=40, named_first_byte=tails[0], local_first_byte=tails[1])


def decided(percent: float, since_s: float = 0.0) -> PrefillDecision:
    return PrefillDecision(named_percent=percent, reason="", since_s=since_s)


@pytest.mark.parametrize(
    ("before", "named_s", "local_s", "after"),
    [
        (MOST, 0.5, 1.0, MOST),
        (MOST, 1.1, 1.0, MOST),
        (MOST, 1.3, 1.0, FEW),
        (FEW, 1.3, 1.0, FEW),
        (FEW, 1.1, 1.0, FEW),
        (FEW, 0.9, 1.0, MOST),
    ],
)
def test_the_quicker_way_has_most_requests(before: float, named_s: float, local_s: float, after: float) -> None:
    found = prefill_choice(GATED, use(named_s, local_s), decided(before), 100.0)
    assert found.named_percent == after
    if after != before:
        assert f"median first token {named_s:.2g} s with a prefill engine, {local_s:.2g} s without" in found.reason
        assert found.since_s == 100


@pytest.mark.parametrize("streams", [(MIN_STREAMS - 1, 400), (400, MIN_STREAMS - 1), (400, 0), (0, 400)])
def test_few_streams_prove_nothing(streams: tuple[int, int]) -> None:
    before = decided(MOST)
    assert prefill_choice(GATED, use(9.0, 1.0, streams), before, 100.0) is before
    assert prefill_choice(GATED, None, before, 100.0) is before


def test_first_some_requests_go_the_other_way() -> None:
    assert prefill_choice(GATED, use(9.0, 1.0), None, 100.0).named_percent == MOST


def test_without_first_tokens_nothing_is_compared() -> None:
    pool = GATED.model_copy(update={"first_token_gate": False})
    found = prefill_choice(pool, use(9.0, 1.0), None, 100.0)
    assert (found.named_percent, found.reason) == (
        100,
        "not compared with local prefill: the pool has no first-token gate",
    )
    assert prefill_choice(pool, use(9.0, 1.0), found, 500.0) is found
    assert prefill_choice(GATED, use(9.0, 1.0), found, 500.0).named_percent == MOST, "the gate was installed"


@given(st.lists(st.tuples(st.floats(0.01, 9), st.floats(0.01, 9)), max_size=100))
def test_changes_are_a_window_apart(medians: list[tuple[float, float]]) -> None:
    before, changes = None, []
    for number, (named_s, local_s) in enumerate(medians):
        now_s = 7.0 * number
        found = prefill_choice(GATED, use(named_s, local_s), before, now_s)
        if found is not before:
            changes.append(now_s)
        before = found
    assert all(after - last >= CHANGES_EACH_S for last, after in pairwise(changes))
