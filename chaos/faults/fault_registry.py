"""All fault kinds: each class in this package with a ``kind`` field."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

import chaos.faults
from chaos.faults.fault import Fault


def _discovered() -> Iterator[tuple[str, type[Fault]]]:
    """All kinds, in file order."""
    for file in pkgutil.iter_modules(chaos.faults.__path__, f"{chaos.faults.__name__}."):
        if file.name == __name__:
            continue
        for one in vars(importlib.import_module(file.name)).values():
            if isinstance(one, type) and issubclass(one, Fault) and one.__module__ == file.name:
                kind = one.model_fields["kind"].default
                if isinstance(kind, str):
                    yield kind, one


FAULT_KINDS: Final[Mapping[str, type[Fault]]] = MappingProxyType(dict(_discovered()))
"""Fault class by kind."""

if TYPE_CHECKING:
    AnyFault = Fault
else:
    AnyFault = Annotated[reduce(or_, FAULT_KINDS.values()), Field(discriminator="kind")]
"""Any fault, discriminated by ``kind``. Type checkers see the base class."""
