"""The state of one agent, updated report by report: a value, without connection.

Three rules. A report counts only if it is newer than the last of its stream, or repeats it. Another boot id is
another engine process, to which earlier reports do not apply; a replaced one does not return. And an agent without
contact says nothing about its engine, unless that was draining.
"""

from dataclasses import dataclass, replace
from typing import Final

from engine.report import EngineReport, Verdict
from engine.report_wire import ReportDropReason, ReportError

FRESH_S: Final = 3.0
"""Silence from which an agent counts as lost: three heartbeats."""

DRAIN_S: Final = 600.0
"""How long a drain stays in force after its agent left without naming a deadline."""

DRAIN_MOST_S: Final = 3600.0
"""The maximum with a deadline: an engine must not stay out of rotation forever because of one report."""

_REMEMBERED_BOOTS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """The state of one agent; ``gone`` are replaced boot ids, newest first."""

    report: EngineReport | None = None
    gone: tuple[str, ...] = ()

    def reconnected(self) -> "AgentState":
        """The same on a new stream: a restarted agent counts from the beginning."""
        return replace(self, report=self.report and replace(self.report, sequence=0))

    def after(self, report: EngineReport) -> "AgentState":
        """The state with one more report; ``ReportError`` if it is older than the known one."""
        known = self.report
        if report.boot_id in self.gone:
            raise ReportError(ReportDropReason.STALE, f"boot {report.boot_id} has been replaced")
        if known is None:
            return AgentState(report=report)
        if known.boot_id != report.boot_id:
            return AgentState(report=report, gone=(known.boot_id, *self.gone)[:_REMEMBERED_BOOTS])
        if report.sequence < known.sequence:
            raise ReportError(ReportDropReason.STALE, f"report {report.sequence} came after {known.sequence}")
        if report.sequence == known.sequence:
            report = replace(known, observed_at_s=max(known.observed_at_s, report.observed_at_s))
        return AgentState(report=report, gone=self.gone)

    def drains_until_s(self) -> float:
        """Monotonic time until which the engine drains even if its agent leaves; -inf without a drain.

        Such an engine is stopped soon, and its agent with it. It stays draining until the deadline, because a
        probe would find it healthy.
        """
        report = self.report
        if report is None or report.verdict is not Verdict.DRAINING or report.drain is None:
            return float("-inf")
        left_s = report.drain.deadline_in_s
        return report.observed_at_s + (DRAIN_S if left_s is None else min(left_s, DRAIN_MOST_S))
