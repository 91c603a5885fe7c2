"""Judgements on recorded prefills of a real vLLM: long ones do not count as hangs, frozen engine cores are found.

``prefill-trace.jsonl``: vLLM 0.32 on a CPU, 2048 tokens a step, one scenario a line. ``changes`` lists the
counters that changed, with their time; ``requests`` when each request came and how long it took.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.engine_judgement import EngineJudgement
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure, ProbeFailureReason
from engine.probe_settings import DECODE_STALL_S, PREFILL_STALL_S, ProbeSettings
from engine.probe_state import ProbeState
from engine.report import Verdict
from engine.vllm_metrics import vllm_counters

SCENARIOS: Final = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/vllm/prefill-trace.jsonl").read_text().splitlines()
]
NAMES: Final = [scenario["title"] for scenario in SCENARIOS]
SILENT: Final = ProbeFailure(trouble=ProbeFailureReason.SILENT, detail="no answer")
PROBE: Final = ProbeSettings()
# A frozen engine is watched this long.
AFTER_S: Final = 20.0
LATE_S: Final = 1e6


def page(scenario: dict[str, Any], at_s: float) -> bytes:
    """The metrics page at a time of the recording."""
    values = dict(scenario["start"])
    for changed_at_s, changed in scenario["changes"]:
        if changed_at_s <= at_s:
            values.update(changed)
    return "".join(f'vllm:{name}{{engine="0"}} {value}\n' for name, value in values.items()).encode()


def steps(scenario: dict[str, Any]) -> list[float]:
    """Seconds between changes, from the first request on."""
    times = [0.0, *(at_s for at_s, _ in scenario["changes"])]
    return [later - earlier for earlier, later in pairwise(times)]


def judged(
    scenario: dict[str, Any], *, interval_s: float, counted: bool, frozen_at_s: float = 2 * LATE_S
) -> Iterator[tuple[float, EngineJudgement]]:
    """Each judgement with its time; from ``frozen_at_s`` on the engine core does nothing."""

    def there(at_s: float) -> int:
        """Requests in flight; a frozen engine finishes none."""
        return sum(
            one["at_s"] <= at_s < one["at_s"] + one["seconds"]
            or frozen_at_s < one["at_s"] + one["seconds"] <= at_s
            for one in scenario["requests"]
        )

    def look(at_s: float) -> MetricsReading:
        in_flight = there(at_s) + (sent_at_s is not None) if counted else None
        counters = vllm_counters(page(scenario, min(at_s, frozen_at_s)))
        return MetricsReading(at_s=at_s, counters=counters, in_flight=in_flight)

    judgement, sent_at_s = EngineJudgement(books=ProbeState(slots=8)), None
    judgement = judgement.after(look(-1.0), PROBE).canary_sent(-1.0)
    judgement = judgement.after(CanaryReading(sent_at_s=-1.0, at_s=-0.99), PROBE)
    at_s, end_s = -0.5, scenario["changes"][-1][0] if frozen_at_s > LATE_S else frozen_at_s + AFTER_S
    while at_s < end_s:
        at_s += interval_s
        judgement = judgement.after(look(at_s), PROBE)
        yield at_s, judgement
        if sent_at_s is not None and at_s >= sent_at_s + PROBE.timeout_s:
            ended = CanaryReading(sent_at_s=sent_at_s, at_s=at_s, failure=SILENT)
            judgement, sent_at_s = judgement.after(ended, PROBE), None
        if sent_at_s is None and judgement.wants_canary:
            sent_at_s = at_s
            judgement = judgement.canary_sent(at_s)
        if sent_at_s is not None and not there(at_s) and at_s < frozen_at_s:
            answer = CanaryReading(sent_at_s=sent_at_s, at_s=at_s + 0.01)
            judgement, sent_at_s = judgement.after(answer, PROBE), None


@pytest.mark.parametrize("scenario", SCENARIOS, ids=NAMES)
@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("interval_s", [0.1, 0.25, 0.5])
def test_prefill_is_not_reported_as_hung(scenario: dict[str, Any], counted: bool, interval_s: float) -> None:
    for at_s, judgement in judged(scenario, interval_s=interval_s, counted=counted):
        assert judgement.verdict is not None
        assert judgement.verdict.good, f"{at_s:.2f} s: {judgement.evidence}"


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SCENARIOS), st.floats(0.3, 30.0), st.sampled_from([0.1, 0.25, 0.5]))
def test_engine_core_frozen_in_a_prefill_is_found(
    scenario: dict[str, Any], frozen_at_s: float, interval_s: float
) -> None:
    """Within 3 s and the longest step so far."""
    frozen_at_s = min(frozen_at_s, max(one["seconds"] for one in scenario["requests"]) - 0.5)
    longest_s = max(
        step for step, (at_s, _) in zip(steps(scenario), scenario["changes"], strict=True) if at_s < 30
    )
    for at_s, judgement in judged(scenario, interval_s=interval_s, counted=True, frozen_at_s=frozen_at_s):
        if judgement.verdict is Verdict.HUNG:
            assert at_s >= frozen_at_s
            assert at_s - frozen_at_s <= PREFILL_STALL_S + longest_s + 4 * interval_s
            return
    pytest.fail("not found")


def one_after_the_other(first: dict[str, Any], second: dict[str, Any], pause_s: float) -> dict[str, Any]:
    """Two prompts that were recorded one after the other, ``pause_s`` apart."""
    begins_s = first["changes"][-1][0] + pause_s
    return {
        "start": first["start"],
        "requests": [
            *first["requests"],
            *({**one, "at_s": one["at_s"] + begins_s} for one in second["requests"]),
        ],
        "changes": [
            *first["changes"],
            [begins_s, second["start"]],
            *([at_s + begins_s, changed] for at_s, changed in second["changes"]),
        ],
    }


@pytest.mark.parametrize("interval_s", [0.1, 0.25, 0.5])
def test_second_prompt_is_not_reported_as_hung(interval_s: float) -> None:
    both = one_after_the_other(SCENARIOS[0], SCENARIOS[1], 2.0)
    for at_s, judgement in judged(both, interval_s=interval_s, counted=True):
        assert judgement.verdict is not None
        assert judgement.verdict.good, f"{at_s:.2f} s: {judgement.evidence}"


@pytest.mark.parametrize("interval_s", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("chunk", [2, 3, 4, 5])
def test_hang_is_found_within_a_chunk_of_its_own_prompt(chunk: int, interval_s: float) -> None:
    """Within 3 s and the longest chunk of this prompt, however long those of the prompt before were."""
    both = one_after_the_other(SCENARIOS[0], SCENARIOS[1], 2.0)
    begins_s, times = both["requests"][1]["at_s"], [at_s for at_s, _ in both["changes"]]
    ends = [begins_s, *(at_s for at_s in times if at_s > begins_s)]
    frozen_at_s = (ends[chunk - 1] + ends[chunk]) / 2
    chunk_s = max(later - earlier for earlier, later in pairwise(ends[:chunk]))
    found = next(
        (at_s, judgement)
        for at_s, judgement in judged(both, interval_s=interval_s, counted=True, frozen_at_s=frozen_at_s)
        if judgement.verdict is Verdict.HUNG
    )
    assert found[0] - frozen_at_s <= PREFILL_STALL_S + chunk_s + interval_s
    assert "longest step of this prompt" in found[1].evidence


def test_engine_core_frozen_in_decodes_is_found_within_a_second() -> None:
    scenario = next(one for one in SCENARIOS if one["title"] == "short decode then 15000")
    found = [
        (at_s, judgement.evidence)
        for at_s, judgement in judged(scenario, interval_s=0.1, counted=True, frozen_at_s=30.0)
        if judgement.verdict is Verdict.HUNG
    ]
    assert found[0][0] - 30.0 <= DECODE_STALL_S + 0.35
    assert "(limit 1 s)" in found[0][1]
