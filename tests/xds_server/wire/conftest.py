"""Random messages of any envoy-data-plane class, from the metadata that the encoder reads."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from xds_server.wire.metadata import FieldDescriptor, FieldType, fields

# Both sides of every step in a varint's length, and the ends of every range.
UNSIGNED = (0, 1, 127, 128, 16_383, 16_384, 2**31 - 1, 2**31, 2**32 - 1)
SIGNED = (0, 1, -1, 63, -64, 64, 127, 128, 16_384, -16_385, 2**31 - 1, -(2**31))
WIDE_UNSIGNED = (*UNSIGNED, 2**32, 2**63, 2**64 - 1)
WIDE_SIGNED = (*SIGNED, 2**32, 2**63 - 1, -(2**63))
SCALARS: dict[str, tuple[Any, ...]] = {
    "bool": (False, True),
    "enum": (0, 1, 2),
    "int32": SIGNED,
    "sint32": SIGNED,
    "sfixed32": SIGNED,
    "int64": WIDE_SIGNED,
    "sint64": WIDE_SIGNED,
    "sfixed64": WIDE_SIGNED,
    "uint32": UNSIGNED,
    "fixed32": UNSIGNED,
    "uint64": WIDE_UNSIGNED,
    "fixed64": WIDE_UNSIGNED,
    # Neither -0.0 nor values that round to 0.0 as a float: betterproto2 encodes them wrongly; see test_encode.
    "float": (0.0, 1.0, -2.5, 0.25, float.fromhex("0x1.fffffep+127"), float("inf")),
    "double": (0.0, 1.0, -2.5, 0.1, 1e300, float("-inf")),
    "string": ("", "a", "zone-1", "größe ✓ 🙂", "x" * 127, "x" * 128, "y" * 20_000),
    "bytes": (b"", b"\x00", b"\xff" * 127, b"\x80" * 128),
}
TEXT_KEYS = ("", "a", "ab", "zone-1", "größe ✓ 🙂", "x" * 127, "y" * 200, "Z")
DURATIONS = (
    timedelta(0),
    timedelta(seconds=1.5),
    timedelta(microseconds=1),
    timedelta(days=400),
    timedelta(seconds=-3),
)
TIMES = (
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2026, 7, 1, 12, 30, 0, 250_000, tzinfo=UTC),
    datetime(1965, 3, 4, 5, 6, 7, 8, tzinfo=UTC),
)

MakeMessage = Callable[[type[Any], int], Any]


@pytest.fixture(scope="session")
def random_message() -> MakeMessage:
    """(class, seed) -> a message of that class with random contents, a few levels deep."""

    def make(cls: type[Any], seed: int) -> Any:
        return _Maker(Random(seed)).message(cls, depth=0)

    return make


class _Maker:
    """Draws values until it has made ``left`` messages, then only scalars: messages contain themselves."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._left = 40

    def message(self, cls: type[Any], depth: int) -> Any:
        self._left -= 1
        described = [field for field in fields(cls) if self._makeable(field, depth)]
        # Few of the many fields of a Cluster, most of the few of an endpoint.
        wanted = self._rng.sample(described, min(len(described), self._rng.randint(0, 8)))
        chosen = {field.oneof or field.name: field for field in wanted}
        return cls(**{field.name: self._content(field, depth) for field in chosen.values()})

    def _makeable(self, field: FieldDescriptor, depth: int) -> bool:
        nested = field.value.message is not None and not field.value.wrapped
        return not nested or (depth < 6 and self._left > 0)

    def _content(self, field: FieldDescriptor, depth: int) -> Any:
        count = self._rng.randint(0, 3)
        if field.key is not None:
            keys = TEXT_KEYS if field.key.kind == "string" else SCALARS[field.key.kind]
            return {self._rng.choice(keys): self._one(field.value, depth) for _ in range(count)}
        if field.repeated:
            return [self._one(field.value, depth) for _ in range(count)]
        return self._one(field.value, depth)

    def _one(self, value: FieldType, depth: int) -> Any:
        if value.message is None:
            return self._rng.choice(SCALARS[value.kind])
        if not value.wrapped:
            return self.message(value.message, depth + 1)
        if value.message.__name__ == "Duration":
            return self._rng.choice(DURATIONS)
        if value.message.__name__ == "Timestamp":
            return self._rng.choice(TIMES)
        (inner,) = fields(value.message)
        return self._rng.choice(SCALARS[inner.value.kind])
