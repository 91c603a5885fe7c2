"""Configuration convergence, and losses while the control plane is down."""

from collections.abc import Sequence
from typing import Any

import pytest

from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import check_input
from chaos.checks.control_plane_checks import configuration_converged, nothing_lost_without_control_plane
from chaos.history.history_events import ConfigPush, ConfigReply, ControlPlaneDecision
from chaos.history.recorded_history import Outage
from chaos.history.request_outcomes import OutcomeReason
from tests.chaos import history_builders

KILLED = {"kind": "control_plane_killed"}


def told(
    pushed: Sequence[ConfigPush], answered: Sequence[ConfigReply], *outages: Outage, **more: Any
) -> CheckFinding | None:
    history = history_builders.history(
        *outages, began=history_builders.began(**more), pushed=pushed, answered=answered
    )
    return configuration_converged(check_input(history))


def expected(finding: CheckFinding | None) -> CheckResult:
    assert finding is not None
    return finding.answer


def test_nack_followed_by_an_ack_passes() -> None:
    pushed = [history_builders.pushed(11.0, nonce="1"), history_builders.pushed(12.0, nonce="2")]
    answers = [
        history_builders.answered(11.1, nonce="1", error="no such cluster"),
        history_builders.answered(12.1, nonce="2"),
    ]
    assert expected(told(pushed, answers)) is CheckResult.YES


def test_unresolved_nack_fails_the_check_with_its_reason() -> None:
    pushed = [history_builders.pushed(11.0, nonce="1"), history_builders.pushed(12.0, nonce="2", type="rds")]
    answers = [
        history_builders.answered(11.1, nonce="1"),
        history_builders.answered(12.1, nonce="2", type="rds", error="bad regex"),
    ]
    found = told(pushed, answers)
    assert expected(found) is CheckResult.NO
    assert found is not None
    assert "p0 refused (NACK) its last rds push at 12.1 s: bad regex" in found.why


@pytest.mark.parametrize(
    ("unhealthy", "back", "answer"),
    [
        ((), True, CheckResult.YES),
        (("e0",), True, CheckResult.NO),
        ((), False, CheckResult.NO),
        (("e0",), False, CheckResult.YES),
    ],
)
def test_nack_is_excused_when_the_proxy_ends_with_the_final_version(
    unhealthy: tuple[str, ...], back: bool, answer: CheckResult
) -> None:
    lines = [history_builders.decided(11.0, "e0", out=True)]
    lines += [history_builders.decided(20.5, "e0", out=False)] if back else []
    known = {f"e{engine}": 1 for engine in range(4)}
    history = history_builders.history(
        began=history_builders.began(),
        pushed=[history_builders.pushed(11.0)],
        answered=[history_builders.answered(11.1, error="spoilt")],
        decided=lines,
        samples=[history_builders.sample(29.5, known, unhealthy=unhealthy)],
    )
    assert expected(configuration_converged(check_input(history))) is answer


def test_push_without_ack_fails_and_one_just_before_the_end_is_inconclusive() -> None:
    assert expected(told([history_builders.pushed(11.0)], [])) is CheckResult.NO
    assert expected(told([history_builders.pushed(33.0)], [])) is CheckResult.UNKNOWN


def test_ack_of_an_earlier_connection_does_not_count() -> None:
    pushed = [history_builders.pushed(11.0, nonce="1"), history_builders.pushed(21.0, nonce="1")]
    assert expected(told(pushed, [history_builders.answered(11.1, nonce="1")])) is CheckResult.NO


def test_every_proxy_must_ack_its_own_pushes() -> None:
    pushed = [history_builders.pushed(11.0, proxy="p0"), history_builders.pushed(11.0, proxy="p1")]
    assert expected(told(pushed, [history_builders.answered(11.1, proxy="p0")])) is CheckResult.NO


def test_push_lost_to_a_fault_is_excused() -> None:
    dead = history_builders.outage("control-plane", fault=KILLED, start_s=11.5, end_s=30.0)
    assert expected(told([history_builders.pushed(11.0)], [], dead)) is CheckResult.UNKNOWN


def test_convergence_is_absent_without_control_plane() -> None:
    assert told([], [], policies="") is None
    assert expected(told([], [])) is CheckResult.UNKNOWN


def away(
    *outages: Outage,
    lost: range = range(0),
    forgets_at_s: float | None = None,
    decided: Sequence[ControlPlaneDecision] = (),
    **more: Any,
) -> CheckFinding | None:
    """Ten requests a second, some failed; the control plane is dead from 10 s to 20 s."""
    dead = history_builders.outage("control-plane", fault=KILLED, name="dead")
    requests = [
        history_builders.request(
            number, number / 10, reason=OutcomeReason.RESET if number in lost else OutcomeReason.OK
        )
        for number in range(300)
    ]
    samples = [
        history_builders.sample(
            at_s / 2, {"e0": 1} if forgets_at_s is not None and at_s / 2 > forgets_at_s else {"e0": 1, "e1": 1}
        )
        for at_s in range(60)
    ]
    history = history_builders.history(
        dead, *outages, began=history_builders.began(**more), requests=requests, samples=samples, decided=decided
    )
    return nothing_lost_without_control_plane(check_input(history))


def test_up_to_two_lost_requests_are_noise() -> None:
    assert expected(away()) is CheckResult.YES
    assert expected(away(lost=range(120, 122))) is CheckResult.YES
    assert expected(away(lost=range(120, 130))) is CheckResult.NO


def test_requests_lost_during_engine_faults_do_not_count() -> None:
    broken = history_builders.outage("e0", start_s=10.0, end_s=14.0)
    assert expected(away(broken, lost=range(100, 150))) is CheckResult.YES
    always = history_builders.outage("e0", start_s=8.0, end_s=22.0)
    found = away(always, lost=range(100, 150))
    assert expected(found) is CheckResult.YES
    assert found is not None
    assert "goodput is not judged" in found.why
    assert expected(away(always, forgets_at_s=15.0)) is CheckResult.NO


def test_proxy_that_drops_endpoints_lost_its_configuration() -> None:
    found = away(forgets_at_s=15.0)
    assert expected(found) is CheckResult.NO
    assert found is not None
    assert "p0 lost e1 at 15.5 s" in found.why
    assert expected(away(forgets_at_s=25.0)) is CheckResult.YES


def test_ejected_engine_is_not_lost_configuration() -> None:
    out = [history_builders.decided(15.1, "e1", out=True)]
    assert expected(away(forgets_at_s=15.0, decided=out)) is CheckResult.YES
    early_back = [history_builders.decided(14.0, "e1", out=True), history_builders.decided(14.2, "e1", out=False)]
    assert expected(away(forgets_at_s=15.0, decided=early_back)) is CheckResult.NO


@pytest.mark.parametrize("policies", ["", "kind: EnginePool\n"])
def test_check_applies_only_to_control_plane_faults(policies: str) -> None:
    history = history_builders.history(
        history_builders.outage("e0"), began=history_builders.began(policies=policies)
    )
    assert nothing_lost_without_control_plane(check_input(history)) is None
    assert away(policies="") is None
