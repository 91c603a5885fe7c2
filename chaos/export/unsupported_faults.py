"""Faults that no tool outside the processes can make, each with the reason; and what each tool lacks besides."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_INSIDE = "it happens inside the engine; only a simulated one can be told to"
_GPU = "it needs the NVML double of the lab: nothing makes a sound GPU report this"
_STOP = "no fault stops a process without killing it (SIGSTOP)"
_CALLERS = "it is what callers do: tell your load generator"
_ON_THE_WIRE = (
    "it changes what is said on a stream of the control plane; the lab's wiretap can, a cluster has none"
)

UNSUPPORTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "shed": "a refusal before any work is made by the engine; tools can only replace an answer after the work",
        "gray_failure": _INSIDE,
        "hang_mid_stream": _INSIDE,
        "reset_mid_stream": _INSIDE,
        "pacing": _INSIDE,
        "kv_cache_full": _INSIDE,
        "flap": "no fault comes and goes inside one experiment; a Schedule repeats from minute to minute only",
        "gpu_xid": _GPU,
        "gpu_ecc": _GPU,
        "gpu_thermal": _GPU,
        "gpu_throttle": _GPU,
        "freeze": _STOP,
        "agent_frozen": _STOP,
        "proxy_frozen": _STOP,
        "control_plane_frozen": _STOP,
        "reports_lie": _ON_THE_WIRE,
        "telemetry_lost": _ON_THE_WIRE,
        "telemetry_lies": _ON_THE_WIRE,
        "config_rejected": _ON_THE_WIRE,
        "bad_policy": "it is a change of a file: apply a broken ConfigMap",
        "retry_storm": _CALLERS,
        "thundering_herd": _CALLERS,
    }
)
"""By kind."""

LITMUS_LACKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "clock_skew": "there is no fault of clocks",
        "lying_health": "HTTP faults hit every path of a port, not /health alone",
        "partition": "its network partition cuts pods from everybody, not one zone from the others",
    }
)
"""What Chaos Mesh can and Litmus cannot, by kind."""
