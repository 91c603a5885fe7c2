"""envoy-data-plane messages in, bytes out: each is copied into protobuf's own class, which writes it.

betterproto2 interprets its metadata for every field of every message it serialises and validates each message
again on the way. That costs more than a hundred milliseconds for a thousand endpoints. The classes that
``descriptors`` derives are written by protobuf's C core. This module only adds one pass over the fields that are
set. A value of the wrong type that was assigned after construction is a ``TypeError``.

Equal content has equal bytes, so that a content hash means something. The bytes are those of Google's C++ encoder
when asked for deterministic output, with one exception. The C core sorts a map key after the keys that it begins
(``"ab"`` before ``"a"``). betterproto2's ``bytes(message)`` decodes to the same message and differs in four ways:

- it writes fields in the order of their declaration, Google by number;
- it writes map entries in insertion order, Google sorted by key;
- it drops a field holding ``-0.0``, Google keeps it (and drops a float that rounds to ``0.0``);
- it turns a negative ``timedelta`` with a fraction of a second into another duration (-1.5 s becomes -0.5 s),
  and loses microseconds in spans beyond some 285 years.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from xds_server.wire.descriptors import decoder
from xds_server.wire.metadata import FieldDescriptor, FieldType, fields

_Copy: TypeAlias = Callable[[Any, Any], None]
"""Copies the second argument into the first, a protobuf object; raises one of ``_REFUSALS`` for a wrong type."""


def encode(message: Any) -> bytes:
    """The wire format of an envoy-data-plane message.

    ``TypeError`` names the message and the field that cannot be encoded.
    """
    cls = message.__class__
    if not hasattr(cls, "_betterproto"):
        raise TypeError(f"{cls.__name__} is not an envoy-data-plane message")
    target = _derived(cls)()
    _copy_message(target, message)
    encoded: bytes = target.SerializeToString(deterministic=True)
    return encoded


# Exceptions by which Python and protobuf report a value of the wrong type.
_REFUSALS: Final = (AttributeError, TypeError, ValueError, OverflowError)
# Required Python types: protobuf itself accepts 1 for true and bytes for text. It checks numbers.
_PYTHON_TYPES: Final = {"bool": bool, "bytes": bytes, "string": str}


class _FieldError(TypeError):
    """A value that its field cannot hold; the text begins with the message and the field."""


class _FieldPlan(NamedTuple):
    """How to copy one field; ``keeps_falsy``: a falsy value may differ from the default."""

    name: str
    keeps_falsy: bool
    copy: _Copy
    field: FieldDescriptor


class _Plans(dict[type[Any], tuple[_FieldPlan, ...]]):
    """Field plans by class, built on first use (messages may contain themselves)."""

    def __missing__(self, cls: type[Any]) -> tuple[_FieldPlan, ...]:
        plans = self[cls] = tuple(_plan(field) for field in fields(cls))
        return plans


_derived: Final = cache(decoder)
_plans: Final = _Plans()


def _copy_message(target: Any, message: Any) -> None:
    """Copy the set fields of ``message`` into the empty ``target``."""
    for name, keeps_falsy, copy, field in _plans[message.__class__]:
        value = getattr(message, name)
        if value is None or not (keeps_falsy or value):
            continue
        try:
            copy(target, value)
        except _FieldError as inner:
            raise _FieldError(f"{type(message).__name__}.{name}: {inner}") from inner
        except _REFUSALS as refusal:
            refused = f"{type(message).__name__}.{name} cannot hold {value!r:.200} ({_wanted(field)})"
            raise _FieldError(f"{refused}: {refusal}") from refusal
    if message._unknown_fields:
        target.MergeFromString(message._unknown_fields)


def _plan(field: FieldDescriptor) -> _FieldPlan:
    # -0.0 equals 0.0 but is not the default.
    keeps_falsy = field.presence or field.value.message is not None or field.value.kind in ("float", "double")
    return _FieldPlan(field.name, keeps_falsy, _field_copier(field), field)


def _field_copier(field: FieldDescriptor) -> _Copy:
    """Copies a value into ``field`` of a protobuf object."""
    name = field.name
    if field.key is not None or field.repeated:
        copy_all = _map_copier(field.value) if field.key is not None else _list_copier(field.value)
        return lambda target, values: copy_all(getattr(target, name), values)
    if field.value.message is None:
        return _scalar_copier(name, field.value.kind)
    copy_into = _message_copier(field.value.message, field.value.wrapped)

    def copy(target: Any, value: Any) -> None:
        inner = getattr(target, name)
        inner.SetInParent()  # an empty message is not an absent one
        copy_into(inner, value)

    return copy


def _scalar_copier(name: str, kind: str) -> _Copy:
    python_type = _PYTHON_TYPES.get(kind)
    if python_type is None:
        return lambda target, value: setattr(target, name, value)

    def copy(target: Any, value: Any) -> None:
        _require(value, python_type)
        setattr(target, name, value)

    return copy


def _list_copier(of: FieldType) -> _Copy:
    copy_into = None if of.message is None else _message_copier(of.message, of.wrapped)
    python_type = _PYTHON_TYPES.get(of.kind, object)

    def copy(target: Any, values: Any) -> None:
        if not isinstance(values, (list, tuple)):
            raise TypeError("not a list")
        for value in values:
            if copy_into is None:
                _require(value, python_type)
                target.append(value)
            else:
                copy_into(target.add(), value)

    return copy


def _map_copier(of: FieldType) -> _Copy:
    copy_into = None if of.message is None else _message_copier(of.message, of.wrapped)
    python_type = _PYTHON_TYPES.get(of.kind, object)

    def copy(target: Any, entries: Any) -> None:
        for key, value in entries.items():
            if copy_into is None:
                _require(value, python_type)
                target[key] = value
            else:
                copy_into(target[key], value)

    return copy


def _message_copier(cls: type[Any], wrapped: bool) -> _Copy:
    """Copies a message, or the simpler value that Python holds in its place, into a protobuf object."""
    if not wrapped:

        def copy(target: Any, message: Any) -> None:
            if message.__class__ is not cls:
                raise TypeError(f"not a {cls.__name__}")
            _copy_message(target, message)

        return copy
    if cls.__name__ == "Duration":
        return lambda target, value: target.FromTimedelta(value)
    if cls.__name__ == "Timestamp":
        return _copy_timestamp
    (only,) = fields(cls)
    return _scalar_copier(only.name, only.value.kind)


def _copy_timestamp(target: Any, value: Any) -> None:
    if value.tzinfo is None:
        raise ValueError("a datetime needs a time zone")
    target.FromDatetime(value)


def _require(value: Any, python_type: type[Any]) -> None:
    if not isinstance(value, python_type):
        raise TypeError(f"not a {python_type.__name__}")


def _wanted(field: FieldDescriptor) -> str:
    one = field.value.message.__name__ if field.value.message is not None else field.value.kind
    if field.key is not None:
        return f"map of {field.key.kind} to {one}"
    return f"list of {one}" if field.repeated else one
