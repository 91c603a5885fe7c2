"""Files of state that say which format they have: believed as a whole or not at all.

All are read alike. No pipe is waited for, nothing is taken in that is larger than we write, and what is damaged,
foreign or of another format is refused with a word that names the file. What a later version added within a format
is passed over: who goes back to an earlier version starts from what the later one kept. A sealed file carries a
checksum of its payload as well.
"""

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.regular_file import read_regular_file
from xds_server.state.atomic_file import format_mismatch, write_atomically


class StoreError(Exception):
    """What is kept cannot be read or written; the message says why. Serving goes on without it."""


class VersionedFile(BaseModel):
    """What is in a file of state: its format, beside the fields of the class that is made of this one."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    format: str


class _Sealed(VersionedFile):
    checksum: str
    payload: dict[str, Any]


_File = TypeVar("_File", bound=VersionedFile)


def write(path: Path, text: str) -> None:
    """Replace a file in one step, readable by this user only; ``StoreError`` when it cannot be."""
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def read_versioned(path: Path, model: type[_File], of_format: str, max_bytes: int) -> _File | None:
    """What is in a file, None when there is none yet; ``StoreError`` when it cannot be believed."""
    try:
        text = read_regular_file(path, max_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    if len(text) > max_bytes:
        raise StoreError(f"{path} is larger than {max_bytes} bytes: not written by Switchgear")
    try:
        found = model.model_validate_json(text)
    except ValidationError as error:
        raise StoreError(f"{path} was not written by Switchgear, or is damaged") from error
    if found.format != of_format:
        raise StoreError(f"{path} has {format_mismatch(found.format, of_format)}")
    return found


def sealed(of_format: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a sealed file holds."""
    return {"format": of_format, "checksum": _checksum(payload), "payload": payload}


def unsealed(path: Path, of_format: str, max_bytes: int) -> Mapping[str, Any] | None:
    """The payload of a sealed file, None when there is none yet; ``StoreError`` when it cannot be believed."""
    found = read_versioned(path, _Sealed, of_format, max_bytes)
    if found is None:
        return None
    if found.checksum != _checksum(found.payload):
        raise StoreError(f"{path} is damaged: its checksum does not match")
    return found.payload


def _checksum(payload: Mapping[str, Any]) -> str:
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()
