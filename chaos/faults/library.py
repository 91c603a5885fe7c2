"""All kinds of faults that a scenario may name."""

from typing import Annotated

from pydantic import Field

from chaos.faults.agent_frozen import AgentFrozen
from chaos.faults.agent_killed import AgentKilled
from chaos.faults.bad_policy import BadPolicy
from chaos.faults.bandwidth import Bandwidth
from chaos.faults.black_hole import BlackHole
from chaos.faults.clock_skew import ClockSkew
from chaos.faults.config_rejected import ConfigRejected
from chaos.faults.control_plane_frozen import ControlPlaneFrozen
from chaos.faults.control_plane_killed import ControlPlaneKilled
from chaos.faults.control_plane_restarted_empty import ControlPlaneRestartedEmpty
from chaos.faults.crash import Crash
from chaos.faults.engine_error import EngineError
from chaos.faults.flap import Flap
from chaos.faults.freeze import Freeze
from chaos.faults.gpu_ecc import GpuEcc
from chaos.faults.gpu_thermal import GpuThermal
from chaos.faults.gpu_throttle import GpuThrottle
from chaos.faults.gpu_xid import GpuXid
from chaos.faults.gray_failure import GrayFailure
from chaos.faults.hang import Hang
from chaos.faults.hang_mid_stream import HangMidStream
from chaos.faults.kv_cache_full import KvCacheFull
from chaos.faults.latency import Latency
from chaos.faults.loss import Loss
from chaos.faults.lying_health import LyingHealth
from chaos.faults.oom_kill import OomKill
from chaos.faults.pacing import Pacing
from chaos.faults.partition import Partition
from chaos.faults.proxy_frozen import ProxyFrozen
from chaos.faults.reports_lie import ReportsLie
from chaos.faults.reset import Reset
from chaos.faults.reset_mid_stream import ResetMidStream
from chaos.faults.retry_storm import RetryStorm
from chaos.faults.rolling_restart import RollingRestart
from chaos.faults.shed import Shed
from chaos.faults.slow import Slow
from chaos.faults.slow_proxy import SlowProxy
from chaos.faults.telemetry_lies import TelemetryLies
from chaos.faults.telemetry_lost import TelemetryLost
from chaos.faults.thundering_herd import ThunderingHerd
from chaos.faults.zone_loss import ZoneLoss

AnyFault = Annotated[
    AgentFrozen
    | AgentKilled
    | BadPolicy
    | Bandwidth
    | BlackHole
    | ClockSkew
    | ConfigRejected
    | ControlPlaneFrozen
    | ControlPlaneKilled
    | ControlPlaneRestartedEmpty
    | Crash
    | EngineError
    | Flap
    | Freeze
    | GpuEcc
    | GpuThermal
    | GpuThrottle
    | GpuXid
    | GrayFailure
    | Hang
    | HangMidStream
    | KvCacheFull
    | Latency
    | Loss
    | LyingHealth
    | OomKill
    | Pacing
    | Partition
    | ProxyFrozen
    | ReportsLie
    | Reset
    | ResetMidStream
    | RetryStorm
    | RollingRestart
    | Shed
    | Slow
    | SlowProxy
    | TelemetryLies
    | TelemetryLost
    | ThunderingHerd
    | ZoneLoss,
    Field(discriminator="kind"),
]
"""One of them, told apart by ``kind``."""
