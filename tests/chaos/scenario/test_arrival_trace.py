"""Recorded arrivals, and errors of unreadable ones."""

from pathlib import Path

import pytest

from chaos.scenario.arrival_trace import TraceError, TraceRow, read_trace


def trace(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "trace.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_rows_are_sorted_and_empty_cells_are_none(tmp_path: Path) -> None:
    text = "at_s,streaming,output_tokens\n2.5,true,\n1,no,12\n3,,\n"
    assert read_trace(trace(tmp_path, text)) == (
        TraceRow(at_s=1, streaming=False, output_tokens=12),
        TraceRow(at_s=2.5, streaming=True),
        TraceRow(at_s=3),
    )


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("", ["trace.csv:1: missing column at_s"]),
        ("at_s\n", ["trace.csv: no rows"]),
        (
            "at,streaming\n1,true\n",
            ["trace.csv:1: unknown column 'at'; did you mean at_s?", ":1: missing column at_s"],
        ),
        ("at_s,at_s\n1,1\n", ["trace.csv:1: duplicate column 'at_s'"]),
        ("at_s\n-1\nsoon\n2\n", ["trace.csv:2: at_s: ", "trace.csv:3: at_s: "]),
        ("at_s,streaming\n1,perhaps\n,true\n", ["trace.csv:2: streaming: ", "trace.csv:3: at_s: Field required"]),
        ("at_s\n1,2,3\n", ["trace.csv:2: more cells"]),
        ("at_s\nnan\n", ["trace.csv:2: at_s: "]),
        (b"at_s\n\xff\xfe\n", ["not a CSV text file"]),
    ],
)
def test_each_complaint_names_its_line_and_column(
    tmp_path: Path, text: str | bytes, complaints: list[str]
) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(trace(tmp_path, text))
    assert len(caught.value.complaints) == len(complaints)
    for output, expected in zip(caught.value.complaints, complaints, strict=True):
        assert expected in output


def test_missing_trace_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.csv: No such file"):
        read_trace(tmp_path / "nowhere.csv")


def test_number_of_complaints_is_capped(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(trace(tmp_path, "at_s\n" + "x\n" * 1000))
    assert len(caught.value.complaints) == 21
