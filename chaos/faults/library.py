"""All kinds of faults that a scenario may name."""

from typing import Annotated

from pydantic import Field

from chaos.faults.crash import Crash
from chaos.faults.hang import Hang

AnyFault = Annotated[Crash | Hang, Field(discriminator="kind")]
"""One of them, told apart by ``kind``."""
