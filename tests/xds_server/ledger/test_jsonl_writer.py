"""JSON lines files: bounded, readable after a crash, and never blocking."""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from xds_server.ledger.jsonl_writer import JsonlWriter, rotated, tail
from xds_server.serve_config import ConfigError


@contextlib.asynccontextmanager
async def writing(lines: JsonlWriter) -> AsyncIterator[None]:
    task = asyncio.create_task(lines.run())
    try:
        yield
    finally:
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_queued_lines_are_written_at_the_end(tmp_path: Path) -> None:
    lines = JsonlWriter(tmp_path / "l", 1000)
    async with writing(lines):
        for number in range(5):
            assert lines.write(str(number))
    assert tail(tmp_path / "l") == ["0", "1", "2", "3", "4"]


async def test_truncated_line_after_a_crash_stays_separate(tmp_path: Path) -> None:
    (tmp_path / "l").write_text('{"whole": 1}\n{"ha')
    lines = JsonlWriter(tmp_path / "l", 1000)
    async with writing(lines):
        lines.write("next")
    assert tail(tmp_path / "l") == ['{"whole": 1}', '{"ha', "next"]


async def test_jsonl_file_rotates_by_size(tmp_path: Path) -> None:
    file = tmp_path / "l"
    lines = JsonlWriter(file, 100)
    async with writing(lines):
        for number in range(100):
            if lines.full:
                lines.rotate()
            lines.write(f"{number:09}")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["l", "l.1"]
    assert file.stat().st_size <= 110
    assert rotated(file).stat().st_size <= 110
    read = tail(file)
    assert read == [f"{number:09}" for number in range(100 - len(read), 100)]


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
async def test_rotated_file_keeps_permissions(tmp_path: Path) -> None:
    file = tmp_path / "l"

    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    async def write() -> None:
        lines = JsonlWriter(file, 100)
        async with writing(lines):
            lines.write('{"n": 1}')
            lines.rotate()
            lines.write('{"n": 2}')

    await write()
    assert (mode(rotated(file)), mode(file)) == (0o600, 0o600)
    file.chmod(0o666)
    await write()
    assert (mode(rotated(file)), mode(file)) == (0o666, 0o644), (
        "readable as before, and writable by the owner only"
    )
    assert tail(file) == ['{"n": 2}', '{"n": 1}', '{"n": 2}']


async def test_full_disk_loses_lines_only(tmp_path: Path) -> None:
    lines = JsonlWriter(Path("/dev/full"), 1000)
    async with writing(lines):
        lines.write("lost")
    assert lines.lost == 1
    lines = JsonlWriter(tmp_path / "no" / "such" / "folder", 1000)
    async with writing(lines):
        lines.write("lost")
        lines.write("too")
    assert lines.lost == 2


async def test_full_write_queue_drops_and_counts_lines(tmp_path: Path) -> None:
    lines = JsonlWriter(tmp_path / "l", 1000, most_waiting=2)
    assert [lines.write("x") for _ in range(4)] == [True, True, False, False]
    assert lines.lost == 2


def test_tail_returns_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("".join(f"{number:04}\n" for number in range(100)))
    assert tail(tmp_path / "l", 12) == ["0098", "0099"]


@pytest.mark.parametrize("name", ["absent", "folder"])
def test_missing_file_has_no_lines(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    assert tail(tmp_path / name) == []


@pytest.mark.parametrize("held", ["apiVersion: switchgear.dev/v1alpha1\n", "\0"])
def test_foreign_file_is_not_written(tmp_path: Path, held: str) -> None:
    (tmp_path / "policy.yaml").write_text(held)
    with pytest.raises(ConfigError, match=r"policy\.yaml is not a JSON lines file"):
        JsonlWriter(tmp_path / "policy.yaml", 1000)


def test_folder_is_not_a_lines_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Use another path"):
        JsonlWriter(tmp_path, 1000)
