"""Learned state stays in force over a restart until measured again, and no longer."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from policies.resilience import Hedging, ResilienceSpec
from tests.xds_server.decide.routing.test_endpoint_weights import Pool
from tests.xds_server.decide.routing.test_time_limits import SHORT, admitted, tail, told
from tests.xds_server.reconcile.fake_peers import Peers, accepted, running
from xds_server.decide.decision_memory import (
    NO_MEMORY,
    CapacityEstimate,
    CapacityMemory,
    DecisionMemory,
    HedgeMemory,
    LongestCall,
    PoolMemory,
    RampMemory,
    RetryMemory,
    SlowStartMemory,
    TimeLimitMemory,
)
from xds_server.decide.decisions import (
    EngineCapacity,
    EngineDecision,
    Health,
    HedgeCause,
    HedgeDecision,
    RetryDecision,
    TimeLimits,
)
from xds_server.decide.routing.endpoint_weights import HOLD_S
from xds_server.decide.routing.hedge_decision import hedge_decision
from xds_server.decide.routing.key_hold import KeyHold
from xds_server.decide.routing.slow_start import share_ramps, slow_start
from xds_server.decide.routing.time_limits import DOWN_INTERVAL_S, time_limits
from xds_server.model.fleet import EngineId
from xds_server.rollout.learned_state import (
    FILE_NAME,
    HELD_S,
    MAX_AGE_S,
    comparable_numbers,
    learned_state,
    read,
    save,
)
from xds_server.state.versioned_file import StoreError

NOW_S, STARTED_S, UNIX_S = 5_000.0, 10.0, 1_000_000.0
LIMITS = TimeLimitMemory(
    decided=TimeLimits(
        first_token_s=4.0,
        between_tokens_s=30.0,
        stream_total_s=900.0,
        per_try_s=5.0,
        total_s=300.0,
        reason="measured",
        since_s=NOW_S - 100,
    ),
    answer=LongestCall(time_s=2.0, seen_at_s=NOW_S - 50),
    first_byte=LongestCall(time_s=0.5, seen_at_s=NOW_S - 20),
)
HEDGE = HedgeMemory(
    decided=HedgeDecision(
        on=True,
        cause=HedgeCause.ROOM,
        delay_s=None,
        answer_delay_s=0.7,
        reason="measured",
        since_s=NOW_S - 100,
    )
)
KEY = EngineId("p", "e0")
FAST = CapacityMemory(
    capacities={KEY: EngineCapacity(slots=8.0, service_s=0.5, source="measured")},
    estimates={KEY: CapacityEstimate(done=100.0, busy=50.0, span_s=9.0, at_s=NOW_S - 1)},
)
POOL = PoolMemory(limits=LIMITS, hedge=HEDGE, capacity=FAST)


def memory(pool: PoolMemory) -> DecisionMemory:
    return DecisionMemory(pools={"p": pool})


def restarted(folder: Path, pool: PoolMemory = POOL, *, away_s: float = 3.0) -> PoolMemory:
    """The state that a server restores which starts this long after one with this memory ended."""
    save(folder, learned_state(memory(pool), NOW_S), UNIX_S)
    return read(folder, UNIX_S + away_s, STARTED_S).pools["p"]


def limits_at(now_s: float, before: TimeLimitMemory | None, **more) -> TimeLimitMemory:
    settings = {"traffic": None, "resilience": ResilienceSpec(), **more}
    return time_limits(
        SHORT,
        settings["resilience"],
        before,
        traffic=settings["traffic"],
        engines=(),
        admission=admitted(None),
        hedge=None,
        now_s=now_s,
    )


def test_learned_timeouts_hold_over_a_restart_until_remeasured(tmp_path: Path) -> None:
    limits = limits_at(STARTED_S, restarted(tmp_path).limits)
    assert (limits.decided.per_try_s, limits.decided.first_token_s) == (5.0, 4.0)
    assert (limits.decided.between_tokens_s, limits.decided.stream_total_s, limits.decided.total_s) == (
        30.0,
        900.0,
        300.0,
    )  # the policy's
    assert limits_at(STARTED_S + HELD_S - 1, limits).decided.per_try_s == 5.0
    assert limits_at(STARTED_S + HELD_S, limits).decided.per_try_s is None
    measured = limits_at(STARTED_S + 2, limits, traffic=told(tail(2.0), tail(0.5), at_s=STARTED_S + 2))
    assert measured.decided.per_try_s == 5.0
    assert limits_at(STARTED_S + 9, measured).decided.per_try_s == 5.0  # silent again
    grown = limits_at(STARTED_S + 2, limits, traffic=told(tail(9.0), at_s=STARTED_S + 2))
    assert grown.decided.per_try_s == 13.5  # at once: 1.5 x the tail
    # While the longest call is remembered, they shrink no more than without a restart.
    later_s = STARTED_S + 2 + DOWN_INTERVAL_S
    assert limits_at(later_s, measured, traffic=told(tail(0.1), at_s=later_s)).decided.per_try_s == 5.0


def test_endpoint_weights_survive_a_restart(tmp_path: Path) -> None:
    before = Pool(0.5, 1.0)
    after = Pool(0.5, 1.0)
    kept = CapacityMemory(
        capacities={EngineId("p", key.engine): one for key, one in before.capacities.items()},
        estimates={EngineId("p", key.engine): one for key, one in before.estimates.items()},
    )
    found = restarted(tmp_path, replace(POOL, capacity=kept)).capacity
    after.capacities = {one.id: found.capacities[EngineId("p", one.id.engine)] for one in after.engines}
    after.estimates = {one.id: found.estimates[EngineId("p", one.id.engine)] for one in after.engines}
    for pool in (before, after):
        for _ in range(int(2 * HOLD_S / 0.5)):
            pool.look()
    assert after.look() == before.look() != [1.0, 1.0]


def test_present_policy_overrides_learned_state(tmp_path: Path) -> None:
    said = ResilienceSpec.model_validate({"timeouts": {"nonStreaming": {"perTry": "9s"}}})
    assert limits_at(STARTED_S, restarted(tmp_path).limits, resilience=said).decided.per_try_s == 9.0
    short = ResilienceSpec.model_validate({"timeouts": {"nonStreaming": {"total": "4s"}}})
    assert limits_at(STARTED_S, restarted(tmp_path).limits, resilience=short).decided.per_try_s is None
    never = ResilienceSpec.model_validate({"timeouts": {"adaptive": False}})
    assert limits_at(STARTED_S, restarted(tmp_path).limits, resilience=never).decided.per_try_s is None


def test_measured_hedging_delay_survives_a_restart(tmp_path: Path) -> None:
    policy = Hedging(enabled=True)

    def at(now_s: float, before: HedgeMemory | None) -> HedgeMemory:
        return hedge_decision(
            policy,
            before,
            traffic=None,
            utilization=None,
            degradation=None,
            gated=False,
            shadow=False,
            now_s=now_s,
        )

    assert not at(STARTED_S, None).decided.on
    going = at(STARTED_S, restarted(tmp_path).hedge)
    assert (going.decided.on, going.decided.answer_delay_s) == (True, 0.7)
    assert not at(STARTED_S + HELD_S, going).decided.on


def test_disabled_retry_on_500_survives_a_restart(tmp_path: Path) -> None:
    held = RetryDecision(statuses=(503,), reason="", since_s=NOW_S, sign_at_s=NOW_S)
    found = restarted(tmp_path, replace(POOL, retries=RetryMemory(decided=held, moved_at_s=NOW_S))).retries
    assert found is not None
    assert (found.decided.statuses, found.decided.sign_at_s) == ((503,), STARTED_S)
    retried = RetryMemory(decided=replace(held, sign_at_s=None))
    assert restarted(tmp_path, replace(POOL, retries=retried)).retries is None


async def test_learned_state_applies_from_the_first_round_after_restart(tmp_path: Path) -> None:
    now_s = [STARTED_S]
    async with running(Peers(), clock=lambda: now_s[0]) as reconciler:
        restarted(tmp_path)
        reconciler.restored = read(tmp_path, UNIX_S, STARTED_S)
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        assert reconciler.built is not None
        pool = reconciler.built.decisions.pools["p"]
        # 1.1 x (2 s + 4 x 2 s) is what is declared here; 5 s would be too short, and it grows at once.
        assert pool.limits is not None
        assert pool.limits.per_try_s == pytest.approx(11.0)
        assert pool.admission is not None
        able = pool.admission.capacities
        assert (able[KEY].service_s, able[KEY].source) == (0.5, "measured")
        # Its peer is as fast as it, as before.
        assert able[EngineId("p", "e1")].service_s == 0.5


def test_old_or_damaged_learned_state_is_ignored(tmp_path: Path) -> None:
    assert read(tmp_path, UNIX_S, STARTED_S) is NO_MEMORY
    restarted(tmp_path)
    assert read(tmp_path, UNIX_S + MAX_AGE_S, STARTED_S) is not NO_MEMORY
    assert read(tmp_path, UNIX_S + MAX_AGE_S + 1, STARTED_S) is NO_MEMORY
    path = tmp_path / FILE_NAME
    whole = path.read_text()
    for damaged in (
        "",
        whole[:100],
        "[]",
        whole.replace("/1", "/2"),
        whole.replace("5.0", "-1.0"),
        whole.replace("0.5", "Infinity"),
        whole.replace(f"{UNIX_S}", "NaN"),
    ):
        path.write_text(damaged)
        with pytest.raises(StoreError, match=FILE_NAME):
            read(tmp_path, UNIX_S, STARTED_S)
    path.write_text(whole.replace('"pools"', '"later": 1, "pools"'))
    assert read(tmp_path, UNIX_S, STARTED_S) is not NO_MEMORY


def test_clock_set_back_does_not_rejuvenate_learned_state(tmp_path: Path) -> None:
    limits = restarted(tmp_path, away_s=-1_000.0).limits
    assert limits is not None
    assert limits.answer is not None
    assert limits.answer.seen_at_s == STARTED_S - 50


def test_changed_ages_alone_are_not_saved() -> None:
    assert comparable_numbers(learned_state(memory(POOL), NOW_S)) == comparable_numbers(
        learned_state(memory(POOL), NOW_S + 30)
    )
    other = replace(POOL, limits=replace(LIMITS, decided=replace(LIMITS.decided, per_try_s=6.0)))
    assert comparable_numbers(learned_state(memory(POOL), NOW_S)) != comparable_numbers(
        learned_state(memory(other), NOW_S)
    )
    assert learned_state(memory(PoolMemory(valid_until_s=math.inf)), NOW_S) == {}
    json.dumps(learned_state(memory(POOL), NOW_S), allow_nan=False)


def test_unreadable_number_drops_only_its_pool() -> None:
    estimate = replace(FAST.estimates[KEY], slots=-1.0)
    odd = replace(POOL, capacity=replace(FAST, estimates={KEY: estimate}))
    found = learned_state(DecisionMemory(pools={"odd": odd, "p": POOL}), NOW_S)
    assert list(found) == ["p"]


def test_slow_start_continues_after_a_restart(tmp_path: Path) -> None:
    policy = ResilienceSpec.model_validate({"slowStart": {"window": "20s"}})
    ramping, out = KEY, EngineId("p", "e1")
    began = SlowStartMemory(ramps={ramping: RampMemory(at_s=NOW_S - 1, ramped_s=4.0)}, absent=frozenset({out}))
    after = restarted(tmp_path, PoolMemory(slow_start=began), away_s=5.0).slow_start
    well = {
        key: EngineDecision(health=Health.HEALTHY, reason="", since_s=0)
        for key in (ramping, out, EngineId("p", "e2"))
    }
    now = slow_start(policy, well, None, known={}, before=after, now_s=STARTED_S)
    ramps = share_ramps(now, policy.slow_start)
    assert {key.engine: one.percent for key, one in ramps.items()} == {
        "e0": 50.0,  # 4 s before, 6 s since then
        "e1": 10.0,  # out when the last run ended
    }


def test_held_keys_stay_held_after_a_restart(tmp_path: Path) -> None:
    policy = ResilienceSpec()
    began = SlowStartMemory(ramps={KEY: RampMemory(at_s=NOW_S, held_s=20.0)})
    after = restarted(tmp_path, PoolMemory(slow_start=began), away_s=5.0).slow_start
    well = {KEY: EngineDecision(health=Health.HEALTHY, reason="", since_s=0)}
    now = slow_start(policy, well, None, known={}, before=after, now_s=STARTED_S, hold=KeyHold(after_s=30.0))
    [ramp] = share_ramps(now, policy.slow_start).values()
    assert ramp.held_until_s == pytest.approx(STARTED_S + 15.0)


def test_change_of_ramping_engines_is_saved() -> None:
    def numbers(ramped_s: float, *absent: str) -> object:
        ramps = {KEY: RampMemory(at_s=NOW_S, ramped_s=ramped_s)}
        one = SlowStartMemory(ramps=ramps, absent=frozenset(EngineId("p", name) for name in absent))
        return comparable_numbers(learned_state(memory(PoolMemory(slow_start=one)), NOW_S))

    assert numbers(1.0) == numbers(2.0)
    assert numbers(1.0) != numbers(1.0, "e1")
