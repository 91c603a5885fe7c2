"""What was made before, handed out again while its inputs are the same.

One policy edit among a hundred pools, or one verdict among ten thousand engines, changes few inputs. A memo makes
the rest free without making it stateful: with or without it the answer is equal, with it the answer is also
*identical*, which is how the encoder downstream knows that it has these bytes already.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

_T = TypeVar("_T")


class Memo:
    """Values by key, each with the inputs it was made from.

    An input is the same when it is identical or equal, so parsing a file again costs a comparison, not a push.
    """

    def __init__(self) -> None:
        """Nothing made yet."""
        self._alike: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._made: dict[Hashable, tuple[tuple[object, ...], Any]] = {}
        self._used: set[Hashable] = set()

    def of(self, key: Hashable, inputs: tuple[object, ...], make: Callable[[], _T]) -> _T:
        """What ``make`` returns for these inputs; ``make`` is called only if they differ from last time's."""
        self._used.add(key)
        known = self._made.get(key)
        if known is not None and _same(known[0], inputs):
            remembered: _T = known[1]
            return remembered
        made = make()
        self._made[key] = (inputs, made)
        return made

    def interned(self, content: Hashable, make: Callable[[], _T]) -> _T:
        """What was made for equal content and is still held by somebody, else what ``make`` returns."""
        known: _T | None = self._alike.get(content)
        if known is None:
            known = self._alike[content] = make()
        return known

    def sweep(self) -> None:
        """Forget what was not asked for since the last sweep; call it when every view has been translated."""
        self._made = {key: value for key, value in self._made.items() if key in self._used}
        self._used = set()


def _same(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    return len(before) == len(now) and all(a is b or a == b for a, b in zip(before, now, strict=True))
