"""Hits of prefix caches, and the share of the engine with most requests."""

import pytest

from chaos.checks.affinity_checks import largest_share_times, prefix_hit
from chaos.checks.check_finding import CheckResult
from chaos.checks.check_input import check_input
from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.history_reader import history_of
from chaos.measures.prefix_locality import moved_percent
from tests.chaos.history_builders import attempt, began, request

LIMITS = {"prefixHitPercent": 60, "largestShareTimes": 1.3}


@pytest.mark.parametrize(
    ("cached", "fate", "expected"),
    [
        (600, Fate.FINISHED, CheckResult.YES),
        (500, Fate.FINISHED, CheckResult.NO),
        (900, Fate.ABORTED, CheckResult.UNKNOWN),
    ],
)
def test_tokens_found_are_counted_of_finished_calls(cached: int, fate: Fate, expected: CheckResult) -> None:
    calls = [attempt(n, "e0", 12.0, fate=fate, prompt_tokens=1000, cached_tokens=cached) for n in range(4)]
    found = prefix_hit(check_input(history_of([began(hypothesis=LIMITS), request(0, 12.0), *calls])))
    assert found is not None
    assert found.answer is expected


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ((10, 10, 10, 10), CheckResult.YES),
        ((13, 9, 9, 9), CheckResult.YES),
        ((14, 9, 9, 8), CheckResult.NO),
        ((0, 0, 0, 0), CheckResult.UNKNOWN),
    ],
)
def test_share_is_that_of_the_engine_with_most(calls: tuple[int, ...], expected: CheckResult) -> None:
    attempts = [
        attempt(100 * place + n, f"e{place}", 12.0) for place, count in enumerate(calls) for n in range(count)
    ]
    found = largest_share_times(
        check_input(history_of([began(hypothesis=LIMITS), request(1, 12.0), request(2, 20.0), *attempts]))
    )
    assert found is not None
    assert found.answer is expected


def test_scenario_without_the_promises_has_no_finding() -> None:
    case = check_input(history_of([began(), request(1, 12.0), attempt(1, "e0", 12.0)]))
    assert prefix_hit(case) is largest_share_times(case) is None


def test_turn_at_another_engine_than_the_one_before_has_moved() -> None:
    engines = ("e0", "e0", "e1", "e1", "e2")
    turns = [request(n, 12.0 + n, session="s0-0") for n in range(len(engines))]
    calls = [attempt(n, engine, 12.0 + n) for n, engine in enumerate(engines)]
    others = [request(90, 12.0), attempt(90, "e3", 12.0)]
    history = history_of([began(), *turns, *calls, *others])
    assert moved_percent(history, 0, 30) == 50
    assert moved_percent(history, 13.5, 15.5) == 50
    assert moved_percent(history, 12.5, 13.5) == 0
