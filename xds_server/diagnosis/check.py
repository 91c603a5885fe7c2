"""What a check comes to: fine, worth a look, or wrong, in one sentence with a way out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from policies.codes import REMARKS


class State(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One answer. ``code`` and ``fix`` are empty where all is well."""

    subject: str
    state: State
    sentence: str
    code: str = ""
    fix: str = ""

    def record(self) -> Mapping[str, str]:
        """As JSON."""
        return {
            "subject": self.subject,
            "state": self.state.value,
            "code": self.code,
            "sentence": self.sentence,
            "fix": self.fix,
        }


def ok(subject: str, sentence: str) -> Check:
    """All is well."""
    return Check(subject=subject, state=State.OK, sentence=sentence)


def warn(subject: str, code: str, sentence: str, fix: str = "") -> Check:
    """Worth a look."""
    return Check(subject=subject, state=State.WARN, sentence=sentence, code=code, fix=fix or REMARKS[code].fix)


def fail(subject: str, code: str, sentence: str, fix: str = "") -> Check:
    """Wrong."""
    return Check(subject=subject, state=State.FAIL, sentence=sentence, code=code, fix=fix or REMARKS[code].fix)


def failed(checks: Iterable[Check]) -> bool:
    """Whether any is wrong."""
    return any(one.state is State.FAIL for one in checks)


def few(names: Iterable[str], most: int = 5, *, of: int = 0) -> str:
    """``a, b and 3 more``; ``of`` is how many there are, where not all of them are named."""
    listed = list(names)
    left = max(of, len(listed)) - len(listed[:most])
    return ", ".join(listed[:most]) + (f" and {left} more" if left else "")


def counted(number: int, noun: str) -> str:
    """``1 proxy``, ``2 proxies``, ``3 errors``."""
    plural = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def age(seconds: float) -> str:
    """``0.3s``, ``12s``, ``5m``, ``3h``."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 120:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.0f}h"


def number(value: Any) -> float:
    """A number a peer sent, 0 where it sent something else."""
    return float(value) if isinstance(value, int | float) else 0.0
