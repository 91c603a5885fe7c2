"""Forms, colours and exit codes: the same everywhere, and as the table in the documentation says."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from rich.table import Table

from tests.xds_server.admin_api import rows
from tests.xds_server.cli import test_status
from xds_server.admin.views.why_subject import Explanation
from xds_server.cli import group, main
from xds_server.cli.output_format import console, show_table
from xds_server.diagnosis.check_result import CheckState

Server = test_status.Server
server = test_status.server
OPERATING = (Path(__file__).parents[3] / "docs" / "operating.md").read_text()


def table() -> dict[str, list[str]]:
    """The table of exit codes by command."""
    part = OPERATING.partition("## Output formats and exit codes")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" |") for line in part.splitlines() if line.startswith("| `")]
    return {
        name: [cell.strip() for cell in row[1:]] for row in lines for name in re.findall(r"`([a-z-]+)`", row[0])
    }


def story(well: bool) -> dict[str, Any]:
    return rows.document(rows.explanation(well=well, now="chat/r1 " + "is so " * 40))


@pytest.fixture
def full(server: Any) -> Any:
    server.pages |= {
        "/v1/why?name=r1": story(True),
        "/v1/why?name=r2": story(False),
        "/v1/pools": {"pools": []},
        "/v1/objectives": {"objectives": [rows.document(rows.objective_status())]},
    }
    return server


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["status"], 0),
        (["why", "r1"], 0),
        (["why", "r2"], 1),
        (["get", "pools"], 0),
        (["get", "proxies"], 0),
        (["get", "objectives"], 0),
    ],
)
def test_every_form_has_the_same_exit_code(
    full: Any, arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    full.pages["/v1/conditions"] = {"conditions": []}
    shown = {}
    forms = ("text",) if arguments[0] == "why" else ("table", "wide")
    for form in ("json", "yaml", *forms):
        assert main([*arguments, "--admin", full.url, "-o", form]) == code
        shown[form] = capsys.readouterr().out
        assert "\x1b" not in shown[form]
    assert json.loads(shown["json"]) == yaml.safe_load(shown["yaml"])
    assert table()[arguments[0]][code] != "", "the table has a word for it"
    if arguments[0] == "why":
        assert json.loads(shown["json"])["code"] == ("SG209" if code else "")


def test_a_refusal_is_in_the_data_with_its_code(full: Any, capsys: pytest.CaptureFixture[str]) -> None:
    full.pages["/v1/proxies"]["proxies"] = [test_status.proxy("n2", RDS="NACK")]
    assert main(["status", "--admin", full.url, "-o", "yaml"]) == 1
    found = yaml.safe_load(capsys.readouterr().out)["conditions"]
    assert [(one["code"], one["severity"]) for one in found] == [("SG204", "critical"), ("SG208", "warning")]
    assert main(["status", "--admin", full.url]) == 1
    assert "critical SG204 proxy n2: RDS refused: port-1" in capsys.readouterr().out


def test_wide_shows_every_engine(full: Any, capsys: pytest.CaptureFixture[str]) -> None:
    full.pages["/v1/engines"]["engines"] = [test_status.engine(f"m{number}") for number in range(40)]
    assert main(["status", "--admin", full.url, "-o", "wide"]) == 0
    assert sum(line.startswith("chat/") for line in capsys.readouterr().out.splitlines()) == 40


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["get", "engines"],
        ["why", "r1"],
        ["tap"],
        ["top"],
        ["config-dump", "n1"],
        ["eject", "r1", "--for", "1m", "--reason", "x"],
    ],
)
def test_missing_server_is_exit_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--admin", "http://127.0.0.1:1"]) == 2
    taken = capsys.readouterr()
    assert (taken.out, "no server answers" in taken.err) == ("", True)
    assert "no server" in table()[arguments[0]][2]


def test_config_dump_says_in_its_code_whether_it_is_the_same(
    full: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"name": "x", "connect_timeout": "0.25s"}
    one = {"type": "CDS", "name": "x", "version": "v", "origins": [], "content": content}
    for asked in ("node=n1", "node=n1&absent=true"):
        full.pages[f"/v1/resources?{asked}"] = {"node": "n1", "resources": [one]}
    dump = {
        "configs": [
            {
                "@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump",
                "dynamic_active_clusters": [{"cluster": {"name": "x", "connect_timeout": "0.250s"}}],
            },
            {
                "@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump",
                "bootstrap": {"node": {"id": "n1"}},
            },
        ]
    }
    kept = tmp_path / "dump.json"
    kept.write_text(json.dumps(dump))
    asked = ["config-dump", "n1", "--admin", full.url]
    assert main(asked) == 0
    assert main([*asked, "--diff", "--envoy-dump", str(kept)]) == 0
    assert "SG255 EDS not compared: the dump was made without ?include_eds" in capsys.readouterr().out
    kept.write_text(json.dumps(dump).replace("0.250s", "9s"))
    assert main([*asked, "--diff", "--envoy-dump", str(kept)]) == 1
    kept.write_text(json.dumps(dump).replace('"n1"', '"n2"'))
    assert main([*asked, "--diff", "--envoy-dump", str(kept)]) == 2
    assert "this is Envoy 'n2', not 'n1'" in capsys.readouterr().err
    for wrong in ("[]", "{", '{"configs": 3}'):
        kept.write_text(wrong)
        assert main([*asked, "--diff", "--envoy-dump", str(kept)]) == 2
    assert main([*asked, "--diff"]) == 2
    assert main([*asked, "--diff", "--envoy-admin", "http://127.0.0.1:1"]) == 2


def test_every_command_that_asks_a_server_is_in_the_table() -> None:
    mine = (
        "status",
        "get",
        "describe",
        "release",
        "why",
        "describe",
        "release",
        "tap",
        "top",
        "config-dump",
        "doctor",
        "bug-report",
        "completion",
        "eject",
        "drain",
        "degrade",
        "restore",
    )
    assert set(table()) == set(mine)
    for name in mine:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        assert "xit code" in (command.help or ""), name


def test_no_color_is_heard_where_it_says_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert console().no_color
    monkeypatch.setenv("NO_COLOR", "")
    assert not console().no_color


def test_states_and_stories_are_those_of_the_house() -> None:
    assert [state.value for state in CheckState] == ["ok", "info", "warn", "fail"]
    assert set(story(True)) == set(Explanation.__dataclass_fields__)


def test_a_table_has_no_blanks_at_the_end_of_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", "", box=None, pad_edge=False)
    table.add_row("a", "")
    table.add_row("much longer", "why")
    show_table(console(), table)
    assert capsys.readouterr().out == "name\na\nmuch longer  why\n"
