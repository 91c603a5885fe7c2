"""Wire metadata of envoy-data-plane's dataclasses.

Each dataclass field carries betterproto2's metadata (number, type, oneof, map, wrapper) and a type hint that
names its message. Encoder and descriptors are derived from it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Union


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FieldType:
    """What one value on the wire is: a scalar named by ``kind``, or a message.

    ``kind`` is protobuf's type name, ``"message"`` and ``"enum"`` included. ``message`` is the dataclass of a
    message; ``wrapped`` is true when Python holds something simpler in its place (a ``timedelta`` for a
    Duration, an ``int`` for a UInt32Value).
    """

    kind: str
    message: type[Any] | None = None
    wrapped: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FieldDescriptor:
    """One field of a message; ``key`` is set for a map and ``value`` then describes the map's values.

    ``oneof`` is the group's name or ``""``; ``presence`` tells a field that is unset (``None``) from one that
    is set to its zero.
    """

    name: str
    number: int
    value: FieldType
    key: FieldType | None
    repeated: bool
    oneof: str
    presence: bool


def fields(cls: type[Any]) -> tuple[FieldDescriptor, ...]:
    """The fields of a betterproto2 message class by ascending number."""
    hints = cls._type_hints()
    found = [
        _field(field.name, field.metadata["betterproto"], hints[field.name]) for field in dataclasses.fields(cls)
    ]
    return tuple(sorted(found, key=lambda field: field.number))


def _field(name: str, meta: Any, hint: Any) -> FieldDescriptor:
    arguments = typing.get_args(hint)
    if meta.map_meta is not None:
        key_meta, value_meta = meta.map_meta
        key, value = FieldType(kind=key_meta.proto_type), _value(value_meta, arguments[1])
    else:
        key, value = None, _value(meta, arguments[0] if meta.repeated else _without_none(hint))
    return FieldDescriptor(
        name=name,
        number=meta.number,
        value=value,
        key=key,
        repeated=bool(meta.repeated),
        oneof=meta.group or "",
        presence=bool(meta.optional or meta.group),
    )


def _value(meta: Any, hint: Any) -> FieldType:
    if meta.proto_type != "message":
        return FieldType(kind=meta.proto_type)
    if meta.unwrap is not None:
        return FieldType(kind="message", message=meta.unwrap(), wrapped=True)
    return FieldType(kind="message", message=hint)


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (Union, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not types.NoneType)
    return hint
