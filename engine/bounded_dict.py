"""A bounded dict that evicts the oldest item."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


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
            oldest, _ = self.popitem(last=False)
            if self._on_evict is not None:
                self._on_evict(oldest)
