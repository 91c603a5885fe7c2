"""The scheduler as a value: steps with a token budget, chunked prefill, preemption."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.fake_engine.simulated_gpu import JobProgress
from chaos.fake_engine.step_scheduler import StepCosts, StepCounters, StepRequest, StepScheduler


def scheduler(*, slots: int = 8, budget: int = 2048, blocks: int = 1000, **costs: float) -> StepScheduler:
    return StepScheduler(
        costs=StepCosts(**{"base_s": 0.5, **costs}),
        slots=slots,
        budget=budget,
        kv_blocks=blocks,
        block_size=16,
        now=0.0,
    )


def request(tokens: int = 4, **settings: object) -> StepRequest:
    return StepRequest(**{"prompt_tokens": 1, "latency_s": 1.0, "tokens": tokens, **settings})  # type: ignore[arg-type]


def ends(progress: list[JobProgress]) -> dict[int, float]:
    return {news.job_id: news.at_s for news in progress if news.finished}


def run_dry(gpu: StepScheduler, *, limit: int = 10_000) -> list[tuple[JobProgress, StepCounters]]:
    """Advance from event to event until nothing is due."""
    seen = []
    for _ in range(limit):
        due = gpu.due_at()
        if due is None:
            return seen
        seen += [(news, gpu.published) for news in gpu.advance(due)]
    pytest.fail("the scheduler never becomes idle")


# -- today's timings --------------------------------------------------------------------------------------------


def test_tokens_follow_latency_at_base_time() -> None:
    gpu = scheduler()
    gpu.submit(1, request(tokens=3), 0.0)
    assert gpu.advance(0.99) == []
    assert [news.tokens for news in gpu.advance(1.0)] == [1]
    assert [news.tokens for news in gpu.advance(1.5)] == [2]
    assert ends(gpu.advance(2.0)) == {1: pytest.approx(2.0)}
    assert gpu.due_at() is None


def test_latencies_overlap() -> None:
    gpu = scheduler()
    for number in range(8):
        gpu.submit(number, request(tokens=2), 0.0)
    assert ends(gpu.advance(10.0)) == dict.fromkeys(range(8), pytest.approx(1.5))


def test_waiting_requests_get_slots_in_arrival_order() -> None:
    gpu = scheduler(slots=1)
    for number in (1, 2, 3):
        gpu.submit(number, request(tokens=1), 0.0)
    assert (gpu.published.running, gpu.published.waiting) == (1, 2)
    assert ends(gpu.advance(10.0)) == {1: pytest.approx(1.0), 2: pytest.approx(2.0), 3: pytest.approx(3.0)}


def test_steps_resume_after_a_hang() -> None:
    gpu = scheduler(slots=1)
    gpu.submit(1, request(tokens=3), 0.0)
    gpu.set_rate(0.0, 1.2)
    before = gpu.published
    gpu.submit(2, request(tokens=1), 1.3)
    assert gpu.due_at() is None
    assert gpu.advance(100.0) == []
    assert gpu.published == before
    gpu.set_rate(1.0, 101.2)
    assert ends(gpu.advance(110.0)) == {1: pytest.approx(102.0), 2: pytest.approx(103.0)}
    assert gpu.stopped_s == pytest.approx(100.0)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_stalled_request_holds_its_slot(after: int) -> None:
    gpu = scheduler(slots=1)
    gpu.submit(1, request(tokens=3, stall_after=after), 0.0)
    gpu.advance(50.0)
    assert gpu.use_so_far(1).tokens == after
    assert gpu.published.running == 1
    assert gpu.due_at() is None
    gpu.release_stalls(50.0)
    left_s = {0: 2.0, 1: 1.0, 2: 0.5}[after]
    assert ends(gpu.advance(60.0)) == {1: pytest.approx(50.0 + left_s)}


def test_pace_change_keeps_progress_within_the_step() -> None:
    gpu = scheduler()
    gpu.submit(1, request(tokens=5), 0.0)
    assert gpu.advance(1.5)[-1].tokens == 2
    gpu.set_pace(4.0, 1, 1.75)
    assert gpu.due_at() == pytest.approx(2.75)
    assert [news.tokens for news in gpu.advance(2.75)] == [3]
    gpu.set_pace(1.0, 1, 2.75)
    assert ends(gpu.advance(10.0)) == {1: pytest.approx(3.75)}


def test_bursts_delay_tokens_until_full_or_last() -> None:
    gpu = scheduler()
    gpu.set_pace(1.0, 3, 0.0)
    gpu.submit(1, request(tokens=6), 0.0)
    assert [news.tokens for news, _ in run_dry(gpu)] == [1, 4, 6]


# -- vLLM's steps -----------------------------------------------------------------------------------------------


def test_long_prefill_runs_in_chunks_and_shows_only_in_the_kv_cache() -> None:
    gpu = scheduler(prefill_token_s=0.001)
    gpu.submit(1, request(tokens=1, prompt_tokens=5000, latency_s=0.0), 0.0)
    chunk_s = 0.5 + 2.048
    gpu.advance(chunk_s - 0.01)
    assert gpu.published == StepCounters()
    gpu.advance(chunk_s)
    first = gpu.published
    assert (first.running, first.prefix_queries, first.kv_cache_ratio) == (1, 5000, pytest.approx(0.128))
    gpu.advance(2 * chunk_s)
    assert (gpu.published.prompt_tokens, gpu.published.generation_tokens) == (0, 0)
    assert gpu.published.kv_cache_ratio == pytest.approx(0.256)
    assert gpu.take_iterations() == {}
    assert ends(gpu.advance(9.0)) == {1: pytest.approx(3 * 0.5 + 5.0)}
    assert gpu.take_iterations() == {5001: 1}
    assert (gpu.published.prompt_tokens, gpu.published.generation_tokens) == (5000, 1)
    assert (gpu.published.running, gpu.published.kv_cache_ratio) == (0, 0.0)


def test_chunks_grow_with_context() -> None:
    gpu = scheduler(base_s=0.0, context_token_s=1e-6)
    gpu.submit(1, request(tokens=1, prompt_tokens=6144, latency_s=0.0), 0.0)
    at, changes = 0.0, []
    while (due := gpu.due_at()) is not None:
        gpu.advance(due)
        changes.append(due - at)
        at = due
    assert changes == [pytest.approx(2048 * (n + 0.5) * 2048e-6) for n in range(3)]


def test_one_token_request_waits_for_the_last_chunk() -> None:
    gpu = scheduler(prefill_token_s=0.001)
    gpu.submit(1, request(tokens=2, prompt_tokens=5000, latency_s=0.0), 0.0)
    gpu.submit(2, request(tokens=1, latency_s=0.0), 0.1)
    gpu.advance(3.0)
    assert gpu.published.waiting == 0  # it arrived within the first step: the second counts it
    gpu.advance(5.2)
    assert (gpu.published.running, gpu.published.waiting) == (1, 1)
    assert ends(gpu.advance(6.9)) == {2: pytest.approx(3 * 0.5 + 5.001)}


def test_running_answers_get_one_token_per_step_of_a_prefill() -> None:
    gpu = scheduler(prefill_token_s=0.001)
    gpu.submit(1, request(tokens=10, latency_s=0.0), 0.0)
    gpu.advance(0.6)
    gpu.submit(2, request(tokens=1, prompt_tokens=4094, latency_s=0.0), 0.6)
    progress = [news for news, _ in run_dry(gpu) if news.job_id == 1]
    gaps = [later.at_s - first.at_s for first, later in itertools.pairwise(progress)]
    # Each chunk leaves room for the decode: 2047 prompt tokens.
    assert gaps == [pytest.approx(2.547)] * 2 + [pytest.approx(0.5)] * 6


def test_short_prompts_share_the_budget_of_a_step() -> None:
    gpu = scheduler(budget=100)
    for number in range(3):
        gpu.submit(number, request(tokens=1, prompt_tokens=60, latency_s=0.0), 0.0)
    # The first step began with the first of them alone.
    assert ends(gpu.advance(0.5)) == {0: pytest.approx(0.5)}
    assert ends(gpu.advance(1.0)) == {1: pytest.approx(1.0)}
    assert (gpu.published.running, gpu.published.kv_cache_ratio) == (1, pytest.approx(3 / 1000))
    assert ends(gpu.advance(1.5)) == {2: pytest.approx(1.5)}


def test_full_kv_cache_preempts_the_newest_and_computes_it_again() -> None:
    gpu = scheduler(blocks=4)  # 64 tokens
    for number in range(2):
        gpu.submit(number, request(tokens=30, prompt_tokens=20, latency_s=0.0, report_every=0), 0.0)
    ended = [news.job_id for news, _ in run_dry(gpu) if news.finished]
    assert ended == [0, 1]
    assert gpu.published.preemptions == 1
    # Preemption recomputes tokens; it counts neither the prompt nor the answer twice.
    assert (gpu.published.prompt_tokens, gpu.published.generation_tokens) == (40, 60)
    assert gpu.published.prefix_queries == 40
    assert gpu.published.kv_cache_ratio == 0.0


def test_aborted_request_leaves_at_the_end_of_the_step() -> None:
    gpu = scheduler(slots=1)
    gpu.submit(1, request(), 0.0)
    gpu.submit(2, request(tokens=1, latency_s=0.0), 0.0)
    gpu.abort(1, 1.2)
    use = gpu.take_use(1)
    assert (use.slot_s, use.tokens) == (pytest.approx(1.2), 1)
    assert gpu.published.running == 1
    assert ends(gpu.advance(5.0)) == {2: pytest.approx(2.0)}
    assert gpu.published.generation_tokens == 2


def test_idle_scheduler_is_never_due() -> None:
    gpu = scheduler()
    assert gpu.due_at() is None
    gpu.submit(1, request(tokens=1000, latency_s=0.0, report_every=0), 0.0)
    gpu.advance(0.5)
    # One timer for 999 tokens.
    assert gpu.due_at() == pytest.approx(500.0)


# -- any script -------------------------------------------------------------------------------------------------

Step = tuple[str, float]
steps = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "long", "abort", "hang", "slow", "heal", "wait", "pace"]),
        st.floats(min_value=0.0, max_value=3.0),
    ),
    max_size=40,
)
RATES = {"hang": 0.0, "slow": 0.25, "heal": 1.0}


class Play:
    """A scheduler driven by a script, with few slots and a KV cache that fills up."""

    def __init__(self, script: list[Step], *, look_every_s: float) -> None:
        self.gpu = scheduler(slots=3, budget=64, blocks=12, prefill_token_s=0.001, decode_s=0.01)
        self.now = 0.0
        self.alive: list[int] = []
        self.submitted = 0
        self.asked: dict[int, StepRequest] = {}
        self.ended: dict[int, float] = {}
        self.shown = StepCounters()
        for action, gap_s in script:
            until = self.now + gap_s
            while self.now + look_every_s < until:
                self.now += look_every_s
                self.note(self.gpu.advance(self.now))
            self.now = until
            self.act(action)
        self.note(self.gpu.set_rate(1.0, self.now))
        self.note(self.gpu.advance(self.now + 1e5))
        assert self.gpu.due_at() is None
        assert self.alive == []
        last = self.gpu.published
        assert (last.running, last.waiting, last.kv_cache_ratio) == (0, 0, 0.0)

    def act(self, action: str) -> None:
        self.note(self.gpu.advance(self.now))
        if action in ("submit", "long"):
            self.submitted += 1
            self.alive.append(self.submitted)
            asked = request(
                tokens=1 + 7 * self.submitted % 31,
                prompt_tokens=150 if action == "long" else 20,
                latency_s=0.0 if self.submitted % 2 else 1.0,
                report_every=self.submitted % 4,
            )
            self.asked[self.submitted] = asked
            self.note(self.gpu.submit(self.submitted, asked, self.now))
        elif action == "abort" and self.alive:
            gone = self.alive.pop(0)
            self.asked.pop(gone)
            self.note(self.gpu.abort(gone, self.now))
        elif action == "pace":
            self.note(self.gpu.set_pace(1.0 + self.submitted % 3, 1, self.now))
        elif action in RATES:
            self.note(self.gpu.set_rate(RATES[action], self.now))

    def note(self, progress: list[JobProgress]) -> None:
        before, self.shown = self.shown, self.gpu.published
        for counter in ("prompt_tokens", "generation_tokens", "prefix_queries", "preemptions"):
            assert getattr(self.shown, counter) >= getattr(before, counter)
        assert self.shown.running <= 3
        assert 0.0 <= self.shown.kv_cache_ratio <= 1.0
        for news in progress:
            assert news.job_id in self.alive
            if news.finished:
                self.alive.remove(news.job_id)
                assert news.tokens == self.asked[news.job_id].tokens
                self.ended[news.job_id] = news.at_s


@given(script=steps)
def test_every_request_ends_once_with_all_its_tokens(script: list[Step]) -> None:
    play = Play(script, look_every_s=1e9)
    assert play.gpu.published.prompt_tokens >= sum(play.asked[one].prompt_tokens for one in play.ended)
    assert play.gpu.published.generation_tokens >= sum(play.asked[one].tokens for one in play.ended)


@given(script=steps)
def test_update_frequency_does_not_change_results(script: list[Step]) -> None:
    once, often = Play(script, look_every_s=1e9), Play(script, look_every_s=0.07)
    assert once.ended == {one: pytest.approx(at_s, abs=1e-4) for one, at_s in often.ended.items()}
    assert once.gpu.published == often.gpu.published
    assert once.gpu.take_iterations() == often.gpu.take_iterations()
