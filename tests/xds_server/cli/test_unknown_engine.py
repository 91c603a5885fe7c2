"""An engine without any report or request is unknown in every view, and served anyway."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.xds_server.cli.test_eject_drain_restore_audit import Engine, Server
from xds_server.cli.top_screen import TopSelection, render_screen
from xds_server.diagnosis.live_state import LiveState
from xds_server.model.fleet import Engine as FleetEngine
from xds_server.model.fleet import EngineId, Fleet
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic

POLICY = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: chat}}
spec:
  model: m
  probe: {{enabled: {probed}, interval: 0.1s}}
  endpoints: [{{address: 127.0.0.1, port: {port}, name: r0}}]
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: chat}}
spec: {{listener: {{port: 18080}}, pools: [{{pool: chat}}]}}
"""


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


def served(folder: Path, engine: Engine, probed: str) -> Server:
    return Server(folder, POLICY.format(probed=probed, port=engine.port))


def page(server: Server, path: str) -> str:
    with urllib.request.urlopen(f"{server.admin}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def first_frame(server: Server) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.admin}/v1/live", timeout=10) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                frame: dict[str, Any] = json.loads(line[6:])
                return frame
    raise AssertionError("no frame")


def test_engine_without_report_is_unknown_in_every_view(tmp_path: Path, engine: Engine) -> None:
    server = served(tmp_path, engine, "false")
    try:
        server.until(lambda: server.engine("r0")["reason"] != "")
        row = server.engine("r0")
        assert (row["health"], row["reason"]) == (None, "in rotation, but unknown: no report and no request yet")
        assert "UNKNOWN" in server.run("get", "engines")[1]
        status = server.run("status")[1]
        assert "Engines of chat: 1 UNKNOWN" in status
        assert "SG223 engine chat/r0: no report yet: its state is unknown" in status
        code, story, _ = server.run("why", "r0")
        assert code == 1
        assert "in rotation for" in story
        assert "its state is unknown: no report and no request yet" in story
        assert server.run("describe", "engine", "r0")[1].startswith(story.splitlines()[0][:20])
        assert 'switchgear_engines{health="UNKNOWN",pool="chat",zone=""} 1.0' in page(server, "/metrics")
        frame = first_frame(server)
        assert frame["tables"]["engines"]["chat/r0"]["health"] is None
        board = LiveState()
        board.take("frame", frame)
        assert "UNKNOWN" in render_screen(board, TopSelection(), 120, 40).plain
        # It is served: an unknown engine stays in rotation.
        assert frame["tables"]["pools"]["chat"]["healthy"] == 1
        resources = json.loads(page(server, "/v1/snapshot?zone=&role=gateway"))["resources"]
        assert "chat" in [one["name"] for one in resources if one["type"] == "EDS"]
    finally:
        server.stop()


def test_engine_with_a_report_is_healthy(tmp_path: Path, engine: Engine) -> None:
    server = served(tmp_path, engine, "true")
    try:
        server.until(lambda: server.engine("r0")["health"] == "HEALTHY")
        assert server.run("why", "r0")[0] == 0
        assert "SG223" not in server.run("status")[1]
    finally:
        server.stop()


@pytest.mark.parametrize(("calls", "known"), [({}, False), ({"succeeded": 1}, True), ({"failed": 1}, True)])
def test_reported_requests_make_an_engine_known(calls: dict[str, int], known: bool) -> None:
    one = FleetEngine(
        id=EngineId("chat", "r0"), address="127.0.0.1", port=9, zone="", region="", slots=1, weight=1,
        tensor_parallel_group="", labels={},
    )  # fmt: skip
    traffic = {"chat": PoolTraffic(engines={"r0": EngineTraffic(**calls)})}  # type: ignore[arg-type]
    fleet = Fleet(pools={"chat": (one,)}, places={"chat": {"r0": 0}}, traffic=traffic)
    assert fleet.is_known(one) is known
