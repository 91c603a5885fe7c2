"""What GPUs are judged to be worth: pure values in, one action with its evidence out."""

from dataclasses import replace

import pytest

from engine.gpu.gpu_judgement import judge_gpu
from engine.gpu.gpu_policy import DEFAULT_ACTIONS, GpuAction, GpuPolicy, GpuSignal
from engine.gpu.gpu_readings import (
    BlockedCall,
    GpuCounterGrowth,
    GpuCounters,
    GpuFault,
    GpuIdentity,
    GpuReading,
    GpuReadings,
    NvmlState,
    RowRemaps,
    ThrottleReason,
    Vitals,
    Wear,
    counter_growth,
    throttled_since,
)
from engine.gpu.xid_events import XidRecord
from engine.gpu_check import CheckOutcome, GpuCheck

NOW_S = 1000.0


def gpu(rank: int = 0, **fields) -> GpuReading:
    identity = GpuIdentity(rank=rank, uuid=f"GPU-{rank}", name="board", pci_bus_id=None)
    plain = {"identity": identity, "read_at_s": NOW_S, "vitals": Vitals(), "wear": Wear(), "throttled_since_s": {}}
    return GpuReading(**{**plain, **fields})


def readings(*gpus: GpuReading, **fields) -> GpuReadings:
    plain = {"state": NvmlState.PRESENT, "statement": "NVML available", "ranks": len(gpus), "gpus": gpus}
    return GpuReadings(**{**plain, **fields})


def xid(code: int, *, rank: int | None = 0, ago_s: float = 0.0, count: int = 1) -> XidRecord:
    return XidRecord(rank=rank, code=code, first_s=NOW_S - ago_s, last_s=NOW_S - ago_s, count=count)


def check(outcome: CheckOutcome, rank: int = 0) -> GpuCheck:
    return GpuCheck(
        rank=rank,
        device=str(rank),
        outcome=outcome,
        evidence="7 wrong values",
        stage="kernels",
        gpu_ms=None,
        wall_s=3.0,
        checked_at_s=NOW_S,
    )


def judged(*args, policy: GpuPolicy | None = None, **kwargs):
    return judge_gpu(*args, policy=policy or GpuPolicy(), now_s=NOW_S, **kwargs)


def test_missing_readings_do_not_count_against_the_engine() -> None:
    judgement = judged(readings(gpu()), ())
    assert (judgement.action, judgement.evidence, judgement.worst_rank) == (GpuAction.NONE, (), None)


def test_absent_nvml_is_reported_and_neutral() -> None:
    absent = GpuReadings(state=NvmlState.ABSENT, statement="NVML unavailable: no library")
    judgement = judged(absent, ())
    assert judgement.action is GpuAction.NONE
    assert judgement.statement == "NVML unavailable: no library"


def test_the_worst_rank_decides_and_stands_first() -> None:
    failed = RowRemaps(correctable=0, uncorrectable=8, pending=True, failed=True)
    judgement = judged(
        readings(gpu(0), gpu(1, wear=Wear(row_remaps=failed)), gpu(2, fault=GpuFault.RESET_REQUIRED)), (xid(63),)
    )
    assert judgement.action is GpuAction.EJECT
    assert judgement.worst_rank == 2
    assert [each.action for each in judgement.evidence] == [
        GpuAction.EJECT,
        GpuAction.DRAIN,
        GpuAction.WATCH,
        GpuAction.WATCH,
    ]


def test_stale_gpu_reading_decays_to_unknown() -> None:
    old = gpu(fault=GpuFault.LOST, read_at_s=NOW_S - 11)
    judgement = judged(readings(old), ())
    assert judgement.action is GpuAction.NONE
    assert judgement.statement == "NVML available; rank(s) 0 unknown: last reading older than 10 s"
    assert judged(readings(replace(old, read_at_s=NOW_S - 9)), ()).action is GpuAction.EJECT


def test_a_blocked_call_counts_only_after_its_limit() -> None:
    blocked = BlockedCall(call="nvmlDeviceGetPowerUsage", since_s=NOW_S - 4.9)
    assert judged(readings(gpu(), blocked=blocked), ()).action is GpuAction.NONE
    judgement = judged(readings(gpu(), blocked=replace(blocked, since_s=NOW_S - 5.1)), ())
    assert judgement.action is GpuAction.DEGRADE
    assert judgement.sentences == ("no answer from the driver to nvmlDeviceGetPowerUsage for 5.1 s (limit 5 s)",)


