"""Number of protobuf fields of an undecoded message.

Two bytes are enough for an empty message in a list, and decoding makes an object of each: 4 MiB become two
million. Counting first, and only up to a limit, keeps the cost of a hostile message small.
"""

from collections.abc import Sequence
from typing import Final

_VARINT: Final = 0
_FIXED64: Final = 1
_DELIMITED: Final = 2
_FIXED32: Final = 5


def count_fields(data: bytes, path: Sequence[int], most: int) -> int:
    """Fields of ``data`` and of the messages along ``path``; counting ends above ``most``.

    ``path``: field numbers of nested messages, outermost first. ``ValueError`` for data that is not protobuf, and
    for groups, which no message here has.
    """
    count = 0
    stack = [(0, len(data), 0)]
    while stack:
        at, end, depth = stack.pop()
        wanted = path[depth] << 3 | _DELIMITED if depth < len(path) else -1
        while at < end:
            count += 1
            if count > most:
                return count
            key, at = _varint(data, at)
            kind = key & 7
            if kind == _DELIMITED:
                length, at = _varint(data, at)
                if at + length > end:
                    raise ValueError("truncated field")
                if key == wanted and length:
                    stack.append((at, at + length, depth + 1))
                at += length
            elif kind == _VARINT:
                _, at = _varint(data, at)
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            else:
                raise ValueError(f"wire type {kind}")
        if at > end:
            raise ValueError("truncated field")
    return count


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at this place, and the place after it."""
    try:
        byte = data[at]
        if byte < 0x80:  # nearly all
            return byte, at + 1
        value, shift = byte & 0x7F, 7
        while True:
            at += 1
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at + 1
            shift += 7
            if shift > 63:
                raise ValueError("varint of more than ten bytes")
    except IndexError:
        raise ValueError("truncated varint") from None
