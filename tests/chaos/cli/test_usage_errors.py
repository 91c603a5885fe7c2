"""Usage errors print one line and exit 2 before anything starts."""

import asyncio
import http.server
import socket
import threading
from pathlib import Path

import pytest

from chaos.cli import experiment_series, main, verify
from chaos.gpu_double import nvml_double
from chaos.history.recorded_history import History
from chaos.lab.control_port import control_port
from chaos.lab.envoy_processes import NotReadyError
from chaos.processes import ProcessError
from chaos.scenario.scenario_library import chosen_scenarios

EXAMPLE = str(Path(__file__).parents[3] / "policies" / "examples" / "single-pool.yaml")


@pytest.fixture
def no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(*_: object) -> History:
        raise AssertionError("an experiment was started")

    monkeypatch.setattr(experiment_series, "run_experiment", run)


@pytest.mark.usefixtures("no_runs")
@pytest.mark.parametrize("command", [["run", "quick"], ["verify"], ["simulate", "quick"]])
@pytest.mark.parametrize(
    ("option", "place", "says"),
    [
        ("--out", "file/histories", "Not a directory"),
        ("--junit", "nowhere/chaos.xml", "does not exist"),
        ("--html", "nowhere/chaos.html", "does not exist"),
    ],
)
def test_unwritable_output_exits_2_before_any_run(
    command: list[str],
    option: str,
    place: str,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    assert main([*command, "-f", EXAMPLE, option, str(tmp_path / place)]) == 2
    expected = capsys.readouterr().err
    assert option in expected
    assert says in expected


@pytest.mark.usefixtures("no_runs")
def test_missing_compiler_refuses_gpu_scenarios(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nvml_double, "compiler", lambda: None)
    assert main(["run", "one-hangs", "gpu-off-the-bus", "-f", EXAMPLE]) == 2
    expected = capsys.readouterr().err
    assert "gpu-off-the-bus: no C compiler, needed" in expected
    assert "install one" in expected


@pytest.mark.usefixtures("no_runs")
def test_all_impossible_scenarios_are_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nvml_double, "compiler", lambda: None)
    monkeypatch.setattr(experiment_series, "unavailable_reason", lambda: "only root loses packets")
    assert main(["verify", "--suite", "standard", "-f", EXAMPLE]) == 2
    expected = capsys.readouterr().err
    assert "black-hole: only root loses packets" in expected
    assert "gpu-off-the-bus: no C compiler, needed" in expected


@pytest.mark.parametrize(
    ("left_out", "says"),
    [(["one-hang"], "not in this suite"), (["quick"], "removes every scenario")],
)
@pytest.mark.usefixtures("no_runs")
def test_leave_out_names_some_scenarios_of_the_suite(
    left_out: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for one in left_out for word in ("--leave-out", one)]
    assert main(["verify", "-f", EXAMPLE, *words]) == 2
    assert says in capsys.readouterr().err


def test_foreign_file_is_kept_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diary = tmp_path / "00-0-quick-envoy.jsonl"
    diary.write_text("dear diary\n")
    assert main(["run", "quick", "-f", "envoy", "--out", str(tmp_path)]) == 2
    assert "not a history" in capsys.readouterr().err
    assert diary.read_text() == "dear diary\n"


@pytest.mark.parametrize(
    ("lab", "says"),
    [
        ("foo", "write http://127.0.0.1:PORT"),
        ("http://127.0.0.1:1", "no lab listens here; start one with `switchgear-chaos lab`"),
    ],
)
def test_inject_without_lab_exits_2(lab: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inject", "hang", "--lab", lab]) == 2
    assert says in capsys.readouterr().err


def test_inject_into_another_server_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert main(["inject", "hang", "--lab", f"http://127.0.0.1:{server.server_port}"]) == 2
        server.shutdown()
    assert "the server there is not a lab" in capsys.readouterr().err


def test_inject_reports_that_the_lab_stopped(capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "hang injected: e1" in out
    assert "the lab stopped" in err


def test_busy_control_port_is_named() -> None:
    async def held(port: int) -> None:
        async with control_port(None, port):  # type: ignore[arg-type] -- never used
            raise AssertionError("two listeners on one port")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NotReadyError, match=f"port {port}: .*in use"):
            asyncio.run(held(port))


def test_failed_experiment_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = []

    async def run(*_: object) -> History:
        starts.append(True)
        raise ProcessError("envoy did not start")

    monkeypatch.setattr(experiment_series, "run_experiment", run)
    assert main(["run", "quick", "-f", EXAMPLE]) == 2
    assert "envoy did not start" in capsys.readouterr().err
    assert len(starts) == 2, "a failed start is retried once"


@pytest.mark.usefixtures("no_runs")
def test_verify_skips_scenarios_about_limits_that_the_policies_lack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some = ("noisy-neighbour", "token-quota-accuracy", "deadline")
    monkeypatch.setattr(verify, "suite", lambda _: chosen_scenarios(some))
    main(["verify", "-f", EXAMPLE])
    printed = " ".join(capsys.readouterr().out.split())
    for name in some[:2]:
        assert f"skipped: scenario {name} needs 3 named tenants, and the route has none" in printed
    assert "skipped: scenario deadline needs a deadline, and the route's listener has none" in printed
