"""Whole experiments: real Envoys, the real control plane, simulated engines."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from chaos.faults.actions import FreezeProcess, ProcessRole
from chaos.faults.hang import HangFault
from chaos.history.event_codec import from_line
from chaos.history.history_reader import read_history
from chaos.history.request_outcomes import OutcomeReason
from chaos.lab.experiment import run_experiment
from chaos.lab.history_recorder import record_history
from chaos.lab.lab_handles import InjectionError
from chaos.lab.lab_session import BlastRadiusError, Lab
from chaos.scenario.scenario_model import FaultTarget
from chaos.testbed.subjects import subjects
from tests.chaos.lab.experiments import experiment
from tests.eventually import eventually

# On a busy machine it takes a while until all stands.
pytestmark = [pytest.mark.envoy, pytest.mark.timeout(400)]

POLICIES = Path(__file__).parents[3] / "policies" / "examples" / "single-pool.yaml"
HANG = {"kind": "hang"}
LIMIT_S = 60.0


def children() -> set[int]:
    """Processes that have this one as parent: field 4 of stat, behind the name in parentheses (proc(5))."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(path.parent.name))
    return found


async def test_hang_of_half_the_engines_is_recorded(tmp_path: Path) -> None:
    known = children()
    half = {"fault": HANG, "target": {"fraction": 0.5}, "at": "2s", "lasts": "5s"}
    (subject,) = subjects([str(POLICIES)])
    # On a starved machine 5 s may be too short to detect the hang: then repeat.
    for number in range(4):
        path = tmp_path / f"{number}.jsonl"
        history = await run_experiment(experiment(half, load={"deadline": "3s"}), subject, path)
        assert not children() - known
        if any(one.out for one in history.decided) and any(one.verdict == "hung" for one in history.detected):
            break
    kinds = {from_line(line).event for line in path.read_bytes().splitlines()}
    assert kinds == {
        "began",
        "fault_began",
        "fault_healed",
        "request",
        "attempt",
        "proxy_sample",
        "detected",
        "decided",
        "pushed",
        "answered",
        "used",
        "ended",
    }
    assert read_history(path) == history
    (outage,) = history.outages
    assert len(outage.targets) == 2
    assert 2 <= outage.start_s < outage.end_s
    assert {one.request_id for one in history.attempts} <= {one.request_id for one in history.requests}
    assert {one.engine for one in history.attempts} == {"e0", "e1", "e2", "e3"}
    # Switchgear detected it, decided and pushed.
    assert {one.engine for one in history.detected if one.verdict == "hung"} & set(outage.targets)
    assert {one.engine for one in history.decided if one.at_s > outage.start_s and one.out} & set(outage.targets)
    assert any(one.at_s > outage.start_s for one in history.pushed)
    assert any(one.ok for one in history.requests if one.at_s > outage.start_s)
    assert "127.0.0.1" in history.began.policies
    assert history.began.time_scale > 1


async def test_abort_condition_stops_and_heals() -> None:
    everybody = {"fault": HANG, "at": "1s", "lasts": "50s"}
    (subject,) = subjects(["envoy"])
    asked = experiment(
        everybody,
        engines=2,
        seconds=60,
        load={"deadline": "1s"},
        abort={"goodputBelowPercent": 50, "after": "1s"},
    )
    # Callers are answered in the second before the hang, unless the machine was starved then.
    for _ in range(4):
        history = await run_experiment(asked, subject)
        if {OutcomeReason.OK, OutcomeReason.TIMEOUT} <= {one.reason for one in history.requests}:
            break
    assert history.aborted is not None
    assert history.ended_s is not None
    (outage,) = history.outages
    assert outage.end_s is not None
    assert max(one.at_s for one in history.requests) < 50
    assert {OutcomeReason.OK, OutcomeReason.TIMEOUT} <= {one.reason for one in history.requests}
    # No pushes and no decisions.
    assert not [*history.pushed, *history.decided, *history.detected]


async def test_faults_are_injected_by_hand_in_an_open_lab() -> None:
    (subject,) = subjects(["envoy"])
    asked = experiment(engines=2, load={"deadline": "1s"}, blastRadius={"enginesPercent": 50})
    async with (
        Lab.open(asked, subject, by_hand=True) as lab,
        record_history(lab) as recording,
        recording.sending(),
    ):

        def come(*, ok: bool) -> bool:
            return any(one.ok is ok for one in recording.requests if one.at_s > since_s)

        since_s = recording.now_s()
        await eventually(lambda: come(ok=True), "good answers", LIMIT_S)
        async with lab.strike(HangFault(), FaultTarget(engine=1)) as struck:
            assert struck.targets == ("e1",)
            since_s = recording.now_s()
            await eventually(lambda: come(ok=False), "answers that do not come", LIMIT_S)
            with pytest.raises(BlastRadiusError, match="2 of 2 engines"):
                async with lab.strike(HangFault(), FaultTarget(engine=0)):
                    pass
        frozen = FreezeProcess(part=ProcessRole.ENGINE, target="e0")
        async with lab.inject(frozen):
            since_s = recording.now_s()
            await eventually(lambda: come(ok=False), "answers that do not come from a stopped engine", LIMIT_S)
        since_s = recording.now_s()
        await eventually(lambda: come(ok=True), "good answers again", LIMIT_S)
        with pytest.raises(InjectionError, match="e9"):
            lab.refuse([FreezeProcess(part=ProcessRole.ENGINE, target="e9")])
        with pytest.raises(InjectionError, match="matches nothing"):
            async with lab.strike(HangFault(), FaultTarget(zone="z")):
                pass
    (outage,) = recording.history.outages
    assert (outage.kind, outage.targets) == ("hang", ("e1",))
    assert outage.end_s is not None
    assert recording.history.attempts


async def test_cancelled_experiment_leaves_nothing_behind(tmp_path: Path) -> None:
    known = children()
    half = {"fault": HANG, "target": {"fraction": 0.5}, "at": "0s", "lasts": "60s"}
    (subject,) = subjects(["envoy"])
    path = tmp_path / "history.jsonl"
    task = asyncio.create_task(
        run_experiment(experiment(half, seconds=60), subject, path, folder=tmp_path / "lab")
    )
    await eventually(lambda: path.exists() and b"fault_began" in path.read_bytes(), "the fault", LIMIT_S)
    assert len(children() - known) >= 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not children() - known
    history = read_history(path)
    assert history.ended_s is None
    assert history.outages[0].end_s is not None
