"""Patterns of identities, the same for whoever judges them."""

import re
from collections.abc import Iterable
from functools import lru_cache


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text fits: ``*`` is anything but a slash, ``/**`` at the end everything below."""
    return _compiled(pattern).fullmatch(text) is not None


def fitting(identities: Iterable[str], pattern: str) -> str | None:
    """The first of these identities that fits; None where none does."""
    return next((one for one in identities if matches(pattern, one)), None)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    below = pattern.endswith("/**")
    parts = (pattern.removesuffix("/**") if below else pattern).split("*")
    return re.compile("[^/]*".join(map(re.escape, parts)) + ("/.+" if below else ""), re.DOTALL)
