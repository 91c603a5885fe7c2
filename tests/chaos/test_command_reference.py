"""docs/cli.md matches the commands."""

from pathlib import Path

from chaos.command_reference import commands_markdown

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_page_matches_the_commands() -> None:
    assert PAGE.read_text() == commands_markdown(), "run: python -m chaos.command_reference > docs/cli.md"


def test_page_has_every_command() -> None:
    text = commands_markdown()
    for heading in (
        "### switchgear serve",
        "#### switchgear export istio",
        "#### switchgear istio run",
        "#### switchgear plan redundancy",
        "### switchgear-agent run",
        "### switchgear-chaos verify",
    ):
        assert f"{heading}\n" in text
