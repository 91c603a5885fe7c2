"""The scheduler against a recorded trace of a real vLLM: all states of vLLM come up, in the same order."""

import json
from pathlib import Path
from typing import Any

import pytest

from chaos.fake_engine.step_scheduler import StepCosts, StepRequest, StepScheduler
from tests.with_vllm.metrics_trace import (
    BLOCK_SIZE,
    BLOCKS,
    CHUNK_TOKENS,
    CROWD,
    CROWD_PROMPT,
    CROWD_TOKENS,
    LONG,
    SHORT,
    SHORTS,
    SLOTS,
    TOKENS,
)

RECORDED = json.loads(
    (Path(__file__).parents[2] / "data/vllm-trace/vllm-0.32.0-cpu.json").read_text(encoding="utf-8")
)
State = dict[str, float]


def request(prompt: int, tokens: int) -> StepRequest:
    return StepRequest(prompt_tokens=prompt, tokens=tokens)


# The first chunk of a long prompt takes 0.1 s; what comes at 0.15 s comes within the second.
ARRIVALS = {
    "long_prompt": [(0.0, request(LONG, TOKENS))],
    "short_behind_long": [(0.0, request(LONG, TOKENS)), *[(0.15, request(SHORT, TOKENS))] * SHORTS],
    "crowd": [(0.001 * number, request(CROWD_PROMPT, CROWD_TOKENS)) for number in range(CROWD)],
}


def recorded(scenario: str) -> list[State]:
    """Complete states, from the changes."""
    state: State = dict.fromkeys(simulated_state(scheduler(), {}), 0.0)
    states = []
    for _, changed in RECORDED[scenario]:
        state = state | {name: round(value, 4) for name, value in changed.items()}
        states.append(state)
    return states


def scheduler() -> StepScheduler:
    return StepScheduler(
        costs=StepCosts(base_s=0.1),
        slots=SLOTS,
        budget=CHUNK_TOKENS,
        kv_blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        now=0.0,
    )


def simulated_state(gpu: StepScheduler, iterations: dict[int, int]) -> State:
    shown = gpu.published
    return {
        "num_requests_running": shown.running,
        "num_requests_waiting": shown.waiting,
        "kv_cache_usage_perc": round(shown.kv_cache_ratio, 4),
        "prompt_tokens_total": shown.prompt_tokens,
        "generation_tokens_total": shown.generation_tokens,
        "prefix_cache_queries_total": shown.prefix_queries,
        "num_preemptions_total": shown.preemptions,
        "iteration_tokens_total_count": sum(iterations.values()),
        "iteration_tokens_total_sum": sum(tokens * steps for tokens, steps in iterations.items()),
    }


def simulated(arrivals: list[tuple[float, StepRequest]]) -> list[State]:
    """The state after each step."""
    gpu, states = scheduler(), []
    left = list(enumerate(arrivals))
    iterations: dict[int, int] = {}
    while left or gpu.due_at() is not None:
        due = gpu.due_at()
        if left and (due is None or left[0][1][0] < due):
            number, (at_s, job) = left.pop(0)
            gpu.submit(number, job, at_s)
        elif due is not None:
            gpu.advance(due)
        for tokens, steps in gpu.take_iterations().items():
            iterations[tokens] = iterations.get(tokens, 0) + steps
        states.append(simulated_state(gpu, iterations))
    return states


@pytest.mark.parametrize("scenario", RECORDED)
def test_every_state_of_vllm_comes_up_in_order(scenario: str) -> None:
    states: Any = iter(simulated(ARRIVALS[scenario]))
    for number, wanted in enumerate(recorded(scenario)):
        # ``in`` consumes the iterator up to the state.
        assert wanted in states, f"state {number} of {scenario}: {wanted}"


@pytest.mark.parametrize("scenario", ["long_prompt", "short_behind_long"])
def test_final_state_is_that_of_vllm(scenario: str) -> None:
    assert simulated(ARRIVALS[scenario])[-1] == recorded(scenario)[-1]


def test_recorded_prefill_looks_like_a_hang_to_token_counters() -> None:
    prefill = [changed for _, changed in RECORDED["long_prompt"] if "prompt_tokens_total" not in changed][:-1]
    assert len(prefill) >= LONG // CHUNK_TOKENS
    for changed in prefill[1:]:
        assert set(changed) == {"kv_cache_usage_perc"}
