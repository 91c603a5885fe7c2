"""The names of the newest requests that an engine failed: few, and only what looks like a name.

Envoy makes these names and lets no caller choose one. But proxies are peers, and what they say ends in files,
traces and terminals; so a name is letters, digits and ``-_.:``, at most ``LONGEST`` of them, and nothing else is
kept.
"""

import re
from collections import deque
from typing import Final

MOST: Final = 5
"""Names per engine: somewhere to begin looking, not a record."""

LONGEST: Final = 64
"""Characters; Envoy's own have 36."""

_NAME: Final = re.compile(rf"[0-9A-Za-z][-_.:0-9A-Za-z]{{0,{LONGEST - 1}}}", re.ASCII)


class FailedRequests:
    """The newest of one engine, each with when it was told."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: deque[tuple[float, str]] = deque(maxlen=MOST)

    def add(self, name: str, now_s: float) -> None:
        """Remember a name, if it is one. Two tries of one request are one request."""
        if _NAME.fullmatch(name) and all(known != name for _, known in self._names):
            self._names.append((now_s, name))

    def since(self, oldest_s: float) -> tuple[str, ...]:
        """Those told since then, newest first."""
        return tuple(name for at_s, name in reversed(self._names) if at_s >= oldest_s)
