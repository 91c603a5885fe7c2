"""The parts of a lab depend on its faults."""

import pytest

from chaos.fake_engine.engine_faults import EngineHang
from chaos.faults.actions import (
    OTHER_ZONES,
    ChangeLoad,
    CorruptConfig,
    FalsifyReports,
    FalsifyTelemetry,
    FaultAction,
    FreezeProcess,
    KillProcess,
    ProcessRole,
    PushPolicy,
    RestartEngine,
    SetEngineFault,
    SetGpuState,
    ShapeLink,
)
from chaos.lab.lab_requirements import LabRequirements, all_requirements, concerns_lab, lab_requirements

ZONES = {"e0": "a", "e1": "b"}
PROXIES = {"p0": "a"}


@pytest.mark.parametrize(
    ("pull", "wanted"),
    [
        (SetEngineFault(engine="e0", fault=EngineHang()), LabRequirements()),
        (KillProcess(part=ProcessRole.ENGINE, target="e0"), LabRequirements(alone=frozenset({"e0"}))),
        (FreezeProcess(part=ProcessRole.ENGINE, target="e1"), LabRequirements(alone=frozenset({"e1"}))),
        # A simulated engine restarts inside its process.
        (RestartEngine(engine="e0", drain_within_s=None, shutdown_timeout_s=0), LabRequirements()),
        (KillProcess(part=ProcessRole.AGENT, target="e0"), LabRequirements()),
        (ShapeLink(end="engine", target="e0"), LabRequirements(links=frozenset({"engine:e0"}))),
        (ShapeLink(end="agent", target="e0"), LabRequirements(links=frozenset({"agent:e0"}))),
        (
            ShapeLink(end="engine", target=OTHER_ZONES, sources=("p0",)),
            LabRequirements(links=frozenset({"engine:e1"})),
        ),
        # The wiretap is always there.
        (ShapeLink(end="xds", target="p0"), LabRequirements()),
        (FalsifyReports(engine="e0", verdict="ready"), LabRequirements(reports=True)),
        (SetGpuState(engine="e0", lines=()), LabRequirements(gpus=True)),
    ],
)
def test_each_action_has_its_requirements(pull: FaultAction, wanted: LabRequirements) -> None:
    assert lab_requirements([pull], ZONES, PROXIES) == wanted


def test_requirements_add_up() -> None:
    both = lab_requirements(
        [KillProcess(part=ProcessRole.ENGINE, target="e0"), FreezeProcess(part=ProcessRole.ENGINE, target="e1")],
        ZONES,
        PROXIES,
    )
    assert both.alone == all_requirements(ZONES).alone


@pytest.mark.parametrize(
    ("pull", "without"),
    [
        (SetEngineFault(engine="e0", fault=EngineHang()), True),
        (KillProcess(part=ProcessRole.PROXY, target="p0"), True),
        (ShapeLink(end="engine", target="e0"), True),
        (ChangeLoad(factor=2), True),
        (KillProcess(part=ProcessRole.AGENT, target="e0"), False),
        (FreezeProcess(part=ProcessRole.CONTROL_PLANE, target="control-plane"), False),
        (ShapeLink(end="xds", target="p0"), False),
        (ShapeLink(end="agent", target="e0"), False),
        (FalsifyTelemetry(proxy="p0", lost=True), False),
        (CorruptConfig(proxy="p0"), False),
        (PushPolicy(kept_share=0.5, text=""), False),
        (FalsifyReports(engine="e0", verdict="ready"), False),
        (SetGpuState(engine="e0", lines=()), False),
    ],
)
def test_actions_on_missing_parts_do_not_concern_the_lab(pull: FaultAction, *, without: bool) -> None:
    assert concerns_lab(pull, control_plane=False, agents=False) is without
    assert concerns_lab(pull, control_plane=True, agents=True)


def test_control_plane_faults_apply_without_agents() -> None:
    assert concerns_lab(FalsifyTelemetry(proxy="p0", lost=True), control_plane=True, agents=False)
    assert not concerns_lab(KillProcess(part=ProcessRole.AGENT, target="e0"), control_plane=True, agents=False)
