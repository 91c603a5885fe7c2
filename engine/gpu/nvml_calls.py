"""One call into NVML and what can come of it: an answer, or None and a note why.

A call that is missing from the library, unsupported by the GPU, refused or failed becomes None and an
``UnknownReading``. A call that blocks blocks the thread that made it: ``NvmlCallTracker`` names it for whoever
looks after that thread. With ``nvml.py`` the only module that imports pynvml; ``Any`` ends in these two, for
pynvml has no types.

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
# One call answers all of these, each with its own return code.
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
    """NVML cannot be used, or not for this; the message is fit to be shown."""


class WaitError(NvmlError):
    """The wait for events failed; a later wait may not."""


class NvmlCallTracker:
    """The call that a thread is in, seen from other threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.calling: BlockedCall | None = None

    def call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """What ``function`` returns; ``calling`` names it until then."""
        self.calling = BlockedCall(call=name, since_s=self._clock())
        try:
            return function(*args)
        finally:
            self.calling = None


class NvmlQuery:
    """One round of questions: answers or None, and a note of each None; named to ``watch`` while they run."""

    def __init__(self, watch: NvmlCallTracker | None = None) -> None:
        self._watch = watch
        self._fault: GpuFault | None = None
        self.unknown: list[UnknownReading] = []

    def __call__(self, name: str, *args: Any) -> Any:
        """What the call named ``name`` returns, or None with a note."""
        function = getattr(pynvml, name, None)
        if function is None:
            self.unknown.append(UnknownReading(signal=name, why="not known to the installed nvidia-ml-py"))
            return None
        try:
            return function(*args) if self._watch is None else self._watch.call(name, function, *args)
        except pynvml.NVMLError as error:
            self._fault = self._fault or _FAULTS.get(error.value)
            why = error_text(error)
        except ValueError:  # text that is not UTF-8, from a GPU that is going
            why = "an answer that cannot be read"
        self.unknown.append(UnknownReading(signal=name, why=why))
        return None

    def first(self, *calls: tuple[Any, ...]) -> Any:
        """The first answer among calls that came to replace each other; notes only when there is none."""
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
        """The fields that the GPU knows, by their name in ``_FIELDS``."""
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
        """Whether each link is up, in link order; empty on a GPU without NVLink, None when it does not say."""
        up: list[bool] = []
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            state = self("nvmlDeviceGetNvLinkState", board, link)
            if state is None:  # past the last link, or no links at all: neither is worth a note
                ended = self.unknown[-1].why in (_words(pynvml.NVML_ERROR_INVALID_ARGUMENT), _NOT_SUPPORTED)
                if ended:
                    self.unknown.pop()
                return tuple(up) if ended else None
            up.append(bool(state))
        return tuple(up)

    def gaps(self) -> GpuReadGaps:
        """What this round could not find out."""
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
    """An NVMLError in words fit to be shown."""
    return _words(int(error.value))
