"""The state of an agent never goes back, in any order of reports and after any restart."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.report import DrainRequest, EngineReport, ReportSource, Verdict
from engine.report_wire import ReportError
from xds_server.engine_health.agent_state import DRAIN_MOST_S, DRAIN_S, AgentState


def report(
    boot: str,
    sequence: int,
    at_s: float = 0.0,
    verdict: Verdict = Verdict.READY,
    drain: DrainRequest | None = None,
) -> EngineReport:
    return EngineReport(
        pool="p",
        engine="e",
        verdict=verdict,
        evidence="a test",
        observed_at_s=at_s,
        boot_id=boot,
        sequence=sequence,
        source=ReportSource.AGENT,
        drain=drain,
    )


steps = st.lists(
    st.none()  # a reconnection
    | st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.sampled_from(list(Verdict))),
    max_size=40,
)


@given(steps)
def test_report_sequence_never_goes_back(steps: list[tuple[str, int, Verdict] | None]) -> None:
    heard = AgentState()
    boots: list[str] = []
    newest = 0
    for at_s, step in enumerate(steps):
        if step is None:
            heard, newest = heard.reconnected(), 0
            continue
        boot, sequence, verdict = step
        is_new_boot = not boots or boots[-1] != boot
        before = heard
        try:
            heard = heard.after(report(boot, sequence, at_s, verdict))
        except ReportError:
            assert (boot in boots[:-1]) or (boot == boots[-1] and sequence < newest), (
                "only old reports are dropped"
            )
            assert heard is before
            continue
        known = heard.report
        assert known is not None
        assert boot not in boots[:-1], "an engine that was replaced does not come back"
        assert (known.boot_id, known.observed_at_s) == (boot, at_s)
        if is_new_boot or sequence > newest:
            assert known.verdict is verdict
        else:
            assert before.report is not None
            assert known.verdict is before.report.verdict, "the same number is the same report"
        if is_new_boot:
            boots.append(boot)
        newest = sequence


def test_restarted_agent_resets_the_report_sequence() -> None:
    heard = AgentState().after(report("a", 100))
    with pytest.raises(ReportError):
        heard.after(report("a", 1))
    again = heard.reconnected().after(report("a", 1, verdict=Verdict.BUSY))
    assert again.report is not None
    assert again.report.verdict is Verdict.BUSY


def test_drain_report_is_trusted_until_its_deadline() -> None:
    def drains_s(verdict: Verdict, drain: DrainRequest | None) -> float:
        return AgentState().after(report("a", 1, 100.0, verdict, drain)).drains_until_s() - 100.0

    assert AgentState().drains_until_s() == -math.inf
    assert drains_s(Verdict.READY, None) == -math.inf
    assert drains_s(Verdict.DRAINING, DrainRequest(deadline_in_s=20.0)) == 20.0
    assert drains_s(Verdict.DRAINING, DrainRequest()) == DRAIN_S
    assert drains_s(Verdict.DRAINING, DrainRequest(deadline_in_s=1e8)) == DRAIN_MOST_S
    assert drains_s(Verdict.DEAD, DrainRequest(deadline_in_s=20.0)) == -math.inf, "a dead engine is probed"
