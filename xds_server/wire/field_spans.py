"""Where the fields of an encoded protobuf message stand, without decoding them.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator

from xds_server.wire.varint import LENGTH_DELIMITED, VARINT


def field_spans(message: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Number, first byte, first byte of the value and end of each field.

    ``message`` must be valid, with varints and length-delimited fields only, else ``ValueError``.
    """
    at = 0
    while at < len(message):
        key, start = _varint(message, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            _, end = _varint(message, start)
        elif wire_type == LENGTH_DELIMITED:
            size, start = _varint(message, start)
            end = start + size
        else:
            raise ValueError(f"field {number} has wire type {wire_type}")
        yield number, at, start, end
        at = end


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
