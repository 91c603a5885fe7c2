"""Conversations of callers: which one a request belongs to. Pure.

The prompt of a turn is that of the turn before and more, so an engine that answered that turn has most of it in
its prefix cache. Open loop: a turn does not wait for the answer to the one before, and prompts contain no answers.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from chaos.load.request_sender import Arrival
from chaos.scenario.scenario_model import ConversationSpec

HOT: Final = "hot"
"""Name of the conversation with the hot prompt."""


@dataclass(slots=True)
class _Conversation:
    """One conversation at a time of one of its users; ``tokens`` is the length of its newest prompt."""

    number: int = 0
    turn: int = 0
    tokens: int = 0


def in_conversations(
    arrivals: Iterator[Arrival], spec: ConversationSpec | None, rng: random.Random
) -> Iterator[Arrival]:
    """The arrivals as turns of conversations; each adds its own prompt tokens to those of the turn before."""
    if spec is None:
        yield from arrivals
        return
    users = [_Conversation() for _ in range(spec.count)]
    hot_tokens = 0
    for one in arrivals:
        # Each arrival draws the same number of values, so that one never changes another.
        hot, place = 100 * rng.random() < spec.hot_percent, rng.randrange(spec.count)
        if hot:
            hot_tokens = hot_tokens or spec.turns * one.prompt_tokens
            yield replace(one, session=HOT, prompt_tokens=hot_tokens)
            continue
        user = users[place]
        if user.turn == spec.turns:
            users[place] = user = _Conversation(number=user.number + 1)
        user.turn += 1
        user.tokens += one.prompt_tokens
        yield replace(one, session=f"s{place}-{user.number}", prompt_tokens=user.tokens)
