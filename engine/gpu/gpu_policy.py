"""What an operator may change about judging GPUs: thresholds, and what each signal leads to.

Every default has its reason beside it. ``docs/gpu.md`` holds the same list with the NVML call behind each signal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType


class GpuAction(StrEnum):
    """What to do with the engine, from nothing to at once."""

    NONE = "none"  # nothing to say
    WATCH = "watch"  # say it, change nothing
    DEGRADE = "degrade"  # works, with evidence of damage: out while others have room
    DRAIN = "drain"  # finish what runs, take nothing new
    EJECT = "eject"  # what it still says cannot be trusted, or will not come

    @property
    def severity(self) -> int:
        """0 for none up to 4 for eject; strings would sort by the alphabet."""
        return _ORDER[self]


_ORDER: Mapping[GpuAction, int] = {action: at for at, action in enumerate(GpuAction)}


class GpuSignal(StrEnum):
    """What a piece of evidence is about. XIDs have a table of their own (``xid.py``)."""

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
        GpuSignal.LOST: GpuAction.EJECT,  # no answer can come from it
        GpuSignal.RESET_REQUIRED: GpuAction.EJECT,  # the driver refuses work until a reset
        # Fell off the bus before the first reading, or a wrong name: tokens will tell.
        GpuSignal.MISSING: GpuAction.DEGRADE,
        GpuSignal.BLOCKED: GpuAction.DEGRADE,  # a hung driver, yet running kernels may still finish
        # NVIDIA, GPU memory error management, "Error recovery and response flags": reset and reboot mean that all
        # processes must end, the two drain values that running work may finish.
        GpuSignal.RECOVERY_RESET: GpuAction.EJECT,
        GpuSignal.RECOVERY_DRAIN: GpuAction.DRAIN,
        GpuSignal.ECC_UNCORRECTED: GpuAction.DRAIN,  # data was lost just now; 95 and 140 say when nothing is safe
        GpuSignal.ECC_UNCORRECTED_BEFORE: GpuAction.WATCH,  # since the driver was loaded, not since we look
        GpuSignal.ECC_CORRECTED: GpuAction.WATCH,  # corrected means that no answer was wrong
        GpuSignal.ROW_REMAP_FAILED: GpuAction.DRAIN,  # the memory has no spare rows left: NVIDIA's RMA criterion
        # The same page: with a remap pending, work goes on without loss of accuracy or speed.
        GpuSignal.ROW_REMAP_PENDING: GpuAction.WATCH,
        GpuSignal.RETIREMENT_PENDING: GpuAction.WATCH,
        GpuSignal.TEMPERATURE: GpuAction.WATCH,  # heat matters once it slows: that is the throttle reason's to say
        GpuSignal.THROTTLED_BY_HEAT: GpuAction.DEGRADE,
        GpuSignal.THROTTLED_BY_POWER: GpuAction.NONE,  # the power cap is where a busy GPU is meant to run
        GpuSignal.THROTTLED_BY_HARDWARE: GpuAction.DEGRADE,  # power brake or slowdown pin: clocks at half or less
        GpuSignal.NVLINK_DOWN: GpuAction.DEGRADE,
        GpuSignal.NVLINK_ERRORS: GpuAction.WATCH,  # replayed by the link; fatal ones are XIDs
        GpuSignal.PCIE_REPLAYS: GpuAction.WATCH,  # replayed by the link
        GpuSignal.PERSISTENCE_OFF: GpuAction.NONE,  # costs start-up time only
        GpuSignal.CHECK_WRONG: GpuAction.EJECT,  # wrong answers are worse than none
        GpuSignal.CHECK_STUCK: GpuAction.DRAIN,
        GpuSignal.CHECK_CONTEXT: GpuAction.DRAIN,
        GpuSignal.CHECK_CRASHED: GpuAction.DEGRADE,
        GpuSignal.CHECK_NO_MEMORY: GpuAction.WATCH,  # the engine takes the memory by design
    }
)

DEFAULT_XID_TTL_S: Mapping[GpuAction, float] = MappingProxyType(
    {
        GpuAction.NONE: 60.0,
        GpuAction.WATCH: 300.0,
        # Long enough for a one-token completion and a deep check to say whether more is wrong.
        GpuAction.DEGRADE: 300.0,
        # Only a reset mends these, and no event tells of a reset. An hour makes somebody look; after it, the
        # level readings (recovery action, row remaps, lost) still hold a GPU that is really broken.
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
    # A look older than this says nothing about now: ten missed looks at one each second.
    stale_after_s: float = 10.0
    # A healthy look takes milliseconds to tens of them; the driver's own timeout for its firmware is 6 s or more.
    blocked_after_s: float = 5.0
    # Shorter throttling is what fans and boost clocks do all day.
    throttled_after_s: float = 10.0
    # Degrees below the GPU's own slowdown threshold at which to begin to say so.
    temperature_margin_c: float = 3.0
    # Used where the GPU does not name its slowdown threshold; data centre boards slow down from 87 to 95 degrees.
    temperature_limit_c: float = 90.0
    # Rates over the source's growth window. Corrected errors come singly on healthy memory.
    ecc_corrected_per_min: float = 10.0
    nvlink_errors_per_min: float = 60.0
    pcie_replays_per_min: float = 60.0

    def overridden(self, wanted: Mapping[str, str]) -> "GpuPolicy":
        """This policy with single actions replaced: ``{"row_remap_pending": "drain", "xid.63": "none"}``.

        Raises ValueError with one line for each entry that cannot be understood.
        """
        actions, xid_actions, wrong = dict(self.actions), dict(self.xid_actions), []
        for name, word in wanted.items():
            kind, _, code = name.partition(".")
            if word not in set(GpuAction):
                wrong.append(f"{name}: {word!r} is not an action; one of {', '.join(GpuAction)}")
            elif kind == GpuSignal.XID and code.isdecimal():
                xid_actions[int(code)] = GpuAction(word)
            elif name in DEFAULT_ACTIONS:
                actions[GpuSignal(name)] = GpuAction(word)
            else:
                known = ", ".join(DEFAULT_ACTIONS)
                wrong.append(f"{name}: not a signal; xid.NUMBER or one of {known}")
        if wrong:
            raise ValueError("\n".join(wrong))
        return replace(self, actions=actions, xid_actions=xid_actions)

    def action(self, signal: GpuSignal) -> GpuAction:
        """What ``signal`` leads to under this policy."""
        return self.actions.get(signal, DEFAULT_ACTIONS.get(signal, GpuAction.WATCH))

    def ttl_s(self, action: GpuAction) -> float:
        """How long an XID with this action counts after it was last seen, in seconds."""
        return self.xid_ttl_s.get(action, DEFAULT_XID_TTL_S[action])
