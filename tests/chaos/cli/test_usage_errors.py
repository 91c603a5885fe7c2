"""What cannot be done is said in a line, with exit status 2, before anything is started."""

import asyncio
import http.server
import socket
import threading
from pathlib import Path

import pytest

from chaos.cli import experiment_series, main
from chaos.gpu_double import nvml_double
from chaos.history.recorded_history import History
from chaos.lab.control_port import control_port
from chaos.lab.envoy_processes import NotReadyError
from chaos.processes import ProcessError

EXAMPLE = str(Path(__file__).parents[3] / "policies" / "examples" / "single-pool.yaml")


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(*_: object) -> History:
        raise AssertionError("an experiment was begun")

    monkeypatch.setattr(experiment_series, "run_experiment", run)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("command", [["run", "quick"], ["verify"], ["simulate", "quick"]])
@pytest.mark.parametrize(
    ("option", "place", "says"),
    [
        ("--out", "file/histories", "Not a directory"),
        ("--junit", "nowhere/chaos.xml", "there is no folder"),
        ("--html", "nowhere/chaos.html", "there is no folder"),
    ],
)
def test_where_nothing_can_be_written_nothing_is_run(
    command: list[str],
    option: str,
    place: str,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    assert main([*command, "--policies", EXAMPLE, option, str(tmp_path / place)]) == 2
    said = capsys.readouterr().err
    assert option in said
    assert says in said


@pytest.mark.usefixtures("nothing_runs")
def test_without_a_compiler_nothing_is_run_of_a_suite_that_breaks_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nvml_double, "compiler", lambda: None)
    assert main(["run", "one-hangs", "gpu-off-the-bus", "--policies", EXAMPLE]) == 2
    said = capsys.readouterr().err
    assert "gpu-off-the-bus: GPU faults need" in said
    assert "install one" in said


@pytest.mark.usefixtures("nothing_runs")
def test_what_this_machine_cannot_do_is_said_of_all_scenarios_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nvml_double, "compiler", lambda: None)
    monkeypatch.setattr(experiment_series, "unavailable_reason", lambda: "only root loses packets")
    assert main(["verify", "--suite", "standard", "--policies", EXAMPLE]) == 2
    said = capsys.readouterr().err
    assert "black-hole: only root loses packets" in said
    assert "gpu-off-the-bus: GPU faults need" in said


@pytest.mark.parametrize(
    ("left_out", "says"),
    [(["one-hang"], "the suite has no such scenario"), (["quick"], "leaves nothing of the suite")],
)
@pytest.mark.usefixtures("nothing_runs")
def test_what_is_left_out_is_of_the_suite_and_not_all_of_it(
    left_out: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for one in left_out for word in ("--leave-out", one)]
    assert main(["verify", "--policies", EXAMPLE, *words]) == 2
    assert says in capsys.readouterr().err


def test_a_file_that_is_no_history_stays_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diary = tmp_path / "00-0-quick-envoy.jsonl"
    diary.write_text("dear diary\n")
    assert main(["run", "quick", "--policies", "envoy", "--out", str(tmp_path)]) == 2
    assert "this is no history" in capsys.readouterr().err
    assert diary.read_text() == "dear diary\n"


@pytest.mark.parametrize(
    ("lab", "says"),
    [("foo", "write http://127.0.0.1:PORT"), ("http://127.0.0.1:1", "there is no lab; `switchgear-chaos lab`")],
)
def test_who_injects_where_no_lab_is_learns_it(lab: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inject", "hang", "--lab", lab]) == 2
    assert says in capsys.readouterr().err


def test_who_injects_into_something_else_learns_it(capsys: pytest.CaptureFixture[str]) -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert main(["inject", "hang", "--lab", f"http://127.0.0.1:{server.server_port}"]) == 2
        server.shutdown()
    assert "what answers there is no lab" in capsys.readouterr().err


def test_who_injects_learns_that_the_lab_went_away(capsys: pytest.CaptureFixture[str]) -> None:
    class Dying(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.wfile.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            line = b'{"id": "f", "targets": ["e1"]}\n'
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dying) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert main(["inject", "hang", "--lab", f"http://127.0.0.1:{server.server_port}"]) == 2
        server.shutdown()
    out, err = capsys.readouterr()
    assert "hang bites: e1" in out
    assert "the lab went away" in err


def test_a_control_port_that_somebody_has_is_named() -> None:
    async def held(port: int) -> None:
        async with control_port(None, port):  # type: ignore[arg-type] -- nobody gets to ask of it
            raise AssertionError("two listen on one port")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NotReadyError, match=f"port {port}: .*in use"):
            asyncio.run(held(port))


def test_what_ends_an_experiment_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = []

    async def run(*_: object) -> History:
        begun.append(True)
        raise ProcessError("envoy did not start")

    monkeypatch.setattr(experiment_series, "run_experiment", run)
    assert main(["run", "quick", "--policies", EXAMPLE]) == 2
    assert "envoy did not start" in capsys.readouterr().err
    assert len(begun) == 2, "a suite is too long to lose it to one start that failed"
