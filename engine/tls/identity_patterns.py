"""Identity patterns."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

MAX_NAME_CHARACTERS: Final = 2048
"""Longest name in a certificate. Source: SPIFFE ID, 2.3, "Maximum SPIFFE ID Length"."""


def certificate_identities(uris: Iterable[str], dns_names: Iterable[str]) -> tuple[str, ...]:
    """Valid identities among SANs, URIs first.

    Rules tell a URI from a DNS name by its form, so a name in the wrong SAN type is ignored. So are unprintable
    names, which would reach logs and terminals.
    """
    return (
        *(one for one in uris if ":" in one and _is_sound(one)),
        *(one for one in dns_names if not {":", "/"} & set(one) and _is_sound(one)),
    )


def _is_sound(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text matches: ``*`` is all but a slash, a final ``/**`` everything below."""
    return _compiled(pattern).fullmatch(text) is not None


def first_match(identities: Iterable[str], pattern: str) -> str | None:
    """The first matching identity, or None."""
    return next((one for one in identities if matches(pattern, one)), None)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    below = pattern.endswith("/**")
    parts = (pattern.removesuffix("/**") if below else pattern).split("*")
    return re.compile("[^/]*".join(map(re.escape, parts)) + ("/.+" if below else ""), re.DOTALL)
