"""What one look at the GPUs of an engine brought back: values with a time, and no opinion.

None means that the driver does not say; the reason stands in ``GpuReading.unknown`` under the name of the NVML
call. Times are the reader's monotonic clock in seconds. A GPU is a *rank*: its place among the GPUs of the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

EVENTS_NOT_YET: Final = "XIDs are not listened for yet"


class NvmlState(StrEnum):
    """Whether the GPUs can be asked at all."""

    OPENING = "opening"  # asked for, no answer yet
    PRESENT = "present"
    ABSENT = "absent"  # no library, no driver, no permission: health of the GPUs is unknown, which is not bad


class ThrottleReason(StrEnum):
    """Why clocks are below what was asked for; idle and deliberate settings are left out."""

    SW_POWER_CAP = "software power cap"
    HW_SLOWDOWN = "hardware slowdown"
    SW_THERMAL = "software thermal slowdown"
    HW_THERMAL = "hardware thermal slowdown"
    HW_POWER_BRAKE = "hardware power brake"


class GpuFault(StrEnum):
    """The driver's own word that a GPU is out of order."""

    LOST = "lost"  # fell off the bus, or does not answer the driver
    RESET_REQUIRED = "reset required"


class RecoveryAction(StrEnum):
    """What the driver asks for after a fault (R565 and later; XID 154 announces a change)."""

    NONE = "none"
    RESET = "gpu reset"
    REBOOT = "node reboot"
    DRAIN_P2P = "drain peer-to-peer traffic"
    DRAIN_AND_RESET = "drain and reset"
    OTHER = "another recovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownReading:
    """One thing the driver does not say, and why: ``signal`` is the NVML call or field."""

    signal: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadGaps:
    """What a round of questions to one GPU could not find out, and what the driver said while refusing."""

    fault: GpuFault | None
    unknown: tuple[UnknownReading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdentity:
    """What does not change while the driver is loaded.

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
        """Sum of what is known, None when nothing is."""
        known = [count for count in (self.crc, self.replay, self.recovery) if count is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What changes by the second. ECC counts are volatile: since the driver was loaded."""

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
    """One process with a compute context on the GPU; memory is None where the driver hides it."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wear:
    """What changes by the day: asked for more rarely. Aggregate ECC counts are over the life of the board."""

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
    """The counters of one GPU at one moment, kept to see what grows."""

    at_s: float
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    nvlink_errors: int | None
    pcie_replays: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCounterGrowth:
    """What the counters grew by over the last ``over_s`` seconds; None where a count is unknown."""

    over_s: float
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    nvlink_errors: int | None
    pcie_replays: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU at ``read_at_s``. ``throttled_since_s`` holds when each present reason was first seen."""

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
    """A configured device that NVML does not give out, and what the driver says of it."""

    name: str
    why: str
    fault: GpuFault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedCall:
    """A call into the driver that has not come back since ``since_s``."""

    call: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """The GPUs of one engine as last read, in rank order; ``ranks`` is how many there are to read.

    ``statement`` is one sentence about NVML itself, fit to be shown as it is. ``events`` is empty while XIDs are
    listened for, else it says why they are not.
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
    """What happened between two moments; a counter that fell was reset, so what it shows now is new."""
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
    """When each reason that holds now began to hold; unknown reasons hold nothing."""
    return {reason: before.get(reason, now_s) for reason in sorted(now or ())}
