"""All kinds of faults that a scenario may name."""

from typing import Annotated

from pydantic import Field

from chaos.faults.bad_policy import BadPolicy
from chaos.faults.bandwidth import Bandwidth
from chaos.faults.black_hole import BlackHole
from chaos.faults.config_rejected import ConfigRejected
from chaos.faults.control_plane_frozen import ControlPlaneFrozen
from chaos.faults.control_plane_killed import ControlPlaneKilled
from chaos.faults.control_plane_restarted_empty import ControlPlaneRestartedEmpty
from chaos.faults.crash import Crash
from chaos.faults.hang import Hang
from chaos.faults.latency import Latency
from chaos.faults.loss import Loss
from chaos.faults.partition import Partition
from chaos.faults.proxy_frozen import ProxyFrozen
from chaos.faults.reset import Reset
from chaos.faults.retry_storm import RetryStorm
from chaos.faults.slow_proxy import SlowProxy
from chaos.faults.telemetry_lies import TelemetryLies
from chaos.faults.telemetry_lost import TelemetryLost
from chaos.faults.thundering_herd import ThunderingHerd

AnyFault = Annotated[
    BadPolicy
    | Bandwidth
    | BlackHole
    | ConfigRejected
    | ControlPlaneFrozen
    | ControlPlaneKilled
    | ControlPlaneRestartedEmpty
    | Crash
    | Hang
    | Latency
    | Loss
    | Partition
    | ProxyFrozen
    | Reset
    | RetryStorm
    | SlowProxy
    | TelemetryLies
    | TelemetryLost
    | ThunderingHerd,
    Field(discriminator="kind"),
]
"""One of them, told apart by ``kind``."""
