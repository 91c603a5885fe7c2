"""All levers of a lab."""

from typing import Final

from chaos.lab.levers.callers import CallersLever
from chaos.lab.levers.control_plane import PolicyLever
from chaos.lab.levers.engines import EngineLever
from chaos.lab.levers.gpus import GpuLever
from chaos.lab.levers.processes import ProcessLever
from chaos.lab.levers.reports import ReportLever
from chaos.lab.levers.telemetry import WiretapLever
from chaos.lab.levers.wires import WiresLever
from chaos.lab.site import LeverMaker

LEVERS: Final[tuple[LeverMaker, ...]] = (
    CallersLever,
    EngineLever,
    GpuLever,
    PolicyLever,
    ProcessLever,
    ReportLever,
    WiresLever,
    WiretapLever,
)
"""Each makes a lever for one site; no two handle the same sort of pull."""
