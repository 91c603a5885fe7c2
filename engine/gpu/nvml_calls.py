"""NVML calls: a value, or None with a reason.

A missing, unsupported, refused or failed call becomes None and an ``UnknownReading``. A blocking call blocks its
thread; ``NvmlCallTracker`` names it for other threads. Only this module and ``nvml.py`` import the untyped pynvml.

Source: NVML API reference, https://docs.nvidia.com/deploy/nvml-api/.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import pynvml

from engine.gpu.gpu_readings import BlockedCall, GpuFault, GpuReadGaps, UnknownReading

_FAULTS: Final[Mapping[int, GpuFault]] = MappingProxyType(
    {
        pynvml.NVML_ERROR_GPU_IS_LOST: GpuFault.LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED: GpuFault.RESET_REQUIRED,
    }
)
# Read by one call, each with its own return code.
_FIELDS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "memory temperature": pynvml.NVML_FI_DEV_MEMORY_TEMP,
        "NVLink flit CRC errors": pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
        "NVLink data CRC errors": pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
        "NVLink replay errors": pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        "NVLink recovery errors": pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
        "recovery action": 230,  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; older bindings lack the name
    }
)
_UNION_MEMBER: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t


class NvmlError(Exception):
    """NVML is unavailable or the call failed; the message is for users."""


class WaitError(NvmlError):
    """Waiting for events failed; retry later."""


class NvmlCallTracker:
    """The current call of a thread, for other threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.calling: BlockedCall | None = None

    def call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call ``function``; ``calling`` names it meanwhile."""
        self.calling = BlockedCall(call=name, since_s=self._clock())
        try:
            return function(*args)
        finally:
            self.calling = None


class NvmlQuery:
    """One reading round: values or None with reasons; ``watch`` tracks the calls."""

    def __init__(self, watch: NvmlCallTracker | None = None) -> None:
        self._watch = watch
        self._fault: GpuFault | None = None
        self.unknown: list[UnknownReading] = []

    def __call__(self, name: str, *args: Any) -> Any:
        """Call ``name``; None with a reason on failure."""
        function = getattr(pynvml, name, None)
        if function is None:
            self.unknown.append(UnknownReading(signal=name, why="unknown to the installed nvidia-ml-py"))
            return None
        try:
            return function(*args) if self._watch is None else self._watch.call(name, function, *args)
        except pynvml.NVMLError as error:
            self._fault = self._fault or _FAULTS.get(error.value)
            why = error_text(error)
        except ValueError:  # invalid UTF-8 from a failing GPU
            why = "unreadable answer"
        self.unknown.append(UnknownReading(signal=name, why=why))
        return None

    def first(self, *calls: tuple[Any, ...]) -> Any:
        """First value of alternative calls; reasons only if all fail."""
        noted = len(self.unknown)
        for name, *args in calls:
            answer = self(name, *args)
            if answer is not None:
                del self.unknown[noted:]
                return answer
        return None

    def ecc(self, board: Any, error_type: int, counter_type: int) -> int | None:
        """One of the four ECC totals of the GPU."""
        count = self("nvmlDeviceGetTotalEccErrors", board, error_type, counter_type)
        return None if count is None else int(count)

    def fields(self, board: Any) -> Mapping[str, int]:
        """Supported fields by name in ``_FIELDS``."""
        answers = self("nvmlDeviceGetFieldValues", board, list(_FIELDS.values()))
        known: dict[str, int] = {}
        for name, answer in zip(_FIELDS, answers or (), strict=False):
            if answer.nvmlReturn != pynvml.NVML_SUCCESS:
                self.unknown.append(
                    UnknownReading(signal=name, why=error_text(pynvml.NVMLError(answer.nvmlReturn)))
                )
            elif answer.valueType < len(_UNION_MEMBER):
                known[name] = int(getattr(answer.value, _UNION_MEMBER[answer.valueType]))
        return known

    def nvlinks(self, board: Any) -> tuple[bool, ...] | None:
        """State of each link in order; empty without NVLink, None if unknown."""
        up: list[bool] = []
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            state = self("nvmlDeviceGetNvLinkState", board, link)
            if state is None:  # past the last link, or no NVLink
                ended = self.unknown[-1].why in (_words(pynvml.NVML_ERROR_INVALID_ARGUMENT), _NOT_SUPPORTED)
                if ended:
                    self.unknown.pop()
                return tuple(up) if ended else None
            up.append(bool(state))
        return tuple(up)

    def gaps(self) -> GpuReadGaps:
        """Missing values of this round."""
        return GpuReadGaps(fault=self._fault, unknown=tuple(self.unknown))


_NOT_SUPPORTED: Final = "not supported by this GPU"
_WORDS: Final[Mapping[int, str]] = MappingProxyType(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED: _NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "missing from the installed driver",
        pynvml.NVML_ERROR_NO_PERMISSION: "not permitted",
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not on this machine",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "library and kernel driver are of different versions",
        pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost",
        pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU needs a reset",
    }
)


def _words(code: int) -> str:
    return _WORDS.get(code) or f"NVML error {code}"


def error_text(error: Any) -> str:
    """An NVMLError in words."""
    return _words(int(error.value))
