"""The kinds of faults by name, read off the library."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, get_args

from chaos.faults.fault import Fault
from chaos.faults.library import AnyFault


def _kinds() -> Mapping[str, type[Fault]]:
    found: dict[str, type[Fault]] = {}
    for fault in get_args(get_args(AnyFault)[0]):
        found[str(fault.model_fields["kind"].default)] = fault
    return MappingProxyType(dict(sorted(found.items())))


KINDS: Final[Mapping[str, type[Fault]]] = _kinds()
"""Each kind's settings."""
