"""All levers of a lab."""

from typing import Final

from chaos.lab.site import LeverMaker

LEVERS: Final[tuple[LeverMaker, ...]] = ()
"""Each makes a lever for one site; no two handle the same sort of pull."""
