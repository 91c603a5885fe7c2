"""Parse answers of the admin port, also those of an older or a newer server.

Unknown fields are ignored, and missing fields have their defaults.
"""

from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

_T = TypeVar("_T")
_ADAPTERS: Final[dict[type[Any], TypeAdapter[Any]]] = {}


class ShapeError(ValueError):
    """A document is not of the type that the endpoint answers with; ``field`` is the first wrong place."""

    def __init__(self, kind: type[Any], field: str, reason: str) -> None:
        super().__init__(f"{kind.__name__}: {field or 'document'}: {reason}")
        self.field = field


def parse(kind: type[_T], document: Any) -> _T:
    """The document as this type, or ``ShapeError``."""
    try:
        return adapter(kind).validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ShapeError(kind, ".".join(map(str, first["loc"])), first["msg"]) from error


def adapter(kind: type[_T]) -> TypeAdapter[_T]:
    """The pydantic adapter of a type, made once: that takes milliseconds."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
