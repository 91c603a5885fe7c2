"""envoy-data-plane messages in, bytes out, by a function written for each class.

betterproto2 interprets its metadata for every field of every message it serialises and validates each message
again on the way, which costs more than a hundred milliseconds for a thousand endpoints. Here the metadata is
read once per class and becomes straight-line Python, in the way ``dataclasses`` writes ``__init__``. What the
constructors have checked is trusted; a value of the wrong type that was assigned later is a ``TypeError``.

The bytes are the ones Google's C++ encoder writes when asked for deterministic output, so that equal content
has equal bytes and a content hash means something. betterproto2's ``bytes(message)`` decodes to the same message
and can differ from them in four ways:

- it writes fields in the order of their declaration, Google by number;
- it writes map entries in insertion order, Google sorted by key (protobuf's C core, the one under Python, differs
  from C++ in one point: it puts a key after the keys that it begins);
- it drops a field holding ``-0.0``, Google keeps it (and drops a float that rounds to ``0.0``);
- it turns a negative ``timedelta`` with a fraction of a second into another duration (-1.5 s becomes -0.5 s),
  and loses microseconds in spans beyond some 285 years.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from envoy_data_plane.message_pool import default_message_pool

from xds_server.wire.metadata import FieldDescriptor, FieldType, fields
from xds_server.wire.responses import any_of
from xds_server.wire.scalars import boolean, duration, int32, int64, prefixed, timestamp, uint32, zigzag
from xds_server.wire.varint import FIXED32, FIXED64, LENGTH_DELIMITED, SHORT, SHORT_LIMIT, VARINT, tag, varint

Encoder = Callable[[Any], bytes]


def encode(message: Any) -> bytes:
    """The wire format of an envoy-data-plane message.

    ``TypeError`` names the message and the field that cannot be encoded.
    """
    try:
        return _encoders[message.__class__](message)
    except _REFUSALS as refusal:
        raise TypeError(_blame(message, refusal)) from refusal


def packed(message: Any) -> bytes:
    """The wire format of a google.protobuf.Any that holds ``message``."""
    return any_of(type_url(type(message)), encode(message))


def type_url(cls: type[Any]) -> str:
    """``type.googleapis.com/`` and the full protobuf name of an envoy-data-plane class."""
    return default_message_pool.type_to_url[cls]


# How Python says that a value is not what its field needs.
_REFUSALS: Final = (AttributeError, TypeError, ValueError, OverflowError, struct.error)


# The names that generated code may use. ``S`` holds the varints below ``L``.
_NAMES: Final[dict[str, Any]] = {
    "S": SHORT,
    "L": SHORT_LIMIT,
    "varint": varint,
    "join": b"".join,
    "prefixed": prefixed,
    "duration": duration,
    "timestamp": timestamp,
    "sequences": frozenset((list, tuple)),
    "boolean": boolean,
    "int32": int32,
    "int64": int64,
    "uint32": uint32,
    "zigzag": zigzag,
    "float_": struct.Struct("<f").pack,
    "double": struct.Struct("<d").pack,
    "fixed32": struct.Struct("<I").pack,
    "fixed64": struct.Struct("<Q").pack,
    "sfixed32": struct.Struct("<i").pack,
    "sfixed64": struct.Struct("<q").pack,
}

# Scalars of the protobuf kinds: the wire type and the expression that encodes ``{v}``.
_SCALARS: Final = {
    "bool": (VARINT, "boolean({v})"),
    "enum": (VARINT, "S[{v}] if 0 <= {v} < L else int32({v})"),
    "int32": (VARINT, "S[{v}] if 0 <= {v} < L else int32({v})"),
    "int64": (VARINT, "S[{v}] if 0 <= {v} < L else int64({v})"),
    "uint32": (VARINT, "S[{v}] if 0 <= {v} < L else uint32({v})"),
    "uint64": (VARINT, "S[{v}] if 0 <= {v} < L else varint({v})"),
    "sint32": (VARINT, "zigzag({v}, 32)"),
    "sint64": (VARINT, "zigzag({v}, 64)"),
    "float": (FIXED32, "float_({v})"),
    "double": (FIXED64, "double({v})"),
    "fixed32": (FIXED32, "fixed32({v})"),
    "fixed64": (FIXED64, "fixed64({v})"),
    "sfixed32": (FIXED32, "sfixed32({v})"),
    "sfixed64": (FIXED64, "sfixed64({v})"),
}
_ZERO: Final = {"float": "b'\\0\\0\\0\\0'", "double": "b'\\0\\0\\0\\0\\0\\0\\0\\0'"}
_OWN_SHAPE: Final = {"Duration": "duration", "Timestamp": "timestamp"}


class _Encoders(dict[type[Any], Encoder]):
    """class -> its encoder, written when the class is first met (messages may contain themselves)."""

    def __missing__(self, cls: type[Any]) -> Encoder:
        if not hasattr(cls, "_betterproto"):
            raise TypeError(f"{cls.__name__} is not an envoy-data-plane message")
        encoder = self[cls] = _write(cls.__name__, fields(cls), unknown_fields=True)
        return encoder


class _Wrappers(dict[type[Any], Encoder]):
    """wrapper class (UInt32Value) -> the encoder of the plain value that Python holds in its place."""

    def __missing__(self, cls: type[Any]) -> Encoder:
        (field,) = fields(cls)
        encoder = self[cls] = _write(cls.__name__, [field], of_value=True)
        return encoder


_encoders: Final = _Encoders()
_wrappers: Final = _Wrappers()


def _write(
    title: str,
    described: Iterator[FieldDescriptor] | tuple[FieldDescriptor, ...] | list[FieldDescriptor],
    *,
    unknown_fields: bool = False,
    of_value: bool = False,
) -> Encoder:
    """A function from a message to its bytes, compiled from the description of its fields.

    With ``of_value`` the function takes the value of the one field in place of the message.
    """
    names: dict[str, Any] = {**_NAMES, "E": _encoders, "W": _wrappers}
    lines = [f"def encode_{title}({'v' if of_value else 'm'}):", "    out = []"]
    for field in described:
        if field.value.message is not None:
            names[f"C{field.number}"] = field.value.message
        if not of_value:
            lines.append(f"    v = m.{field.name}")
        lines += [f"    {line}" for line in _field_lines(field)]
    if unknown_fields:
        lines += ["    if m._unknown_fields:", "        out.append(m._unknown_fields)"]
    lines.append("    return join(out)")
    # The text is made of field names and numbers of installed dataclasses, never of anything a peer sends.
    exec(compile("\n".join(lines), f"<encoder of {title}>", "exec"), names)  # noqa: S102
    encoder: Encoder = names[f"encode_{title}"]
    return encoder


def _field_lines(field: FieldDescriptor) -> list[str]:
    """Statements that append ``v``, the value of ``field``, to ``out``."""
    key = tag(field.number, LENGTH_DELIMITED)
    if field.key is not None:
        # Google's encoders write key and value of an entry even when they are zero.
        entry = f"{_entry_part(1, field.key, 'k', field)} + {_entry_part(2, field.value, 'x', field)}"
        return [
            "if v:",
            "    for k, x in sorted(v.items()):",
            *_checks(field.value, "x", field, indent=8),
            f"        b = {entry}",
            f"        {_append(key)}",
        ]
    if field.repeated:
        only_sequences = "    if v.__class__ not in sequences: raise TypeError('not a list')"
        if field.value.kind in _SCALARS:
            one = _SCALARS[field.value.kind][1].format(v="x")
            return ["if v:", only_sequences, f"    b = join([{one} for x in v])", f"    {_append(key)}"]
        return [
            "if v:",
            only_sequences,
            "    for x in v:",
            *_checks(field.value, "x", field, indent=8),
            f"        b = {_payload(field.value, 'x', field)}",
            f"        {_append(key)}",
        ]
    if field.value.kind not in _SCALARS:
        present = "if v is not None:" if field.presence or field.value.message else "if v:"
        return [
            present,
            *_checks(field.value, "v", field, indent=4),
            f"    b = {_payload(field.value, 'v', field)}",
            f"    {_append(key)}",
        ]
    return _scalar_lines(field)


def _scalar_lines(field: FieldDescriptor) -> list[str]:
    wire_type, expression = _SCALARS[field.value.kind]
    key, one = tag(field.number, wire_type), expression.format(v="v")
    if field.presence:
        return ["if v is not None:", f"    out += ({key!r}, {one})"]
    if field.value.kind in _ZERO:
        # Compared as bytes: -0.0 equals 0.0, and is not the default.
        zero = _ZERO[field.value.kind]
        return ["if v is not None:", f"    b = {one}", f"    if b != {zero}: out += ({key!r}, b)"]
    return ["if v:", f"    out += ({key!r}, {one})"]


def _append(key: bytes) -> str:
    return f"n = len(b); out += ({key!r}, S[n] if n < L else varint(n), b)"


def _payload(value: FieldType, name: str, field: FieldDescriptor) -> str:
    """The expression for the bytes, without their length, of a delimited value in variable ``name``."""
    if value.message is None:
        return f"{name}.encode()" if value.kind == "string" else name
    if not value.wrapped:
        return f"E[C{field.number}]({name})"
    own_shape = _OWN_SHAPE.get(value.message.__name__)
    return f"{own_shape}({name})" if own_shape else f"W[C{field.number}]({name})"


def _checks(value: FieldType, name: str, field: FieldDescriptor, *, indent: int) -> list[str]:
    """What the payload's expression would not refuse by itself: the wrong message, text in place of bytes."""
    expected = None
    if value.kind == "bytes":
        expected = "bytes"
    elif value.message is not None and not value.wrapped:
        expected = f"C{field.number}"
    if expected is None:
        return []
    return [
        f"{' ' * indent}if {name}.__class__ is not {expected}: raise TypeError('not a ' + {expected}.__name__)"
    ]


