"""All levers of a lab."""

from typing import Final

from chaos.lab.levers.callers import CallersLever
from chaos.lab.levers.control_plane import PolicyLever
from chaos.lab.levers.telemetry import WiretapLever
from chaos.lab.levers.wires import WiresLever
from chaos.lab.site import LeverMaker

LEVERS: Final[tuple[LeverMaker, ...]] = (CallersLever, PolicyLever, WiresLever, WiretapLever)
"""Each makes a lever for one site; no two handle the same sort of pull."""
