"""Prefill on other engines in simulated time: slots of both stages, faults of each, and the lab's own results."""

from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from chaos.checks.check_finding import CheckResult
from chaos.checks.experiment_verdict import check_findings
from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.history_events import AttemptRecord
from chaos.history.recorded_history import History
from chaos.lab.experiment import run_experiment
from chaos.measures.experiment_measures import measures_summary
from chaos.planning.fleet_capacity import WaitPromise
from chaos.planning.stage_capacity import KvTransfer, StagedDemand, StageEngine, StageFleet, two_stage_plan
from chaos.scenario.experiment_plan import Experiment
from chaos.scenario.scenario_library import chosen_scenarios
from chaos.simulator.simulation import simulate
from chaos.testbed.subjects import Subject, subjects
from tests.chaos.lab.experiments import experiment

EXAMPLE = Path(__file__).parents[3] / "policies" / "examples" / "prefill-and-decode.yaml"
SCENARIOS = ("prefiller-dies", "decoder-dies", "kv-transfer-stalls", "prefill-overloaded")
STALL = {"fault": {"kind": "kv_transfer_stall"}, "target": {"stage": "prefill"}, "at": "2s", "lasts": "3s"}
DEAD = {"fault": {"kind": "crash"}, "target": {"stage": "prefill", "engine": 0}, "at": "2s", "lasts": "4s"}
FLEET = {"engines": [{"count": 3}], "prefill": [{"count": 2, "slots": 2}]}


def of(name: str) -> Subject:
    (subject,) = subjects([name])
    return subject


OURS, LIST = of(str(EXAMPLE)), of("envoy")


def played(name: str) -> Experiment:
    (one,) = chosen_scenarios([name])
    return one.experiment()


def finished(attempts: tuple[AttemptRecord, ...] | list[AttemptRecord]) -> list[AttemptRecord]:
    return [one for one in attempts if one.fate is Fate.FINISHED]


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_pass_with_lists_of_the_control_plane_only(name: str) -> None:
    """As in the lab, where the fixed list breaks the same promise."""
    own, fixed = (
        {one.check for one in check_findings(simulate(played(name), subject)) if one.answer is CheckResult.NO}
        for subject in (OURS, LIST)
    )
    assert own == set()
    assert "goodputPercent" in fixed


def test_prompt_takes_a_slot_of_a_prefill_engine_and_none_of_the_decode_engine() -> None:
    history = simulate(experiment(topology=FLEET, load={"perSecond": 10}), OURS)
    prefills, attempts = finished([*history.prefills]), finished([*history.attempts])
    assert {one.engine for one in prefills} == {"prefill-e0", "prefill-e1"}
    assert len(attempts) == len(prefills) == len(history.requests)
    # A tenth of the service time is the prompt's.
    assert fmean(one.slot_s for one in prefills) == pytest.approx(0.1 * history.began.service_s, rel=0.15)
    assert fmean(one.slot_s for one in attempts) == pytest.approx(0.9 * history.began.service_s, rel=0.15)
    ends = {one.request_id: one.closed_at_s for one in prefills}
    assert all(one.started_at_s is not None and one.started_at_s >= ends[one.request_id] for one in attempts)


def test_slots_in_use_are_those_of_the_plan() -> None:
    asked = experiment(topology=FLEET, load={"perSecond": 16}, seconds=30.0)
    history = simulate(asked, OURS)
    load, service_s = asked.spec.load, history.began.service_s
    prompt, answer = ((one.shortest + one.longest) / 2 for one in (load.prompt_tokens, load.output_tokens))
    found = two_stage_plan(
        StagedDemand(arrivals_per_s=16, input_tokens=prompt, output_tokens=answer),
        StageFleet(
            prefill=StageEngine(tokens_per_s=2 * prompt / (0.1 * service_s), slots=2),
            decode=StageEngine(tokens_per_s=8 * answer / (0.9 * service_s), slots=8),
            prefill_engines=2,
            decode_engines=3,
        ),
        KvTransfer(bytes_per_token=1, bandwidth_bytes_per_s=1e12),
        WaitPromise(),
    )
    for attempts, stage in ((history.prefills, found.prefill), (history.attempts, found.decode)):
        busy = sum(one.slot_s for one in attempts) / asked.seconds
        assert busy == pytest.approx(stage.whole.now.utilization * stage.whole.now.slots, rel=0.1)


