"""Primitives of the protobuf wire format.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from typing import Final

VARINT: Final = 0
LENGTH_DELIMITED: Final = 2

_SHORT_LIMIT: Final = 1 << 14
# Nearly all tags and lengths are below 16 KiB; a table makes them one lookup.
_SHORT: Final = tuple(bytes([n]) if n < 0x80 else bytes([n & 0x7F | 0x80, n >> 7]) for n in range(_SHORT_LIMIT))


def varint(value: int) -> bytes:
    """``value``, 0 <= value < 2**64, as a base-128 varint; negative values are a caller's bug."""
    if 0 <= value < _SHORT_LIMIT:
        return _SHORT[value]
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{value} is outside 0..2**64-1")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def uint32(value: int) -> bytes:
    """``value`` of a uint32 field; ``ValueError`` if it does not fit."""
    if value >= 1 << 32:
        raise ValueError(f"{value} does not fit into 32 bits")
    return varint(value)


def tag(number: int, wire_type: int) -> bytes:
    """The key before a field's value."""
    return varint(number << 3 | wire_type)


def delimited(number: int, payload: bytes) -> bytes:
    """Field ``number`` holding ``payload`` (bytes, a string's UTF-8 or an encoded message), also when empty."""
    return b"".join((tag(number, LENGTH_DELIMITED), varint(len(payload)), payload))


def text(number: int, value: str) -> bytes:
    """Field ``number`` with a string without presence: omitted if empty."""
    return delimited(number, value.encode()) if value else b""
