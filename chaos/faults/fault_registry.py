"""All kinds of faults that a scenario may name."""

from typing import Annotated

from pydantic import Field

from chaos.faults.agent_frozen import AgentFrozenFault
from chaos.faults.agent_killed import AgentKilledFault
from chaos.faults.bad_policy import BadPolicyFault
from chaos.faults.bandwidth import BandwidthFault
from chaos.faults.black_hole import BlackHoleFault
from chaos.faults.clock_skew import ClockSkewFault
from chaos.faults.config_rejected import ConfigRejectedFault
from chaos.faults.control_plane_frozen import ControlPlaneFrozenFault
from chaos.faults.control_plane_killed import ControlPlaneKilledFault
from chaos.faults.control_plane_restarted_empty import ControlPlaneRestartedEmptyFault
from chaos.faults.crash import CrashFault
from chaos.faults.engine_error import EngineErrorFault
from chaos.faults.flap import FlapFault
from chaos.faults.freeze import FreezeFault
from chaos.faults.gpu_ecc import GpuEccFault
from chaos.faults.gpu_thermal import GpuThermalFault
from chaos.faults.gpu_throttle import GpuThrottleFault
from chaos.faults.gpu_xid import GpuXidFault
from chaos.faults.gray_failure import GrayFailureFault
from chaos.faults.hang import HangFault
from chaos.faults.hang_mid_stream import HangMidStreamFault
from chaos.faults.kv_cache_full import KvCacheFullFault
from chaos.faults.latency_fault import LatencyFault
from chaos.faults.loss_fault import LossFault
from chaos.faults.lying_health import LyingHealthFault
from chaos.faults.oom_kill import OomKillFault
from chaos.faults.pacing_fault import PacingFault
from chaos.faults.partition import PartitionFault
from chaos.faults.proxy_frozen import ProxyFrozenFault
from chaos.faults.reports_lie import ReportsLieFault
from chaos.faults.reset import ResetFault
from chaos.faults.reset_mid_stream import ResetMidStreamFault
from chaos.faults.retry_storm_fault import RetryStormFault
from chaos.faults.rolling_restart import RollingRestartFault
from chaos.faults.shed import ShedFault
from chaos.faults.slow import SlowFault
from chaos.faults.slow_proxy import SlowProxyFault
from chaos.faults.telemetry_lies import TelemetryLiesFault
from chaos.faults.telemetry_lost import TelemetryLostFault
from chaos.faults.thundering_herd import ThunderingHerdFault
from chaos.faults.zone_loss import ZoneLossFault

AnyFault = Annotated[
    AgentFrozenFault
    | AgentKilledFault
    | BadPolicyFault
    | BandwidthFault
    | BlackHoleFault
    | ClockSkewFault
    | ConfigRejectedFault
    | ControlPlaneFrozenFault
    | ControlPlaneKilledFault
    | ControlPlaneRestartedEmptyFault
    | CrashFault
    | EngineErrorFault
    | FlapFault
    | FreezeFault
    | GpuEccFault
    | GpuThermalFault
    | GpuThrottleFault
    | GpuXidFault
    | GrayFailureFault
    | HangFault
    | HangMidStreamFault
    | KvCacheFullFault
    | LatencyFault
    | LossFault
    | LyingHealthFault
    | OomKillFault
    | PacingFault
    | PartitionFault
    | ProxyFrozenFault
    | ReportsLieFault
    | ResetFault
    | ResetMidStreamFault
    | RetryStormFault
    | RollingRestartFault
    | ShedFault
    | SlowFault
    | SlowProxyFault
    | TelemetryLiesFault
    | TelemetryLostFault
    | ThunderingHerdFault
    | ZoneLossFault,
    Field(discriminator="kind"),
]
"""One of them, told apart by ``kind``."""