@pytest.mark.parametrize(
    ("code", "ago_s", "wanted"),
    [
        (79, 3599, GpuAction.EJECT),
        (79, 3601, GpuAction.NONE),
        (31, 299, GpuAction.DEGRADE),
        (31, 301, GpuAction.NONE),
        (63, 0, GpuAction.WATCH),
        (12345, 0, GpuAction.WATCH),
    ],
)
def test_xid_evidence_expires_after_its_ttl(code: int, ago_s: float, wanted: GpuAction) -> None:
    assert judged(readings(gpu()), (xid(code, ago_s=ago_s),)).action is wanted


def test_a_link_fault_counts_in_full_only_for_a_group() -> None:
    assert judged(readings(gpu()), (xid(74),)).action is GpuAction.WATCH
    assert judged(readings(gpu(0), gpu(1)), (xid(74),)).action is GpuAction.DRAIN
    meant = GpuPolicy(xid_actions={74: GpuAction.EJECT})
    assert judged(readings(gpu()), (xid(74),), policy=meant).action is GpuAction.EJECT


def test_a_links_state_matters_only_to_a_group_with_links() -> None:
    half = Wear(nvlinks_up=(True, False))
    assert judged(readings(gpu(wear=half)), ()).action is GpuAction.NONE
    assert judged(readings(gpu(0, wear=half), gpu(1)), ()).action is GpuAction.DEGRADE
    bare = Wear(nvlinks_up=(False, False))
    assert judged(readings(gpu(0, wear=bare), gpu(1)), ()).action is GpuAction.NONE


def test_policy_replaces_single_entries_and_keeps_the_rest() -> None:
    policy = GpuPolicy(
        xid_actions={79: GpuAction.WATCH, 13: GpuAction.NONE}, actions={GpuSignal.LOST: GpuAction.DRAIN}
    )
    assert judged(readings(gpu()), (xid(79), xid(13)), policy=policy).action is GpuAction.WATCH
    assert judged(readings(gpu()), (xid(95),), policy=policy).action is GpuAction.EJECT
    assert judged(readings(gpu(fault=GpuFault.LOST)), (), policy=policy).action is GpuAction.DRAIN


def test_overrides_are_parsed_and_all_mistakes_are_reported() -> None:
    policy = GpuPolicy().overridden({"row_remap_pending": "drain", "xid.63": "none"})
    assert policy.action(GpuSignal.ROW_REMAP_PENDING) is GpuAction.DRAIN
    assert policy.xid_actions == {63: GpuAction.NONE}
    with pytest.raises(ValueError, match="row_remap") as caught:
        policy.overridden({"row_remap": "drain", "lost": "panic", "xid.x": "drain"})
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["row_remap", "lost", "xid.x"]


def test_restart_helps_only_if_it_clears_the_worst_signal() -> None:
    assert judged(readings(gpu()), (xid(31),)).fixed_by_restart
    assert not judged(readings(gpu()), (xid(31), xid(95))).fixed_by_restart
    assert not judged(readings(gpu()), ()).fixed_by_restart


@pytest.mark.parametrize(
    ("outcome", "wanted"),
    [
        (CheckOutcome.OK, GpuAction.NONE),
        (CheckOutcome.UNAVAILABLE, GpuAction.NONE),
        (CheckOutcome.OUT_OF_MEMORY, GpuAction.WATCH),
        (CheckOutcome.CRASHED, GpuAction.DEGRADE),
        (CheckOutcome.STUCK, GpuAction.DRAIN),
        (CheckOutcome.CONTEXT_ERROR, GpuAction.DRAIN),
        (CheckOutcome.WRONG_RESULT, GpuAction.EJECT),
    ],
)
def test_each_outcome_of_a_deep_check_is_its_own_evidence(outcome: CheckOutcome, wanted: GpuAction) -> None:
    judgement = judged(readings(gpu()), (), checks=(check(outcome),))
    assert judgement.action is wanted
    assert not judgement.wants_check, "a check does not ask for a check"
    assert judgement.fixed_by_restart is (outcome is CheckOutcome.CONTEXT_ERROR)


