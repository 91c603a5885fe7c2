"""Completion as a shell asks for it: by running bash with the script."""

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from xds_server.cli import main
from xds_server.cli.completion import complete_names
from xds_server.cli.connection_options import META

LIMIT_S = 60.0
BIN = Path(sys.executable).parent
PAGES: dict[str, Any] = {
    "/v1/engines": {"engines": [{"pool": "chat", "engine": "r1"}, {"pool": "chat", "engine": "r2"}]},
    "/v1/pools": {"pools": [{"pool": "chat"}]},
    "/v1/zones": {"zones": [{"zone": "zone-a"}, {"zone": ""}]},
    "/v1/proxies": {"proxies": [{"node": "gateway-0"}]},
}


TOKEN = "correct-horse-battery-staple"
seen: list[str] = []


@pytest.fixture(scope="module")
def admin() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A token must be the right one; most tests send none.
            let_in = self.headers.get("Authorization", f"Bearer {TOKEN}") == f"Bearer {TOKEN}"
            self.send_response(401 if not let_in else 200 if self.path in PAGES else 404)
            seen.append(self.headers.get("Authorization", ""))
            self.end_headers()
            self.wfile.write(json.dumps(PAGES.get(self.path, {})).encode())

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def completed(
    *words: str, admin: str = "http://127.0.0.1:1", folder: Path | None = None, **environment: str
) -> set[str]:
    """What bash would offer for the last of ``words``."""
    script = (
        'eval "$(switchgear completion bash)"\n'
        "complete -p switchgear >&2\n"
        f"COMP_WORDS=(switchgear {' '.join(map(repr, words))}); COMP_CWORD={len(words)}\n"
        "_switchgear_completion switchgear\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        [shutil.which("bash") or "bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        cwd=folder,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "SWITCHGEAR_ADMIN_URL": admin, **environment},
    )
    assert "-F _switchgear_completion switchgear" in done.stderr
    assert len(done.stderr.splitlines()) == 1, "no further output"
    return set(done.stdout.split())


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


@needs_bash
def test_bash_completes_commands_and_options() -> None:
    assert completed("co") == {"completion", "config", "config-dump", "convert"}
    assert {"--output", "--admin"} <= completed("get", "engines", "--")


@needs_bash
def test_bash_completes_names_that_the_server_knows(admin: str) -> None:
    assert completed("why", "", admin=admin) == {"chat", "chat/r1", "chat/r2", "zone-a"}
    assert completed("eject", "chat/r", admin=admin) == {"chat/r1", "chat/r2"}
    assert completed("get", "engines", "--pool", "", admin=admin) == {"chat"}
    assert completed("config-dump", "g", admin=admin) == {"gateway-0"}


@needs_bash
def test_completion_without_a_server_is_empty() -> None:
    assert completed("why", "") == set()
    assert completed("why", "", admin="nonsense://[") == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert f"_SWITCHGEAR_COMPLETE={shell}_complete" in out
    assert out.startswith("#compdef ") is (shell == "zsh"), "compinit reads the first line of a file in fpath"


def asked(shell: str, *arguments: str, admin: str) -> str:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"no {shell} here")
    path = f"{BIN}:{os.environ['PATH']}"
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        env={**os.environ, "PATH": path, "SWITCHGEAR_ADMIN_URL": admin},
    )
    assert not done.stderr
    return done.stdout


def test_fish_completes_commands_and_names(admin: str) -> None:
    script = "switchgear completion fish | source; complete -C 'switchgear ro'; complete -C 'switchgear why chat/'"
    said = asked("fish", "--no-config", "-c", script, admin=admin).splitlines()
    assert [line.split("\t")[0] for line in said] == ["rollback", "chat/r1", "chat/r2"]


def test_zsh_completes_commands_and_names(admin: str) -> None:
    script = (
        "autoload -Uz compinit; compinit -D -u\n"
        'eval "$(switchgear completion zsh)"\n'
        'print "asks ${_comps[switchgear]}"\n'
        # What zsh would do with the offers, which only a terminal shows.
        'compadd() { print -l -- "${completions[@]}"; }\n'
        '_describe() { print -l -- "${completions_with_descriptions[@]}"; }\n'
        "words=(switchgear ro) CURRENT=2; _switchgear_completion\n"
        "words=(switchgear why chat/) CURRENT=3; _switchgear_completion\n"
    )
    said = asked("zsh", "-f", "-c", script, admin=admin)
    assert "asks _switchgear_completion" in said
    assert "rollback:Roll back to an earlier" in said
    assert {"chat/r1", "chat/r2"} <= set(said.split())


def test_completing_a_command_imports_none() -> None:
    script = (
        "import sys\nfrom xds_server.cli import group\n"
        "import click\nfound = group.shell_complete(click.Context(group), 'w')\n"
        "print([one.value for one in found], sorted(one for one in sys.modules if one == 'xds_server.cli.why'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert done.stdout.strip() == "['why'] []"


@needs_bash
def test_completion_authenticates(admin: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    said = {"SWITCHGEAR_ADMIN_TOKEN_FILE": str(file)}
    assert completed("why", "chat/", admin=admin, **said) == {"chat/r1", "chat/r2"}
    assert seen[-1] == f"Bearer {TOKEN}"
    (tmp_path / "old").write_text("x" * 20)
    assert completed("why", "--token-file", str(tmp_path / "old"), "chat/", admin=admin) == set()


@pytest.mark.parametrize("rows", [3, None, [1], [{}], [{"pool": 3, "engine": None}]])
def test_malformed_rows_complete_nothing(rows: Any, admin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAGES, "/v1/engines", {"engines": rows})
    complete = complete_names("engines", "pools")
    context = click.Context(click.Command("why"))
    context.meta[META] = {"admin": admin}
    assert [one.value for one in complete(context, click.Argument(["name"]), "")] == ["chat"]
