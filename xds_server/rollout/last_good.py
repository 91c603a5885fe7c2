"""The last good policies on disk, so that a restart with broken files still has something to serve.

The stored form is what the operator wrote: everything else follows from the texts, byte for byte, and failing
engines and new proxies are handled while the files are still broken (docs/adr/0009-last-good-policies.md). The
file also has the number of proxies that shared the limits, so that a restarted server divides by them from the
start, and the resources that proxies refused, so that it does not offer those again.

The file is replaced in one step and carries a checksum; a damaged or foreign one, or one of another format, is
reported and ignored as a whole. Fields of a later version within the format are ignored, so that an earlier
version can start from them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import BaseModel, ConfigDict

from xds_server.model.snapshot import Resource, ResourcePart, ResourceParts
from xds_server.publish import KeptRejection, RecordedNack
from xds_server.state.atomic_file import remove_leftovers
from xds_server.state.versioned_file import VersionedFile

FORMAT: Final = "switchgear-last-good/1"
FILE_NAME: Final = "last-good.json"
MAX_BYTES: Final = 256 * 1024 * 1024
"""More than any loadable set of policies takes; larger files are not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastGood:
    """What was last served: policy texts by file name, their digest, and when (Unix seconds) they were saved.

    ``proxies_by_role`` divides fleet-wide limits, ``proxies_by_zone`` is where requests came from; ``parked`` are
    refused resources, with who refused them and what is served instead. ``certified`` are names of secrets that
    proxies identify themselves with. Secret contents are never included.
    """

    texts: Mapping[str, str]
    digest: str
    proxies_by_role: Mapping[str, int]
    saved_at_unix_s: float
    proxies_by_zone: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    parked: tuple[KeptRejection, ...] = ()
    certified: tuple[str, ...] = ()


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64")

    name: str
    value: bytes
    content: str
    origins: tuple[str, ...]
    rank: tuple[int, ...]
    instead: bytes


class _Parts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64")

    frame: tuple[bytes, ...]
    parts: tuple[_Part, ...]

    def restored(self) -> ResourceParts:
        return ResourceParts(
            frame=self.frame, parts=tuple(ResourcePart(**part.model_dump()) for part in self.parts)
        )


class _Resource(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64")

    type_url: str
    name: str
    value: bytes
    version: str
    origins: tuple[str, ...]
    parts: _Parts | None = None

    def restored(self) -> Resource:
        return Resource(
            type_url=self.type_url,
            name=self.name,
            value=self.value,
            version=self.version,
            origins=self.origins,
            parts=None if self.parts is None else self.parts.restored(),
        )


class _Refusal(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str
    node: str
    agent: str
    at_unix_s: float
    reason: str


class _Parked(BaseModel):
    """``contents`` has one entry; several, and no refusals, if an earlier version of the server wrote the file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type_url: str
    name: str
    contents: tuple[str, ...]
    refusals: tuple[_Refusal, ...] = ()
    instead: _Resource | None


class _Payload(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    texts: dict[str, str]
    digest: str
    proxies_by_role: dict[str, int]
    saved_at_unix_s: float
    proxies_by_zone: dict[str, int] = {}
    parked: tuple[_Parked, ...]
    certified: tuple[str, ...] = ()


_FILE: Final = VersionedFile(format=FORMAT, content=_Payload, max_bytes=MAX_BYTES, sealed=True)


class LastGoodStore:
    """One folder with one ``LastGood``."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    @property
    def path(self) -> Path:
        """The state file."""
        return self._path

    def save(self, last_good: LastGood) -> None:
        """Replace the stored state in one step, readable by this user only; raises ``StoreError``."""
        payload = _Payload(
            texts=dict(last_good.texts),
            digest=last_good.digest,
            proxies_by_role=dict(last_good.proxies_by_role),
            proxies_by_zone=dict(last_good.proxies_by_zone),
            saved_at_unix_s=last_good.saved_at_unix_s,
            parked=tuple(
                _Parked.model_validate({**asdict(park), "contents": (park.content,)}) for park in last_good.parked
            ),
            certified=last_good.certified,
        ).model_dump(mode="json")
        if not last_good.certified:
            del payload["certified"]  # unknown to servers without secrets
        for park in payload["parked"]:
            if not park["refusals"]:
                del park["refusals"]  # unknown to servers that judged content by one refusal
            if park["instead"] and park["instead"]["parts"] is None:
                del park["instead"]["parts"]  # unknown to servers that judged no parts
        _FILE.write(self._path, payload)

    def read(self) -> LastGood | None:
        """The stored state, None if there is none yet; ``StoreError`` if it cannot be trusted."""
        remove_leftovers(self._path)
        payload = _FILE.read(self._path)
        if payload is None:
            return None
        return LastGood(
            texts=MappingProxyType(payload.texts),
            digest=payload.digest,
            proxies_by_role=MappingProxyType(payload.proxies_by_role),
            proxies_by_zone=MappingProxyType(payload.proxies_by_zone),
            saved_at_unix_s=payload.saved_at_unix_s,
            parked=tuple(
                KeptRejection(
                    type_url=park.type_url,
                    name=park.name,
                    content=content,
                    refusals=tuple(RecordedNack(**refusal.model_dump()) for refusal in park.refusals),
                    instead=None if park.instead is None else park.instead.restored(),
                )
                for park in payload.parked
                for content in park.contents
            ),
            certified=payload.certified,
        )
