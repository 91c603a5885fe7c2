"""What requests really cost, from counters of engines that may restart, stand still, serve others, or lie."""

import pytest

from engine.report import TokenWork
from xds_server.model.fleet import EngineId
from xds_server.telemetry.token_use import RequestedTokens, TokenRatios, TokenUse

E0, E1, E2 = (EngineId(pool="chat", engine=f"e{number}") for number in range(3))
ASKED = RequestedTokens(body_bytes=400.0, prompt=100.0, answer=1000.0)
PROMPT, ANSWER = 80, 250
"""What one such request really costs."""


def work(requests: float, prompt: float = PROMPT, answer: float = ANSWER, base: int = 0) -> TokenWork:
    """Counters after some requests."""
    return TokenWork(
        prompt_tokens=base + int(requests * prompt),
        generation_tokens=base + int(requests * answer),
        finished=base + int(requests),
    )


def served(use: TokenUse, engine: EngineId, requests: int = 100, at_s: float = 10.0, **did: float) -> None:
    """An engine serves requests between two readings of its counters."""
    use.read(engine, "b", work(0), 0.0)
    for _ in range(requests):
        use.record_request(engine, ASKED, 1.0)
    use.read(engine, "b", work(did.pop("finished", requests), **did), at_s)


def ratios(use: TokenUse) -> TokenRatios | None:
    return use.pools().get("chat")


def test_prompts_and_answers_are_corrected_apart() -> None:
    use = TokenUse()
    assert use.corrected("chat", ASKED) == 1100.0, "the estimate"
    served(use, E0)
    found = ratios(use)
    assert found is not None
    assert (found.bytes_per_token, found.answer_share, found.answer_tokens) == (5.0, 0.25, 250.0)
    assert use.corrected("chat", ASKED) == PROMPT + ANSWER
    long_prompt = RequestedTokens(body_bytes=40_000.0, prompt=10_000.0, answer=10.0)
    assert use.corrected("chat", long_prompt) == 8002.5
    assert use.corrected("other", ASKED) == 1100.0


@pytest.mark.parametrize(
    "did",
    [
        {"requests": 19},
        {"finished": 130},
        {"finished": 40},
        {"prompt": 0.0},
        {"prompt": 1000 * PROMPT},
        {"prompt": PROMPT / 1000},
        {"answer": 1000 * ANSWER},
        {"answer": 0.0},
    ],
    ids=["few", "others use it", "stands still", "no prompts", "1000x", "x/1000", "1000x answers", "no answers"],
)
def test_counters_that_cannot_be_true_teach_nothing(did: dict[str, float]) -> None:
    use = TokenUse()
    served(use, E0, **did)  # type: ignore[arg-type]
    assert ratios(use) is None


@pytest.mark.parametrize(("boot", "base"), [("new", 10_000), ("b", 0)], ids=["boot", "falls"])
def test_restarted_engine_counts_from_its_next_reading(boot: str, base: int) -> None:
    use = TokenUse()
    use.read(E0, "b", work(0, base=5000), 0.0)
    for _ in range(100):
        use.record_request(E0, ASKED, 1.0)
    use.read(E0, boot, work(0, base=base), 5.0)
    assert ratios(use) is None, "what was asked before belongs to lost counters"
    for _ in range(100):
        use.record_request(E0, ASKED, 1.0)
    use.read(E0, boot, work(100, base=base), 10.0)
    assert use.corrected("chat", ASKED) == PROMPT + ANSWER


def test_one_engine_that_lies_within_bounds_does_not_move_the_pool() -> None:
    use = TokenUse()
    served(use, E0)
    served(use, E1)
    served(use, E2, prompt=8 * PROMPT, answer=40 * ANSWER)
    assert use.corrected("chat", ASKED) == PROMPT + ANSWER


def test_canaries_of_an_idle_engine_do_not_count() -> None:
    use = TokenUse()
    served(use, E0)
    before = ratios(use)
    for look in range(1, 200):
        done = work(100)
        canaries = TokenWork(
            prompt_tokens=done.prompt_tokens + 20 * look,
            generation_tokens=done.generation_tokens + look,
            finished=done.finished + look,
        )
        use.read(E0, "b", canaries, 10.0 + look)
    assert ratios(use) == before


def test_what_is_in_progress_at_a_reading_averages_out() -> None:
    """Long answers: tokens are counted as they are made, requests when they end."""
    use = TokenUse()
    use.read(E0, "b", work(0), 0.0)
    for look in range(1, 41):
        if look % 4 == 0:
            for _ in range(20):
                use.record_request(E0, ASKED, 1.0)
        tokens = work(5 * look)
        ended = 20 * (look // 4)
        counters = TokenWork(
            prompt_tokens=tokens.prompt_tokens, generation_tokens=tokens.generation_tokens, finished=ended
        )
        use.read(E0, "b", counters, 5.0 * look)
    assert use.corrected("chat", ASKED) == pytest.approx(PROMPT + ANSWER, rel=0.05)


def test_other_callers_replace_what_was_learned() -> None:
    use = TokenUse()
    served(use, E0)
    done = 100
    for look in range(1, 31):
        for _ in range(20):
            use.record_request(E0, ASKED, 1.0)
        done += 20
        longer = work(100).generation_tokens + (done - 100) * 2 * ANSWER
        counters = TokenWork(prompt_tokens=PROMPT * done, generation_tokens=longer, finished=done)
        use.read(E0, "b", counters, 10.0 + 60.0 * look)
    found = ratios(use)
    assert found is not None
    assert found.answer_share == pytest.approx(0.5, rel=0.05)


def test_engines_that_left_are_forgotten() -> None:
    use = TokenUse()
    served(use, E0)
    use.keep({"chat": frozenset()})
    use.record_request(E0, ASKED, 1.0)
    use.read(E1, "b", work(0), 20.0)
    assert ratios(use) is None
