"""A command that there is not is refused with the one that was probably meant."""

import pytest

from xds_server.cli import main


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("stauts", "status"),
        ("undrain", "restore"),
        ("uncordon", "restore"),
        ("events", "get events"),
        ("proxy-status", "status"),
    ],
)
def test_a_name_that_is_near_or_of_another_tool(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([typed, "e0"]) == 2
    assert f"No such command '{typed}': did you mean `switchgear {meant}`?" in capsys.readouterr().err


def test_a_name_that_is_like_no_other_is_not_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zzz"]) == 2
    said = capsys.readouterr().err
    assert "No such command 'zzz'" in said
    assert "did you mean" not in said
