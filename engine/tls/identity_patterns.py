"""Patterns of identities, the same for whoever judges them."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

MAX_NAME_CHARACTERS: Final = 2048
"""Of a name in a certificate. Source: SPIFFE ID, 2.3, "Maximum SPIFFE ID Length"."""


def certificate_identities(uris: Iterable[str], dns_names: Iterable[str]) -> tuple[str, ...]:
    """What a certificate proves by these names, its URIs first.

    Rules tell a URI from a DNS name by its form alone, so one in the other's clothes proves nothing. Nor does one
    that cannot be printed: it would stand in logs and on terminals.
    """
    return (
        *(one for one in uris if ":" in one and _is_sound(one)),
        *(one for one in dns_names if not {":", "/"} & set(one) and _is_sound(one)),
    )


def _is_sound(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text fits: ``*`` is anything but a slash, ``/**`` at the end everything below."""
    return _compiled(pattern).fullmatch(text) is not None


def first_match(identities: Iterable[str], pattern: str) -> str | None:
    """The first of these identities that fits; None where none does."""
    return next((one for one in identities if matches(pattern, one)), None)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    below = pattern.endswith("/**")
    parts = (pattern.removesuffix("/**") if below else pattern).split("*")
    return re.compile("[^/]*".join(map(re.escape, parts)) + ("/.+" if below else ""), re.DOTALL)
