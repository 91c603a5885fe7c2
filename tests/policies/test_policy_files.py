"""Paths and files, whatever the file system has in store."""

import os
import socket
from pathlib import Path

import pytest

from policies import policy_files
from policies.findings import PolicyError, PolicyErrors
from policies.load import load


def errors(*paths: Path) -> list[tuple[str, str]]:
    with pytest.raises(PolicyErrors) as caught:
        load(paths)
    return [(one.code, one.origin.file) for one in caught.value.exceptions if isinstance(one, PolicyError)]


def test_a_missing_path_is_named_with_its_likely_meaning(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    with pytest.raises(PolicyErrors) as caught:
        load([tmp_path / "polices"])
    (error,) = caught.value.exceptions
    assert isinstance(error, PolicyError)
    assert (error.code, error.hint) == ("SG001", "did you mean policies?")


def test_a_dangling_link_is_named(tmp_path: Path, sound: str) -> None:
    (tmp_path / "good.yaml").write_text(sound)
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    assert errors(tmp_path) == [("SG001", str(tmp_path / "gone.yaml"))]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_and_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "shut.yaml").write_text("")
    (tmp_path / "shut.yaml").chmod(0)
    (tmp_path / "folder").mkdir(mode=0)
    assert {code for code, _ in errors(tmp_path)} == {"SG002"}


def test_a_failing_disk_is_reported_not_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("")

    def broken(*_arguments: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(policy_files.os, "open", broken)
    assert errors(path) == [("SG002", str(path))]


def test_a_pipe_does_not_block(tmp_path: Path, sound: str) -> None:
    (tmp_path / "good.yaml").write_text(sound)
    os.mkfifo(tmp_path / "pipe.yaml")
    assert errors(tmp_path) == [("SG003", str(tmp_path / "pipe.yaml"))]
    assert errors(tmp_path / "pipe.yaml") == [("SG003", str(tmp_path / "pipe.yaml"))]
    problem = policy_files.read(tmp_path / "pipe.yaml")  # as if it had come between the search and the reading
    assert not isinstance(problem, bytes)
    assert problem.code == "SG003"


def test_sockets_and_devices_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("s.yaml")
        assert errors(tmp_path) == [("SG003", str(tmp_path / "s.yaml"))]
    assert errors(Path("/dev/zero")) == [("SG003", "/dev/zero")]


def test_links_that_lead_back_are_refused(tmp_path: Path, sound: str) -> None:
    (tmp_path / "good.yaml").write_text(sound)
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self.yaml").symlink_to(tmp_path / "self.yaml")
    assert errors(tmp_path) == [("SG004", str(tmp_path / "again")), ("SG004", str(tmp_path / "self.yaml"))]


def test_a_huge_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "dump.yaml"
    with path.open("wb") as file:
        file.truncate(50 * 1024 * 1024)
    with pytest.raises(PolicyErrors) as caught:
        load([path])
    (error,) = caught.value.exceptions
    assert isinstance(error, PolicyError)
    assert (error.code, error.found, error.allowed) == ("SG005", "50 MiB", "at most 8 MiB")


def test_a_folder_without_policies_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a policy")
    (tmp_path / ".hidden.yaml").write_text("kind: nothing")
    assert errors(tmp_path) == [("SG006", str(tmp_path))]


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound: str) -> None:
    monkeypatch.setattr(policy_files, "MAX_FILES", 3)
    (tmp_path / "a.yaml").write_text(sound)
    for name in "bcdefg":
        (tmp_path / f"{name}.yaml").write_text("# nothing\n")
    assert errors(tmp_path) == [("SG007", str(tmp_path / "d.yaml"))]


@pytest.mark.parametrize(
    ("content", "line", "column"),
    [
        (b"# caf\xe9\n", 1, 6),
        (b"a: b\nc: \xff\xfe\n", 2, 4),
        (b"\xff\xfe\x00\xd8a", 1, 1),  # a lone surrogate of UTF-16
    ],
)
def test_invalid_utf8_is_refused_at_its_position(tmp_path: Path, content: bytes, line: int, column: int) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(PolicyErrors) as caught:
        load([path])
    (error,) = caught.value.exceptions
    assert isinstance(error, PolicyError)
    assert (error.code, error.origin.line, error.origin.column) == ("SG010", line, column)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_byte_order_marks_are_fine(tmp_path: Path, encoding: str, sound: str) -> None:
    (tmp_path / "a.yaml").write_text(sound, encoding=encoding)
    assert set(load([tmp_path]).pools) == {"chat"}


def test_files_in_folders_and_folders_in_folders_are_found_once(tmp_path: Path, sound: str) -> None:
    pool, route = sound.split("---\n")
    deep = tmp_path / "teams" / "chat.yaml"  # a folder with the name of a file
    deep.mkdir(parents=True)
    (deep / "pool.yml").write_text(pool)
    (tmp_path / "route.json").write_text(route)
    (tmp_path / "same.yaml").symlink_to(deep / "pool.yml")
    (tmp_path / "notes.txt").write_text("kind: Nothing")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.yaml").write_text("kind: Nothing")
    policies = load([tmp_path, deep, deep / "pool.yml"])
    assert (set(policies.pools), set(policies.routes)) == ({"chat"}, {"front"})


def test_a_mounted_config_map_counts_once_and_can_be_swapped(tmp_path: Path, sound: str) -> None:
    """Kubernetes mounts files as links through a hidden folder, which it swaps by renaming a link."""
    for number, text in ((1, sound), (2, sound.replace("llama", "qwen"))):
        (tmp_path / f"..version{number}").mkdir()
        (tmp_path / f"..version{number}" / "policy.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..version1")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    assert load([tmp_path]).pools["chat"].spec.model == "llama"
    (tmp_path / "..fresh").symlink_to("..version2")
    (tmp_path / "..fresh").rename(tmp_path / "..data")
    policies = load([tmp_path])
    assert policies.pools["chat"].spec.model == "qwen"
    origin = policies.origin("EnginePool", "chat")
    assert origin is not None
    assert origin.file == str(tmp_path / "policy.yaml")
