"""Reuse of earlier results: the same object while nothing changes.

One policy edit among a hundred pools, or one verdict among ten thousand engines, changes few inputs. Reuse makes
the rest free: the answer is equal with and without it, and with it also *identical*. Later steps compare by
identity first, and the encoder then has these bytes already.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Mapping[Any, Any])

_ABSENT: Final = object()


class Memo:
    """Values by key, each with the inputs it was made from.

    An input is the same when it is identical or equal, so parsing a file again costs a comparison, not a push.
    """

    def __init__(self) -> None:
        self._alike: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._made: dict[Hashable, tuple[tuple[object, ...], Any]] = {}
        self._used: set[Hashable] = set()

    def of(self, key: Hashable, inputs: tuple[object, ...], make: Callable[[], _T]) -> _T:
        """The result of ``make`` for these inputs; ``make`` is called only if they differ from the last ones."""
        return self._reused(key, inputs, make, _same)

    def identical(self, key: Hashable, inputs: tuple[object, ...], make: Callable[[], _T]) -> _T:
        """The same for inputs that are slow to compare: ``make`` is called if one of them is another object."""
        return self._reused(key, inputs, make, _identical)

    def _reused(
        self,
        key: Hashable,
        inputs: tuple[object, ...],
        make: Callable[[], _T],
        alike: Callable[[tuple[object, ...], tuple[object, ...]], bool],
    ) -> _T:
        self._used.add(key)
        known = self._made.get(key)
        if known is not None and alike(known[0], inputs):
            remembered: _T = known[1]
            return remembered
        made = make()
        self._made[key] = (inputs, made)
        return made

    def interned(self, content: Hashable, make: Callable[[], _T]) -> _T:
        """The object for equal content while anything still refers to it, else the result of ``make``."""
        known: _T | None = self._alike.get(content)
        if known is None:
            known = self._alike[content] = make()
        return known

    def sweep(self) -> None:
        """Forget what was not requested since the last sweep; call it when every view has been translated."""
        self._made = {key: value for key, value in self._made.items() if key in self._used}
        self._used = set()


class LastResult(Generic[_T]):
    """One result, reused while its inputs are identical; for inputs that are slow to compare."""

    def __init__(self) -> None:
        self._made: tuple[tuple[object, ...], _T] | None = None

    def of(self, inputs: tuple[object, ...], make: Callable[[], _T]) -> _T:
        """The result of ``make`` for these inputs; ``make`` is called only if one of them is another object."""
        if self._made is None or not _identical(self._made[0], inputs):
            self._made = (inputs, make())
        return self._made[1]


def reuse_equal(before: _T | None, after: _T) -> _T:
    """``before`` if it is equal, else ``after``."""
    return before if before is not None and before == after else after


def reuse_mapping(before: _M, after: _M) -> _M:
    """``before`` if it has the same objects at the same keys, else ``after``."""
    same = len(before) == len(after) and all(before.get(key, _ABSENT) is one for key, one in after.items())
    return before if same else after


def reuse_tuple(before: tuple[_T, ...], after: tuple[_T, ...]) -> tuple[_T, ...]:
    """``before`` if it has the same objects in the same order, else ``after``."""
    return before if _identical(before, after) else after


def _same(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    return len(before) == len(now) and all(a is b or a == b for a, b in zip(before, now, strict=True))


def _identical(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    return len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))
