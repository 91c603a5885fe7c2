"""A bounded dict that evicts the oldest item."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")

EXPIRED_AT_ONCE: Final = 128
"""Takes 50 us."""


class BoundedDict(OrderedDict[_K, _V]):
    """At most ``most`` items; setting a key makes it the newest. ``on_evict`` gets evicted keys."""

    def __init__(self, most: int, on_evict: Callable[[_K], object] | None = None) -> None:
        super().__init__()
        self._most = most
        self._on_evict = on_evict

    def __setitem__(self, key: _K, value: _V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self._most:
            self._evict()

    def newest(self, key: _K) -> _V | None:
        """The value of this key, which becomes the newest; None without one."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value

    def expire(self, is_expired: Callable[[_V], bool]) -> None:
        """Drop the oldest items, as long as they are expired: at most ``EXPIRED_AT_ONCE``."""
        for _ in range(EXPIRED_AT_ONCE):
            oldest = next(iter(self.values()), None)
            if oldest is None or not is_expired(oldest):
                return
            self._evict()

    def _evict(self) -> None:
        oldest, _ = self.popitem(last=False)
        if self._on_evict is not None:
            self._on_evict(oldest)
