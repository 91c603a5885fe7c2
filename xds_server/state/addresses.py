"""Addresses of host names on disk, so that a restart while no name server answers does not empty every pool.

A file is replaced in one step; one that is damaged, foreign or of another format is reported and ignored.
"""

import ipaddress
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.regular_file import content
from xds_server.state.last_good import StoreError
from xds_server.state.whole_file import of_another_version, sweep, write_whole

FILE_NAME: Final = "addresses.json"
FORMAT: Final = "switchgear-addresses/1"
MAX_BYTES: Final = 16 * 1024 * 1024


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    format: str
    addresses: dict[str, str]


def save(folder: Path, addresses: Mapping[str, str]) -> None:
    """Replace what is kept in one step; ``StoreError`` when it cannot be."""
    path = folder / FILE_NAME
    try:
        write_whole(path, json.dumps({"format": FORMAT, "addresses": dict(addresses)}, indent=0).encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def read(folder: Path) -> Mapping[str, str]:
    """What an earlier run kept, by name; ``StoreError`` where it cannot be believed."""
    path = folder / FILE_NAME
    sweep(path)
    try:
        text = content(path, MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise StoreError(f"{path} is larger than {MAX_BYTES} bytes: not written by Switchgear")
        found = _File.model_validate_json(text)
        if found.format != FORMAT:
            raise StoreError(f"{path} has {of_another_version(found.format, FORMAT)}")
        for address in found.addresses.values():
            ipaddress.ip_address(address)
    except FileNotFoundError:
        return MappingProxyType({})
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    except (ValidationError, ValueError) as error:
        raise StoreError(f"{path} was not written by Switchgear, or is damaged") from error
    return MappingProxyType(found.addresses)
