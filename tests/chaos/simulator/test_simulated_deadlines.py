"""Deadlines in simulated time: requests end at them, and what cannot end in time is not started."""

from pathlib import Path

import pytest

from chaos.history.recorded_history import History
from chaos.scenario.experiment_plan import Experiment
from chaos.simulator.caller_rules import DeadlineRoute, deadline_routes
from chaos.simulator.header_rules import grpc_timeout_s
from chaos.simulator.simulation import simulate
from chaos.testbed.subjects import PolicySubject, subjects
from tests.chaos.lab.experiments import experiment
from xds_server.decide.decisions import DeadlineDecision, DeadlineSteps
from xds_server.translate.effective_spec import RouteDecisions
from xds_server.translate.route_configuration import (
    ALLOW_MODEL_CHANGE_HEADER,
    IDEMPOTENCY_KEY_HEADER,
    SIDE_EFFECTS_HEADER,
    envoy_routes,
)

EXAMPLE = Path(__file__).parents[3] / "policies" / "examples" / "three-tenants.yaml"
CALLER_HEADERS = {ALLOW_MODEL_CHANGE_HEADER, IDEMPOTENCY_KEY_HEADER, SIDE_EFFECTS_HEADER}
SLOW = {"fault": {"kind": "slow", "factor": 20}, "at": "0s", "lasts": "6s"}


def hurried(times_service: float) -> Experiment:
    return experiment(
        SLOW, seconds=6.0, load={"perSecond": 2, "callers": [{"name": "hurried", "timesService": times_service}]}
    )


def ended(history: History) -> set[tuple[int, str, float]]:
    return {(one.status, one.refusal, round(one.latency_s, 3)) for one in history.requests if one.at_s < 4.0}


def test_request_ends_at_its_deadline() -> None:
    # Each answer takes 10 s, and the deadline is 1 s.
    (subject,) = subjects([str(EXAMPLE)])
    assert ended(simulate(hurried(2.0), subject)) == {(504, "timeout", 1.0)}


def test_deadline_is_cut_to_the_longest_of_the_listener(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace("max: 60s", "max: 6s")
    file = tmp_path / "short.yaml"
    file.write_text(text)
    (shorter,) = subjects([str(file)])
    # The lab is six times as fast.
    assert ended(simulate(hurried(6.0), shorter)) == {(504, "timeout", 1.0)}


def test_variants_of_generated_routes_are_read() -> None:
    """A try that a timer starts needs room for the shortest answer, 1 s, after its delay of 0.5 s."""
    (subject,) = subjects([str(EXAMPLE)])
    assert isinstance(subject, PolicySubject)
    (route,) = subject.policies.routes.values()
    spec = subject.policies.effective["chat"]
    spec = spec.model_copy(update={"hedging": spec.hedging.model_copy(update={"enabled": True, "delay": 0.5})})
    steps = DeadlineSteps(base_s=1.0, in_force=1)
    decided = RouteDecisions(deadline=DeadlineDecision(answer=steps, stream=steps, reason=""))
    header = "x-request-timeout-ms"
    found = deadline_routes(
        envoy_routes(route, spec, gated=False, decided=decided), streaming=False, headers={*CALLER_HEADERS, header}
    )

    def taking(value: str | None) -> DeadlineRoute:
        headers = {} if value is None else {header: value}
        return next(one for one in found if not one.refuses and one.takes(headers))

    assert [one.takes({header: "900"}) for one in found if one.refuses] == [False, True, True, True, True]
    short, long, none = taking("1400"), taking("1600"), taking(None)
    assert (short.hedges, short.per_try_s, short.longest_s) == (False, None, 60.0)
    assert (long.hedges, long.per_try_s, long.longest_s) == (True, 0.5, 60.0)
    assert (none.hedges, none.per_try_s, none.longest_s) == (True, 0.5, None)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1500m", 1.5),
        ("2S", 2.0),
        ("1M", 60.0),
        ("1H", 3600.0),
        ("0m", 0.0),
        ("x", None),
        (None, None),
    ],
)
def test_grpc_timeout_is_read(value: str | None, seconds: float | None) -> None:
    assert grpc_timeout_s(value) == seconds
