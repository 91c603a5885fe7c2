"""Prompts of conversations, and how callers state which one a request belongs to. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from chaos.fake_engine.prefix_cache import CHARACTERS_PER_TOKEN, block_hashes
from policies.affinity import Affinity

_UNIT_CHARACTERS: Final = 16


def prompt_text(session: str, tokens: int) -> str:
    """The prompt of these many tokens: the begin of an endless text that each conversation has for itself."""
    characters = CHARACTERS_PER_TOKEN * tokens
    unit = f"{session:<{_UNIT_CHARACTERS - 1}} "
    return (unit * -(-characters // len(unit)))[:characters]


@lru_cache(maxsize=4096)
def prompt_blocks(session: str, tokens: int, block_size: int) -> tuple[int, ...]:
    """Hashes of the prompt's blocks, as the fake engine computes them."""
    return block_hashes(prompt_text(session, tokens), block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKey:
    """Where callers state their conversation: a header or a cookie; ``strict``: the answer names the value."""

    header: str = ""
    cookie: str = ""
    strict: bool = False

    def headers(self, value: str) -> dict[str, str]:
        """Headers of a request with this value; none without one."""
        if not value:
            return {}
        return {self.header: value} if self.header else {"cookie": f"{self.cookie}={value}"}

    def token(self, answered: Mapping[str, str]) -> str:
        """The value that an answer with these headers names; empty if it names none."""
        if self.header:
            return answered.get(self.header, "")
        name, _, value = answered.get("set-cookie", "").partition(";")[0].partition("=")
        return value if name == self.cookie else ""


def session_key(affinity: Affinity | None) -> SessionKey | None:
    """How callers state their conversation to a route with this affinity; None if the prompt is the key."""
    if affinity is None or not affinity.by_header_or_cookie:
        return None
    cookie = "" if affinity.cookie is None else affinity.cookie.name
    return SessionKey(header=affinity.header or "", cookie=cookie, strict=affinity.is_strict)
