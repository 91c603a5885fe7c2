"""``switchgear plan``: exit codes, output formats, cost of help."""

import importlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.xds_server.admin_api.rows import engine_status, objective_status, pool_status
from xds_server.admin.json_http import as_json_dict
from xds_server.admin_api.pool_history_types import PoolPoint
from xds_server.cli import main

FLEET = ["--engines", "60", "--slots", "8", "--service-time", "4s", "--arrivals", "100"]
STAGES = [
    "stages", "--arrivals", "20", "--input-tokens", "2000", "--output-tokens", "250", "--prefill-rate", "20000",
    "--decode-rate", "2500", "--decode-slots", "64", "--kv-bytes", "128KiB", "--bandwidth", "12.5GB",
]  # fmt: skip
NEED = ["redundancy", "--need", "20", "--availability", "0.995"]
HEAVY = ("numpy", "scipy", "matplotlib", "pydantic", "grpc", "rich")


def plan(*argv: str) -> int:
    return main(["plan", *argv])


def asked(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = plan(*argv, "-o", "json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


@pytest.mark.parametrize("argv", [["--help"], ["plan", "--help"]])
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    code = (
        "import sys; from xds_server.cli import main; main(sys.argv[1:]); "
        f"sys.exit(str([one for one in {HEAVY!r} if one in sys.modules]) if "
        f"any(one in sys.modules for one in {HEAVY!r}) else 0)"
    )
    found = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "redundancy" in found.stdout or "Plan a fleet" in found.stdout


def test_validate_does_not_import_plans() -> None:
    code = (
        "import sys; from xds_server.cli import main; main(['validate', 'policies/examples/single-pool.yaml']); "
        "sys.exit('chaos.planning' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=False).returncode == 0


def test_redundancy_reports_spares_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = asked(capsys, *NEED, "--target", "0.999,0.9999", "--cost-per-hour", "2")
    assert code == 0
    assert [(one["spares"], one["cost_per_month"]) for one in found["targets"]] == [(2, 2920), (3, 4380)]
    assert found["targets"][0]["attained"] == pytest.approx(0.99982, abs=1e-5)


def test_redundancy_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--zones", "3", "--zone-down", "0.05%", "--samples", "20000", "--region-down", "0.0002"]
    assert plan(*NEED, *argv, "--target", "0.999,0.9999", "--cost-per-hour", "2") == 0
    text = capsys.readouterr().out
    for part in ("99.99 %", "4,380", "3 zones", "standby", "730 hours"):
        assert part in text


def test_unreachable_target_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(*NEED, "--zone-down", "0.01") == 1
    assert "No number of spares" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([*NEED, "--target", "99.9"], "did you mean 99.9%"),
        ([*NEED, "--target", "1"], "target of 1"),
        ([*NEED, "--target", ","], "--target is empty"),
        ([*NEED, "--cost-per-hour", "-1"], "must not be negative"),
        ([*NEED, "--zones", "0"], "at least one of each"),
        ([*NEED, "--builds", "9", "--build-down", "0.01"], "--samples"),
        ([*NEED, "--repair", "1h"], "excludes --crashes-per-day"),
        (["redundancy", "--need", "5"], "--availability"),
        (["redundancy"], "missing --need"),
        (["redundancy", "--need", "0", "--availability", "0.9"], "at least one"),
        (["redundancy", "--need", "5", "--crashes-per-day", "1", "--repair", "5"], "is not a duration"),
        (["capacity", *FLEET[:4]], "needs --slots, --service-time and --arrivals"),
        (["capacity", *FLEET, "--admin", "http://127.0.0.1:1"], "remove --admin"),
        (["capacity", *FLEET, "--late", "0"], "between 0 and 1"),
        (["capacity", *FLEET, "--plot", "x.pdf"], "must end in .png"),
        (["capacity", *FLEET, "--plot", "no/such/x.png"], "does not exist"),
        (["capacity", "--admin", "http://127.0.0.1:1"], "no server answers"),
        (["growth", *FLEET], "--growth"),
        (["growth", *FLEET, "--growth", "much"], "not a share"),
        (["whatif", *FLEET], "missing change"),
        (["whatif", *FLEET, "--lose-engines", "61"], "only 60 are in rotation"),
        (["whatif", *FLEET, "--load-times", "2", "--no-ceiling", "--max-wait", "1s"], "mutually exclusive"),
        (["capacity", *FLEET[:-1], "1e308"], "the limit is 1e9"),
        (["stages"], "missing --arrivals, or --users with --per-user"),
        (STAGES[:3], "missing --input-tokens"),
        (STAGES[:-2], "missing --bandwidth"),
        (["stages", "--users", "5"], "belong together"),
        ([*STAGES, "--users", "5", "--per-user", "2"], "excludes --arrivals"),
        ([*STAGES, "--arrivals", "-1"], "--arrivals -1"),
        ([*STAGES, "--decode-slots", "0"], "--decode-slots 0"),
        ([*STAGES, "--prefill-engines", "0"], "--prefill-engines 0"),
        ([*STAGES, "--output-tokens", "0.5"], "--output-tokens 0.5"),
        ([*STAGES, "--prefill-rate", "inf"], "--prefill-rate inf"),
        ([*STAGES, "--link-load", "100%"], "--link-load 1"),
        ([*STAGES, "--kv-bytes", "128"], "is not a size: write 128KiB"),
    ],
)
def test_invalid_input_exits_2(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(*argv) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_crash_rate_and_repair_give_availability(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["redundancy", "--need", "8", "--crashes-per-day", "0.5", "--repair", "30m", "--detection", "1m"]
    code, found = asked(capsys, *argv)
    load = 0.5 * 31 / 1440
    assert code == 0
    assert found["engine_down"] == pytest.approx(load / (1 + load))


def test_capacity_reports_zone_loss(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = asked(capsys, "capacity", *FLEET, "--zones", "3", "--availability", "0.995")
    assert code == 0
    assert found["whole"]["now"]["in_flight"] == pytest.approx(400, abs=0.1)
    assert found["without_zone"][0]["now"]["wait_mean_s"] is None, "JSON knows no infinity"
    assert found["nines"]
    assert plan("capacity", *FLEET, "--zones", "3", "--survive-zone") == 1
    assert plan("capacity", *FLEET, "--arrivals", "119") == 1


def test_growth_before_lead_time_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("growth", *FLEET, "--growth", "5%", "--lead-months", "2") == 0
    assert "Order within 1.4 months" in capsys.readouterr().out
    assert plan("growth", *FLEET, "--growth", "5%", "--lead-months", "4") == 1
    assert plan("growth", *FLEET, "--growth", "-1%") == 0


def test_overload_without_ceiling_waits_forever(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("whatif", *FLEET, "--load-times", "2", "--no-ceiling") == 1
    assert "without bound" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        [*NEED, "--cost-per-hour", "2"],
        ["capacity", *FLEET, "--zones", "3"],
        ["growth", *FLEET, "--growth", "3%"],
        ["whatif", *FLEET, "--load-times", "1.1"],
        STAGES,
    ],
    ids=lambda argv: argv[0],
)
def test_plot_is_written(argv: list[str], tmp_path: Path) -> None:
    assert plan(*argv, "--plot", str(tmp_path / "a.png")) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert plan(*argv, "--plot", str(tmp_path / "a.html")) == 0
    page = (tmp_path / "a.html").read_text()
    assert "<table>" in page
    assert "data:image/png;base64," in page
    assert "http" not in page.partition("<body>")[2]


@pytest.fixture
def server() -> Iterator[str]:
    """Serve the routes that a plan reads."""
    pool = pool_status(arrivals_per_s=6.0, ceiling=32, held=0, slots=16.0)
    usual = {"slots": 8.0, "service_s": 2.0, "in_flight": 4, "done_per_s": 2.0}
    engines = [engine_status(f"e{number}", zone="ab"[number], **usual) for number in range(2)]
    objectives = [
        objective_status(route="talk", pools=("chat",), objective="total-p99", limit_s=6.9),
        objective_status(route="talk", pools=("chat",), objective="first-token-p95", target_percent=95.0),
        objective_status(route="", pool="chat", pools=("chat",), objective="good", limit_s=None),
        objective_status(route="prose", pools=("prose",)),
    ]
    points = [
        {**dict.fromkeys(field.name for field in fields(PoolPoint)), "at_unix_s": at_s, "total_p99_s": total_s}
        for at_s, total_s in ((100.0, 50.0), (1000.0, 6.0), (1010.0, None), (1020.0, 5.0), (1030.0, 9.0))
    ]
    history = {"interval_s": 10.0, "kept_s": 900.0, "since_unix_s": 0.0}
    answers = {
        "/v1/objectives": {"objectives": [as_json_dict(one) for one in objectives]},
        "/v1/pool-history?pool=chat": {**history, "pools": [{"pool": "chat", "points": points}]},
        "/v1/pools": {"pools": [as_json_dict(pool)]},
        "/v1/engines": {"engines": [as_json_dict(one) for one in engines]},
    }

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def test_numbers_come_from_a_running_server(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = asked(capsys, "whatif", "--admin", server, "--lose-engines", "1")
    assert code == 1
    assert found["pool"] == "chat"
    assert found["before"]["pressure"] == pytest.approx(6 * 2 / 16)
    assert found["after"]["refused"] == pytest.approx(1 / 3, abs=0.05)
    assert found["max_wait_s"] == pytest.approx(2.0)
    assert plan("capacity", "--admin", server, "--service-time", "1s") == 0
    assert "--service-time from the command line" in capsys.readouterr().out


def test_objectives_of_a_server_are_judged(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["whatif", "--admin", server, "--lose-engines", "0", "--load-times", "1.01"]
    code, found = asked(capsys, *argv, "--shed", "10%")
    before, after = found["objectives"]["before"], found["objectives"]["after"]
    assert [one["name"] for one in before] == ["talk/total-p99", "talk/first-token-p95", "pool/chat/good"]
    assert before[0]["expected_s"] == pytest.approx(6.0), "the median of the last five minutes"
    assert after[0]["expected_s"] > 6.0
    assert [one["kept"] for one in before[:2]] == [True, None]
    # 6 requests/s for 16 slots of 2 s: 1 % of them are refused.
    assert [one["kept"] for one in after] == [True, None, after[2]["good"] >= 0.99]
    assert code == (0 if after[2]["kept"] else 1)
    assert plan("whatif", "--admin", server, "--slower-times", "1.5", "--shed", "100%") == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "talk/total-p99 99 % within 6.9 s 6 s" in text
    assert "s: missed" in text
    assert "no latency was measured: talk/first-token-p95." in text


def test_capacity_judges_objectives_without_a_zone(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["capacity", "--admin", server, "--arrivals", "3", "--max-wait", "10s"]
    code, found = asked(capsys, *argv)
    now, without = found["objectives"]["now"], found["objectives"]["without_zone"]
    assert (code, sorted(without)) == (0, ["a", "b"])
    assert now[0]["expected_s"] < 6.0 < without["a"][0]["expected_s"], "fewer requests wait less, fewer slots more"
    assert plan(*argv, "--survive-zone") == 1
    capsys.readouterr()
    assert plan(*argv, "--service-time", "3s") == 1
    assert "s: missed" in capsys.readouterr().out


def test_stages_are_sized_from_users(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = asked(capsys, "stages", "--users", "3600", "--per-user", "20", *STAGES[3:])
    assert code == 0
    assert found == asked(capsys, *STAGES)[1]
    assert found["demand"]["arrivals_per_s"] == 20
    assert (found["prefill"]["needs"]["engines"], found["decode"]["needs"]["engines"]) == (3, 3)


def test_stages_exit_1_if_a_stage_or_the_memory_is_too_small(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(*STAGES, "--survive-engine") == 0, "one to spare"
    assert plan(*STAGES, "--decode-engines", "3") == 0
    assert plan(*STAGES, "--decode-engines", "3", "--survive-engine") == 1
    assert plan(*STAGES, "--prefill-engines", "2") == 1
    assert plan(*STAGES, "--kv-memory", "1GB") == 0
    capsys.readouterr()
    assert plan(*STAGES, "--kv-memory", "100MB") == 1
    assert "do not fit --kv-memory" in capsys.readouterr().out
    assert plan(*STAGES, "--prefill-engines", "1", "--decode-engines", "1") == 1
    assert "∞" in capsys.readouterr().out


def test_guide_names_existing_options() -> None:
    text = (Path(__file__).parents[3] / "docs" / "planning.md").read_text()
    questions = {}
    for name in ("redundancy", "capacity", "growth", "whatif", "stages"):
        question = importlib.import_module(f"chaos.planning.cli.{name}").command
        questions[name] = {option for parameter in question.params for option in parameter.opts}
    known = set().union(*questions.values(), {"--record"})
    assert set(re.findall(r"--[a-z][-a-z]*", text)) <= known
    examples = re.findall(r"^switchgear plan ([a-z]+)((?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert {name for name, _ in examples} == set(questions)
    for name, rest in examples:
        assert set(re.findall(r"--[a-z][-a-z]*", rest)) <= questions[name]
