"""XIDs of NVIDIA's catalogue, mapped to actions.

Source: NVIDIA, "Xid Errors", "Analyzing Xid Errors with the Xid Catalog"
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), for Ampere and later. ``bucket`` is the
catalogue's "Resolution Bucket (Immediate Action)"; the action is ours, by these rules:

- IGNORE: watch.
- RESTART_APP: degrade. The fault killed the context of one process, which the event does not name. If it was the
  engine's, its canary fails, which is faster and surer evidence.
- RESET_GPU and harder: drain, or eject if answers are wrong or impossible.
- A link fault counts in full only for an engine on several GPUs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from engine.gpu.gpu_policy import GpuAction

RESTART_APP: Final = "RESTART_APP"


@dataclass(frozen=True, slots=True, kw_only=True)
class XidRule:
    """One row: catalogue entry and action."""

    code: int
    meaning: str
    bucket: str
    action: GpuAction
    link: bool = False

    @property
    def fixed_by_restart(self) -> bool:
        """Whether a new process fixes it, by the catalogue."""
        return self.bucket == RESTART_APP


_WATCH, _DEGRADE, _DRAIN, _EJECT = GpuAction.WATCH, GpuAction.DEGRADE, GpuAction.DRAIN, GpuAction.EJECT

_ROWS: Final[tuple[tuple[int, str, str, GpuAction], ...]] = (
    (8, "GPU stopped processing", RESTART_APP, _DEGRADE),
    (11, "invalid or corrupted push buffer stream", RESTART_APP, _DEGRADE),
    (13, "graphics engine exception", RESTART_APP, _DEGRADE),
    (25, "invalid or illegal push buffer stream", RESTART_APP, _DEGRADE),
    (31, "GPU memory page fault", RESTART_APP, _DEGRADE),
    (32, "invalid or corrupted push buffer stream", RESTART_APP, _DEGRADE),
    (37, "driver firmware error", "IGNORE", _WATCH),
    (38, "driver firmware error", "IGNORE", _WATCH),
    *((code, "copy engine exception", RESTART_APP, _DEGRADE) for code in (39, 40, 41, 70, 71, 72, 75, 76, 77, 85)),
    (43, "GPU stopped processing for one application", "IGNORE", _WATCH),
    (44, "fault during context switch", "IGNORE", _WATCH),
    # Follows another XID or a killed process; also seen on a normal engine restart.
    (45, "preemptive cleanup after an earlier error", "WORKFLOW_XID_45", _WATCH),
    (46, "GPU stopped processing", "RESET_GPU", _EJECT),
    # 94 or 95 follows and states whether the damage was contained.
    (48, "double-bit ECC error", "WORKFLOW_XID_48", _DRAIN),
    (54, "auxiliary power is not connected", "CHECK_MECHANICALS", _DRAIN),
    (62, "internal micro-controller halt", "RESET_GPU", _EJECT),
    (63, "memory row remapped or page retired", "IGNORE", _WATCH),
    (64, "memory row remap or page retirement failed", "RESET_GPU", _DRAIN),
    (66, "illegal access by driver", "IGNORE", _WATCH),
    (67, "illegal access by driver", "IGNORE", _WATCH),
    (69, "graphics engine class error", RESTART_APP, _DEGRADE),
    (74, "NVLink error", "WORKFLOW_NVLINK_ERR", _DRAIN),
    (78, "vGPU start error", "UPDATE_SWFW", _WATCH),
    (79, "GPU has fallen off the bus", "RESTART_BM", _EJECT),
    (80, "corrupted data sent to GPU", RESTART_APP, _DEGRADE),
    (92, "high single-bit ECC error rate", "IGNORE", _WATCH),
    (93, "InfoROM wear limit exceeded", "IGNORE", _WATCH),
    # Contained to one process: the engine's, if it has the GPU alone.
    (94, "contained memory error", RESTART_APP, _DRAIN),
    (95, "uncontained memory error", "RESET_GPU", _EJECT),
    (109, "context switch timeout", "RESET_GPU", _EJECT),
    (110, "security fault", "RESET_GPU", _EJECT),
    # The firmware does not answer the driver; running kernels may still finish.
    (119, "GSP RPC timeout", "RESET_GPU", _DRAIN),
    (120, "GSP error", "RESET_GPU", _DRAIN),
    (121, "corrected C2C error", "IGNORE", _WATCH),
    *((code, "copy engine exception", RESTART_APP, _DEGRADE) for code in range(126, 136)),
    (136, "NVLink training failed", "RESET_GPU", _DRAIN),
    (137, "NVLink privilege error", "IGNORE", _WATCH),
    (140, "unrecovered ECC error", "RESET_GPU", _EJECT),
    (141, "CUDA fast path error", "IGNORE", _WATCH),
    (143, "GPU initialisation error", "RESET_GPU", _EJECT),
    (144, "NVLink SAW error", "WORKFLOW_NVLINK5_ERR", _DRAIN),
    (145, "NVLink RLW error", "WORKFLOW_NVLINK5_ERR", _DRAIN),
    (146, "NVLink TLW error", "WORKFLOW_NVLINK5_ERR", _DRAIN),
    (147, "NVLink TREX error", "WORKFLOW_NVLINK5_ERR", _WATCH),  # every row of its sub-table is IGNORE
    (148, "NVLink NVLPW_CTRL error", "WORKFLOW_NVLINK5_ERR", _WATCH),  # every row of its sub-table is IGNORE
    (149, "NVLink NETIR error", "WORKFLOW_NVLINK5_ERR", _DRAIN),
    (150, "NVLink MSE error", "WORKFLOW_NVLINK5_ERR", _DRAIN),
    (151, "key rotation error", "RESTART_VM", _DRAIN),
    # Summarizes another XID; read as the recovery action.
    (154, "GPU recovery action changed", "XID_154", _WATCH),
    (155, "NVLink down by software", "RESET_GPU", _DRAIN),
    (156, "resource retired", "RESET_GPU", _DRAIN),
    (157, "resource retirement failed", "IGNORE", _WATCH),
    (158, "GPU fatal timeout", "RESET_GPU", _EJECT),
    (160, "channel retired", "IGNORE", _WATCH),
    (161, "channel retirement failed", "IGNORE", _WATCH),
    # The catalogue gives no bucket for these; the name decides.
    (167, "PCIe fatal timeout", "", _EJECT),
    (168, "reduced GPU memory capacity", "", _DEGRADE),
    (169, "internal micro-controller (SEC2) halt", "", _DRAIN),
    (171, "uncorrectable DRAM error, detail of XID 48", "", _DRAIN),
    (172, "uncorrectable SRAM error, detail of XID 48", "", _DRAIN),
)
_LINK: Final = frozenset({74, 136, 137, 144, 145, 146, 147, 148, 149, 150, 155})

XIDS: Final[Mapping[int, XidRule]] = MappingProxyType(
    {
        code: XidRule(code=code, meaning=meaning, bucket=bucket, action=action, link=code in _LINK)
        for code, meaning, bucket, action in _ROWS
    }
)


def xid_rule(code: int, overrides: Mapping[int, GpuAction]) -> XidRule:
    """The row for ``code`` with the policy's override; unlisted codes are watched.

    An override also lifts the exception for links.
    """
    known = XIDS.get(code) or XidRule(code=code, meaning="not in the table", bucket="", action=GpuAction.WATCH)
    if code not in overrides:
        return known
    return XidRule(code=code, meaning=known.meaning, bucket=known.bucket, action=overrides[code])
