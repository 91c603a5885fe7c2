"""State files that name their format. A reader accepts a file completely or not at all.

Reading never blocks on a pipe, and never reads more than Switchgear writes. A damaged or foreign file, or one of
another format, is refused with an error that names it. Fields that a later version added within the format are
ignored, so that an earlier version can start from them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.regular_file import read_regular_file
from xds_server.state.atomic_file import format_mismatch, json_lines, write_atomically


class StoreError(Exception):
    """A state file cannot be read or written; the message has the reason. Serving continues without it."""


class _Envelope(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    format: str


class _SealedEnvelope(_Envelope):
    checksum: str
    payload: dict[str, Any]


_Content = TypeVar("_Content", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedFile(Generic[_Content]):
    """One kind of state file: ``content`` is its model, and ``format`` its name with a version.

    Fields stand next to the format; in a ``sealed`` file in a payload with a checksum. A ``one_line`` file has no
    line breaks.
    """

    format: str
    content: type[_Content]
    max_bytes: int
    sealed: bool = False
    one_line: bool = False

    def encode(self, content: Mapping[str, Any]) -> bytes:
        """The bytes of a file with these fields."""
        fields: Mapping[str, Any] = content
        if self.sealed:
            fields = {"checksum": _checksum(content), "payload": content}
        whole = {"format": self.format, **fields}
        return (json.dumps(whole) if self.one_line else json_lines(whole)).encode()

    def write(self, path: Path, content: Mapping[str, Any]) -> None:
        """Replace a file in one step, readable by this user only; raises ``StoreError``."""
        try:
            write_atomically(path, self.encode(content))
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror or error}") from error

    def read(self, path: Path) -> _Content | None:
        """The content of a file, None if it is missing; ``StoreError`` if it cannot be trusted."""
        try:
            text = read_regular_file(path, self.max_bytes + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
        if len(text) > self.max_bytes:
            raise StoreError(f"{path} is larger than {self.max_bytes} bytes: not written by Switchgear")
        return self._unsealed(path, text) if self.sealed else self._plain(path, text)

    def _plain(self, path: Path, text: bytes) -> _Content:
        try:
            found, envelope = self.content.model_validate_json(text), _Envelope.model_validate_json(text)
        except ValidationError as error:
            raise _damaged(path) from error
        self._check_format(path, envelope)
        return found

    def _unsealed(self, path: Path, text: bytes) -> _Content:
        try:
            envelope = _SealedEnvelope.model_validate_json(text)
        except ValidationError as error:
            raise _damaged(path) from error
        self._check_format(path, envelope)
        if envelope.checksum != _checksum(envelope.payload):
            raise StoreError(f"{path} is damaged: its checksum does not match")
        try:
            return self.content.model_validate_json(json.dumps(envelope.payload))
        except ValidationError as error:
            raise StoreError(f"{path} has the wrong content: {error.errors()[0]['msg']}") from error

    def _check_format(self, path: Path, envelope: _Envelope) -> None:
        if envelope.format != self.format:
            raise StoreError(f"{path} has {format_mismatch(envelope.format, self.format)}")


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path} was not written by Switchgear, or is damaged")


def _checksum(payload: Mapping[str, Any]) -> str:
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()
