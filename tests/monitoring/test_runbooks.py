"""Every alert has a runbook, every runbook an alert, and every command in them parses."""

import re
import shlex
from pathlib import Path

import click
import pytest

from deploy.monitoring.prometheus_rules import ALERTS, Alert, groups
from deploy.render import ROOT
from engine.agent.orphaned_cores import OrphanedCore
from xds_server.cli import group
from xds_server.metrics.metric_table import TABLE

PAGES = {path.stem: path for path in (ROOT / "docs" / "runbooks").glob("*.md") if path.stem != "index"}
SECTIONS = ["Impact", "Diagnosis", "Fix", "Resolved when"]
LONGEST_LINES = 45


def commands(text: str) -> list[str]:
    """All switchgear commands of a page, listed or inline."""
    return [found for found in re.findall(r"`(switchgear [^`]+)`", text) if not found.startswith("switchgear_")]


def parses(command: str) -> None:
    """Raise click's usage error, if any."""
    words = shlex.split(command)[1:]
    with click.Context(group, info_name="switchgear") as context:
        name, found, rest = group.resolve_command(context, words)
        assert found is not None
        if "--help" not in rest and rest:
            found.make_context(name, list(rest), parent=context)


def test_alerts_and_runbooks_match() -> None:
    assert set(PAGES) == {one.name for one in ALERTS}


def test_alert_links_its_runbook() -> None:
    rules = [rule for one in groups()["groups"] for rule in one["rules"] if "alert" in rule]  # type: ignore[attr-defined]
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"
        assert (ROOT / rule["annotations"]["runbook_url"]).is_file()


@pytest.mark.parametrize("one", ALERTS, ids=lambda one: one.name)
def test_first_command_of_an_alert_parses(one: Alert) -> None:
    assert one.run.startswith("switchgear ")
    parses(re.sub(r"\{\{ \$labels\.\w+ \}\}", "NAME", one.run))


def test_index_lists_every_runbook_and_is_the_one_entry_of_the_site() -> None:
    index, site = (ROOT / "docs/runbooks/index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for name in PAGES:
        assert f"({name}.md)" in index, name
    entries = site.partition("\nnav:\n")[2]
    assert entries.count("runbooks/") == entries.count("runbooks/index.md") == 1


@pytest.mark.parametrize("name", sorted(PAGES))
def test_runbook_has_all_sections_and_valid_commands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = PAGES[name].read_text()
    assert text.startswith(f"# {name}\n\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert len(text.splitlines()) <= LONGEST_LINES, "longer than a screen"
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
def test_invalid_command_raises_usage_error(wrong: str) -> None:
    with pytest.raises(click.UsageError):
        parses(wrong)


def test_runbooks_named_by_metrics_exist() -> None:
    for name, row in TABLE.items():
        for page in re.findall(r"\bSwitchgear[A-Z]\w+", row.do):
            assert page in PAGES, name


def test_links_between_runbooks_resolve() -> None:
    for path in PAGES.values():
        for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
            assert Path(path.parent / target).is_file(), f"{path.name}: {target}"


def test_orphaned_engine_core_has_a_runbook_under_the_text_that_names_it() -> None:
    shown = OrphanedCore(pid=7, title="VLLM::EngineCore").sentence.partition(";")[0].replace("7", "PID")
    assert f"`Orphaned: {shown}`" in (ROOT / "docs/runbooks/index.md").read_text()
    _, _, rest = (ROOT / "docs/engine.md").read_text().partition("\n## Orphaned engine cores\n")
    section = rest.partition("\n## ")[0]
    assert re.findall(r"^- \*\*(.*?)\*\*", section, re.MULTILINE) == SECTIONS
