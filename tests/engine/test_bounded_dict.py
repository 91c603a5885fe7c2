"""A bounded dict keeps the newest items, by whichever method they are set."""

import pytest

from engine.bounded_dict import EXPIRED_AT_ONCE, BoundedDict


def test_the_item_that_was_set_longest_ago_is_evicted() -> None:
    evicted: list[str] = []
    items: BoundedDict[str, int] = BoundedDict(2, on_evict=evicted.append)
    items["a"], items["b"] = 1, 2
    items["a"] = 3
    items["c"] = 4
    assert (list(items.items()), evicted) == ([("a", 3), ("c", 4)], ["b"])


def test_update_and_setdefault_keep_the_bound() -> None:
    items: BoundedDict[int, None] = BoundedDict(3)
    items.update(dict.fromkeys(range(10)))
    assert list(items) == [7, 8, 9]
    items.setdefault(7, None)
    assert list(items) == [7, 8, 9]  # it was there, so it was not set
    items.setdefault(10, None)
    assert list(items) == [8, 9, 10]


def test_expired_items_go_from_the_oldest_on() -> None:
    evicted: list[int] = []
    items: BoundedDict[int, int] = BoundedDict(1_000, on_evict=evicted.append)
    items.update({number: number for number in range(EXPIRED_AT_ONCE + 3)})
    items[0] = 0  # the newest now, so it is not looked at
    items.expire(lambda number: number < 3)
    assert evicted == [1, 2]
    items.expire(lambda _: True)
    assert list(items) == [0], "more than the bound at once"


@pytest.mark.parametrize("most", [0, 1])
def test_small_bounds(most: int) -> None:
    items: BoundedDict[int, int] = BoundedDict(most)
    items[1] = 1
    items[2] = 2
    assert list(items) == [2][:most]
