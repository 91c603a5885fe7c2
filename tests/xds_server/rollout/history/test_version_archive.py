"""Versions survive the process, completely or not at all, within limits."""

import errno
import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from xds_server.rollout.history import digest_table, version_archive
from xds_server.rollout.history.announced_number import FILE_NAME, FORMAT
from xds_server.rollout.history.policy_version import PolicyVersion, VersionSource, digest_of
from xds_server.rollout.history.version_archive import VersionArchive, surplus


def version(number: int, text: str = "kind: x\n") -> PolicyVersion:
    return PolicyVersion(
        number=number,
        digest=f"d{number}",
        at_unix_s=1000.0 + number,
        source=VersionSource.APPLIED,
        by="ann",
        reason="a try",
        texts={"a.yaml": text},
        beside="f",
    )


def kept(folder: Path, *versions: PolicyVersion, **limits: int) -> VersionArchive:
    archive = VersionArchive(folder, **limits)
    archive.restore()
    for one in versions:
        archive.add(one)
    archive.flush()
    return archive


def again(folder: Path) -> VersionArchive:
    archive = VersionArchive(folder)
    archive.restore()
    return archive


def test_archived_versions_are_restored(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "history"
    kept(folder, version(1), version(2, "text: \N{SNOWMAN}\n"))
    found = again(folder)
    assert found.versions == (version(1), version(2, "text: \N{SNOWMAN}\n"))
    assert found.newest == version(2, "text: \N{SNOWMAN}\n")
    assert found.next_number() == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("damage", ["half", "bit", "foreign", "format", "number", "garbage"])
def test_damaged_version_number_is_not_reused(tmp_path: Path, damage: str) -> None:
    kept(tmp_path, version(1), version(2))
    path = tmp_path / "00000002.json"
    text = path.read_text()
    if damage == "number":
        path = path.rename(tmp_path / "00000003.json")
    else:
        changed = {
            "half": text[: len(text) // 2],
            "bit": text.replace("kind: x", "kind: y"),
            "foreign": json.dumps({"hello": 1}),
            "format": text.replace("version/1", "version/9"),
            "garbage": "\x00\xff",
        }[damage]
        path.write_text(changed)
    found = again(tmp_path)
    assert [one.number for one in found.versions] == [1]
    assert found.damaged == (path.name,)
    assert found.next_number() == int(path.stem) + 1
    found.add(version(found.next_number()))
    found.flush()
    assert path.exists()  # kept for inspection


@pytest.mark.parametrize(("text", "following"), [
    (f"{FORMAT} {7:020}\n", 8), (f"{FORMAT} {1:020}\n", 3), (f"{FORMAT} 12x", 3),
    ("switchgear-number/2 9", 3), ("", 3),
])  # fmt: skip
def test_announced_number_is_not_reused(tmp_path: Path, text: str, following: int) -> None:
    kept(tmp_path, version(1), version(2))
    (tmp_path / FILE_NAME).write_text(text)
    found = again(tmp_path)
    assert found.next_number() == following
    assert found.last == version(2), "it is still the last one served"
    found.add(version(following))
    assert again(tmp_path).next_number() == following + (text.startswith(f"{FORMAT} 0"))


def test_number_is_announced_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path, version(1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(version_archive, "write_atomically", full)
    archive = again(tmp_path)
    archive.add(version(2))
    archive.flush()
    assert "cannot write" in archive.failure
    assert again(tmp_path).next_number() == 3


def named(number: int) -> PolicyVersion:
    """A version with both kinds of digests, which replaced files with both."""
    return replace(version(number), former=f"t{number}", beside_former="tf")


def test_version_files_have_former_digests_and_a_table(tmp_path: Path) -> None:
    made = (named(1), named(2))
    kept(tmp_path, *made)
    payload = json.loads((tmp_path / "00000002.json").read_text())["payload"]
    assert (payload["digest"], payload["beside"]) == ("t2", "tf")
    assert again(tmp_path).versions == made
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("damage", ["gone", "half", "foreign", "format"])
def test_missing_digest_table_falls_back_to_former_digests(tmp_path: Path, damage: str) -> None:
    kept(tmp_path, named(1))
    path = tmp_path / digest_table.FILE_NAME
    text = path.read_text()
    path.unlink()
    if damage != "gone":
        path.write_text(
            {"half": text[: len(text) // 2], "foreign": "[]", "format": text.replace("/1", "/2")}[damage]
        )
    with capture_logs() as logs:
        found = again(tmp_path)
    assert found.versions == (replace(version(1), digest="t1", beside="tf"),)
    assert [one["event"] for one in logs] == ([] if damage == "gone" else ["history.skipped"])
    found.add(named(2))
    found.flush()
    assert [one.number for one in again(tmp_path).versions] == [1, 2]


def test_digest_table_has_only_known_versions(tmp_path: Path) -> None:
    kept(tmp_path, *(named(number) for number in range(1, 9)), max_versions=2)
    assert digest_table.read(tmp_path) == {"t7": "d7", "t8": "d8", "tf": "f"}


def test_oldest_versions_are_removed_from_disk(tmp_path: Path) -> None:
    kept(tmp_path, *(version(number) for number in range(1, 6)), max_versions=3)
    assert [one.number for one in again(tmp_path).versions] == [3, 4, 5]


def test_archive_without_folder_is_in_memory(tmp_path: Path) -> None:
    archive = kept(None, version(1))  # type: ignore[arg-type]  # None is what it is about
    assert not archive.kept
    assert archive.version(1) == version(1)
    assert not list(tmp_path.iterdir())


def test_archive_survives_a_failing_disk(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("in the way")
    archive = VersionArchive(tmp_path / "history")
    archive.add(version(1))
    archive.flush()
    assert "cannot write" in archive.failure
    assert archive.newest == version(1)
    (tmp_path / "history").unlink()
    archive.add(version(2))
    archive.flush()
    assert not archive.failure
    assert [one.number for one in again(tmp_path / "history").versions] == [1, 2]


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=20),
    st.integers(1, 20),
    st.integers(0, 300),
)
def test_archive_limits_keep_the_newest_version(sizes: list[int], max_versions: int, max_bytes: int) -> None:
    versions = [replace(version(n), texts={"": "x" * size}) for n, size in enumerate(sizes, 1)]
    gone = set(surplus(versions, max_versions, max_bytes))
    left = [one for one in versions if one.number not in gone]
    assert left == versions[len(versions) - len(left) :]
    assert left[-1] is versions[-1]
    assert len(left) <= max_versions
    assert len(left) == 1 or sum(len(one.texts[""]) for one in left) <= max_bytes


@given(st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), st.text()))
def test_digests_differ_for_different_texts(one: dict[str, str], other: dict[str, str]) -> None:
    assert (digest_of(one) == digest_of(other)) == (one == other)
