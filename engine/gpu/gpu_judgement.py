"""One action for an engine's GPUs, from readings, XIDs and deep checks.

Pure: the time is an argument. A tensor- or pipeline-parallel group computes each token together, so the worst rank
decides. Unknown and stale readings do not count.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.gpu.gpu_policy import GpuAction, GpuPolicy, GpuSignal
from engine.gpu.gpu_readings import GpuFault, GpuReading, GpuReadings, NvmlState, RecoveryAction, ThrottleReason
from engine.gpu.xid import xid_rule
from engine.gpu.xid_events import XidRecord
from engine.gpu_check import CheckOutcome, GpuCheck

_FAULT_SIGNALS = {GpuFault.LOST: GpuSignal.LOST, GpuFault.RESET_REQUIRED: GpuSignal.RESET_REQUIRED}
_BY_HEAT = (ThrottleReason.SW_THERMAL, ThrottleReason.HW_THERMAL)
_BY_HARDWARE = (ThrottleReason.HW_SLOWDOWN, ThrottleReason.HW_POWER_BRAKE)
_INCONCLUSIVE = (CheckOutcome.UNAVAILABLE, CheckOutcome.OUT_OF_MEMORY)
_CHECK_SIGNALS = {
    CheckOutcome.WRONG_RESULT: GpuSignal.CHECK_WRONG,
    CheckOutcome.STUCK: GpuSignal.CHECK_STUCK,
    CheckOutcome.CONTEXT_ERROR: GpuSignal.CHECK_CONTEXT,
    CheckOutcome.CRASHED: GpuSignal.CHECK_CRASHED,
    CheckOutcome.OUT_OF_MEMORY: GpuSignal.CHECK_NO_MEMORY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvidence:
    """One reason. ``rank`` is None for all; ``since_s`` is on the reader's clock."""

    signal: GpuSignal
    action: GpuAction
    rank: int | None
    sentence: str
    since_s: float | None = None
    fixed_by_restart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuJudgement:
    """Action for the engine and its reasons; ``evidence`` is worst first.

    ``worst_rank`` is the deciding rank, None for none or all. ``statement`` names what is unknown. ``wants_check``
    asks for a deep check, which could tell causes apart. ``fixed_by_restart``: a new process fixes the worst fault
    (a killed or corrupted CUDA context).
    """

    action: GpuAction
    evidence: tuple[GpuEvidence, ...]
    worst_rank: int | None
    statement: str
    wants_check: bool
    fixed_by_restart: bool

    @property
    def sentences(self) -> tuple[str, ...]:
        """Evidence sentences, worst first."""
        return tuple(each.sentence for each in self.evidence)


def judge_gpu(
    readings: GpuReadings,
    xids: Sequence[XidRecord],
    policy: GpuPolicy,
    now_s: float,
    checks: Sequence[GpuCheck] = (),
) -> GpuJudgement:
    """Judge the GPUs of one engine at ``now_s`` (the clock of the readings).

    ``checks`` are deep checks, oldest first. The newest conclusive one per rank counts without a time limit, as
    silent corruption does not heal. GPUs with readings older than ``policy.stale_after_s`` are ignored.
    """
    grouped = readings.ranks + len(readings.missing) > 1
    evidence = [*_of_nvml(readings, policy, now_s), *_of_checks(checks, policy)]
    evidence += _of_xids(xids, policy, now_s, grouped=grouped)
    for gpu in readings.gpus:
        if now_s - gpu.read_at_s <= policy.stale_after_s:
            evidence += _of_gpu(gpu, policy, now_s, grouped=grouped)
    evidence = sorted(
        (each for each in evidence if each.action is not GpuAction.NONE),
        key=lambda each: -each.action.severity,
    )
    worst = evidence[0] if evidence else None
    return GpuJudgement(
        action=worst.action if worst else GpuAction.NONE,
        evidence=tuple(evidence),
        worst_rank=worst.rank if worst else None,
        statement=_statement(readings, policy, now_s),
        wants_check=any(
            each.action.severity >= GpuAction.DEGRADE.severity and each.signal in _A_CHECK_TELLS
            for each in evidence
        ),
        fixed_by_restart=worst is not None and worst.fixed_by_restart,
    )


_A_CHECK_TELLS = frozenset(
    {
        GpuSignal.XID,
        GpuSignal.ECC_UNCORRECTED,
        GpuSignal.RECOVERY_DRAIN,
        GpuSignal.NVLINK_DOWN,
        GpuSignal.ROW_REMAP_FAILED,
    }
)