def _entry_part(number: int, value: FieldType, name: str, field: FieldDescriptor) -> str:
    if value.kind in _SCALARS:
        wire_type, expression = _SCALARS[value.kind]
        return f"{tag(number, wire_type)!r} + ({expression.format(v=name)})"
    return f"{tag(number, LENGTH_DELIMITED)!r} + prefixed({_payload(value, name, field)})"


def _blame(message: Any, refusal: Exception) -> str:
    """Which field of ``message``, or of a message inside it, cannot be encoded, and why."""
    cls = type(message)
    if not hasattr(cls, "_betterproto"):
        return f"{cls.__name__} is not an envoy-data-plane message"
    for field in fields(cls):
        try:
            _write(cls.__name__, [field])(message)
        except _REFUSALS as cause:
            held = getattr(message, field.name)
            if field.value.message is not None and not field.value.wrapped:
                for inner in _members(held):
                    if type(inner) is field.value.message and _refused(inner):
                        return f"{cls.__name__}.{field.name}: {_blame(inner, cause)}"
            return f"{cls.__name__}.{field.name} cannot hold {held!r:.200} ({_wanted(field)}): {cause}"
    return f"{cls.__name__}: {refusal}"


def _members(held: Any) -> list[Any]:
    if isinstance(held, dict):
        return list(held.values())
    return list(held) if isinstance(held, list | tuple) else [held]


def _refused(message: Any) -> bool:
    try:
        _encoders[message.__class__](message)
    except _REFUSALS:
        return True
    return False


def _wanted(field: FieldDescriptor) -> str:
    one = field.value.message.__name__ if field.value.message is not None else field.value.kind
    if field.key is not None:
        return f"map of {field.key.kind} to {one}"
    return f"list of {one}" if field.repeated else one
