"""When a change may be flushed: the first at once, those right behind it together."""

from dataclasses import dataclass
from typing import Final

WINDOW_S: Final = 0.01
"""A burst of reports becomes one push per window: at most this is added, at most 100 pushes a second go out."""


@dataclass(slots=True, kw_only=True)
class Pace:
    """Spreads flushes at least ``window_s`` apart without ever holding back the first.

    ``changed`` returns the clock at which to flush, ``None`` when a flush is already agreed; call ``flushed`` when
    it happens. Configuration and health share the pace: neither waits for the other.
    """

    window_s: float = WINDOW_S
    _next_at_s: float = float("-inf")
    _agreed: bool = False

    def changed(self, now_s: float) -> float | None:
        """Note a change; return when to flush it, unless that is settled."""
        if self._agreed:
            return None
        self._agreed = True
        return max(now_s, self._next_at_s)

    def flushed(self, now_s: float) -> None:
        """Note that everything up to ``now_s`` has gone out."""
        self._agreed = False
        self._next_at_s = now_s + self.window_s