def test_slow_prefill_does_not_shrink_the_limit_of_decode_engines_that_idle() -> None:
    history = simulate(played("prefill-overloaded"), OURS)
    refused = [one for one in history.requests if one.status == 503]
    assert len(refused) < 0.02 * len(history.requests)
    (outage,) = history.outages
    limits = [one.ceiling or 0 for one in history.samples if outage.start_s < one.at_s < (outage.end_s or 0)]
    assert min(limits) > 0.6 * 64
    # Each move is a push to every proxy; following each report the limit moved 146 times a minute.
    moves = sum(one != other for one, other in pairwise(limits))
    assert moves / ((outage.end_s or 0) - outage.start_s) < 1.0


def test_same_seed_gives_the_same_history() -> None:
    assert simulate(played("prefiller-dies"), OURS) == simulate(played("prefiller-dies"), OURS)


def test_dead_prefill_engine_costs_retries_and_a_fixed_list_answers() -> None:
    own, fixed = (simulate(experiment(DEAD, topology=FLEET, load={"perSecond": 20}), one) for one in (OURS, LIST))
    assert all(one.ok for one in own.requests)
    lost = [one for one in fixed.requests if not one.ok]
    assert {one.status for one in lost} == {502}
    assert 0.3 < len(lost) / sum(2 <= one.at_s < 6 for one in fixed.requests) < 0.7


def test_stalled_transfer_holds_requests_and_fills_the_prefill_engine() -> None:
    asked = experiment(STALL, topology=FLEET, seconds=10.0, load={"perSecond": 10, "deadline": "8s"})
    history = simulate(asked, LIST)
    stalled = [one for one in history.prefills if 2.0 <= one.at_s < 5.0]
    assert finished(stalled), "prompts are computed until the cache is full"
    # Healing frees the caches: who waits for one has lost it.
    held = [one for one in history.attempts if 2.1 <= one.at_s < 4.9]
    assert held
    assert {(one.fate, one.reason) for one in held} == {(Fate.FAILED, "KV cache lost")}
    assert all(one.closed_at_s >= 5.0 and one.slot_s == 0 for one in held)
    assert all(one.ok for one in history.requests if one.at_s > 5.1)


def test_route_names_prefill_engines_for_its_percentage(tmp_path: Path) -> None:
    policies = tmp_path / "policies.yaml"
    policies.write_text(EXAMPLE.read_text().replace("{pool: chat-prefill}", "{pool: chat-prefill, percent: 25}"))
    history = simulate(experiment(topology=FLEET, load={"perSecond": 40}, seconds=20.0), of(str(policies)))
    assert len(history.prefills) / len(history.requests) == pytest.approx(0.25, abs=0.05)


def test_route_names_prefill_engines_to_long_prompts_only(tmp_path: Path) -> None:
    policies = tmp_path / "policies.yaml"
    long_only = "{pool: chat-prefill, tokensAbove: 20}"
    policies.write_text(EXAMPLE.read_text().replace("{pool: chat-prefill}", long_only))
    sizes = {"perSecond": 40, "promptTokens": {"shortest": 1, "longest": 40}}
    history = simulate(experiment(topology=FLEET, load=sizes, seconds=20.0), of(str(policies)))
    assert len(history.prefills) / len(history.requests) == pytest.approx(0.5, abs=0.08)
    assert all(one.ok for one in history.requests)


