"""Resolved addresses on disk, so that a restart without DNS does not empty every pool.

The file is replaced in one step; a damaged or foreign one, or one of another format, is reported and ignored.
"""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict

from xds_server.state.atomic_file import remove_leftovers
from xds_server.state.versioned_file import VersionedFile

FILE_NAME: Final = "addresses.json"
FORMAT: Final = "switchgear-addresses/1"
MAX_BYTES: Final = 16 * 1024 * 1024


def _address(text: str) -> str:
    ipaddress.ip_address(text)
    return text


class _Addresses(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    addresses: dict[str, Annotated[str, AfterValidator(_address)]]


_FILE: Final = VersionedFile(format=FORMAT, content=_Addresses, max_bytes=MAX_BYTES)


def save(folder: Path, addresses: Mapping[str, str]) -> None:
    """Replace the stored addresses in one step; raises ``StoreError``."""
    _FILE.write(folder / FILE_NAME, {"addresses": dict(addresses)})


def read(folder: Path) -> Mapping[str, str]:
    """The addresses of an earlier run, by name; ``StoreError`` if they cannot be trusted."""
    path = folder / FILE_NAME
    remove_leftovers(path)
    found = _FILE.read(path)
    return MappingProxyType({} if found is None else found.addresses)
