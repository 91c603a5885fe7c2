"""Every alert has a page that can be followed half asleep, and every page an alert."""

import re
import shlex
from pathlib import Path

import click
import pytest

from deploy.monitoring.prometheus_rules import ALERTS, groups
from deploy.render import ROOT
from xds_server.cli import group
from xds_server.metrics.metric_table import TABLE

PAGES = {path.stem: path for path in (ROOT / "docs" / "runbooks").glob("*.md") if path.stem != "index"}
SECTIONS = ["Impact", "Diagnosis", "Fix", "Resolved when"]
LONGEST_LINES = 45


def commands(text: str) -> list[str]:
    """Every command of ours, in the list and in the text."""
    return [found for found in re.findall(r"`(switchgear [^`]+)`", text) if not found.startswith("switchgear_")]


def parses(command: str) -> None:
    """Raise what click would say to whoever types it."""
    words = shlex.split(command)[1:]
    with click.Context(group) as context:
        name, found, rest = group.resolve_command(context, words)
        assert found is not None
        if "--help" not in rest and rest:
            found.make_context(name, list(rest), parent=context)


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    assert set(PAGES) == {one.name for one in ALERTS}


def test_the_alert_leads_to_its_page() -> None:
    rules = [rule for one in groups()["groups"] for rule in one["rules"] if "alert" in rule]  # type: ignore[attr-defined]
    for rule in rules:
        assert (ROOT / rule["annotations"]["runbook"]).is_file()
        assert rule["annotations"]["runbook"].endswith(f"/{rule['alert']}.md")
        assert "runbook_url" not in rule["annotations"], "nobody has said where they are published"


def test_the_index_and_the_site_have_them_all() -> None:
    index, site = (ROOT / "docs/runbooks/index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for name in PAGES:
        assert f"({name}.md)" in index, name
        assert f"runbooks/{name}.md" in site, name


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_has_its_parts_and_commands_that_exist(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = PAGES[name].read_text()
    assert text.startswith(f"# {name}\n\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert len(text.splitlines()) <= LONGEST_LINES, "nobody reads more than a screen"
    typed = re.findall(r"^\d\. `(.*)`$", text, re.MULTILINE)
    assert len(typed) == 3
    assert all(one.startswith("switchgear ") for one in typed)
    for command in commands(text):
        parses(command)
    for metric in re.findall(r"switchgear_\w+", text):
        assert metric in TABLE, metric


@pytest.mark.parametrize(
    "wrong", ["switchgear gte engines", "switchgear get engines --wat", "switchgear get things"]
)
def test_a_command_that_does_not_exist_would_be_noticed(wrong: str) -> None:
    with pytest.raises(click.UsageError):
        parses(wrong)


def test_what_the_table_calls_a_runbook_is_one() -> None:
    for name, row in TABLE.items():
        for page in re.findall(r"\bSwitchgear[A-Z]\w+", row.do):
            assert page in PAGES, name


def test_links_between_pages_lead_somewhere() -> None:
    for path in PAGES.values():
        for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
            assert Path(path.parent / target).is_file(), f"{path.name}: {target}"
