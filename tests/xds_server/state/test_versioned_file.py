"""A state file is accepted completely or refused with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from xds_server.state.versioned_file import StoreError, VersionedFile


class Numbers(BaseModel):
    numbers: tuple[int, ...]


PLAIN = VersionedFile(format="test/1", content=Numbers, max_bytes=1000)
SEALED = VersionedFile(format="test/1", content=Numbers, max_bytes=1000, sealed=True, one_line=True)
BOTH = pytest.mark.parametrize("kind", [PLAIN, SEALED], ids=["plain", "sealed"])


@BOTH
def test_state_file_round_trip(kind: VersionedFile[Numbers], tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert kind.read(path) is None
    kind.write(path, {"numbers": [1, 2]})
    assert kind.read(path) == Numbers(numbers=(1, 2))
    assert path.stat().st_mode & 0o777 == 0o600


def test_state_file_layout_is_stable() -> None:
    assert PLAIN.encode({"numbers": [1]}) == b'{"format": "test/1",\n"numbers": [1]}'
    sealed = json.loads(SEALED.encode({"numbers": [1]}))
    assert list(sealed) == ["format", "checksum", "payload"]
    assert b"\n" not in SEALED.encode({"numbers": [1]})


@BOTH
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": "test/2"}, "format 'test/2'; this version reads 'test/1'"),
        ({"format": 1}, "was not written by Switchgear, or is damaged"),
        ({"new": "field"}, None),
    ],
)
def test_formats_are_checked_and_new_fields_ignored(
    kind: VersionedFile[Numbers], change: dict[str, Any], reason: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({**json.loads(kind.encode({"numbers": [1]})), **change}))
    if reason is None:
        assert kind.read(path) == Numbers(numbers=(1,))
        return
    with pytest.raises(StoreError) as refused:
        kind.read(path)
    assert reason in str(refused.value)
    assert str(path) in str(refused.value)


def test_changed_payload_fails_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(SEALED.encode({"numbers": [1]}).replace(b"[1]", b"[2]"))
    with pytest.raises(StoreError, match="checksum does not match"):
        SEALED.read(path)


@BOTH
def test_wrong_shape_and_large_files_are_refused(kind: VersionedFile[Numbers], tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    kind.write(path, {"numbers": "many"})
    with pytest.raises(StoreError, match=r"damaged|wrong content"):
        kind.read(path)
    kind.write(path, {"numbers": list(range(1000))})
    with pytest.raises(StoreError, match="larger than 1000 bytes"):
        kind.read(path)


@BOTH
def test_failed_write_raises_a_store_error(kind: VersionedFile[Numbers], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        kind.write(tmp_path / "file" / "state.json", {"numbers": []})
