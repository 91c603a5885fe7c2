"""Parse answers of older and newer servers.

Ignores unknown fields; missing fields get their defaults.
"""

from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

_T = TypeVar("_T")
_ADAPTERS: Final[dict[type[Any], TypeAdapter[Any]]] = {}


class ShapeError(ValueError):
    """The document does not match the expected type; ``field`` is the first mismatch."""

    def __init__(self, kind: type[Any], field: str, reason: str) -> None:
        super().__init__(f"{kind.__name__}: {field or 'document'}: {reason}")
        self.field = field


def parse(kind: type[_T], document: Any) -> _T:
    """Parse the document as this type; raises ``ShapeError``."""
    try:
        return adapter(kind).validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ShapeError(kind, ".".join(map(str, first["loc"])), first["msg"]) from error


def adapter(kind: type[_T]) -> TypeAdapter[_T]:
    """Cached pydantic adapter; building one takes milliseconds."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
