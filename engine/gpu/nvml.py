"""GPUs through NVML: devices, readings and XID events.

Unsupported values do not raise: see ``nvml_calls.py``.

Source: NVML API reference, https://docs.nvidia.com/deploy/nvml-api/.
"""

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pynvml

from engine.gpu.gpu_readings import (
    GpuIdentity,
    GpuProcess,
    GpuReadGaps,
    MissingDevice,
    NvLinkErrors,
    RecoveryAction,
    RowRemaps,
    ThrottleReason,
    Vitals,
    Wear,
)
from engine.gpu.nvml_calls import NvmlCallTracker, NvmlError, NvmlQuery, WaitError, error_text
from engine.gpu.xid_events import XidEvent

_THROTTLE_BITS: Final[Mapping[int, ThrottleReason]] = MappingProxyType(
    {
        pynvml.nvmlClocksThrottleReasonSwPowerCap: ThrottleReason.SW_POWER_CAP,
        pynvml.nvmlClocksThrottleReasonHwSlowdown: ThrottleReason.HW_SLOWDOWN,
        pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: ThrottleReason.SW_THERMAL,
        pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: ThrottleReason.HW_THERMAL,
        pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: ThrottleReason.HW_POWER_BRAKE,
    }
)
# nvmlDeviceGpuRecoveryAction_t
_RECOVERY: Final[Mapping[int, RecoveryAction]] = MappingProxyType(
    {
        0: RecoveryAction.NONE,
        1: RecoveryAction.RESET,
        2: RecoveryAction.REBOOT,
        3: RecoveryAction.DRAIN_P2P,
        4: RecoveryAction.DRAIN_AND_RESET,
    }
)
_NOT_AVAILABLE: Final = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE in the memory of processes
_NO_INSTANCE: Final = 0xFFFFFFFF  # event without a MIG slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One rank. ``handle`` is the GPU or MIG slice, ``board`` the physical GPU."""

    identity: GpuIdentity
    handle: Any
    board: Any