def test_slow_transfers_have_decode_engines_prefill_most_prompts_themselves(tmp_path: Path) -> None:
    policies = tmp_path / "policies.yaml"
    text = EXAMPLE.read_text().replace("{pool: chat-prefill}", "{pool: chat-prefill, whileFaster: true}")
    policies.write_text(text)
    slow = {"kvTransfer": {"bytesPerToken": 1000, "bytesPerSecond": 20_000}}
    load = {"perSecond": 12, "streamingPercent": 100}
    history = simulate(experiment(topology={**FLEET, **slow}, load=load, seconds=130.0), of(str(policies)))

    def remote(from_s: float, to_s: float) -> float:
        prefills, requests = (
            sum(from_s <= one.at_s < to_s for one in some) for some in (history.prefills, history.requests)
        )
        return prefills / requests

    assert remote(0, 60) == pytest.approx(0.95, abs=0.03)
    assert remote(90, 130) == pytest.approx(0.05, abs=0.04)
    assert all(one.ok for one in history.requests)


TRANSFER = {"kvTransfer": {"bytesPerToken": 1000, "bytesPerSecond": 40_000}}
"""16 prompt tokens take 0.4 s in the simulator; the lab counts some more tokens of the same prompt."""


def between_s(history: History) -> float:
    """Mean time from the end of the prefill to the begin of the decode."""
    ends = {one.request_id: one.closed_at_s for one in finished([*history.prefills])}
    starts = {one.request_id: one.started_at_s for one in finished([*history.attempts])}
    return fmean(at_s - ends[name] for name, at_s in starts.items() if at_s is not None and name in ends)


def test_transfer_takes_the_time_of_the_plan() -> None:
    asked = experiment(topology={**FLEET, **TRANSFER}, load={"perSecond": 10})
    found = two_stage_plan(
        StagedDemand(arrivals_per_s=10, input_tokens=16, output_tokens=46),
        StageFleet(
            prefill=StageEngine(tokens_per_s=1000, slots=2),
            decode=StageEngine(tokens_per_s=1000, slots=8),
            prefill_engines=2,
            decode_engines=3,
        ),
        KvTransfer(bytes_per_token=1000, bandwidth_bytes_per_s=40_000),
        WaitPromise(),
    )
    assert found.transfer.idle_s == pytest.approx(0.4)
    assert between_s(simulate(asked, OURS)) == pytest.approx(0.4, abs=0.01)
    assert between_s(simulate(experiment(topology=FLEET, load={"perSecond": 10}), OURS)) < 0.01


async def test_transfer_takes_as_long_in_the_lab() -> None:
    asked = experiment(topology={**FLEET, **TRANSFER}, load={"perSecond": 10})
    live = await run_experiment(asked, OURS)
    # "word " x 16 are 20 tokens of four characters.
    assert between_s(live) == pytest.approx(20 / 16 * between_s(simulate(asked, OURS)), abs=0.15)


def figures(history: History) -> dict[str, float]:
    prefills, attempts = finished([*history.prefills]), finished([*history.attempts])
    return {
        "goodput": (measures_summary(history).measures.fault.goodput_percent or 0.0) / 100,
        "remote": len(prefills) / max(1, len(history.requests)),
        "prefill slot": fmean(one.slot_s for one in prefills) / history.began.service_s,
        "decode slot": fmean(one.slot_s for one in attempts) / history.began.service_s,
    }


@pytest.mark.parametrize("subject", [OURS, LIST], ids=["lists", "fixed list"])
async def test_lab_and_simulator_agree(subject: Subject) -> None:
    """The same arrivals and fault, with real Envoys and fake side-cars, and in simulated time."""
    asked = experiment(DEAD, topology=FLEET, load={"perSecond": 12})
    simulated = figures(simulate(asked, subject))
    # A starved machine fails requests: then repeat.
    for _ in range(4):
        live = figures(await run_experiment(asked, subject))
        if abs(live["goodput"] - simulated["goodput"]) <= 0.15:
            break
    assert live == pytest.approx(simulated, abs=0.15)
