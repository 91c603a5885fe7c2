"""Two stages: compared with sums by hand, and with what one engine fewer does."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.planning.error import PlanError
from chaos.planning.fleet_capacity import WaitPromise
from chaos.planning.stage_capacity import (
    KvTransfer,
    StagedDemand,
    StageEngine,
    StageFleet,
    two_stage_plan,
)

PROMISE = WaitPromise()
DEMAND = StagedDemand(arrivals_per_s=20, input_tokens=2000, output_tokens=250)
FLEET = StageFleet(
    prefill=StageEngine(tokens_per_s=20_000, slots=1), decode=StageEngine(tokens_per_s=2500, slots=64)
)
TRANSFER = KvTransfer(bytes_per_token=131_072, bandwidth_bytes_per_s=12.5e9)


def test_stages_equal_sums_by_hand() -> None:
    found = two_stage_plan(DEMAND, replace(FLEET, prefill_engines=4), TRANSFER, PROMISE)
    prefill, decode, way = found.prefill.whole, found.decode.whole, found.transfer
    # 20/s x 0.1 s on 4 slots. Erlang B is (16/24) / (1 + 2 + 2 + 8/6 + 16/24) = 2/21, Erlang C 4/23.
    assert prefill.now.service_s == pytest.approx(0.1)
    assert prefill.now.waits == pytest.approx(4 / 23)
    assert prefill.now.wait_mean_s == pytest.approx(4 / 23 / 20)
    # 250 tokens at 2500 / 64 tokens/s take 6.4 s: 128 in flight, of 4 x 64 slots.
    assert decode.now.service_s == pytest.approx(6.4)
    assert decode.now.in_flight == pytest.approx(128, abs=1e-6)
    # 2000 x 128 KiB = 262.144 MB each, 20/s of them over 4 links of 12.5 GB/s.
    assert way.bytes_per_request == 262_144_000
    assert way.idle_s == pytest.approx(0.02097152)
    assert prefill.link_load == pytest.approx(0.1048576)
    assert way.mean_s == pytest.approx(0.02097152 / (1 - 0.1048576))
    assert way.waiting_requests == pytest.approx(20 * 0.0234280, rel=1e-4)
    assert way.waiting_bytes == pytest.approx(20 * 0.0234280 * 262_144_000 / 4, rel=1e-4)
    assert way.first_token_s == pytest.approx(4 / 460 + 0.1 + 0.0234280 + 6.4 / 250, rel=1e-4)


def test_slow_links_decide_the_number_of_engines() -> None:
    slow = replace(TRANSFER, bandwidth_bytes_per_s=1.25e9)
    needs = two_stage_plan(DEMAND, FLEET, slow, PROMISE).prefill.needs
    # 20 x 262.144 MB over 0.7 x 1.25 GB/s = 5.99 links.
    assert (needs.by_slots, needs.by_link, needs.engines) == (3, 6, 6)
    few = two_stage_plan(DEMAND, replace(FLEET, prefill_engines=4), slow, PROMISE)
    assert not few.prefill.whole.kept
    assert few.transfer.mean_s == math.inf, "4 links carry 4.77 of them at most"


@given(st.floats(0.1, 300), st.floats(10, 8000), st.floats(1, 2000), st.floats(1e8, 1e11))
@settings(max_examples=40)
def test_needs_are_enough_and_minimal(arrivals: float, asked: float, answered: float, bandwidth: float) -> None:
    demand = StagedDemand(arrivals_per_s=arrivals, input_tokens=asked, output_tokens=answered)
    transfer = replace(TRANSFER, bandwidth_bytes_per_s=bandwidth)
    found = two_stage_plan(demand, FLEET, transfer, PROMISE)
    for stage in (found.prefill, found.decode):
        assert stage.whole.engines == stage.needs.engines + 1
        assert stage.without_one.kept
    exact = replace(FLEET, prefill_engines=found.prefill.needs.engines, decode_engines=found.decode.needs.engines)
    tight = two_stage_plan(demand, exact, transfer, PROMISE)
    for stage in (tight.prefill, tight.decode):
        assert stage.whole.kept
        assert not stage.without_one.kept


def test_stage_without_its_only_engine_has_no_room() -> None:
    lone = two_stage_plan(replace(DEMAND, arrivals_per_s=1), replace(FLEET, prefill_engines=1), TRANSFER, PROMISE)
    assert lone.prefill.without_one.most_arrivals_per_s == 0
    assert (lone.prefill.whole.kept, lone.prefill.without_one.kept) == (True, False)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: StagedDemand(arrivals_per_s=1, input_tokens=0, output_tokens=5),
        lambda: StageEngine(tokens_per_s=0, slots=1),
        lambda: StageEngine(tokens_per_s=1, slots=0),
        lambda: KvTransfer(bytes_per_token=0, bandwidth_bytes_per_s=1),
        lambda: KvTransfer(bytes_per_token=1, bandwidth_bytes_per_s=1, most_load=1.0),
        lambda: two_stage_plan(DEMAND, replace(FLEET, decode_engines=0), TRANSFER, PROMISE),
    ],
)
def test_invalid_stage_is_refused(wrong: object) -> None:
    with pytest.raises(PlanError):
        wrong()  # type: ignore[operator]
