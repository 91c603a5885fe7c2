"""Commands in the operators' pages parse, and name existing scenarios."""

import re
import shlex
from pathlib import Path

import click
import pytest

from chaos.cli import group
from chaos.scenario.scenario_reader import checked_scenarios
from xds_server.cli import group as switchgear

COOKBOOK = Path("docs/chaos-cookbook.md")
PAGES = (COOKBOOK, Path("docs/faq.md"), Path("docs/quickstart.md"))
COMMANDS = {"switchgear": switchgear, "switchgear-chaos": group}
LIBRARY = {one.stem for one in Path("chaos/scenarios").glob("*.yaml")}


def typed(page: Path) -> list[str]:
    """Our command lines on a page, continuation lines joined."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.split(" ", 1)[0] in COMMANDS]


LINES = [line for page in PAGES for line in typed(page)]


@pytest.mark.parametrize("line", LINES)
def test_command_on_page_parses(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("policies", "a", "b", "certs", "histories"):
        (tmp_path / folder).mkdir()
    for file in (
        "mine.yaml",
        *(f"certs/{who}.{end}" for who in ("server", "proxy", "ca") for end in ("crt", "key")),
    ):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(line, comments=True)
    words = words[: next((place for place, word in enumerate(words) if word in {"&", ">", "|"}), None)]
    command: click.Command = COMMANDS[program]
    context = click.Context(command, info_name=program)
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, name
        command = found
        context = click.Context(command, info_name=name, parent=context)
    # Raises where an option, its value or an argument is not what the command takes.
    command.make_context(command.name, words, parent=context.parent)


@pytest.mark.parametrize("line", [line for line in LINES if re.match(r"switchgear-chaos (run|simulate) ", line)])
def test_scenarios_on_page_exist(line: str) -> None:
    names = shlex.split(line, comments=True)[2:]
    scenarios = names[: next(place for place, word in enumerate(names) if word.startswith("-"))]
    assert scenarios
    assert not set(scenarios) - LIBRARY - {"mine.yaml"}


def test_each_of_ten_recipes_has_a_command() -> None:
    recipes = re.split(r"^## \d+\. ", COOKBOOK.read_text(), flags=re.MULTILINE)[1:]
    assert len(recipes) == 10
    assert all("```sh\nswitchgear" in one for one in recipes)


def test_cookbook_scenario_resolves() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", COOKBOOK.read_text(), re.DOTALL)
    (only,), problems = checked_scenarios(example.encode(), COOKBOOK)
    assert not problems
    slow, crash = only.experiment().outages
    assert not set(slow.targets) & set(crash.targets)


def test_named_promises_exist() -> None:
    known = Path("docs/chaos/verdict.md").read_text()
    names = set(re.findall(r"`([a-z]+[A-Z][A-Za-z0-9]+)`", COOKBOOK.read_text()))
    assert len(names) > 8
    assert not {name for name in names if f"`{name}`" not in known}