class Nvml:
    """The opened library. Thread-safe; ``watch`` tracks the reader thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.watch = NvmlCallTracker(clock)

    def open(self) -> str:
        """Load and initialize the library; return the driver version. Raises NvmlError."""
        try:
            self.watch.call("nvmlInit", pynvml.nvmlInit)
        except pynvml.NVMLError as error:
            raise NvmlError(error_text(error)) from error
        asked = NvmlQuery(self.watch)
        return _text(asked("nvmlSystemGetDriverVersion") or "unknown")

    def close(self) -> None:
        """Shut the library down; NvmlError on failure, which is harmless."""
        try:
            self.watch.call("nvmlShutdown", pynvml.nvmlShutdown)
        except pynvml.NVMLError as error:
            raise NvmlError(error_text(error)) from error

    def devices(self, wanted: Sequence[str]) -> tuple[tuple[Device, ...], tuple[MissingDevice, ...]]:
        """Ranks of ``wanted`` (indexes, GPU or MIG UUIDs; empty: every GPU), and missing names.

        Indexes follow NVML's PCI bus order, as CUDA does under CUDA_DEVICE_ORDER=PCI_BUS_ID. NvmlError if GPUs
        cannot be counted.
        """
        if not wanted:
            asked = NvmlQuery(self.watch)
            count = asked("nvmlDeviceGetCount")
            if count is None:
                raise NvmlError(f"cannot count GPUs: {asked.unknown[-1].why}")
            wanted = [str(index) for index in range(count)]
        found: list[Device] = []
        missing: list[MissingDevice] = []
        for rank, name in enumerate(wanted):
            asked = NvmlQuery(self.watch)
            if name.isdecimal():
                handle = asked("nvmlDeviceGetHandleByIndex", int(name))
            else:
                handle = asked("nvmlDeviceGetHandleByUUID", name.encode())
            if handle is None:
                missing.append(MissingDevice(name=name, why=asked.unknown[-1].why, fault=asked.gaps().fault))
            else:
                found.append(self._device(rank, handle, mig=name.startswith("MIG-")))
        return tuple(found), tuple(missing)

    def _device(self, rank: int, handle: Any, *, mig: bool) -> Device:
        asked = NvmlQuery(self.watch)
        board = asked("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) if mig else handle
        board = handle if board is None else board
        uuid, name = asked("nvmlDeviceGetUUID", handle), asked("nvmlDeviceGetName", board)
        pci = asked("nvmlDeviceGetPciInfo", board)
        limit_mw = asked("nvmlDeviceGetEnforcedPowerLimit", board)
        slowdown_c = asked("nvmlDeviceGetTemperatureThreshold", board, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        identity = GpuIdentity(
            rank=rank,
            uuid=None if uuid is None else _text(uuid),
            name=None if name is None else _text(name),
            pci_bus_id=None if pci is None else _text(pci.busId),
            gpu_instance_id=asked("nvmlDeviceGetGpuInstanceId", handle) if mig else None,
            slowdown_temperature_c=slowdown_c,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            max_sm_clock_mhz=asked("nvmlDeviceGetMaxClockInfo", board, pynvml.NVML_CLOCK_SM),
        )
        return Device(identity=identity, handle=handle, board=board)

    def vitals(self, device: Device) -> tuple[Vitals, GpuReadGaps]:
        """Read vitals: 11 calls."""
        asked = NvmlQuery(self.watch)
        board = device.board
        power_mw = asked("nvmlDeviceGetPowerUsage", board)
        rates = asked("nvmlDeviceGetUtilizationRates", board)
        memory = asked.first(
            ("nvmlDeviceGetMemoryInfo", device.handle, pynvml.nvmlMemory_v2),
            ("nvmlDeviceGetMemoryInfo", device.handle),
        )
        throttled = asked.first(
            ("nvmlDeviceGetCurrentClocksEventReasons", board), ("nvmlDeviceGetCurrentClocksThrottleReasons", board)
        )
        heat_c = asked.first(
            ("nvmlDeviceGetTemperature", board, pynvml.NVML_TEMPERATURE_GPU),
            ("nvmlDeviceGetTemperatureV", board, pynvml.NVML_TEMPERATURE_GPU),
        )
        fields = asked.fields(board)
        recovery = fields.get("recovery action")
        vitals = Vitals(
            temperature_c=None if heat_c is None else int(heat_c),
            memory_temperature_c=fields.get("memory temperature"),
            power_w=None if power_mw is None else power_mw / 1000,
            throttled=None if throttled is None else _reasons(throttled),
            sm_clock_mhz=asked("nvmlDeviceGetClockInfo", board, pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=asked("nvmlDeviceGetClockInfo", board, pynvml.NVML_CLOCK_MEM),
            utilisation_percent=None if rates is None else int(rates.gpu),
            memory_utilisation_percent=None if rates is None else int(rates.memory),
            memory_total_bytes=None if memory is None else int(memory.total),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_free_bytes=None if memory is None else int(memory.free),
            memory_reserved_bytes=None if memory is None else getattr(memory, "reserved", None),
            ecc_corrected=asked.ecc(board, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
            ecc_uncorrected=asked.ecc(board, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
            pcie_replays=asked("nvmlDeviceGetPcieReplayCounter", board),
            nvlink_errors=_nvlink_errors(fields),
            recovery=None if recovery is None else _RECOVERY.get(recovery, RecoveryAction.OTHER),
        )
        return vitals, asked.gaps()

    def wear(self, device: Device) -> tuple[Wear, GpuReadGaps]:
        """Read wear: 10 calls and one per NVLink."""
        asked = NvmlQuery(self.watch)
        board = device.board
        ecc = asked("nvmlDeviceGetEccMode", board)
        rows = asked("nvmlDeviceGetRemappedRows", board)
        mig = asked("nvmlDeviceGetMigMode", board)
        processes = asked("nvmlDeviceGetComputeRunningProcesses", device.handle)
        single, double = (
            asked("nvmlDeviceGetRetiredPages", board, cause)
            for cause in (
                pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
                pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
            )
        )
        wear = Wear(
            ecc_enabled=None if ecc is None else bool(ecc[0]),
            ecc_corrected_total=asked.ecc(
                board, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_AGGREGATE_ECC
            ),
            ecc_uncorrected_total=asked.ecc(
                board, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC
            ),
            row_remaps=None
            if rows is None
            else RowRemaps(
                correctable=rows[0], uncorrectable=rows[1], pending=bool(rows[2]), failed=bool(rows[3])
            ),
            retired_pages_single_bit=None if single is None else len(single),
            retired_pages_double_bit=None if double is None else len(double),
            retirement_pending=_flag(asked("nvmlDeviceGetRetiredPagesPendingStatus", board)),
            nvlinks_up=asked.nvlinks(board),
            persistence=_flag(asked("nvmlDeviceGetPersistenceMode", board)),
            mig_enabled=None if mig is None else bool(mig[0]),
            processes=None if processes is None else tuple(_process(each) for each in processes),
        )
        return wear, asked.gaps()

    def listen(self, devices: Sequence[Device]) -> "XidWait":
        """Subscribe to XIDs of ``devices``; NvmlError if no GPU supports it."""
        asked = NvmlQuery()
        events = asked("nvmlEventSetCreate")
        if events is None:
            raise NvmlError(f"no event set: {asked.unknown[-1].why}")
        listening = [device for device in devices if _register(asked, device, events)]
        if not listening:
            why = asked.unknown[-1].why if asked.unknown else "no GPU supports XID events"
            asked("nvmlEventSetFree", events)
            raise NvmlError(why)
        return XidWait(events, listening, self._clock)


class XidWait:
    """An NVML event set with registered GPUs, for one thread."""

    def __init__(self, events: Any, devices: Sequence[Device], clock: Callable[[], float]) -> None:
        self._events = events
        self._devices = devices
        self._clock = clock
        self.ranks = tuple(device.identity.rank for device in devices)

    def next(self, timeout_ms: int) -> tuple[XidEvent, ...]:
        """Next XID per affected rank; empty at the time limit or for another slice.

        WaitError on any other answer of the driver.
        """
        try:
            data = pynvml.nvmlEventSetWait(self._events, timeout_ms)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return ()
            raise WaitError(error_text(error)) from error
        if data.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return ()
        at_s, code = self._clock(), int(data.eventData)
        board = _address(data.device)
        same_board = [device for device in self._devices if _address(device.board) == board]
        if not same_board:  # unknown GPU: report all ranks
            return (XidEvent(rank=None, code=code, at_s=at_s),)
        slice_id = int(data.gpuInstanceId)
        return tuple(
            XidEvent(rank=device.identity.rank, code=code, at_s=at_s)
            for device in same_board
            if device.identity.gpu_instance_id in (None, slice_id) or slice_id == _NO_INSTANCE
        )

    def close(self) -> bool:
        """Free the event set; False if the driver is gone."""
        try:
            pynvml.nvmlEventSetFree(self._events)
        except pynvml.NVMLError:
            return False
        return True


def _reasons(bits: int) -> frozenset[ThrottleReason]:
    return frozenset(reason for bit, reason in _THROTTLE_BITS.items() if bits & bit)


def _register(asked: NvmlQuery, device: Device, events: Any) -> bool:
    xid = pynvml.nvmlEventTypeXidCriticalError
    supported = asked("nvmlDeviceGetSupportedEventTypes", device.board)
    if supported is None or not supported & xid:
        return False
    notes = len(asked.unknown)
    asked("nvmlDeviceRegisterEvents", device.board, xid, events)
    return len(asked.unknown) == notes


def _nvlink_errors(fields: Mapping[str, int]) -> NvLinkErrors | None:
    crc = [fields[name] for name in ("NVLink flit CRC errors", "NVLink data CRC errors") if name in fields]
    errors = NvLinkErrors(
        crc=sum(crc) if crc else None,
        replay=fields.get("NVLink replay errors"),
        recovery=fields.get("NVLink recovery errors"),
    )
    return None if errors.total is None else errors


def _process(found: Any) -> GpuProcess:
    memory = found.usedGpuMemory
    return GpuProcess(pid=int(found.pid), memory_bytes=None if memory in (None, _NOT_AVAILABLE) else int(memory))


def _text(found: Any) -> str:
    """Decode text fields, which some bindings return as bytes."""
    return found.decode("ascii", "replace") if isinstance(found, bytes) else str(found)


def _flag(state: Any) -> bool | None:
    return None if state is None else bool(state)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
