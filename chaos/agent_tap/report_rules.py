"""What a relay makes of reports. Pure.

A report that is changed is another report, so it needs a number of its own, or the control plane takes it for the
repetition of what it knows. Each of the agent's numbers is spread out to make room for as many versions; what the
control plane answers to a version is an answer to the agent's number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from engine.proto import engine_report_pb2 as pb
from engine.report import Verdict

_VERSIONS: Final = 1024
"""Far more often than lies change between two reports, which come every second."""

_PROVEN: Final = 100
"""Canaries in a row with which nobody doubts an engine any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRule:
    """What is wrong with an engine's reports: the verdict, all times, or both."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    engine: str
    verdict: Verdict | None = None
    clock_skew_s: Annotated[float, Field(allow_inf_nan=False)] = 0.0


class ReportRuleError(ValueError):
    """The text names no lie; the message says which field and why."""


_LIE: Final = TypeAdapter(ReportRule)


def parse_report_rule(text: bytes | str) -> ReportRule:
    """The lie that a JSON object describes; LieError otherwise."""
    try:
        return _LIE.validate_json(text)
    except ValidationError as problem:
        lines = (f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in problem.errors())
        raise ReportRuleError("; ".join(lines)) from problem


def falsified_report(report: bytes, lies: Sequence[ReportRule], version: int) -> bytes:
    """The report as the control plane gets it while these lies hold; ``version`` grows when they change."""
    message = pb.EngineReport.FromString(report)
    message.sequence = message.sequence * _VERSIONS + version % _VERSIONS
    for lie in lies:
        if lie.verdict is not None:
            _say(message, lie.verdict)
        if lie.clock_skew_s:
            _skew(message, lie.clock_skew_s)
    return message.SerializeToString()


def falsified_message(progress: bytes) -> bytes:
    """The control plane's answer as the agent gets it."""
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
    """Whoever is ahead believes that more time has passed since, and less is left until."""
    for evidence in message.evidence:
        evidence.age_s += ahead_s
    if message.HasField("canary"):
        message.canary.age_s += ahead_s
    if message.HasField("drain") and message.drain.HasField("deadline_in_s"):
        message.drain.deadline_in_s -= ahead_s
