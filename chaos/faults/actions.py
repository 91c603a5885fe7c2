"""Fault actions as values: each does one thing to one target and is undone later.

Targets use the names of ``chaos.scenario.experiment_plan``. A lab that lacks what an action needs, such as a netem
link or the GPU double, refuses the experiment before it starts.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from chaos.fake_engine.engine_faults import EngineFault

EVERYBODY: Final = "*"
OTHER_ZONES: Final = "other-zones"
"""In a ``ShapeLink``: all proxies, or engines, in other zones than the one at the other end."""


class ProcessRole(StrEnum):
    """Role of a lab process."""

    ENGINE = "engine"
    AGENT = "agent"
    PROXY = "proxy"
    CONTROL_PLANE = "control-plane"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetEngineFault:
    """Set a fault on a simulated engine."""

    engine: str
    fault: EngineFault


@dataclass(frozen=True, slots=True, kw_only=True)
class KillProcess:
    """SIGKILL. Undone by restarting the process on the same port.

    ``empty``: restart it without its state on disk. ``stays_dead``: do not restart it until the experiment ends.
    """

    part: ProcessRole
    target: str
    empty: bool = False
    stays_dead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeProcess:
    """SIGSTOP; undone by SIGCONT. With ``on_share`` below 1, stopped only for that share of each ``period_s``."""

    part: ProcessRole
    target: str
    on_share: float = 1.0
    period_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartEngine:
    """SIGTERM to a simulated engine; undone by starting it again.

    With ``drain_within_s`` its agent drains it first; SIGTERM waits at most that long. Without an agent it is not
    drained.
    """

    engine: str
    drain_within_s: float | None
    shutdown_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGpuState:
    """Lines for the control file of the NVML double of one engine's agent.

    ``reset``: undone by a GPU reset, which also restarts the agent without its state.
    """

    engine: str
    lines: tuple[str, ...]
    reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeLink:
    """Shaping of one link, in both directions.

    ``end`` selects the link: ``engine`` is proxies to an engine, ``xds`` a proxy to the control plane, ``agent``
    an engine's agent to the control plane. ``sources`` are the affected proxies, ``*`` for all. With ``end``
    ``engine`` either end may be ``OTHER_ZONES``. A link that the lab does not have (no agents, no control plane)
    is ignored.
    """

    end: Literal["engine", "xds", "agent"]
    target: str
    sources: tuple[str, ...] = (EVERYBODY,)
    latency_s: float = 0.0
    jitter_s: float = 0.0
    loss_percent: float = 0.0
    bytes_per_s: float | None = None
    black_hole: bool = False
    reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FalsifyReports:
    """Falsify an engine's reports to the control plane.

    ``verdict`` replaces the reported verdict; ``clock_skew_s`` is added to the reported times.
    """

    engine: str
    verdict: str = ""
    clock_skew_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FalsifyTelemetry:
    """Drop a proxy's access logs and load reports, or make them report every call as failed or good."""

    proxy: str
    lost: bool = False
    says: Literal["", "all-failed", "all-good"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptConfig:
    """Corrupt configuration sent to a proxy so that Envoy refuses it (NACK)."""

    proxy: str
    type: Literal["cds", "eds", "lds", "rds", "rtds"] = "cds"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPolicy:
    """Truncate the policy file to the first ``kept_share`` and append ``text``; undone by restoring the file."""

    kept_share: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLoad:
    """Change the load: ``factor`` times the usual rate and ``attempts`` retries per request.

    ``at_once`` requests are sent at the moment the action is undone.
    """

    factor: float = 1.0
    attempts: int = 0
    backoff_s: float = 0.5
    at_once: int = 0


FaultAction = (
    SetEngineFault
    | RestartEngine
    | KillProcess
    | FreezeProcess
    | SetGpuState
    | ShapeLink
    | FalsifyReports
    | FalsifyTelemetry
    | CorruptConfig
    | PushPolicy
    | ChangeLoad
)
