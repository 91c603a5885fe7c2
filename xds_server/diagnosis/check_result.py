"""The result of a check: ok, warning or failure, in one sentence with a fix."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from policies.codes import REMARKS


class CheckState(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One result. ``code`` and ``fix`` are empty if ok."""

    subject: str
    state: CheckState
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
    """A passed check."""
    return Check(subject=subject, state=CheckState.OK, sentence=sentence)


def warn(subject: str, code: str, sentence: str, fix: str = "") -> Check:
    """A warning."""
    return Check(
        subject=subject, state=CheckState.WARN, sentence=sentence, code=code, fix=fix or REMARKS[code].fix
    )


def fail(subject: str, code: str, sentence: str, fix: str = "") -> Check:
    """Wrong."""
    return Check(
        subject=subject, state=CheckState.FAIL, sentence=sentence, code=code, fix=fix or REMARKS[code].fix
    )


def failed(checks: Iterable[Check]) -> bool:
    """Whether any check failed."""
    return any(one.state is CheckState.FAIL for one in checks)
