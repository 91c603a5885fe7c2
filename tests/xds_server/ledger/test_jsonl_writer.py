"""JSON lines files: bounded, readable after a crash, and never blocking."""

import asyncio
import contextlib
import os
import resource
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.eventually import eventually
from xds_server.ledger import jsonl_writer
from xds_server.ledger.jsonl_writer import JsonlWriter, rotated, tail
from xds_server.serve_config import ConfigError

LIMIT_S = 30.0


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


async def test_lines_refused_for_lack_of_descriptors_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl_writer, "RETRY_S", 0.01)
    lines = JsonlWriter(tmp_path / "l", 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with writing(lines):
        lines.write("before")
        await eventually(lambda: tail(tmp_path / "l") == ["before"], "the first line", LIMIT_S)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with capture_logs() as logged:
                for number in range(3):
                    lines.write(f"during {number}")
                await eventually(
                    lambda: any(one["event"] == "file.failed" for one in logged), "a failed write", LIMIT_S
                )
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        lines.write("after")
        await eventually(lambda: len(tail(tmp_path / "l")) == 5, "every line", LIMIT_S)
    assert tail(tmp_path / "l") == ["before", "during 0", "during 1", "during 2", "after"]
    assert lines.lost == 0


async def test_half_written_batch_is_retried_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl_writer, "RETRY_S", 0.01)
    lines = JsonlWriter(tmp_path / "l", 100_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    texts = [f"{number:0>1000}" for number in range(20)]
    async with writing(lines):
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_500, hard))  # as on a disk that fills within a batch
        try:
            with capture_logs() as logged:
                for text in texts:
                    lines.write(text)
                lines.rotate()
                lines.write("next file")
                await eventually(
                    lambda: any(one["event"] == "file.failed" for one in logged), "a failed write", LIMIT_S
                )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await eventually(lambda: tail(tmp_path / "l")[-1:] == ["next file"], "every line", LIMIT_S)
    assert tail(tmp_path / "l") == [*texts, "next file"]
    assert rotated(tmp_path / "l").is_file()
    assert lines.lost == 0


async def test_waiting_bytes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_writer, "MOST_WAITING_BYTES", 100)
    lines = JsonlWriter(tmp_path / "absent" / "l", 1000)
    assert [lines.write("x" * 60) for _ in range(4)] == [True, True, False, False]
    (tmp_path / "absent").mkdir()
    async with writing(lines):
        await eventually(lambda: len(tail(tmp_path / "absent" / "l")) == 2, "the lines that waited", LIMIT_S)
        assert lines.write("room again")
    assert lines.lost == 2


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