def test_only_a_newer_check_of_the_same_rank_clears_a_wrong_result() -> None:
    wrong = check(CheckOutcome.WRONG_RESULT)
    assert judged(readings(gpu()), (), checks=(wrong, check(CheckOutcome.OK, 1))).action is GpuAction.EJECT
    assert judged(readings(gpu()), (), checks=(wrong, check(CheckOutcome.OK))).action is GpuAction.NONE


def test_a_check_that_could_not_run_does_not_clear_a_wrong_result() -> None:
    checks = (check(CheckOutcome.WRONG_RESULT), check(CheckOutcome.OUT_OF_MEMORY), check(CheckOutcome.UNAVAILABLE))
    assert judged(readings(gpu()), (), checks=checks).action is GpuAction.EJECT


def test_suspicion_asks_for_a_deep_check() -> None:
    assert judged(readings(gpu()), (xid(48),)).wants_check
    assert not judged(readings(gpu()), (xid(63),)).wants_check


def test_throttling_counts_when_it_lasts_and_heat_explains_the_slowdown() -> None:
    def throttled(for_s: float, *reasons: ThrottleReason) -> GpuReading:
        return gpu(throttled_since_s=dict.fromkeys(reasons, NOW_S - for_s))

    assert judged(readings(throttled(9, ThrottleReason.HW_THERMAL)), ()).action is GpuAction.NONE
    both = judged(readings(throttled(11, ThrottleReason.HW_SLOWDOWN, ThrottleReason.HW_THERMAL)), ())
    assert [each.signal for each in both.evidence] == [GpuSignal.THROTTLED_BY_HEAT]
    alone = judged(readings(throttled(11, ThrottleReason.HW_SLOWDOWN)), ())
    assert [each.signal for each in alone.evidence] == [GpuSignal.THROTTLED_BY_HARDWARE]
    assert judged(readings(throttled(999, ThrottleReason.SW_POWER_CAP)), ()).action is GpuAction.NONE


def test_old_uncorrectable_errors_are_watched_and_new_ones_drain() -> None:
    grown = GpuCounterGrowth(over_s=60, ecc_corrected=0, ecc_uncorrected=0, nvlink_errors=None, pcie_replays=None)
    old = gpu(vitals=Vitals(ecc_uncorrected=3), growth=grown)
    assert judged(readings(old), ()).action is GpuAction.WATCH
    assert judged(readings(replace(old, growth=replace(grown, ecc_uncorrected=1))), ()).action is GpuAction.DRAIN


def test_few_errors_in_a_short_window_do_not_count_as_a_storm() -> None:
    grown = GpuCounterGrowth(over_s=1, ecc_corrected=5, ecc_uncorrected=0, nvlink_errors=5, pcie_replays=5)
    assert judged(readings(gpu(0, growth=grown), gpu(1)), ()).action is GpuAction.NONE


def test_growth_takes_a_counter_that_fell_for_reset() -> None:
    older = GpuCounters(at_s=10, ecc_corrected=9, ecc_uncorrected=None, nvlink_errors=1, pcie_replays=5)
    newer = GpuCounters(at_s=70, ecc_corrected=2, ecc_uncorrected=4, nvlink_errors=None, pcie_replays=5)
    assert counter_growth(older, newer) == GpuCounterGrowth(
        over_s=60, ecc_corrected=2, ecc_uncorrected=None, nvlink_errors=None, pcie_replays=0
    )


def test_a_throttle_reason_keeps_its_first_time_and_loses_it_when_it_ends() -> None:
    heat, power = ThrottleReason.HW_THERMAL, ThrottleReason.SW_POWER_CAP
    first = throttled_since({}, frozenset({heat}), 1.0)
    second = throttled_since(first, frozenset({heat, power}), 2.0)
    assert second == {heat: 1.0, power: 2.0}
    assert throttled_since(second, None, 3.0) == {}


def test_every_signal_has_a_default_or_a_table() -> None:
    assert set(DEFAULT_ACTIONS) == set(GpuSignal) - {GpuSignal.XID}
