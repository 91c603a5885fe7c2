"""Pool from a recording, at its busiest, with the values learned by then."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from chaos.planning.error import PlanError
from chaos.planning.objective_outlook import objective_outlooks
from chaos.planning.recorded_pool import recorded_pool
from policies.load import load_contents
from policies.route import PriorityClass
from xds_server.cli import main
from xds_server.ledger.decision_recording import DecisionRecorder, RecordedInputs
from xds_server.ledger.jsonl_writer import JsonlWriter
from xds_server.model.fleet import declared, with_traffic
from xds_server.model.pool_traffic import EngineTraffic, LatencyTail, PoolTraffic, Proxy, ProxyTraffic

POLICIES = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: m
  slotsPerEngine: 4
  serviceTime: 1s
  endpoints:
    - {address: 127.0.0.1, port: 1, name: r1, zone: a}
    - {address: 127.0.0.1, port: 2, name: r2, zone: b}
---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {name: chat}
spec:
  pools: [chat]
  limits: {maxWait: 3s}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: talk}
spec:
  listener: {port: 8080}
  pools: [{pool: chat}]
  objectives: {goodPercent: 99, total: {p95: 5s, p99: 6s}, firstToken: {p95: 1s}}
"""


def moments(rates: Sequence[float]) -> list[RecordedInputs]:
    """One round per second; requests take 2 s, twice the declared service time."""
    policies = load_contents({Path("chat.yaml"): POLICIES.encode()})
    fleet, found = declared(policies), []
    for step, rate in enumerate(rates):
        now_s = 100.0 + step
        proxy = ProxyTraffic(arrivals_per_s={PriorityClass.INTERACTIVE: rate}, load_at_s=now_s, heard_at_s=now_s)
        engine = EngineTraffic(
            window_calls=25,
            succeeded=10 * step,
            done_per_s=rate / 2,
            busy=rate,
            service_s=2.0,
            in_flight=int(rate),
            heard_at_s=now_s,
        )
        answer = LatencyTail(p50_s=2.0, p95_s=3.0, p99_s=4.0, calls=1000)
        traffic = PoolTraffic(
            engines={"r1": engine, "r2": engine}, proxies={"gw": proxy}, answer=answer, heard_at_s=now_s
        )
        fleet = with_traffic(fleet, {"chat": traffic} if rate else {})
        found.append(
            RecordedInputs(
                now_s=now_s,
                unix_s=1e9 + now_s,
                texts={"chat.yaml": POLICIES},
                fleet=fleet,
                proxies={"gw": Proxy(node="gw", zone="a", role="gateway")},
                proxies_by_role={"gateway": 1},
                calling_zones=frozenset({"a"}),
                orders={},
            )
        )
    return found


async def write(file: Path, rounds: Sequence[RecordedInputs]) -> None:
    lines = JsonlWriter(file, 10_000_000)
    recorder = DecisionRecorder(lines)
    writer = asyncio.create_task(lines.run())
    for moment in rounds:
        recorder.record(moment)
    await asyncio.sleep(0)
    writer.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writer


async def test_busiest_seconds_use_learned_values(tmp_path: Path) -> None:
    await write(tmp_path / "r", moments([2.0] * 20 + [3.0] * 30 + [1.0] * 20))
    found = recorded_pool(tmp_path / "r")
    assert found.pool == "chat"
    assert found.arrivals_per_s == pytest.approx(3.0)
    assert [(one.name, one.zone, one.slots, one.up) for one in found.engines] == [
        ("r1", "a", 4.0, True),
        ("r2", "b", 4.0, True),
    ]
    assert found.service_s == pytest.approx(2.0, rel=0.1), "as measured, not as declared"
    assert found.max_wait_s == 3.0


async def test_whatif_reads_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await write(tmp_path / "r", moments([3.0] * 30))
    argv = ["plan", "whatif", "--recording", str(tmp_path / "r")]
    assert main([*argv, "--load-times", "0.5"]) == 0
    assert main([*argv, "--lose-zone", "a"]) == 1
    capsys.readouterr()
    assert main([*argv, "--lose-zone", "a", "-o", "json"]) == 1
    # 3 requests/s of 2 s each for 4 slots: a third is refused.
    assert json.loads(capsys.readouterr().out)["after"]["refused"] == pytest.approx(1 / 3, abs=0.05)
    assert main([*argv, "--lose-zone", "c"]) == 2
    assert main([*argv, "--pool", "prose", "--load-times", "2"]) == 2
    assert "pools: chat" in capsys.readouterr().err


async def test_objectives_are_those_of_the_recorded_policies(tmp_path: Path) -> None:
    await write(tmp_path / "r", moments([1.0] * 30))
    found = objective_outlooks(recorded_pool(tmp_path / "r"))
    assert [(one.name, one.expected_s, one.kept) for one in found] == [
        ("talk/good", None, True),
        ("talk/first-token-p95", None, None),
        ("talk/total-p95", pytest.approx(3.0), True),
        ("talk/total-p99", pytest.approx(4.0), True),
    ]


async def test_recording_without_traffic_is_refused(tmp_path: Path) -> None:
    await write(tmp_path / "r", moments([0.0] * 5))
    with pytest.raises(PlanError, match="no traffic reported"):
        recorded_pool(tmp_path / "r")
    (tmp_path / "x").write_text("no\n")
    with pytest.raises(PlanError, match="not a recording"):
        recorded_pool(tmp_path / "x")
