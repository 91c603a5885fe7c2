"""Result of one check."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class CheckResult(StrEnum):
    """Whether a limit held. UNKNOWN, if the history lacks the data, is not a yes."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """Finding of one check.

    ``measured`` and ``limit`` are text (``91.3 %``), ``numbers`` the raw values; ``at_s`` is the first violation.
    """

    check: str
    answer: CheckResult
    why: str
    measured: str = ""
    limit: str = ""
    at_s: float | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
