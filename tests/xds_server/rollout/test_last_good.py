"""Stored state is read back completely or not at all, and a damaged file is named and never trusted."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from xds_server.model.snapshot import ResourcePart, ResourceParts, resource
from xds_server.model.type_urls import CLUSTER, ROUTE
from xds_server.publish import KeptRejection, RecordedNack
from xds_server.rollout.last_good import FILE_NAME, LastGood, LastGoodStore
from xds_server.state.versioned_file import StoreError

PARTS = ResourceParts(
    frame=(b"\x00", b"\x01", b"", b"\xff"),
    parts=(ResourcePart(name="chat", value=b"\xfe", content="c1", origins=("a.yaml:1:1",), instead=b"\xfd"),),
)
PARKED = (
    KeptRejection(
        type_url=ROUTE,
        name="r",
        content="bad1",
        refusals=(RecordedNack(host="10.0.0.1", node="n1", agent="envoy 1.40.0", at_unix_s=1.0, reason="no"),),
        instead=resource(ROUTE, "r", b"\x00\xff", ["a.yaml:1:1"], PARTS),
    ),
    KeptRejection(type_url=CLUSTER, name="c", content="bad3", refusals=(), instead=None),
)
KEPT = LastGood(
    parked=PARKED,
    texts={"a.yaml": "kind: X\n", "b/ü.yaml": "# ünï\n"},
    digest="d1",
    proxies_by_role={"gateway": 3},
    proxies_by_zone={"z1": 2, "z2": 1},
    saved_at_unix_s=1.5,
)


def test_saved_policies_are_restored(tmp_path: Path) -> None:
    LastGoodStore(tmp_path / "new" / "folder").save(KEPT)
    found = LastGoodStore(tmp_path / "new" / "folder").read()
    assert found == KEPT
    assert found.parked[0].instead is not None
    assert found.parked[0].instead.parts == PARTS


def test_missing_state_file_is_not_an_error(tmp_path: Path) -> None:
    assert LastGoodStore(tmp_path).read() is None
    assert LastGoodStore(tmp_path / "missing").read() is None


def test_state_file_is_private(tmp_path: Path) -> None:
    store = LastGoodStore(tmp_path / "state")
    store.save(KEPT)
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_save_is_an_atomic_replace(tmp_path: Path) -> None:
    store = LastGoodStore(tmp_path)
    store.save(KEPT)
    reader = store.path.open()  # a reader of the old file keeps the old file
    store.save(LastGood(texts={}, digest="d2", proxies_by_role={}, saved_at_unix_s=2.0))
    with reader:
        assert json.load(reader)["payload"]["digest"] == "d1"
    assert [entry.name for entry in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "damaged"),
        (lambda text: text.replace("kind: X", "kind: Y"), "checksum"),
        (lambda text: text.replace("/1", "/99"), "format"),
        (lambda _: "", "damaged"),
        (lambda _: '{"hello": 1}', "not written by Switchgear"),
        (lambda _: "[1, 2]", "not written by Switchgear"),
    ],
)
def test_foreign_or_truncated_state_is_refused(tmp_path: Path, damage, says: str) -> None:
    store = LastGoodStore(tmp_path)
    store.save(KEPT)
    store.path.write_text(damage(store.path.read_text()))
    with pytest.raises(StoreError, match=says):
        store.read()


def test_binary_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StoreError, match="damaged"):
        LastGoodStore(tmp_path).read()


def test_uncreatable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        LastGoodStore(tmp_path / "file" / "state").save(KEPT)


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LastGoodStore(tmp_path)
    store.save(KEPT)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        store.save(LastGood(texts={}, digest="d2", proxies_by_role={}, saved_at_unix_s=2.0))
    assert store.read() == KEPT
    assert [entry.name for entry in tmp_path.iterdir()] == [FILE_NAME]


def test_secret_names_are_saved(tmp_path: Path) -> None:
    store, named = LastGoodStore(tmp_path), replace(KEPT, certified=("engines",))
    store.save(named)
    assert store.read() == named
    store.save(KEPT)
    # A server without secrets reads it, too, and does not know the field.
    assert "certified" not in store.path.read_text()
    assert store.read() == KEPT
