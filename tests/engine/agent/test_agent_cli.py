"""``switchgear-agent``: kubectl's habits against a stand-in for a running agent."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine.agent.cli import main
from engine.agent.cli.status import status_lines
from xds_server.auth.lab_ca import LabCertificate, make_certificates

READY = {
    "verdict": "ready",
    "evidence": "a token after 80 ms",
    "since_s": 12.0,
    "requests_in_flight": 3,
    "requests_waiting": 0,
    "kv_cache_usage_ratio": 0.25,
    "slots": 8,
    "doubt": "",
    "drain": None,
    "ready": {"yes": True, "sentence": "ready"},
    "alive": {"yes": True, "sentence": "alive"},
    "started": {"yes": True, "sentence": "started"},
    "last_30_s": {"finished": 40, "errors": 0},
}
HUNG = READY | {"verdict": "hung", "evidence": "no token for 3 s", "ready": {"yes": False, "sentence": "hung"}}
DRAINED = {"outcome": "drained", "waited_s": 0.2, "in_flight": 0, "sentence": "Drained after 0.2 s: done."}
LATE = DRAINED | {"outcome": "deadline", "sentence": "Not drained within 0.2 s: 2 requests."}


class Agent:
    """What the stand-in answers, by path."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"/report": READY, "/drain": DRAINED, "/undrain": {"was_draining": True}}
        self.paths: list[str] = []
        self.reports: list[Any] = []
        self.asked = threading.Semaphore(0)


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def serve(agent: Agent) -> Iterator[Any]:
    """Start the stand-in, with TLS if it gets a certificate; its URL."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            agent.paths.append(self.path)
            answer = agent.answers[self.path.partition("?")[0]]
            if self.path == "/report" and agent.reports:
                answer = agent.reports.pop(0)
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            agent.asked.release()

        do_POST = do_GET  # noqa: N815 - the base class looks for it

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
            """Print nothing."""

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Print nothing: a client that speaks no TLS."""

    servers = []

    def start(certificate: Path | None = None) -> str:
        server = Quiet(("127.0.0.1", 0), Answers)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.with_suffix(".crt"), certificate.with_suffix(".key"))
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"

    yield start
    for one in servers:
        one.shutdown()
        one.server_close()


