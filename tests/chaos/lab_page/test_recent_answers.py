"""Figures of the last seconds of a load."""

from chaos.history.history_events import RequestRecord
from chaos.history.request_outcomes import OutcomeReason
from chaos.lab_page.recent_answers import CHART_S, WINDOW_S, AnswerFigures, RecentAnswers


def answer(reason: OutcomeReason, latency_s: float = 0.5) -> RequestRecord:
    return RequestRecord(
        at_s=0.0,
        request_id="r",
        question="r",
        proxy="p0",
        streaming=False,
        lag_s=0.0,
        status=200,
        reason=reason,
        first_token_s=None,
        latency_s=latency_s,
        tokens=1,
    )


def test_figures_are_those_of_the_window() -> None:
    answers = RecentAnswers()
    answers.add(answer(OutcomeReason.RESET), 100.0)
    for place in range(10):
        answers.add(answer(OutcomeReason.OK, 0.1 * (place + 1)), 104.0)
    answers.add(answer(OutcomeReason.SHED, 9.0), 104.5)
    assert answers.figures(104.5) == AnswerFigures(good=10, refused=1, failed=1, p50_s=0.5, p99_s=1.0)
    assert answers.figures(100.0 + WINDOW_S).failed == 0
    assert answers.figures(104.5 + WINDOW_S) == AnswerFigures()


def test_chart_has_complete_seconds_only_and_forgets_older_ones() -> None:
    answers = RecentAnswers()
    answers.add(answer(OutcomeReason.OK), 100.2)
    answers.add(answer(OutcomeReason.TIMEOUT), 100.9)
    answers.add(answer(OutcomeReason.SHED), 102.0)
    chart = answers.chart(102.5)
    assert len(chart) == CHART_S
    assert chart[-2:] == [(1, 0, 1), (0, 0, 0)]
    assert answers.chart(103.0)[-1] == (0, 1, 0)
    assert set(answers.chart(103.0 + CHART_S)) == {(0, 0, 0)}
