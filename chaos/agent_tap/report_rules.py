"""Falsification of agent reports. Pure.

A changed report needs a new sequence number, otherwise the control plane ignores it as a repeat. So each of the
agent's numbers is multiplied to make room for versions; the control plane's answer is mapped back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from engine.proto import engine_report_pb2 as pb
from engine.report import Verdict

_VERSIONS: Final = 1024
"""Versions per report: far more than rule changes between two reports, which come every second."""

_PROVEN: Final = 100
"""Consecutive successful canaries after which an engine counts as healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRule:
    """Falsification of an engine's reports: the verdict, all times, or both."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    engine: str
    verdict: Verdict | None = None
    clock_skew_s: Annotated[float, Field(allow_inf_nan=False)] = 0.0


class ReportRuleError(ValueError):
    """Invalid rule; the message names the field and the problem."""


_LIE: Final = TypeAdapter(ReportRule)


def parse_report_rule(text: bytes | str) -> ReportRule:
    """Parse a rule from a JSON object; raises ReportRuleError."""
    try:
        return _LIE.validate_json(text)
    except ValidationError as problem:
        lines = (f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in problem.errors())
        raise ReportRuleError("; ".join(lines)) from problem


def falsified_report(report: bytes, lies: Sequence[ReportRule], version: int) -> bytes:
    """The report with these rules applied; ``version`` increases when the rules change."""
    message = pb.EngineReport.FromString(report)
    message.sequence = message.sequence * _VERSIONS + version % _VERSIONS
    for lie in lies:
        if lie.verdict is not None:
            _say(message, lie.verdict)
        if lie.clock_skew_s:
            _skew(message, lie.clock_skew_s)
    return message.SerializeToString()


def falsified_message(progress: bytes) -> bytes:
    """The control plane's answer with the agent's own sequence number."""
    message = pb.DrainProgress.FromString(progress)
    message.sequence //= _VERSIONS
    return message.SerializeToString()


def _say(message: pb.EngineReport, verdict: Verdict) -> None:
    message.MergeFrom(pb.EngineReport(verdict=verdict.name))
    del message.evidence[:]
    message.evidence.add(reading="verdict", sentence=f"the agent says that it is {verdict}")
    message.ClearField("doubt")
    if verdict is Verdict.DRAINING:
        message.drain.requested = True
    else:
        message.ClearField("drain")
    if verdict.good:
        message.canary.in_row = _PROVEN
        message.canary.age_s = 0.0
        if message.HasField("gpu"):
            message.gpu.action = pb.NONE
    elif message.HasField("canary"):
        message.canary.in_row = 0


def _skew(message: pb.EngineReport, ahead_s: float) -> None:
    """A clock that is ahead increases ages and shortens remaining times."""
    for evidence in message.evidence:
        evidence.age_s += ahead_s
    if message.HasField("canary"):
        message.canary.age_s += ahead_s
    if message.HasField("drain") and message.drain.HasField("deadline_in_s"):
        message.drain.deadline_in_s -= ahead_s
