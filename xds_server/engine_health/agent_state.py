"""What has been heard from one agent, folded report by report: a value, and no connection.

Three rules. A report counts only if it is newer than the last of its stream, or says the same again. Another boot
id is another engine process, for which nothing said before holds; one that was replaced does not come back. And an
agent that is no longer heard says neither good nor bad of its engine, unless it was to be drained.
"""

from dataclasses import dataclass, replace
from typing import Final

from engine.report import EngineReport, Verdict
from engine.report_wire import ReportDropReason, ReportError

FRESH_S: Final = 3.0
"""Silence from which an agent is not heard any more: three heartbeats."""

DRAIN_S: Final = 600.0
"""How long an agent that left while its engine drained is taken at its word when it named no deadline."""

DRAIN_MOST_S: Final = 3600.0
"""The same when it did: whatever was promised, an engine is not left out for ever on one word."""

_REMEMBERED_BOOTS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """What is known from one agent; ``gone`` are boot ids that were replaced, newest first."""

    report: EngineReport | None = None
    gone: tuple[str, ...] = ()

    def reconnected(self) -> "AgentState":
        """The same on a new stream: an agent that was restarted counts from the beginning."""
        return replace(self, report=self.report and replace(self.report, sequence=0))

    def after(self, report: EngineReport) -> "AgentState":
        """With one more report; ``ReportError`` when it is older than what is known."""
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
        """Monotonic time until which the engine drains on the word of its agent, though that may leave; -inf: not.

        Such an engine is stopped soon, and its agent with it. It stays as it was said to be until the drain must
        be over, because asking it would show a healthy one.
        """
        report = self.report
        if report is None or report.verdict is not Verdict.DRAINING or report.drain is None:
            return float("-inf")
        left_s = report.drain.deadline_in_s
        return report.observed_at_s + (DRAIN_S if left_s is None else min(left_s, DRAIN_MOST_S))
