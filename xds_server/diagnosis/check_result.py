"""What a check comes to: fine, worth a look, or wrong, in one sentence with a way out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from policies.codes import REMARKS


class CheckState(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One answer. ``code`` and ``fix`` are empty where all is well."""

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
    """All is well."""
    return Check(subject=subject, state=CheckState.OK, sentence=sentence)


def warn(subject: str, code: str, sentence: str, fix: str = "") -> Check:
    """Worth a look."""
    return Check(
        subject=subject, state=CheckState.WARN, sentence=sentence, code=code, fix=fix or REMARKS[code].fix
    )


def fail(subject: str, code: str, sentence: str, fix: str = "") -> Check:
    """Wrong."""
    return Check(
        subject=subject, state=CheckState.FAIL, sentence=sentence, code=code, fix=fix or REMARKS[code].fix
    )


def failed(checks: Iterable[Check]) -> bool:
    """Whether any is wrong."""
    return any(one.state is CheckState.FAIL for one in checks)
