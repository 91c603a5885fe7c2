"""Addresses of host names on disk, so that a restart while no name server answers does not empty every pool.

A file is replaced in one step; one that is damaged, foreign or of another format is reported and ignored.
"""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import AfterValidator

from xds_server.state.atomic_file import json_lines, remove_leftovers
from xds_server.state.versioned_file import VersionedFile, read_versioned, write

FILE_NAME: Final = "addresses.json"
FORMAT: Final = "switchgear-addresses/1"
MAX_BYTES: Final = 16 * 1024 * 1024


def _address(text: str) -> str:
    ipaddress.ip_address(text)
    return text


class _File(VersionedFile):
    addresses: dict[str, Annotated[str, AfterValidator(_address)]]


def save(folder: Path, addresses: Mapping[str, str]) -> None:
    """Replace what is kept in one step; ``StoreError`` when it cannot be."""
    write(folder / FILE_NAME, json_lines({"format": FORMAT, "addresses": dict(addresses)}))


def read(folder: Path) -> Mapping[str, str]:
    """What an earlier run kept, by name; ``StoreError`` where it cannot be believed."""
    path = folder / FILE_NAME
    remove_leftovers(path)
    found = read_versioned(path, _File, FORMAT, MAX_BYTES)
    return MappingProxyType({} if found is None else found.addresses)
