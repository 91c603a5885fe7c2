"""Contexts and global options: where a command connects, and which source wins."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.xds_server.cli import test_status
from tests.xds_server.cli.test_status import Server
from xds_server.cli import group, main
from xds_server.cli.connection_options import META, ConnectionSettings, connection_settings
from xds_server.cli.context_file import default_path

server = test_status.server


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ADMIN_URL", "ADMIN_CACERT", "ADMIN_TOKEN_FILE", "TIMEOUT", "CONTEXT"):
        monkeypatch.delenv(f"SWITCHGEAR_{name}", raising=False)
    path = tmp_path / "config.yaml"
    monkeypatch.setenv("SWITCHGEAR_CONFIG", str(path))
    return path


@pytest.fixture
def contexts(file: Path) -> None:
    assert main(["config", "set-context", "lab", "--admin", "http://lab:1", "--timeout", "2s"]) == 0
    token = ["--token-file", str(file.parent / "token"), "--cacert", str(file.parent / "ca.pem")]
    assert main(["config", "set-context", "prod", "--admin", "https://prod:1", *token]) == 0


def settings(**flags: Any) -> ConnectionSettings:
    with click.Context(click.Command("x")) as context:
        context.meta[META] = flags
        return connection_settings()


@pytest.mark.usefixtures("contexts")
def test_flag_wins_over_environment_over_context(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (settings().admin, settings().timeout_s) == ("http://lab:1", 2.0)
    monkeypatch.setenv("SWITCHGEAR_ADMIN_URL", "http://env:1")
    assert (settings().admin, settings().timeout_s) == ("http://env:1", 2.0)
    assert settings(admin="http://flag:1").admin == "http://flag:1"
    assert settings(context="prod").admin == "https://prod:1", "a named context is a flag"
    assert settings(context="prod", admin="https://flag:1").admin == "https://flag:1"


@pytest.mark.usefixtures("contexts")
def test_credentials_of_a_context_go_to_its_server_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["config", "use-context", "prod"]) == 0
    assert settings().token_file is not None
    assert settings(admin="https://other:1").token_file is None
    monkeypatch.setenv("SWITCHGEAR_ADMIN_URL", "https://other:1")
    monkeypatch.setenv("SWITCHGEAR_ADMIN_TOKEN_FILE", "/env/token")
    assert (settings().token_file, settings().cacert) == (Path("/env/token"), None)
    lab = settings(context="lab")
    assert (lab.admin, lab.token_file) == ("http://lab:1", None), "the environment's token is for another server"


def test_defaults_without_any_file() -> None:
    assert settings() == ConnectionSettings()


@pytest.mark.parametrize("where", ["before", "behind"])
def test_global_options_stand_before_or_behind_the_command(
    server: Server, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    flags = ["--admin", server.url]
    words = ["get", "engines", "-o", "name"]
    assert main([*flags, *words] if where == "before" else [*words, *flags]) == 0
    assert capsys.readouterr().out.startswith("engine/chat/e1\n")
    assert main(["--admin", "http://127.0.0.1:1", *words, *flags]) == 0, "the one behind wins"


def test_help_names_global_options_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--admin" not in text
    assert 'Use "switchgear options" for global options.' in text
    assert main(["options"]) == 0
    listed = capsys.readouterr().out
    for name in ("admin", "cacert", "cert", "key", "token-file", "server-name", "timeout", "context", "config"):
        assert f"--{name} " in listed
    assert main(["version", "--help"]) == 0
    command = group.get_command(click.Context(group, info_name="switchgear"), "validate")
    assert command is not None
    assert not command.epilog


def test_config_commands_edit_the_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "current-context"]) == 1
    assert main(["config", "set-context", "a"]) == 2, "a context needs a server"
    assert main(["config", "set-context", "a", "--admin", "http://a:1"]) == 0
    assert main(["config", "set-context", "b", "--admin", "http://b:1", "--timeout", "1s"]) == 0
    assert main(["config", "set-context", "b", "--timeout", ""]) == 0
    assert main(["config", "use-context", "b"]) == 0
    capsys.readouterr()
    assert main(["config", "current-context"]) == 0
    assert capsys.readouterr().out == "b\n"
    assert main(["config", "get-contexts"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "CURRENT  NAME  SERVER",
        "         a     http://a:1",
        "*        b     http://b:1",
    ]
    assert main(["config", "view", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == yaml.safe_load(file.read_text())
    assert file.stat().st_mode & 0o077 == 0
    assert main(["config", "delete-context", "b"]) == 0
    assert main(["config", "current-context"]) == 1
    assert main(["config", "use-context", "b"]) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "contexts:\n- name: a\n  context: {sevrer: x}\n",
            ":3: contexts[0].context: unknown field 'sevrer'; did you",
        ),
        ("curent-context: a\n", ":1: the file: unknown field 'curent-context'; did you mean current-context?"),
        ("contexts: {}\n", ":1: contexts: expected a list"),
        ("contexts:\n- context: {}\n", ":2: contexts[0].name: missing"),
        ("contexts:\n- name: a\n- name: a\n", ":3: contexts[1].name: duplicate context 'a'"),
        ("contexts: [\n", ": not YAML"),
        ("[]\n", ":1: the file: expected apiVersion"),
        ("current-context: gone\n", "no context 'gone'"),
    ],
)
def test_wrong_file_is_refused_with_its_line(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    file.write_text(text)
    assert main(["get", "engines"]) == 2
    error = capsys.readouterr().err
    assert str(file) in error
    assert problem in error


def test_named_file_has_to_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(tmp_path / "no.yaml"), "get", "engines"]) == 2
    assert "no such file" in capsys.readouterr().err
    fresh = str(tmp_path / "new" / "config.yaml")
    assert main(["--config", fresh, "config", "set-context", "a", "--admin", "http://a:1"]) == 0


def test_user_without_an_entry_has_no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWITCHGEAR_CONFIG", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert default_path() == Path("/.config/switchgear/config.yaml")