def test_status_shows_verdict_and_evidence(serve: Any, agent: Agent, capsys: pytest.CaptureFixture[str]) -> None:
    url = serve()
    assert main(["status", "--agent", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Verdict:    ready for 12.0 s", "Evidence:   a token after 80 ms"]
    assert "Load:       3 in flight of 8 slots, 0 waiting, KV cache 25 %" in lines
    agent.answers["/report"] = HUNG
    assert main(["status", "--agent", url]) == 1
    assert "/readyz:    no: hung" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("json", json.dumps(READY, indent=2) + "\n"),
        ("jsonpath={.verdict} {.ready.yes}", "ready true\n"),
    ],
)
def test_status_prints_data(serve: Any, form: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--agent", serve(), "-o", form]) == 0
    assert capsys.readouterr().out == text


def test_status_yaml(serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--agent", serve(), "-o", "yaml"]) == 0
    assert capsys.readouterr().out.startswith("verdict: ready\nevidence: a token after 80 ms\n")


def test_status_without_a_verdict_yet() -> None:
    assert list(status_lines({"verdict": None})) == [
        "Verdict:    none yet: the agent has not finished its first probes"
    ]


def test_status_names_a_count_of_one_api_process() -> None:
    note = "            several API processes: in flight is the larger of one process's count and /metrics"
    assert note in list(status_lines(READY | {"count_is_partial": True}))
    assert note not in list(status_lines(READY))


def test_status_watch_prints_changes_only_and_ends_on_ctrl_c(serve: Any, agent: Agent) -> None:
    agent.reports = [READY, READY | {"requests_in_flight": 5}, HUNG]
    agent.answers["/report"] = HUNG
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "engine.agent",
            "status",
            "-w",
            "--interval",
            "100ms",
            "-o",
            "json",
            "--agent",
            serve(),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    verdicts = [json.loads(process.stdout.readline())["verdict"] for _ in range(2)]
    for _ in range(5):
        assert agent.asked.acquire(timeout=30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (verdicts, out, err.strip(), process.returncode) == (["ready", "hung"], "", "", 130)


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [(DRAINED, 0, "Drained after 0.2 s: done.\n"), (LATE, 1, "Not drained within 0.2 s: 2 requests.\n")],
)
def test_drain_answers_in_a_sentence(
    serve: Any, agent: Agent, answer: Any, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    agent.answers["/drain"] = answer
    url = serve()
    assert main(["drain", "--agent", url, "--deadline", "1.5s"]) == code
    assert capsys.readouterr().out == text
    assert agent.paths == ["/drain?deadline=1500ms"]
    assert main(["drain", "--agent", url, "-o", "json"]) == code
    assert agent.paths[-1] == "/drain", "the deadline of the pool"
    assert json.loads(capsys.readouterr().out) == answer


def test_undrain_answers_in_a_sentence(serve: Any, agent: Agent, capsys: pytest.CaptureFixture[str]) -> None:
    url = serve()
    assert main(["undrain", "--agent", url]) == 0
    agent.answers["/undrain"] = {"was_draining": False}
    assert main(["undrain", "--agent", url]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "The engine returns to rotation.",
        "The engine was not draining.",
    ]
    assert main(["undrain", "--agent", url, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"was_draining": False}


def test_http_to_a_tls_port_names_https(serve: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_certificates(
        tmp_path, (LabCertificate(name="agent", path="agent", names=("node-7",)),), lasts=timedelta(days=1)
    )
    url = serve(tmp_path / "agent")
    assert main(["status", "--agent", url.replace("https", "http")]) == 2
    assert f"the agent speaks TLS: use --agent {url}" in capsys.readouterr().err
    trust = ("--agent", url, "--cacert", str(tmp_path / "ca.crt"))
    assert main(["status", *trust, "--server-name", "node-7"]) == 0
    assert main(["status", *trust, "--server-name", "node-8"]) == 2
    assert "--server-name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["status", "--agent", "http://127.0.0.1:1"], "no agent at http://127.0.0.1:1: Connection refused"),
        (["status", "--agent", "ftp://a"], "write http://HOST:PORT"),
        (["status", "--agent", "http://a:1", "--cacert", "ca.crt"], "--cacert needs https"),
        (["drain", "--deadline", "soon"], "write a duration"),
        (["statsu"], "did you mean `switchgear-agent status`?"),
        (["report"], "did you mean `switchgear-agent status`?"),
        (["drain", "--deadlin", "3s"], "Did you mean '--deadline'?"),
        (["status", "-o", "jsn"], "did you mean json?"),
        (["status", "-o", "jsonpath={"], "the brace { is not closed"),
        (["--slots", "-3"], "--slots: '-3': must be"),
        (["run", "--slotz", "3"], "Did you mean '--slots'?"),
    ],
)
def test_usage_errors_exit_2(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert text in " ".join(capsys.readouterr().err.split())


def test_hangup_prints_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            for _ in range(2):  # the request, and the test for TLS
                listener.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        assert main(["status", "--agent", f"http://127.0.0.1:{listener.getsockname()[1]}"]) == 2
    assert "does not answer in HTTP" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == main(["--version"]) == 0
    short, same = capsys.readouterr().out.splitlines()
    assert short == same
    assert main(["version", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] in short


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["dr"], "drain"),
        (["status", "--server-"], "--server-name"),
        (["run", "--log-format", "j"], "json"),
        (["completion", "f"], "fish"),
    ],
)
def test_completion_of_commands_flags_and_values(words: list[str], found: str) -> None:
    environment = os.environ | {
        "_SWITCHGEAR_AGENT_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["switchgear-agent", *words]),
        "COMP_CWORD": str(len(words)),
    }
    answer = subprocess.run(
        [sys.executable, "-c", "from engine.agent.cli import group; group(prog_name='switchgear-agent')"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found in [line.partition(",")[2] for line in answer.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_SWITCHGEAR_AGENT_COMPLETE" in capsys.readouterr().out


def test_other_commands_do_not_import_the_agent() -> None:
    code = (
        "import sys; from engine.agent.cli import main; main(['drain', '--agent', 'http://127.0.0.1:1']); "
        "print([one for one in ('grpc', 'aiohttp', 'yaml', 'structlog') if one in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
