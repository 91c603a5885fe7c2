"""What is wrong with a scenario at one place of it, whatever file it is in."""

from dataclasses import dataclass
from typing import TypeAlias

from policies.origin import Step

Steps: TypeAlias = tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is wrong at one place of a scenario; ``steps`` lead there from the top of the document."""

    code: str
    steps: Steps
    message: str
    found: str = ""
    allowed: str = ""
    hint: str = ""
