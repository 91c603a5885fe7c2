"""Find reference cycles: objects that only the cycle collector can free."""

import gc
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def left() -> Iterator[dict[str, int]]:
    """How many objects of each kind the block has left in rings, once it is over; functions by their names."""
    found: dict[str, int] = {}
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(_kinds())
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.collect()


def _kinds() -> Mapping[str, int]:
    kinds: Counter[str] = Counter()
    for one in gc.garbage:
        named = one if callable(one) and hasattr(one, "__qualname__") else type(one)
        kinds[f"{named.__module__}.{named.__qualname__}"] += 1
    return kinds
