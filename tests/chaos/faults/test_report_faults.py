"""Reports that lie: what a control plane that watches through the relay hears of a well engine."""

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from chaos.agent_tap.report_rules import (
    ReportRule,
    ReportRuleError,
    falsified_message,
    falsified_report,
    parse_report_rule,
)
from chaos.faults.actions import ProcessRole
from chaos.faults.clock_skew import ClockSkewFault
from chaos.faults.reports_lie import ReportsLieFault
from chaos.lab.agent_process import agent_process
from chaos.lab.injectors.tap_injectors import ReportInjector
from chaos.processes import ChildProcesses
from engine.proto import engine_report_pb2 as pb
from engine.report import EngineReport, Evidence, Verdict
from engine.report_wire import decode, encode
from engine.watch_server import ACKNOWLEDGE, WATCH
from tests.chaos.faults.small_lab import InjectedFault, engine_site, site


class ReportWatcher:
    """What a control plane hears, report by report."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        watch = self._channel.unary_stream(WATCH, request_serializer=pb.WatchRequest.SerializeToString)
        self._reports = watch(pb.WatchRequest(watcher="test"))
        self.acknowledge = self._channel.unary_unary(
            ACKNOWLEDGE,
            request_serializer=pb.DrainProgress.SerializeToString,
            response_deserializer=pb.DrainAnswer.FromString,
        )
        self.sequences: list[int] = []

    async def until(self, holds) -> EngineReport:
        """The first report that holds; numbers only ever grow on the way."""
        async with asyncio.timeout(60):
            while True:
                report = decode(await self._reports.read(), pool="", engine="e0", received_at_s=1000.0)
                self.sequences.append(report.sequence)
                assert self.sequences == sorted(self.sequences)
                if holds(report):
                    return report

    async def close(self) -> None:
        self._reports.cancel()
        await self._channel.close()


@pytest.fixture
async def processes() -> AsyncIterator[ChildProcesses]:
    async with ChildProcesses(stop_limit_s=0.1) as children:
        yield children


async def test_false_report_is_delivered_at_once_and_the_true_one_after_healing(
    processes, start_engine, client
) -> None:
    engine = await start_engine(name="e0")
    beside = agent_process(processes, "e0", engine.port, 2)
    await beside.post.start()
    relay = await processes.start(
        "reports",
        [sys.executable, "-m", "chaos.agent_tap", "--link", f"agent:e0=127.0.0.1:{beside.grpc}"],
        ready_within_s=60,
    )
    here = site(
        client,
        engine_site("e0", engine.port, agent_port=beside.grpc),
        posts={(ProcessRole.AGENT, "e0"): beside.post},
        control_plane="http://127.0.0.1:1",
        reports=relay.ready["control"],
    )
    listening = ReportWatcher(relay.ready["ports"]["agent:e0"])
    await listening.until(lambda one: one.verdict is Verdict.READY and one.canary)
    for fault, holds in (
        (ReportsLieFault(verdict="hung"), lambda one: one.verdict is Verdict.HUNG and one.canary.in_row == 0),
        (ClockSkewFault(), lambda one: one.canary.at_s <= 1000.0 - 600.0),
        # A time in the future is none that a control plane can use.
        (ClockSkewFault(direction="behind"), lambda one: one.canary is None),
    ):
        struck = InjectedFault(here, fault, "e0")
        await struck.pull()
        await listening.until(holds)
        await struck.release()
        await listening.until(lambda one: one.verdict is Verdict.READY and one.canary and one.canary.at_s > 900.0)
        await struck.release()
    newest = pb.DrainProgress(watcher="test", boot_id="x", sequence=listening.sequences[-1])
    assert not (await listening.acknowledge(newest)).waiting
    await listening.close()


def report(**more: object) -> bytes:
    plain = {"verdict": Verdict.HUNG, "evidence": "no token for 3 s", "observed_at_s": 0.0, "sequence": 7}
    return encode(EngineReport(pool="", engine="", boot_id="b", **{**plain, **more}))  # type: ignore[arg-type]


def read(data: bytes) -> EngineReport:
    return decode(data, pool="", engine="", received_at_s=0.0)


def test_hung_engine_can_be_reported_ready() -> None:
    praised = read(falsified_report(report(), [ReportRule(engine="e0", verdict=Verdict.READY)], 1))
    assert praised.verdict is Verdict.READY
    assert praised.canary is not None
    assert praised.canary.in_row > 0
    assert "no token" not in praised.evidence


def test_report_versions_increase_and_share_one_answer() -> None:
    numbers = [
        read(falsified_report(report(sequence=one), [], version)).sequence for one in (7, 8) for version in (3, 4)
    ]
    assert numbers == sorted(set(numbers))
    for number in numbers[:2]:
        answer = pb.DrainProgress.FromString(
            falsified_message(pb.DrainProgress(sequence=number).SerializeToString())
        )
        assert answer.sequence == 7


def test_report_times_shift_with_clock_skew() -> None:
    reasons = (Evidence(reading="tokens", sentence="stalled", age_s=2.0),)
    skewed = read(falsified_report(report(reasons=reasons), [ReportRule(engine="e0", clock_skew_s=60.0)], 0))
    assert skewed.reasons[0].age_s == 62.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("{", "Invalid JSON"), ("{}", "engine"), ('{"engine": "e0", "verdict": "fine"}', "verdict")],
)
def test_invalid_report_rule_is_refused_with_the_field(text: str, complaint: str) -> None:
    with pytest.raises(ReportRuleError, match=complaint):
        parse_report_rule(text)


async def test_report_fault_needs_the_agent_tap(client) -> None:
    (pull,) = ReportsLieFault().actions("e0")
    agents = site(client, engine_site("e0", 1, agent_port=2), control_plane="http://127.0.0.1:1")
    assert "no agent tap" in ReportInjector(agents).refusal(pull)
    alone = ReportInjector(site(client, engine_site("e0", 1)))
    assert alone.refusal(pull) == ""
    await alone.inject(pull)
    await alone.revert(pull)
