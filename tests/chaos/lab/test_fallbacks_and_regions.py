"""Faults on a fallback pool and on a region in a live lab: real Envoys, engines, agents and control plane."""

from pathlib import Path

import pytest

from chaos.history.recorded_history import History
from chaos.lab.experiment import run_experiment
from tests.chaos.lab.experiments import experiment
from tests.chaos.simulator.test_fallback_scenarios import subject

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(300)]

FAULT_S, SETTLED_S, END_S = 4.0, 9.0, 16.0
LIGHT = {"perSecond": 12}


def fault(kind: str, **target: object) -> dict[str, object]:
    return {"fault": {"kind": kind}, "target": target, "at": f"{FAULT_S}s", "lasts": f"{END_S - FAULT_S}s"}


def called(history: History, from_s: float) -> set[str]:
    """Engines that got requests from then on."""
    return {one.engine for one in history.attempts if one.at_s >= from_s}


def good_percent(history: History) -> float:
    late = [one.ok for one in history.requests if one.at_s >= SETTLED_S]
    return 100.0 * sum(late) / len(late)


async def test_fallback_engine_hangs_while_the_pool_is_down(tmp_path: Path) -> None:
    plan = experiment(
        fault("crash"),
        fault("hang", fallback=0, engine=1),
        engines=2,
        seconds=END_S,
        topology={"fallbacks": [{"engines": [{"count": 2}]}]},
        load=LIGHT,
    )
    history = await run_experiment(plan, subject("small"), folder=tmp_path)
    assert {one.targets for one in history.outages} == {("e0", "e1"), ("f0-e1",)}
    assert {one.pool for one in history.began.engines if one.name.startswith("f0-")} == {"small"}
    assert "f0-e0" in called(history, SETTLED_S)
    assert any(one.engine == "f0-e1" and one.verdict == "hung" for one in history.detected)
    assert good_percent(history) >= 80


async def test_other_region_serves_callers_of_a_lost_one(tmp_path: Path) -> None:
    topology = {
        "regions": [{"name": "west", "zones": ["a"]}, {"name": "east", "zones": ["b"]}],
        "proxies": [{"zone": "a"}, {"zone": "b"}],
    }
    lost = fault("zone_loss", region="west")
    plan = experiment(lost, engines=4, seconds=END_S, zones=("a", "b"), topology=topology, load=LIGHT)
    history = await run_experiment(plan, subject(), folder=tmp_path)
    assert [one.targets for one in history.outages] == [("e0", "e2")]
    assert called(history, 0.0) == {"e0", "e1", "e2", "e3"}
    assert called(history, SETTLED_S) == {"e1", "e3"}
    assert good_percent(history) >= 80
