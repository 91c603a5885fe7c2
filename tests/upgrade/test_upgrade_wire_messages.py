"""What earlier agents, servers and replicas say is understood today."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine.proto import engine_report_pb2 as pb
from engine.report import EngineReport, ReportSource, Verdict
from engine.report_wire import decode
from xds_server.cli import main
from xds_server.k8s.replica_status import replica_status

SITUATIONS = {
    "starting": Verdict.STARTING,
    "ready": Verdict.READY,
    "busy": Verdict.BUSY,
    "hung": Verdict.HUNG,
    "recovered": Verdict.READY,
    "degraded": Verdict.DEGRADED,
    "draining": Verdict.DRAINING,
    "dead": Verdict.DEAD,
}


def report(then: Path, name: str) -> EngineReport:
    data = (then / "reports" / f"{name}.bin").read_bytes()
    return decode(data, pool="chat", engine="e0", received_at_s=70.0)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_recorded_agent_reports_keep_their_meaning(then: Path, situation: str) -> None:
    said = report(then, situation)
    assert (said.verdict, said.source, said.slots) == (SITUATIONS[situation], ReportSource.AGENT, 4)
    assert said.boot_id
    assert said.sequence > 0
    assert said.evidence == said.reasons[0].sentence


def test_numbers_of_a_busy_engine(then: Path) -> None:
    said = report(then, "busy")
    assert (said.requests_in_flight, said.requests_waiting, said.model) == (8, 4, "fake-model")
    assert said.revision.startswith("vllm ")
    assert said.time_to_first_token is not None
    assert said.time_to_first_token.p50_s == pytest.approx(0.05)
    assert said.canary is not None
    assert said.canary.in_row == 1
    assert 60.0 < said.canary.at_s < 70.0


def test_why_an_engine_is_hung(then: Path) -> None:
    (why,) = report(then, "hung").reasons
    assert (why.reading, why.threshold) == ("tokens", "a token within 1 s while requests are in flight")
    assert why.age_s == pytest.approx(1.0, abs=0.2)


def test_a_gpu_that_is_too_hot(then: Path) -> None:
    said = report(then, "degraded")
    assert said.gpu is not None
    assert said.gpu.action == "degrade"
    (gpu,) = said.gpu.gpus
    assert (gpu.sm_clock_mhz, gpu.ecc_corrected, gpu.throttled) == (345, 7, ("hardware thermal slowdown",))
    assert (gpu.memory_total_bytes, gpu.power_w) == (85_899_345_920, 412.5)
    assert said.reasons[0].reading == "gpu.throttled_by_heat"


def test_a_drain_with_its_deadline(then: Path) -> None:
    said = report(then, "draining")
    assert said.drain is not None
    assert said.drain.deadline_in_s == pytest.approx(40.0, abs=0.5)
    assert report(then, "ready").drain is None


def test_the_summary_of_another_region(before: Path) -> None:
    said = report(before, "summary")
    assert (said.verdict, said.slots, said.model) == (Verdict.READY, 16, "fake-model")
    assert said.evidence.startswith("level 0, 2 of 4 engines healthy")


def test_agent_answers_an_earlier_control_plane(then: Path) -> None:
    asked = pb.WatchRequest.FromString((then / "asked" / "watch.bin").read_bytes())
    assert asked.watcher
    progress = pb.DrainProgress.FromString((then / "asked" / "acknowledge.bin").read_bytes())
    assert (progress.watcher, progress.boot_id) == (asked.watcher, "recorded")
    assert (progress.proxies_total, progress.proxies_acknowledged) == (1, 1)
    assert progress.sequence > 0


def test_replica_lease_of_an_earlier_version_is_counted(before: Path) -> None:
    leases = json.loads((before / "cluster" / "leases.json").read_text())["items"]
    (lease,) = [one for one in leases if one["metadata"]["name"] == "switchgear-replica-replica-a"]
    said = replica_status(lease)
    assert said is not None
    (group,) = said.groups
    assert (group.role, group.zone, group.count) == ("gateway", "z1", 1)
    assert said.digest


@pytest.fixture
def server(before: Path) -> Iterator[str]:
    """A server that answers as the one before this did."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = before / "answers" / f"{self.path.removeprefix('/v1/').partition('?')[0]}.json"
            found = page.is_file()
            missing = json.dumps({"error": f"GET {self.path}: Not Found"}).encode()
            body = page.read_bytes() if found else missing
            self.send_response(200 if found else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{listening.server_address[1]}"
    listening.shutdown()
    thread.join(30)
    listening.server_close()


def test_commands_of_today_ask_the_server_before(server: str, capsys: pytest.CaptureFixture[str]) -> None:

    def told(*command: str) -> str:
        code = main([*command, "--admin", server])
        said = capsys.readouterr()
        assert code in (0, 1), said.err
        return said.out

    assert "p0" in told("status")
    engines = told("get", "engines")
    assert [name for name in ("e0", "e1", "e2", "e3") if name in engines] == ["e0", "e1", "e2", "e3"]
    assert "DRAINING" in engines
    assert "chat" in told("get", "pools")
    assert "z1" in told("get", "zones")
    assert "new driver" in told("get", "orders")
    assert "hung: 1 requests in flight" in told("get", "events")
