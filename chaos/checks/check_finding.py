"""The answer of one check."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class CheckResult(StrEnum):
    """Whether what must hold held. UNKNOWN where the history does not say, which is not a yes."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """What one check found. ``measured`` and ``limit`` are said as people read them (``91.3 %``), ``numbers`` as
    machines do; ``at_s`` is when it first went wrong.
    """

    check: str
    answer: CheckResult
    why: str
    measured: str = ""
    limit: str = ""
    at_s: float | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
