"""Tables: whole rows on a pipe, and how they give way on a narrow terminal."""

import pytest

from command_line.table import Role, StyledText, TableColumn, end_cut, show_table, table_lines

COLUMNS = [
    TableColumn(title="name", role=Role.IDENTITY),
    TableColumn(title="health"),
    TableColumn(title="zone"),
    TableColumn(title="busy", role=Role.FIGURE),
    TableColumn(title="why", role=Role.FREE),
]
LONG = "chat-pool-in-europe/engine-12"
ROWS = [
    ("chat/e0", "HEALTHY", "a", "3", "-"),
    (LONG, StyledText("UNHEALTHY", "bold red"), "zone-b", "12", "hung: 3 requests in flight and no token for 9 s"),
]


def test_pipe_gets_whole_aligned_rows(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(COLUMNS, ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "NAME                           HEALTH     ZONE    BUSY  WHY",
        "chat/e0                        HEALTHY    a          3  -",
        f"{LONG}  UNHEALTHY  zone-b    12  hung: 3 requests in flight and no token for 9 s",
    ]


@pytest.mark.parametrize("width", range(20, 121))
def test_lines_fit_every_width(width: int) -> None:
    lines = table_lines(COLUMNS, ROWS, width=width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 3
    assert all(line == line.rstrip() for line in lines)


def test_free_text_is_cut_first_and_names_last() -> None:
    wide, narrow, tiny = (table_lines(COLUMNS, ROWS, width=width)[2] for width in (90, 62, 34))
    assert wide.startswith(f"{LONG}  UNHEALTHY  zone-b    12  hung: 3 ")
    assert wide.endswith("…")
    assert narrow.split() == [LONG, "UNHEALTHY", "zone-b", "hung:", "3", "req…"], "figures go before free text"
    assert tiny.split() == ["chat-po…gine-12", "UNHEALTHY", "zone-b"], "three columns before whole names"


def test_names_differ_where_they_are_cut_in_the_middle() -> None:
    rows = [(f"chat-pool-in-europe/engine-{number}", "HEALTHY", "a", "1", "-") for number in range(3)]
    assert len({line.split()[0] for line in table_lines(COLUMNS, rows, width=24)[1:]}) == 3


def test_columns_environment_stands_for_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    show_table(COLUMNS, ROWS)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40
    show_table(COLUMNS, ROWS, whole=True, headers=False)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2
    assert shown[1].endswith("for 9 s")


def test_rows_that_follow_are_as_wide_as_those_before() -> None:
    least: list[int] = []
    first = table_lines(COLUMNS, ROWS, least=least)
    (later,) = table_lines(COLUMNS, [("x", "ok", "b", "1", "-")], headers=False, least=least)
    assert later.index("ok") == first[0].index("HEALTH")


def test_line_breaks_and_wide_characters_keep_the_columns() -> None:
    rows = [("a\nb", "ok", "z", "1", "-"), ("日本", "ok", "z", "1", "-")]
    lines = table_lines(COLUMNS, rows, width=80)
    assert [line.index("ok") for line in lines[1:]] == [6, 4], "two columns for each of two characters"
    assert end_cut("日本語", 5) == "日本…"


def test_table_without_rows_or_headers_is_empty() -> None:
    assert table_lines(COLUMNS, [], headers=False) == []
    assert table_lines(COLUMNS, []) == ["NAME  HEALTH  ZONE  BUSY  WHY"]
