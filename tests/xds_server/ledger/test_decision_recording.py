"""A recording has the inputs of decisions: replayed, it repeats them, and other policies differ."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from engine.report import EngineReport, Verdict
from policies.load import load_contents
from policies.model import PolicySet
from policies.route import PriorityClass
from tests.xds_server.ledger.conftest import POLICIES
from xds_server.cli import main
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import Decisions, Ejector
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.ledger.decision_recording import (
    DecisionRecorder,
    RecordedInputs,
    RecordingError,
    RecordingReader,
    read_rounds,
)
from xds_server.ledger.decision_replay import replay
from xds_server.ledger.jsonl_writer import JsonlWriter
from xds_server.model.fleet import EngineId, Fleet, declared, with_pod_states, with_report, with_traffic
from xds_server.model.order import Order, OrderAction
from xds_server.model.pod_state import PodPhase, PodState
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic, Proxy, ProxyTraffic

TEXTS = {"chat.yaml": POLICIES}
STEP_S = 0.25
PROXIES = MappingProxyType({"gw-1": Proxy(node="gw-1", zone="a", role="gateway", cuts=True)})


def read(text: str = POLICIES) -> PolicySet:
    return load_contents({Path("chat.yaml"): text.encode()})


def history(seed: int, steps: int = 60, *, spoken: bool = False) -> tuple[list[RecordedInputs], list[Decisions]]:
    """Rounds in which reports, traffic and orders change, r1 fails for a while, with their decisions.

    ``spoken``: with pod states, too.
    """
    rng, words, policies = random.Random(seed), random.Random(seed), read()
    fleet: Fleet = declared(policies)
    moments: list[RecordedInputs] = []
    decided: list[Decisions] = []
    memory = NO_MEMORY
    connected = ConnectedProxies(by_node=PROXIES, by_role={"gateway": 1}, calling_zones=frozenset({"", "a"}))
    totals = {f"r{number}": [0, 0] for number in range(1, 5)}
    orders: dict[EngineId, Order] = {}
    for step in range(steps):
        now_s = 100.0 + step * STEP_S
        for name, total in totals.items():
            bad = name == "r2" and rng.random() < 0.4
            report = EngineReport(
                pool="chat",
                engine=name,
                verdict=Verdict.HUNG if bad else Verdict.READY,
                evidence="no token" if bad else "tokens move",
                observed_at_s=now_s,
                sequence=step + 1,
                requests_in_flight=rng.choice([None, 1, 2]),
            )
            if rng.random() < 0.8:
                fleet = with_report(fleet, report, now_s)
            # An engine without news is not written again.
            total[0] += 10 if name != "r3" or step % 3 == 0 else 0
            total[1] += 10 if name == "r1" and 20 <= step < 40 else 0
        engines = {
            name: EngineTraffic(
                window_calls=25,
                window_failures=20 if name == "r1" and 20 <= step < 40 else 0,
                succeeded=done - failed,
                failed=failed,
                heard_at_s=100.0 if name == "r3" else now_s,
            )
            for name, (done, failed) in totals.items()
        }
        proxy = ProxyTraffic(
            arrivals_per_s=MappingProxyType({PriorityClass.INTERACTIVE: 12.5}),
            in_flight_on=MappingProxyType({"r1": step}),
            load_at_s=now_s,
            heard_at_s=now_s,
        )
        fleet = with_traffic(
            fleet, {"chat": PoolTraffic(engines=engines, proxies={"gw-1": proxy}, heard_at_s=now_s)}
        )
        if spoken and step % 7 == 0:
            # Sometimes, once for the engine whose reports only repeat, and back again.
            standing = words.choice([PodPhase.UNFIT, PodPhase.LEAVING, PodPhase.PRESENT])
            said = PodState(standing=standing, reason=f"step {step}")
            fleet = with_pod_states(fleet, {} if step == 42 else {EngineId("chat", "r3"): said})
        if step == 10:
            key = EngineId("chat", "r4")
            orders = {key: Order(engine=key, action=OrderAction.DRAIN, until_s=now_s + 3, reason="x")}
        active = {key: one for key, one in orders.items() if one.until_s > now_s}
        moments.append(
            RecordedInputs(
                now_s=now_s,
                unix_s=1e9 + now_s,
                texts=TEXTS,
                fleet=fleet,
                proxies=PROXIES,
                proxies_by_role={"gateway": 1},
                calling_zones=frozenset({"", "a"}),
                orders=active,
            )
        )
        decisions, memory = decide(policies, fleet, memory, proxies=connected, now_s=now_s, orders=active)
        decided.append(decisions)
    return moments, decided


async def record(file: Path, moments: Sequence[RecordedInputs], max_bytes: int = 10_000_000) -> None:
    lines = JsonlWriter(file, max_bytes)
    recorder = DecisionRecorder(lines)
    writer = asyncio.create_task(lines.run())
    for moment in moments:
        recorder.record(moment)
    await asyncio.sleep(0)
    writer.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writer
    assert lines.lost == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_replay_repeats_recorded_decisions(tmp_path: Path, seed: int) -> None:
    moments, decided = history(seed, spoken=True)
    await record(tmp_path / "r", moments)
    policies, reading = read(), RecordingReader()
    fleet: Fleet | None = None
    memory = NO_MEMORY
    at = 0
    for at, one in enumerate(read_rounds(tmp_path / "r", reading)):
        fleet = reading.fleet(policies, fleet)
        assert fleet.pools == moments[at].fleet.pools
        assert fleet.traffic == moments[at].fleet.traffic
        assert reading.orders == moments[at].orders
        again, memory = decide(
            policies, fleet, memory, proxies=reading.connected, now_s=one.now_s, orders=reading.orders
        )
        assert again.engines == decided[at].engines
        assert again.pools["chat"].admission == decided[at].pools["chat"].admission
    assert at == len(moments) - 1
    # Some ejections: the history is worth comparing.
    assert any(one.health != "HEALTHY" for round_ in decided for one in round_.engines.values())
    assert any(one.ejector is Ejector.ORCHESTRATOR for round_ in decided for one in round_.engines.values())


async def test_rotated_recording_starts_with_a_full_round(tmp_path: Path) -> None:
    moments, _ = history(1)
    await record(tmp_path / "r", moments, max_bytes=20_000)
    assert (tmp_path / "r.1").is_file()
    reading, policies = RecordingReader(), read()
    for _ in read_rounds(tmp_path / "r", reading):
        pass
    assert reading.fleet(policies).pools == moments[-1].fleet.pools
    assert reading.fleet(policies).traffic == moments[-1].fleet.traffic


async def test_replay_differs_only_under_other_policies(tmp_path: Path) -> None:
    moments, _ = history(1)
    await record(tmp_path / "r", moments)
    same = replay(tmp_path / "r", read())
    assert same.same
    assert same.length_s == pytest.approx((len(moments) - 1) * STEP_S)
    # As recorded r1 is ejected at 80 % failures; without a breaker it never is.
    off = replay(tmp_path / "r", read(POLICIES.replace("errorRatePercent: 30", "errorRatePercent: 0")))
    assert not off.same
    r1 = next(one for one in off.engines if one.engine == "r1")
    assert (r1.left, r1.left_then, r1.out_s_then) == (1, 0, 0.0)
    assert r1.out_s
    # The reverse: the recording ran without a breaker, which would have avoided those failures.
    await record(
        tmp_path / "off",
        [
            replace(one, texts={"chat.yaml": POLICIES.replace("errorRatePercent: 30", "errorRatePercent: 0")})
            for one in moments
        ],
    )
    spared = next(one for one in replay(tmp_path / "off", read()).engines if one.engine == "r1")
    assert (spared.left, spared.left_then) == (0, 1)
    assert 0 < spared.avoided <= 200


async def test_replay_command_prints_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moments, _ = history(1)
    await record(tmp_path / "r", moments)
    other = tmp_path / "other.yaml"
    other.write_text(POLICIES.replace("errorRatePercent: 30", "errorRatePercent: 0"))
    assert main(["replay", str(tmp_path / "r"), "-f", str(other)]) == 0
    told = capsys.readouterr().out
    assert "60 rounds over 15s: recorded policies -> other policies" in told
    assert "chat/r1: ejected " in told
    assert "-> never" in told
    other.write_text("kind: Nonsense\n")
    assert main(["replay", str(tmp_path / "r"), "-f", str(other)]) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ":1: not a recording"),
        ("hello\n", ":1: not a recording"),
        ('{"format": "switchgear-recording/9", "begun_at_unix_s": 1}\n', ":1: format 'switchgear-recording/9'"),
        ('{"format": "switchgear-recording/1", "begun_at_unix_s": 1}\n{"now_s": 1}\n', ":2: unix_s"),
        ('{"format": "switchgear-recording/1", "begun_at_unix_s": 1}\n', "no rounds recorded"),
    ],
)
def test_invalid_recording_is_refused_by_line(
    tmp_path: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r").write_text(text)
    (tmp_path / "p.yaml").write_text(POLICIES)
    with pytest.raises(RecordingError, match="r") as error:
        replay(tmp_path / "r", read())
    assert told in str(error.value)
    assert main(["replay", str(tmp_path / "r"), "-f", str(tmp_path / "p.yaml")]) == 2
    assert told in capsys.readouterr().err


async def test_truncated_last_line_is_skipped_others_are_refused(tmp_path: Path) -> None:
    moments, _ = history(1, steps=10)
    file = tmp_path / "r"
    await record(file, moments)
    whole = file.read_text()
    file.write_text(whole[:-20])
    report = replay(file, read())
    assert report.rounds == 9
    assert "the last line was incomplete and was skipped" in report.remarks
    lines = whole.splitlines()
    lines[4] = lines[4][:-20]
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordingError, match="r:5: "):
        replay(file, read())
