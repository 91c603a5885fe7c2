"""Configurable GPU thresholds and actions per signal.

``docs/gpu.md`` lists them with the NVML call behind each signal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType


class GpuAction(StrEnum):
    """Action for the engine, by increasing severity."""

    NONE = "none"  # ignore
    WATCH = "watch"  # report only
    DEGRADE = "degrade"  # works with evidence of damage: ejected while the capacity floor allows
    DRAIN = "drain"  # finish running requests, accept no new ones
    EJECT = "eject"  # answers are wrong or will not come

    @property
    def severity(self) -> int:
        """0 (none) to 4 (eject)."""
        return _ORDER[self]


_ORDER: Mapping[GpuAction, int] = {action: at for at, action in enumerate(GpuAction)}


class GpuSignal(StrEnum):
    """Subject of evidence. XIDs have a separate table (``xid.py``)."""

    XID = "xid"
    LOST = "lost"
    RESET_REQUIRED = "reset_required"
    MISSING = "missing"
    BLOCKED = "blocked"
    RECOVERY_RESET = "recovery_reset"
    RECOVERY_DRAIN = "recovery_drain"
    ECC_UNCORRECTED = "ecc_uncorrected"
    ECC_UNCORRECTED_BEFORE = "ecc_uncorrected_before"
    ECC_CORRECTED = "ecc_corrected"
    ROW_REMAP_FAILED = "row_remap_failed"
    ROW_REMAP_PENDING = "row_remap_pending"
    RETIREMENT_PENDING = "retirement_pending"
    TEMPERATURE = "temperature"
    THROTTLED_BY_HEAT = "throttled_by_heat"
    THROTTLED_BY_POWER = "throttled_by_power"
    THROTTLED_BY_HARDWARE = "throttled_by_hardware"
    NVLINK_DOWN = "nvlink_down"
    NVLINK_ERRORS = "nvlink_errors"
    PCIE_REPLAYS = "pcie_replays"
    PERSISTENCE_OFF = "persistence_off"
    CHECK_WRONG = "check_wrong"
    CHECK_STUCK = "check_stuck"
    CHECK_CONTEXT = "check_context"
    CHECK_CRASHED = "check_crashed"
    CHECK_NO_MEMORY = "check_no_memory"


DEFAULT_ACTIONS: Mapping[GpuSignal, GpuAction] = MappingProxyType(
    {
        GpuSignal.LOST: GpuAction.EJECT,  # cannot answer
        GpuSignal.RESET_REQUIRED: GpuAction.EJECT,  # the driver refuses work until a reset
        # Off the bus before the first reading, or a wrong name: canaries decide.
        GpuSignal.MISSING: GpuAction.DEGRADE,
        GpuSignal.BLOCKED: GpuAction.DEGRADE,  # hung driver, but running kernels may still finish
        # NVIDIA, GPU memory error management, "Error recovery and response flags": reset and reboot mean that all
        # processes must end, the two drain values that running work may finish.
        GpuSignal.RECOVERY_RESET: GpuAction.EJECT,
        GpuSignal.RECOVERY_DRAIN: GpuAction.DRAIN,
        GpuSignal.ECC_UNCORRECTED: GpuAction.DRAIN,  # data was lost; XIDs 95 and 140 report uncontained loss
        GpuSignal.ECC_UNCORRECTED_BEFORE: GpuAction.WATCH,  # since driver load, before our readings
        GpuSignal.ECC_CORRECTED: GpuAction.WATCH,  # corrected: no wrong answers
        GpuSignal.ROW_REMAP_FAILED: GpuAction.DRAIN,  # the memory has no spare rows left: NVIDIA's RMA criterion
        # Same source: a pending remap costs neither accuracy nor speed.
        GpuSignal.ROW_REMAP_PENDING: GpuAction.WATCH,
        GpuSignal.RETIREMENT_PENDING: GpuAction.WATCH,
        GpuSignal.TEMPERATURE: GpuAction.WATCH,  # heat matters once it throttles, which has its own signal
        GpuSignal.THROTTLED_BY_HEAT: GpuAction.DEGRADE,
        GpuSignal.THROTTLED_BY_POWER: GpuAction.NONE,  # normal for a busy GPU
        GpuSignal.THROTTLED_BY_HARDWARE: GpuAction.DEGRADE,  # power brake or slowdown pin: clocks at half or less
        GpuSignal.NVLINK_DOWN: GpuAction.DEGRADE,
        GpuSignal.NVLINK_ERRORS: GpuAction.WATCH,  # replayed by the link; fatal ones are XIDs
        GpuSignal.PCIE_REPLAYS: GpuAction.WATCH,  # replayed by the link
        GpuSignal.PERSISTENCE_OFF: GpuAction.NONE,  # costs start-up time only
        GpuSignal.CHECK_WRONG: GpuAction.EJECT,  # wrong answers are worse than none
        GpuSignal.CHECK_STUCK: GpuAction.DRAIN,
        GpuSignal.CHECK_CONTEXT: GpuAction.DRAIN,
        GpuSignal.CHECK_CRASHED: GpuAction.DEGRADE,
        GpuSignal.CHECK_NO_MEMORY: GpuAction.WATCH,  # the engine uses the memory by design
    }
)

DEFAULT_XID_TTL_S: Mapping[GpuAction, float] = MappingProxyType(
    {
        GpuAction.NONE: 60.0,
        GpuAction.WATCH: 300.0,
        # Long enough for a canary and a deep check.
        GpuAction.DEGRADE: 300.0,
        # Only a reset fixes these, and no event reports a reset. After an hour, state readings (recovery action,
        # row remaps, lost) still identify a broken GPU.
        GpuAction.DRAIN: 3600.0,
        GpuAction.EJECT: 3600.0,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPolicy:
    """Thresholds and overrides; ``actions`` and ``xid_actions`` replace single entries of the tables."""

    actions: Mapping[GpuSignal, GpuAction] = field(default_factory=dict)
    xid_actions: Mapping[int, GpuAction] = field(default_factory=dict)
    xid_ttl_s: Mapping[GpuAction, float] = field(default_factory=lambda: DEFAULT_XID_TTL_S)
    # Older readings are ignored: ten missed readings at one per second.
    stale_after_s: float = 10.0
    # A healthy reading takes up to tens of milliseconds; the driver's firmware timeout is 6 s or more.
    blocked_after_s: float = 5.0
    # Shorter throttling is normal.
    throttled_after_s: float = 10.0
    # Degrees below the GPU's slowdown threshold at which to report.
    temperature_margin_c: float = 3.0
    # Used if the GPU reports no slowdown threshold; data centre boards slow down at 87 to 95 degrees.
    temperature_limit_c: float = 90.0
    # Rates over the growth window. Healthy memory has isolated corrected errors.
    ecc_corrected_per_min: float = 10.0
    nvlink_errors_per_min: float = 60.0
    pcie_replays_per_min: float = 60.0

    def overridden(self, wanted: Mapping[str, str]) -> "GpuPolicy":
        """This policy with single actions replaced: ``{"row_remap_pending": "drain", "xid.63": "none"}``.

        ValueError with one line per invalid entry.
        """
        actions, xid_actions, wrong = dict(self.actions), dict(self.xid_actions), []
        for name, word in wanted.items():
            kind, _, code = name.partition(".")
            if word not in set(GpuAction):
                wrong.append(f"{name}: {word!r} is not an action; use one of {', '.join(GpuAction)}")
            elif kind == GpuSignal.XID and code.isdecimal():
                xid_actions[int(code)] = GpuAction(word)
            elif name in DEFAULT_ACTIONS:
                actions[GpuSignal(name)] = GpuAction(word)
            else:
                known = ", ".join(DEFAULT_ACTIONS)
                wrong.append(f"{name}: unknown signal; use xid.NUMBER or one of {known}")
        if wrong:
            raise ValueError("\n".join(wrong))
        return replace(self, actions=actions, xid_actions=xid_actions)

    def action(self, signal: GpuSignal) -> GpuAction:
        """Action for ``signal`` under this policy."""
        return self.actions.get(signal, DEFAULT_ACTIONS.get(signal, GpuAction.WATCH))

    def ttl_s(self, action: GpuAction) -> float:
        """Seconds an XID with this action counts after its last occurrence."""
        return self.xid_ttl_s.get(action, DEFAULT_XID_TTL_S[action])
