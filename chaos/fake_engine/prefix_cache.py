"""The prefix cache of a fake engine: vLLM's rule for which blocks a prompt finds computed.

A block is found by a hash of its tokens and all tokens before it, so a prompt hits its longest cached prefix of
whole blocks. The last token is always computed. A block that no request uses stays until its place is needed: the
least recently used one goes first, and of one request the last block first.

Source: ``vllm/v1/core/kv_cache_manager.py`` and ``block_pool.py``.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

CHARACTERS_PER_TOKEN = 4


def block_hashes(prompt: str | Sequence[int], block_size: int) -> tuple[int, ...]:
    """The hash of each whole block of a prompt, each one also of all blocks before it."""
    size = block_size * CHARACTERS_PER_TOKEN if isinstance(prompt, str) else block_size
    found: list[int] = []
    for end in range(size, len(prompt) + 1, size):
        block = prompt[end - size : end]
        found.append(hash((found[-1] if found else None, block if isinstance(block, str) else tuple(block))))
    return tuple(found)


@dataclass(slots=True)
class PrefixCache:
    """Cached blocks and how many requests use each; unused ones are ``idle``, the first to go first."""

    _used: dict[int, int] = field(default_factory=dict)
    _idle: "OrderedDict[int, None]" = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._used) + len(self._idle)

    def cached(self, hashes: Sequence[int], prompt_tokens: int, block_size: int) -> tuple[int, ...]:
        """The longest cached prefix of these blocks that leaves a token to compute."""
        most = (prompt_tokens - 1) // block_size
        number = 0
        while number < min(most, len(hashes)) and (hashes[number] in self._used or hashes[number] in self._idle):
            number += 1
        return tuple(hashes[:number])

    def use(self, hashes: Sequence[int]) -> int:
        """Use these blocks; the number of them that were idle."""
        woken = 0
        for one in hashes:
            if one in self._idle:
                del self._idle[one]
                woken += 1
            self._used[one] = self._used.get(one, 0) + 1
        return woken

    def add(self, block: int) -> bool:
        """Cache a block that a request computes; False if it is cached already, and the request keeps its own."""
        if block in self._used or block in self._idle:
            return False
        self._used[block] = 1
        return True

    def release(self, hashes: Sequence[int]) -> int:
        """End a request's use of these blocks; the number of them that are idle now."""
        freed = 0
        for one in reversed(hashes):
            self._used[one] -= 1
            if not self._used[one]:
                del self._used[one]
                self._idle[one] = None
                freed += 1
        return freed

    def shrink(self, idle: int) -> None:
        """Forget the least recently used idle blocks until at most this many are left."""
        while len(self._idle) > idle:
            self._idle.popitem(last=False)
