"""Timestamped readings of an engine's GPUs, without a verdict.

None: the driver does not report it; the reason is in ``GpuReading.unknown`` under the NVML call. Times are the
reader's monotonic clock in seconds. A GPU is a *rank*: its index among the GPUs of the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

EVENTS_NOT_YET: Final = "XID events not subscribed yet"


class NvmlState(StrEnum):
    """Whether NVML is available."""

    OPENING = "opening"  # requested, no answer yet
    PRESENT = "present"
    ABSENT = "absent"  # no library, driver or permission: GPU health unknown, which is not a fault


class ThrottleReason(StrEnum):
    """Reason for reduced clocks, without idle and configured limits."""

    SW_POWER_CAP = "software power cap"
    HW_SLOWDOWN = "hardware slowdown"
    SW_THERMAL = "software thermal slowdown"
    HW_THERMAL = "hardware thermal slowdown"
    HW_POWER_BRAKE = "hardware power brake"


class GpuFault(StrEnum):
    """GPU fault reported by the driver."""

    LOST = "lost"  # off the bus, or no answer to the driver
    RESET_REQUIRED = "reset required"


class RecoveryAction(StrEnum):
    """Recovery requested by the driver (R565 and later; XID 154 announces changes)."""

    NONE = "none"
    RESET = "gpu reset"
    REBOOT = "node reboot"
    DRAIN_P2P = "drain peer-to-peer traffic"
    DRAIN_AND_RESET = "drain and reset"
    OTHER = "another recovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownReading:
    """A missing value and the reason; ``signal`` is the NVML call or field."""

    signal: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadGaps:
    """Missing values of one reading round, and a fault the driver reported."""

    fault: GpuFault | None
    unknown: tuple[UnknownReading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdentity:
    """Constant while the driver is loaded.

    ``gpu_instance_id`` is None unless the rank is a MIG slice; ``name`` and the thresholds are the board's.
    """

    rank: int
    uuid: str | None
    name: str | None
    pci_bus_id: str | None
    gpu_instance_id: int | None = None
    slowdown_temperature_c: int | None = None
    power_limit_w: float | None = None
    max_sm_clock_mhz: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLinkErrors:
    """Errors of all links of a GPU since the driver was loaded."""

    crc: int | None
    replay: int | None
    recovery: int | None

    @property
    def total(self) -> int | None:
        """Sum of known counts; None without any."""
        known = [count for count in (self.crc, self.replay, self.recovery) if count is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """Values that change by the second. ECC counts are volatile: since driver load."""

    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    power_w: float | None = None
    throttled: frozenset[ThrottleReason] | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    utilisation_percent: int | None = None
    memory_utilisation_percent: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    pcie_replays: int | None = None
    nvlink_errors: NvLinkErrors | None = None
    recovery: RecoveryAction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRemaps:
    """Rows of memory replaced by spare ones over the life of the board (Ampere and later)."""

    correctable: int
    uncorrectable: int
    pending: bool | None
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """One process with a compute context on the GPU; memory is None if the driver hides it."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wear:
    """Values that change by the day, read less often. Aggregate ECC counts are over the life of the board."""

    ecc_enabled: bool | None = None
    ecc_corrected_total: int | None = None
    ecc_uncorrected_total: int | None = None
    row_remaps: RowRemaps | None = None
    retired_pages_single_bit: int | None = None
    retired_pages_double_bit: int | None = None
    retirement_pending: bool | None = None
    nvlinks_up: tuple[bool, ...] | None = None
    persistence: bool | None = None
    mig_enabled: bool | None = None
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCounters:
    """The counters of one GPU at one moment, kept to compute growth."""

    at_s: float
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    nvlink_errors: int | None
    pcie_replays: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCounterGrowth:
    """Growth of counters over the last ``over_s`` seconds; None if unknown."""

    over_s: float
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    nvlink_errors: int | None
    pcie_replays: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU at ``read_at_s``. ``throttled_since_s``: start of each present reason."""

    identity: GpuIdentity
    read_at_s: float
    vitals: Vitals
    wear: Wear
    fault: GpuFault | None = None
    growth: GpuCounterGrowth | None = None
    throttled_since_s: Mapping[ThrottleReason, float]
    unknown: tuple[UnknownReading, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingDevice:
    """A configured device that NVML does not provide, and the reason."""

    name: str
    why: str
    fault: GpuFault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedCall:
    """A driver call without return since ``since_s``."""

    call: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """The GPUs of one engine as last read, in rank order; ``ranks`` is how many there are to read.

    ``statement`` is one sentence about NVML. ``events`` is empty while XIDs are received, else the reason.
    """

    state: NvmlState
    statement: str
    driver_version: str | None = None
    ranks: int = 0
    gpus: tuple[GpuReading, ...] = ()
    missing: tuple[MissingDevice, ...] = ()
    blocked: BlockedCall | None = None
    events: str = ""


def gpu_counters(reading_at_s: float, vitals: Vitals) -> GpuCounters:
    """The counters among ``vitals``."""
    return GpuCounters(
        at_s=reading_at_s,
        ecc_corrected=vitals.ecc_corrected,
        ecc_uncorrected=vitals.ecc_uncorrected,
        nvlink_errors=vitals.nvlink_errors.total if vitals.nvlink_errors else None,
        pcie_replays=vitals.pcie_replays,
    )


def counter_growth(older: GpuCounters, newer: GpuCounters) -> GpuCounterGrowth:
    """Growth between two readings; a lower count means a reset, so all of it is new."""
    return GpuCounterGrowth(
        over_s=newer.at_s - older.at_s,
        ecc_corrected=_grown(older.ecc_corrected, newer.ecc_corrected),
        ecc_uncorrected=_grown(older.ecc_uncorrected, newer.ecc_uncorrected),
        nvlink_errors=_grown(older.nvlink_errors, newer.nvlink_errors),
        pcie_replays=_grown(older.pcie_replays, newer.pcie_replays),
    )


def _grown(older: int | None, newer: int | None) -> int | None:
    if older is None or newer is None:
        return None
    return newer - older if newer >= older else newer


def throttled_since(
    before: Mapping[ThrottleReason, float], now: frozenset[ThrottleReason] | None, now_s: float
) -> Mapping[ThrottleReason, float]:
    """Start of each present reason."""
    return {reason: before.get(reason, now_s) for reason in sorted(now or ())}
