"""The lab and the simulator answer and refuse the same share of each tenant's requests, for the same arrivals."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.history.recorded_history import History
from chaos.lab.experiment import run_experiment
from chaos.scenario.scenario_library import scenario_library
from chaos.simulator.simulation import simulate
from chaos.testbed.subjects import subjects

# An experiment in the lab, on a machine that may have much else to do.
pytestmark = [pytest.mark.envoy, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[3] / "policies" / "examples" / "three-tenants.yaml"
SECONDS = 16.0
TOLERANCE_POINTS = 3.0
"""Of the requests of a tenant: a busy machine sends and admits some of them later."""


def shares(history: History, from_s: float = 4.0) -> Mapping[tuple[str, str], float]:
    """Good answers and refusals per 100 requests of each tenant; its burst is used up by ``from_s``."""
    asked = [one for one in history.requests if one.at_s >= from_s]
    sent = Counter(one.group for one in asked)
    results = Counter((one.group, "good" if one.ok else one.refusal or one.reason.value) for one in asked)
    return {key: 100.0 * count / sent[key[0]] for key, count in results.items()}


async def test_tenants_get_the_same_share_in_the_lab_and_in_the_simulator() -> None:
    (subject,) = subjects([str(EXAMPLE)])
    experiment = replace(scenario_library()["quota-accuracy"].experiment(), seconds=SECONDS)
    simulated = simulate(experiment, subject)
    live = await run_experiment(experiment, subject)
    assert {one.request_id for one in live.requests} == {one.request_id for one in simulated.requests}
    real, played = shares(live), shares(simulated)
    far = {
        key: (real.get(key, 0.0), played.get(key, 0.0))
        for key in real.keys() | played.keys()
        if abs(real.get(key, 0.0) - played.get(key, 0.0)) > TOLERANCE_POINTS
    }
    assert far == {}, (real, played)
    assert played["nightly", "quota-exceeded"] > 80, played