def _statement(readings: GpuReadings, policy: GpuPolicy, now_s: float) -> str:
    """One line on what could be read."""
    parts = [readings.statement]
    stale = [gpu.identity.rank for gpu in readings.gpus if now_s - gpu.read_at_s > policy.stale_after_s]
    if stale:
        parts.append(f"rank(s) {_listed(stale)} unknown: last reading older than {policy.stale_after_s:g} s")
    if readings.state is NvmlState.PRESENT and readings.events:
        parts.append(readings.events)
    silent = sorted({each.signal for gpu in readings.gpus for each in gpu.unknown})
    if silent:
        parts.append(f"unknown: {', '.join(silent)}")
    return "; ".join(parts)


def _of_nvml(readings: GpuReadings, policy: GpuPolicy, now_s: float) -> Iterator[GpuEvidence]:
    for device in readings.missing:
        signal = GpuSignal.MISSING if device.fault is None else _FAULT_SIGNALS[device.fault]
        yield GpuEvidence(
            signal=signal,
            action=policy.action(signal),
            rank=None,
            sentence=f"GPU {device.name}, configured for the engine, is not readable: {device.why}",
        )
    blocked = readings.blocked
    if blocked is not None and now_s - blocked.since_s >= policy.blocked_after_s:
        yield GpuEvidence(
            signal=GpuSignal.BLOCKED,
            action=policy.action(GpuSignal.BLOCKED),
            rank=None,
            sentence=f"no answer from the driver to {blocked.call} for {now_s - blocked.since_s:.1f} s"
            f" (limit {policy.blocked_after_s:g} s)",
            since_s=blocked.since_s,
        )


def _of_xids(
    xids: Iterable[XidRecord], policy: GpuPolicy, now_s: float, *, grouped: bool
) -> Iterator[GpuEvidence]:
    for record in xids:
        rule = xid_rule(record.code, policy.xid_actions)
        action = rule.action
        if rule.link and not grouped and action.severity > GpuAction.WATCH.severity:
            action = GpuAction.WATCH  # an engine on one GPU does not use the link
        if now_s - record.last_s > policy.ttl_s(action):
            continue
        times = "" if record.count == 1 else f", {record.count} times"
        bucket = f", NVIDIA: {rule.bucket}" if rule.bucket else ""
        yield GpuEvidence(
            signal=GpuSignal.XID,
            action=action,
            rank=record.rank,
            sentence=f"{_who(record.rank)}: XID {record.code} ({rule.meaning}{bucket})"
            f" {now_s - record.last_s:.1f} s ago{times}",
            since_s=record.first_s,
            fixed_by_restart=rule.fixed_by_restart,
        )


def _of_checks(checks: Iterable[GpuCheck], policy: GpuPolicy) -> Iterator[GpuEvidence]:
    newest: dict[int, GpuCheck] = {}
    for check in checks:
        if check.rank not in newest or check.outcome not in _INCONCLUSIVE:
            newest[check.rank] = check
    for rank, check in newest.items():
        signal = _CHECK_SIGNALS.get(check.outcome)
        if signal is not None:
            yield GpuEvidence(
                signal=signal,
                action=policy.action(signal),
                rank=rank,
                sentence=f"{_who(rank)}: deep check: {check.evidence}",
                fixed_by_restart=signal is GpuSignal.CHECK_CONTEXT,
            )


def _of_gpu(gpu: GpuReading, policy: GpuPolicy, now_s: float, *, grouped: bool) -> Iterator[GpuEvidence]:
    rank = gpu.identity.rank
    for signal, words, since_s in (
        *_of_state(gpu),
        *_of_memory(gpu, policy),
        *_of_heat_and_clocks(gpu, policy, now_s),
        *_of_links(gpu, policy, grouped=grouped),
    ):
        yield GpuEvidence(
            signal=signal,
            action=policy.action(signal),
            rank=rank,
            sentence=f"{_who(rank)}: {words}",
            since_s=since_s,
        )


_Found = tuple[GpuSignal, str, float | None]


def _of_state(gpu: GpuReading) -> Iterator[_Found]:
    if gpu.fault is not None:
        yield _FAULT_SIGNALS[gpu.fault], f"driver reports: {gpu.fault}", None
    recovery = gpu.vitals.recovery
    if recovery in (RecoveryAction.RESET, RecoveryAction.REBOOT):
        yield GpuSignal.RECOVERY_RESET, f"driver requests: {recovery}", None
    elif recovery not in (None, RecoveryAction.NONE):
        yield GpuSignal.RECOVERY_DRAIN, f"driver requests: {recovery}", None
    if gpu.wear.persistence is False:
        yield GpuSignal.PERSISTENCE_OFF, "persistence mode is off", None


