"""A command that there is not is refused with the one that was probably meant."""

from pathlib import Path

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


@pytest.mark.parametrize("arguments", [["schema", "--admin", "x"], ["--admin", "x", "schema"]])
def test_global_option_is_refused_by_a_command_without_a_server(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    refusal = "Error: `switchgear schema` talks to no server: remove the global option --admin"
    assert refusal in capsys.readouterr().err


@pytest.mark.parametrize("command", [("validate",), ("apply",), ("serve",)])
def test_positional_policy_path_is_refused_with_the_option(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "policies"]) == 2
    assert "give policies by -f PATH" in capsys.readouterr().err


def test_context_file_option_goes_with_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(tmp_path / "none.yaml"), "config", "view"]) == 0
    assert "contexts: []" in capsys.readouterr().out
