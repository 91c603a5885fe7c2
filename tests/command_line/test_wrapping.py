"""Sentences are wrapped for a terminal, and whole on a pipe."""

import pytest

from command_line.wrapping import wrapped

TEXT = "Name: p0\n  chat: 135.9 req/s, 98.3 shed/s, 0.0 retry/s, 43 in flight\n\nend"


def test_lines_are_whole_on_a_pipe() -> None:
    assert wrapped(TEXT) == TEXT


@pytest.mark.parametrize("columns", [10, 40, 60, 300])
def test_lines_fit_the_terminal_with_a_hanging_indent(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = wrapped(TEXT).split("\n")
    assert max(map(len, lines)) <= min(100, max(40, columns))
    assert " ".join(" ".join(lines).split()) == " ".join(TEXT.split())
    continued = lines[2 : lines.index("")]
    assert all(line.startswith("    ") for line in continued)
    assert bool(continued) is (columns < 60)