def _of_memory(gpu: GpuReading, policy: GpuPolicy) -> Iterator[_Found]:
    vitals, wear, grown = gpu.vitals, gpu.wear, gpu.growth
    if grown is not None and grown.ecc_uncorrected:
        yield (
            GpuSignal.ECC_UNCORRECTED,
            f"{grown.ecc_uncorrected} uncorrectable ECC error(s) in the last {grown.over_s:.0f} s (limit 0)",
            None,
        )
    elif vitals.ecc_uncorrected:
        words = f"{vitals.ecc_uncorrected} uncorrectable ECC error(s) since driver load, none new"
        yield GpuSignal.ECC_UNCORRECTED_BEFORE, words, None
    if grown is not None and _rate(grown.ecc_corrected, grown.over_s) > policy.ecc_corrected_per_min:
        words = f"{grown.ecc_corrected} corrected ECC errors in {grown.over_s:.0f} s"
        yield GpuSignal.ECC_CORRECTED, f"{words} (limit {policy.ecc_corrected_per_min:g} a minute)", None
    if wear.row_remaps is not None and wear.row_remaps.failed:
        yield GpuSignal.ROW_REMAP_FAILED, "a memory row could not be remapped", None
    if wear.row_remaps is not None and wear.row_remaps.pending:
        yield GpuSignal.ROW_REMAP_PENDING, "a memory row will be remapped at the next reset", None
    if wear.retirement_pending:
        yield GpuSignal.RETIREMENT_PENDING, "a memory page will be retired at the next driver load", None


def _of_heat_and_clocks(gpu: GpuReading, policy: GpuPolicy, now_s: float) -> Iterator[_Found]:
    heat_c, slowdown_c = gpu.vitals.temperature_c, gpu.identity.slowdown_temperature_c
    limit_c = policy.temperature_limit_c if slowdown_c is None else slowdown_c - policy.temperature_margin_c
    if heat_c is not None and heat_c >= limit_c:
        yield GpuSignal.TEMPERATURE, f"{heat_c} degrees C (limit {limit_c:g})", None
    lasting = {
        reason: since_s
        for reason, since_s in gpu.throttled_since_s.items()
        if now_s - since_s >= policy.throttled_after_s
    }
    # Heat also sets the hardware slowdown bit; the thermal bit identifies it.
    thermal = ThrottleReason.HW_THERMAL in gpu.throttled_since_s
    for reason, since_s in lasting.items():
        if reason in _BY_HEAT:
            signal = GpuSignal.THROTTLED_BY_HEAT
        elif reason in _BY_HARDWARE:
            if thermal and reason is ThrottleReason.HW_SLOWDOWN:
                continue
            signal = GpuSignal.THROTTLED_BY_HARDWARE
        else:
            signal = GpuSignal.THROTTLED_BY_POWER
        clocks = ""
        if gpu.vitals.sm_clock_mhz is not None and gpu.identity.max_sm_clock_mhz is not None:
            clocks = f", SM clock {gpu.vitals.sm_clock_mhz} of {gpu.identity.max_sm_clock_mhz} MHz"
        held_s = now_s - since_s
        yield signal, f"{reason} for {held_s:.0f} s (limit {policy.throttled_after_s:g} s){clocks}", since_s


def _of_links(gpu: GpuReading, policy: GpuPolicy, *, grouped: bool) -> Iterator[_Found]:
    grown, links = gpu.growth, gpu.wear.nvlinks_up
    # A GPU without NVLink shows all links down; some down is a fault.
    if grouped and links and any(links) and not all(links):
        down = [at for at, up in enumerate(links) if not up]
        yield GpuSignal.NVLINK_DOWN, f"NVLink {_listed(down)} down, {sum(links)} of {len(links)} up", None
    if grown is None:
        return
    if grouped and _rate(grown.nvlink_errors, grown.over_s) > policy.nvlink_errors_per_min:
        words = f"{grown.nvlink_errors} NVLink errors in {grown.over_s:.0f} s"
        yield GpuSignal.NVLINK_ERRORS, f"{words} (limit {policy.nvlink_errors_per_min:g} a minute)", None
    if _rate(grown.pcie_replays, grown.over_s) > policy.pcie_replays_per_min:
        words = f"{grown.pcie_replays} PCIe replays in {grown.over_s:.0f} s"
        yield GpuSignal.PCIE_REPLAYS, f"{words} (limit {policy.pcie_replays_per_min:g} a minute)", None


def _rate(count: int | None, over_s: float) -> float:
    """Rate per minute; windows below one minute count as one minute, so one error is not a storm."""
    return 0.0 if count is None else count / max(over_s / 60.0, 1.0)


def _who(rank: int | None) -> str:
    return "all ranks" if rank is None else f"rank {rank}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)
