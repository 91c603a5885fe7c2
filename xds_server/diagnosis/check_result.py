"""The result of a check: ok, info, warning or failure, in one sentence with a fix."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from policies.codes import REMARKS
from xds_server.admin_api.status_types import Condition, Severity


class CheckState(StrEnum):
    """Result of a check."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


_SEVERITIES: Final = {CheckState.INFO: "info", CheckState.WARN: "warning", CheckState.FAIL: "critical"}
_STATES: Final = {severity: state for state, severity in _SEVERITIES.items()}


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
            "severity": _SEVERITIES.get(self.state, ""),
            "code": self.code,
            "sentence": self.sentence,
            "fix": self.fix,
        }


def of_condition(one: Condition) -> Check:
    """A condition of the server as a check that found it; a failure if its severity is unknown."""
    return Check(
        subject=one.subject,
        state=state_of(one.severity),
        sentence=one.sentence,
        code=one.code,
        fix=one.fix,
    )


def state_of(severity: Severity | str) -> CheckState:
    """The state of a check that found this severity; a failure if it is unknown."""
    return _STATES.get(str(severity), CheckState.FAIL)


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
