"""Python values as protobuf writes them, each refusing what its type cannot hold.

These are the rare paths of the generated encoders: small non-negative integers never come here.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from xds_server.wire.varint import varint

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MASK64: Final = (1 << 64) - 1


def int32(value: int) -> bytes:
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{value} does not fit into 32 bits")
    # Negative numbers are sign-extended to 64 bits, whatever the field's width.
    return varint(value & _MASK64)


def int64(value: int) -> bytes:
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} does not fit into 64 bits")
    return varint(value & _MASK64)


def uint32(value: int) -> bytes:
    if value >= 1 << 32:
        raise ValueError(f"{value} does not fit into 32 bits")
    return varint(value)


def zigzag(value: int, bits: int) -> bytes:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"{value} does not fit into {bits} bits")
    return varint(value << 1 ^ value >> bits - 1)


def boolean(value: bool) -> bytes:
    if value is True:
        return b"\x01"
    if value is False:
        return b"\x00"
    raise TypeError("not a bool")


def prefixed(payload: bytes) -> bytes:
    return varint(len(payload)) + payload


def duration(value: timedelta) -> bytes:
    """A google.protobuf.Duration: seconds and nanoseconds carry the same sign."""
    total_us = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    seconds, rest_us = divmod(abs(total_us), 1_000_000)
    sign = -1 if total_us < 0 else 1
    return _seconds_and_nanos(sign * seconds, sign * rest_us * 1000)


def timestamp(value: datetime) -> bytes:
    """A google.protobuf.Timestamp: nanoseconds count forward, also before 1970."""
    if value.tzinfo is None:
        raise ValueError("a datetime without a time zone is no point in time")
    since = value - _EPOCH
    return _seconds_and_nanos(since.days * 86_400 + since.seconds, since.microseconds * 1000)


def _seconds_and_nanos(seconds: int, nanos: int) -> bytes:
    return (b"\x08" + int64(seconds) if seconds else b"") + (b"\x10" + int32(nanos) if nanos else b"")
