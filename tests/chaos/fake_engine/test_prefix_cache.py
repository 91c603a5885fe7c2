"""The prefix cache of a fake engine, by vLLM's block rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.fake_engine.prefix_cache import block_hashes
from chaos.fake_engine.step_scheduler import StepCosts, StepRequest, StepScheduler

BLOCK = 16
COSTS = StepCosts(base_s=0.01, prefill_token_s=0.001)


def scheduler(*, kv_blocks: int = 1000, slots: int = 8) -> StepScheduler:
    return StepScheduler(costs=COSTS, slots=slots, budget=2048, kv_blocks=kv_blocks, block_size=BLOCK, now=0.0)


def job(prompt: list[int], tokens: int = 1) -> StepRequest:
    return StepRequest(prompt_tokens=len(prompt), tokens=tokens, blocks=block_hashes(prompt, BLOCK))


def tokens(number: int, *, first: int = 0) -> list[int]:
    return list(range(first, first + number))


class Engine:
    """Runs prompts one after another, each to its end."""

    def __init__(self, **settings: int) -> None:
        self.scheduler = scheduler(**settings)
        self.now = 0.0
        self.number = 0

    def run(self, prompt: list[int], answer: int = 1) -> int:
        """The tokens of the prompt that were found in the cache."""
        before = self.scheduler.published.prefix_hits
        self.number += 1
        self.scheduler.submit(self.number, job(prompt, answer), self.now)
        self.now += 100.0
        ended = self.scheduler.advance(self.now)
        assert [one.finished for one in ended][-1:] == [True]
        return self.scheduler.published.prefix_hits - before


@pytest.mark.parametrize(
    ("first", "second", "hits"),
    [
        (tokens(48), tokens(48), 32),  # the last token is computed, so its whole block is
        (tokens(49), tokens(49), 48),
        (tokens(64), [*tokens(64), 7, 7], 64),
        (tokens(40), tokens(64), 32),  # whole blocks only
        (tokens(15), tokens(15), 0),
        (tokens(64), tokens(63, first=1), 0),  # a hash is also of all tokens before
        (tokens(64), [*tokens(20), 99, *tokens(43, first=21)], 16),
        ([1], [1], 0),
    ],
)
def test_hits_are_the_longest_prefix_of_whole_blocks(first: list[int], second: list[int], hits: int) -> None:
    engine = Engine()
    assert engine.run(first) == 0
    assert engine.run(second) == hits
    published = engine.scheduler.published
    assert published.prefix_queries == len(first) + len(second)
    assert published.prompt_tokens == len(first) + len(second)
    assert published.prompt_tokens_cached == hits
    assert published.kv_cache_ratio == 0, "unused blocks count as free, cached or not"


def test_cached_tokens_take_no_time() -> None:
    one = scheduler()
    one.submit(1, job(tokens(1601)), 0.0)
    assert one.due_at() == pytest.approx(0.01 + 1.601)
    one.advance(10.0)
    one.submit(2, job(tokens(1601)), 10.0)
    assert one.due_at() == pytest.approx(10.0 + 0.01 + 0.001)


def test_requests_of_one_step_share_the_blocks_that_it_computes() -> None:
    one = scheduler()
    one.submit(0, job(tokens(1), tokens=1), 0.0)  # so that both wait for the next step
    one.submit(1, job(tokens(160)), 0.0)
    one.submit(2, job(tokens(160)), 0.0)
    one.advance(10.0)
    assert one.published.prefix_hits == 144


def test_least_recently_used_blocks_go_first() -> None:
    engine = Engine(kv_blocks=12)
    old, new = tokens(64), tokens(64, first=1000)
    engine.run(old)
    engine.run(new)
    assert engine.run([*old, 1]) == 64, "used again, so newer"
    engine.run(tokens(96, first=5000))
    assert engine.run([*old, 2]) == 64
    assert engine.run([*new, 2]) < 64


def test_tail_of_a_prompt_goes_before_its_begin() -> None:
    engine = Engine(kv_blocks=8)
    engine.run(tokens(96))
    engine.run(tokens(64, first=1000))
    assert engine.run(tokens(97)) == 64


def test_preempted_request_finds_its_blocks_again() -> None:
    one = scheduler(kv_blocks=10, slots=4)
    for number in range(3):
        one.submit(number, job(tokens(40, first=1000 * number), tokens=60), 0.0)
    ended = one.advance(1000.0)
    assert sum(news.finished for news in ended) == 3
    assert one.published.preemptions > 0
    assert one.published.prefix_hits == 0, "vLLM counts the first look-up only"
    assert one.published.kv_cache_ratio == 0


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 120), st.integers(1, 40), st.booleans()), max_size=12),
    st.integers(12, 30),
)
def test_no_block_is_lost(calls: list[tuple[int, int, int, bool]], kv_blocks: int) -> None:
    one = scheduler(kv_blocks=kv_blocks, slots=3)
    now = 0.0
    for number, (family, prompt, answer, aborted) in enumerate(calls):
        one.submit(number, job(tokens(prompt, first=family), answer), now)
        now += 0.013
        if aborted:
            one.abort(number, now)
    one.advance(now + 1000.0)
    one.advance(now + 2000.0)
    assert (one.published.running, one.published.waiting, one.published.kv_cache_ratio) == (0, 0, 0)
    assert len(one._cache) <= kv_blocks
    assert one.published.prefix_hits <= one.published.prefix_queries


def test_texts_are_cut_like_tokens() -> None:
    text = "abcd" * 40
    assert len(block_hashes(text, BLOCK)) == 2
    assert block_hashes(text, BLOCK) == block_hashes(text + "x", BLOCK)
    assert block_hashes(text, BLOCK)[0] != block_hashes("x" + text, BLOCK)[0]
    assert block_hashes("", BLOCK) == ()
