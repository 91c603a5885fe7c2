"""Google's fast message classes, derived from envoy-data-plane's dataclasses.

envoy-data-plane is convenient for building messages but too slow for parsing: 16 ms for an Envoy's first request.
Its dataclasses contain everything a descriptor needs. Classes derived from one FileDescriptorProto each are read
and written by protobuf's C core in microseconds, without generated code or conflicts in the global descriptor
pool.

Every derived message is in the package ``switchgear.derived``; the well-known types are Google's own, with their
Python conveniences (``Struct`` as a mapping, ``Duration.ToTimedelta`` and so on).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from xds_server.wire.metadata import FieldType, fields

PACKAGE: Final = "switchgear.derived"
_WELL_KNOWN_FILES: Final = tuple(
    module.DESCRIPTOR for module in (any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
)
_WELL_KNOWN: Final = frozenset(name for file in _WELL_KNOWN_FILES for name in file.message_types_by_name)
_Field: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    # An enum is an int32 on the wire; declared as int32, values of newer Envoys are preserved.
    "enum": _Field.TYPE_INT32,
    "fixed32": _Field.TYPE_FIXED32,
    "fixed64": _Field.TYPE_FIXED64,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "sfixed32": _Field.TYPE_SFIXED32,
    "sfixed64": _Field.TYPE_SFIXED64,
    "sint32": _Field.TYPE_SINT32,
    "sint64": _Field.TYPE_SINT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}


def decoder(cls: type[Any], opaque: Collection[str] = ()) -> type[Any]:
    """The protobuf message class that reads and writes what ``cls`` of envoy-data-plane describes.

    ``opaque`` names message fields as ``"Node.extensions"`` that are kept as undecoded bytes; what lies
    behind them is not derived at all. A name in ``opaque`` that no reached message has is a ``ValueError``.
    """
    derivation = _Derivation(frozenset(opaque))
    name = derivation.reach(cls)
    unused = derivation.opaque - derivation.opaque_seen
    if unused:
        raise ValueError(f"{cls.__name__} reaches no field {', '.join(sorted(unused))}")
    pool = descriptor_pool.DescriptorPool()
    for well_known in _WELL_KNOWN_FILES:
        pool.AddSerializedFile(well_known.serialized_pb)
    pool.AddSerializedFile(derivation.file().SerializeToString())
    derived: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName(name.removeprefix(".")))
    # Without a reference to the class of a map's values, protobuf makes it at each use: a cycle each time.
    _held.append(message_factory.GetMessageClass(pool.FindMessageTypeByName("google.protobuf.Any")))
    return derived


_held: Final[list[type[Any]]] = []


class _Derivation:
    """Messages reached so far, each described once."""

    def __init__(self, opaque: frozenset[str]) -> None:
        self.opaque = opaque
        self.opaque_seen: set[str] = set()
        self._names: dict[type[Any], str] = {}
        self._messages: list[descriptor_pb2.DescriptorProto] = []

    def file(self) -> descriptor_pb2.FileDescriptorProto:
        return descriptor_pb2.FileDescriptorProto(
            name="switchgear/derived.proto",
            package=PACKAGE,
            syntax="proto3",
            dependency=[file.name for file in _WELL_KNOWN_FILES],
            message_type=self._messages,
        )

    def reach(self, root: type[Any]) -> str:
        """Full name of ``root``'s descriptor, after describing everything ``root`` reaches."""
        pending: list[type[Any]] = []
        name = self._name(root, pending)
        while pending:
            cls = pending.pop()
            self._messages.append(self._message(cls, pending))
        return name

    def _name(self, cls: type[Any], pending: list[type[Any]]) -> str:
        """Full name of ``cls``'s descriptor; a new class is added to ``pending``."""
        known = self._names.get(cls)
        if known is not None:
            return known
        if cls.__module__.endswith(".google.protobuf") and cls.__name__ in _WELL_KNOWN:
            name = f".google.protobuf.{cls.__name__}"
        else:
            package = cls.__module__.partition(".")[2].replace(".", "_")
            name = f".{PACKAGE}.{package}_{cls.__name__}"
            pending.append(cls)
        self._names[cls] = name
        return name

    def _message(self, cls: type[Any], pending: list[type[Any]]) -> descriptor_pb2.DescriptorProto:
        """Descriptor of ``cls``; new classes are added to ``pending``."""
        name = self._name(cls, pending).rpartition(".")[2]
        message = descriptor_pb2.DescriptorProto(name=name)
        oneofs: dict[str, int] = {}
        for field in fields(cls):
            described = message.field.add(
                name=field.name,
                number=field.number,
                label=_Field.LABEL_REPEATED if field.repeated or field.key else _Field.LABEL_OPTIONAL,
            )
            if f"{cls.__name__}.{field.name}" in self.opaque and field.key is None:
                self.opaque_seen.add(f"{cls.__name__}.{field.name}")
                described.type = _Field.TYPE_BYTES
            elif field.key is None:
                self._set_type(described, field.value, pending)
            else:
                entry = message.nested_type.add(name=_entry_name(field.name))
                entry.options.map_entry = True
                key = entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL)
                self._set_type(key, field.key, pending)
                value = entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL)
                self._set_type(value, field.value, pending)
                described.type = _Field.TYPE_MESSAGE
                described.type_name = f".{PACKAGE}.{name}.{entry.name}"
            # An ``optional`` scalar has its own oneof.
            if field.oneof:
                described.oneof_index = oneofs.setdefault(field.oneof, len(oneofs))
        for oneof in oneofs:
            message.oneof_decl.add(name=oneof)
        return message

    def _set_type(
        self, described: descriptor_pb2.FieldDescriptorProto, value: FieldType, pending: list[type[Any]]
    ) -> None:
        if value.message is None:
            described.type = _SCALARS[value.kind]
        else:
            described.type = _Field.TYPE_MESSAGE
            described.type_name = self._name(value.message, pending)


def _entry_name(field_name: str) -> str:
    """The name protobuf requires of a map's entries: ``filter_metadata`` -> ``FilterMetadataEntry``."""
    return "".join(part[:1].upper() + part[1:] for part in field_name.split("_")) + "Entry"
