"""New lines of a file written by another process."""

from pathlib import Path

from chaos.lab.log_tail import LogTail


def test_lines_are_returned_once_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with LogTail(path) as file:
        assert file.new_lines() == []
        path.write_text("one\ntw")
        assert file.new_lines() == ["one"]
        assert file.new_lines() == []
        with path.open("a") as more:
            more.write("o\nthree\n")
        assert file.new_lines() == ["two", "three"]


def test_replaced_file_is_read_to_its_end_first(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\n")
    with LogTail(path) as file:
        assert file.new_lines() == ["one"]
        with path.open("a") as more:
            more.write("two\nha")
        path.rename(tmp_path / "log.1")
        assert file.new_lines() == ["two"]
        path.write_text("three\n")
        assert file.new_lines() == ["three"]
        path.unlink()
        assert file.new_lines() == []
        path.write_text("four\n")
        assert file.new_lines() == ["four"]


def test_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a long line\n")
    with LogTail(path) as file:
        file.new_lines()
        path.write_text("b\n")
        assert file.new_lines() == ["b"]
