"""The simulated GPU as a value: time goes in, tokens come out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.fake_engine.simulated_gpu import GpuJob, JobProgress, SimulatedGpu


def job(tokens: int = 4, **settings: object) -> GpuJob:
    return GpuJob(**{"prefill_s": 1.0, "token_s": 0.5, "tokens": tokens, **settings})  # type: ignore[arg-type]


def ends(progress: list[JobProgress]) -> dict[int, float]:
    return {news.job_id: news.at_s for news in progress if news.finished}


def test_tokens_follow_prefill_at_token_time() -> None:
    gpu = SimulatedGpu(slots=1, now=0.0)
    gpu.submit(1, job(tokens=3), 0.0)
    assert gpu.due_at() == pytest.approx(1.0)
    assert gpu.advance(0.99) == []
    assert [news.tokens for news in gpu.advance(1.0)] == [1]
    assert [news.tokens for news in gpu.advance(1.5)] == [2]
    assert ends(gpu.advance(2.0)) == {1: pytest.approx(2.0)}
    assert gpu.due_at() is None


def test_full_gpu_serves_in_arrival_order() -> None:
    gpu = SimulatedGpu(slots=1, now=0.0)
    for job_id in (1, 2, 3):
        gpu.submit(job_id, job(tokens=1), 0.0)
    assert (gpu.running, gpu.waiting) == (1, 2)
    assert ends(gpu.advance(10.0)) == {1: pytest.approx(1.0), 2: pytest.approx(2.0), 3: pytest.approx(3.0)}


def test_aborted_job_frees_its_slot_at_once() -> None:
    gpu = SimulatedGpu(slots=1, now=0.0)
    gpu.submit(1, job(), 0.0)
    gpu.submit(2, job(tokens=1), 0.0)
    gpu.abort(1, 1.2)
    use = gpu.take_use(1)
    assert use.slot_s == pytest.approx(1.2)
    assert use.tokens == 1
    assert ends(gpu.advance(5.0)) == {2: pytest.approx(2.2)}


def test_jobs_resume_after_a_hang() -> None:
    gpu = SimulatedGpu(slots=1, now=0.0)
    gpu.submit(1, job(tokens=3), 0.0)
    gpu.set_rate(0.0, 1.2)
    gpu.submit(2, job(tokens=1), 1.3)
    assert gpu.due_at() is None
    assert gpu.advance(100.0) == []
    gpu.set_rate(1.0, 101.2)
    assert ends(gpu.advance(110.0)) == {1: pytest.approx(102.0), 2: pytest.approx(103.0)}
    assert gpu.stopped_s == pytest.approx(100.0)


def test_hung_gpu_starts_no_job() -> None:
    gpu = SimulatedGpu(slots=2, now=0.0)
    gpu.set_rate(0.0, 0.0)
    gpu.submit(1, job(), 0.0)
    assert (gpu.running, gpu.waiting) == (0, 1)


def test_slow_rate_stretches_the_rest_of_a_job() -> None:
    gpu = SimulatedGpu(slots=1, now=0.0)
    gpu.submit(1, job(tokens=3), 0.0)
    gpu.set_rate(0.25, 1.0)
    assert ends(gpu.advance(20.0)) == {1: pytest.approx(5.0)}


@pytest.mark.parametrize("after", [0, 1, 2])
def test_stalled_job_holds_its_slot(after: int) -> None:
    gpu = SimulatedGpu(slots=1, now=0.0)
    gpu.submit(1, job(tokens=3, stall_after=after), 0.0)
    gpu.advance(50.0)
    assert gpu.generated(1) == after
    assert gpu.running == 1
    assert gpu.due_at() is None
    gpu.release_stalls(50.0)
    left_s = {0: 2.0, 1: 1.0, 2: 0.5}[after]
    assert ends(gpu.advance(60.0)) == {1: pytest.approx(50.0 + left_s)}


def test_first_token_is_always_reported_alone() -> None:
    gpu = SimulatedGpu(slots=1, now=0.0)
    gpu.submit(1, job(tokens=10, report_every=4), 0.0)
    seen = []
    while (due := gpu.due_at()) is not None:
        seen += [news.tokens for news in gpu.advance(due)]
    assert seen == [1, 5, 9, 10]


Step = tuple[str, float]
steps = st.lists(
    st.tuples(
        st.sampled_from(["submit", "abort", "hang", "slow", "heal", "wait"]),
        st.floats(min_value=0.0, max_value=3.0),
    ),
    max_size=40,
)


RATES = {"hang": 0.0, "slow": 0.25, "heal": 1.0}


class Play:
    """A GPU driven by a script of steps, and what was heard from it."""

    def __init__(self, script: list[Step], *, look_every_s: float) -> None:
        self.gpu = SimulatedGpu(slots=2, now=0.0)
        self.now = 0.0
        self.alive: list[int] = []
        self.submitted = 0
        self.ended: dict[int, float] = {}
        self.starts: dict[int, float] = {}
        for action, gap_s in script:
            until = self.now + gap_s
            while self.now + look_every_s < until:
                self.now += look_every_s
                self.note(self.gpu.advance(self.now))
            self.now = until
            self.act(action)
            assert self.gpu.running <= 2
            assert self.gpu.rate == 0 or self.gpu.waiting == 0 or self.gpu.running == 2
            assert len(self.alive) == self.gpu.running + self.gpu.waiting
        self.note(self.gpu.set_rate(1.0, self.now))
        self.note(self.gpu.advance(self.now + 1000.0))
        assert self.gpu.running == self.gpu.waiting == len(self.alive) == 0
        self.slot_s = sum(self.gpu.take_use(job_id).slot_s for job_id in range(1, self.submitted + 1))

    def act(self, action: str) -> None:
        self.note(self.gpu.advance(self.now))
        if action == "submit":
            self.submitted += 1
            self.alive.append(self.submitted)
            self.note(self.gpu.submit(self.submitted, job(tokens=1 + self.submitted % 5), self.now))
        elif action == "abort" and self.alive:
            self.note(self.gpu.abort(self.alive.pop(0), self.now))
        elif action in RATES:
            self.note(self.gpu.set_rate(RATES[action], self.now))

    def note(self, progress: list[JobProgress]) -> None:
        for news in progress:
            assert news.job_id in self.alive
            self.starts[news.job_id] = news.started_at_s
            if news.finished:
                self.alive.remove(news.job_id)
                self.ended[news.job_id] = news.at_s


@given(script=steps)
def test_every_job_ends_once_and_starts_in_order(script: list[Step]) -> None:
    starts = Play(script, look_every_s=1e9).starts
    order = sorted(starts, key=lambda job_id: (starts[job_id], job_id))
    assert order == sorted(order)


@given(script=steps)
def test_update_frequency_does_not_change_results(script: list[Step]) -> None:
    once, often = Play(script, look_every_s=1e9), Play(script, look_every_s=0.07)
    assert once.ended == {job_id: pytest.approx(at_s, abs=1e-4) for job_id, at_s in often.ended.items()}
    assert once.slot_s == pytest.approx(often.slot_s, abs=1e-3)
    assert once.gpu.generated_tokens == often.gpu.generated_tokens


def test_pace_change_affects_remaining_tokens_only() -> None:
    gpu = SimulatedGpu(slots=1, now=0.0)
    gpu.submit(1, job(tokens=5), 0.0)
    assert [news.tokens for news in gpu.advance(1.5)] == [2]
    # Half of the third token exists; the other half takes four times as long as it would have.
    gpu.set_pace(4.0, 1, 1.75)
    assert gpu.due_at() == pytest.approx(2.75)
    assert [news.tokens for news in gpu.advance(2.75)] == [3]
    gpu.set_pace(1.0, 1, 2.75)
    assert ends(gpu.advance(10.0)) == {1: pytest.approx(3.75)}


def test_pace_applies_to_new_jobs_after_the_first_token() -> None:
    gpu = SimulatedGpu(slots=1, now=0.0)
    gpu.set_pace(4.0, 1, 0.0)
    gpu.submit(1, job(tokens=2), 0.0)
    assert [news.tokens for news in gpu.advance(1.0)] == [1]
    assert ends(gpu.advance(10.0)) == {1: pytest.approx(3.0)}


def test_bursts_delay_tokens_until_full_or_last() -> None:
    gpu = SimulatedGpu(slots=1, now=0.0)
    gpu.set_pace(1.0, 3, 0.0)
    gpu.submit(1, job(tokens=6), 0.0)
    seen = []
    while (due := gpu.due_at()) is not None:
        seen += [news.tokens for news in gpu.advance(due)]
    assert seen == [1, 4, 6]


def test_use_of_a_running_job_is_known() -> None:
    gpu = SimulatedGpu(slots=1, now=0.0)
    gpu.submit(1, job(), 0.0)
    gpu.submit(2, job(), 0.0)
    gpu.advance(1.5)
    assert (gpu.use_so_far(1).slot_s, gpu.use_so_far(1).tokens) == (pytest.approx(1.5), 2)
    assert gpu.use_so_far(2).started_at_s is None
