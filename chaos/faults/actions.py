"""The levers that faults pull, as values: each names one thing that is done to one target, and undone later.

Targets are names as in ``chaos.scenario.experiment_plan``. A lever that is not part of a lab (a wire where none
was laid, a GPU without the double) refuses the experiment before it begins.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from chaos.fake_engine.engine_faults import EngineFault

EVERYBODY: Final = "*"
OTHER_ZONES: Final = "other-zones"
"""In a ``ShapeLink``: all proxies, or engines, that stand in another zone than the one at the other end."""


class ProcessRole(StrEnum):
    """A process of the lab that belongs to a target."""

    ENGINE = "engine"
    AGENT = "agent"
    PROXY = "proxy"
    CONTROL_PLANE = "control-plane"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetEngineFault:
    """A simulated engine misbehaves in this way."""

    engine: str
    fault: EngineFault


@dataclass(frozen=True, slots=True, kw_only=True)
class KillProcess:
    """SIGKILL. Undone by starting it again where it was; ``empty``: without what it kept on disk. ``stays_dead``:
    it is left dead until the experiment ends.
    """

    part: ProcessRole
    target: str
    empty: bool = False
    stays_dead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeProcess:
    """SIGSTOP; undone by SIGCONT. ``on_share`` below 1: only for that share of each ``period_s``."""

    part: ProcessRole
    target: str
    on_share: float = 1.0
    period_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartEngine:
    """A simulated engine gets SIGTERM; undone by starting it anew. With ``drain_within_s`` its agent drains it
    first, and SIGTERM waits for that so long at most; without an agent there is nobody to drain it.
    """

    engine: str
    drain_within_s: float | None
    shutdown_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGpuState:
    """Lines for the control file of the NVML double beside one engine's agent. ``reset``: undone by a reset of the
    GPU, after which the agent is another process, which knows nothing of before.
    """

    engine: str
    lines: tuple[str, ...]
    reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeLink:
    """What happens to bytes on one link, both ways. ``end`` ``engine`` is the wire that carries what proxies send
    to an engine, ``xds`` that between a proxy and the control plane, ``agent`` that between an engine's agent and
    the control plane. ``sources`` are the proxies whose bytes are meant, or ``*`` for everybody's. Either end may
    be ``OTHER_ZONES`` where ``end`` is ``engine``. A link that no lab of this sort has (an agent's where none
    stands, a control plane's where there is none) is not there to be cut, which refuses nothing.
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
    """What a relay makes of an engine's reports to the control plane. ``verdict`` replaces what they say,
    ``clock_skew_s`` is added to their times.
    """

    engine: str
    verdict: str = ""
    clock_skew_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FalsifyTelemetry:
    """What becomes of a proxy's access logs and load reports: lost, or every call of these engines said to have
    ended so.
    """

    proxy: str
    lost: bool = False
    says: Literal["", "all-failed", "all-good"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptConfig:
    """Configuration on its way to a proxy is changed so that Envoy refuses it."""

    proxy: str
    type: Literal["cds", "eds", "lds", "rds", "rtds"] = "cds"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPolicy:
    """The policy file keeps the first ``kept_share`` of its text and goes on with ``text``; undone by writing back
    what was there.
    """

    kept_share: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLoad:
    """Callers ask more: ``factor`` times the usual load, ``attempts`` more tries each, ``at_once`` requests at the
    moment the pull is taken back.
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
