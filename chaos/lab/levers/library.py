"""All levers of a lab."""

from typing import Final

from chaos.lab.levers.engines import EngineLever
from chaos.lab.levers.gpus import GpuLever
from chaos.lab.levers.processes import ProcessLever
from chaos.lab.levers.reports import ReportLever
from chaos.lab.site import LeverMaker

LEVERS: Final[tuple[LeverMaker, ...]] = (EngineLever, GpuLever, ProcessLever, ReportLever)
"""Each makes a lever for one site; no two handle the same sort of pull."""
