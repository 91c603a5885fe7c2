"""What stands in a lab depends on what will be done in it."""

import pytest

from chaos.fake_engine.faults import Hang
from chaos.faults.pulls import (
    OTHER_ZONES,
    BreakEngine,
    Callers,
    Corrupt,
    Freeze,
    Gpu,
    Kill,
    Part,
    Pull,
    PushPolicy,
    Reports,
    Restart,
    Telemetry,
    Wire,
)
from chaos.lab.needs import Needs, everything, is_of, needs

ZONES = {"e0": "a", "e1": "b"}
PROXIES = {"p0": "a"}


@pytest.mark.parametrize(
    ("pull", "wanted"),
    [
        (BreakEngine(engine="e0", fault=Hang()), Needs()),
        (Kill(part=Part.ENGINE, target="e0"), Needs(alone=frozenset({"e0"}))),
        (Freeze(part=Part.ENGINE, target="e1"), Needs(alone=frozenset({"e1"}))),
        # A simulated engine restarts inside its process.
        (Restart(engine="e0", drain_within_s=None, shutdown_timeout_s=0), Needs()),
        (Kill(part=Part.AGENT, target="e0"), Needs()),
        (Wire(end="engine", target="e0"), Needs(links=frozenset({"engine:e0"}))),
        (Wire(end="agent", target="e0"), Needs(links=frozenset({"agent:e0"}))),
        (Wire(end="engine", target=OTHER_ZONES, sources=("p0",)), Needs(links=frozenset({"engine:e1"}))),
        # The wiretap is always there.
        (Wire(end="xds", target="p0"), Needs()),
        (Reports(engine="e0", verdict="ready"), Needs(reports=True)),
        (Gpu(engine="e0", lines=()), Needs(gpus=True)),
    ],
)
def test_each_pull_has_what_it_is_done_with(pull: Pull, wanted: Needs) -> None:
    assert needs([pull], ZONES, PROXIES) == wanted


def test_needs_add_up() -> None:
    both = needs([Kill(part=Part.ENGINE, target="e0"), Freeze(part=Part.ENGINE, target="e1")], ZONES, PROXIES)
    assert both.alone == everything(ZONES).alone


@pytest.mark.parametrize(
    ("pull", "without"),
    [
        (BreakEngine(engine="e0", fault=Hang()), True),
        (Kill(part=Part.PROXY, target="p0"), True),
        (Wire(end="engine", target="e0"), True),
        (Callers(factor=2), True),
        (Kill(part=Part.AGENT, target="e0"), False),
        (Freeze(part=Part.CONTROL_PLANE, target="control-plane"), False),
        (Wire(end="xds", target="p0"), False),
        (Wire(end="agent", target="e0"), False),
        (Telemetry(proxy="p0", lost=True), False),
        (Corrupt(proxy="p0"), False),
        (PushPolicy(kept_share=0.5, text=""), False),
        (Reports(engine="e0", verdict="ready"), False),
        (Gpu(engine="e0", lines=()), False),
    ],
)
def test_who_has_no_control_plane_cannot_lose_it(pull: Pull, *, without: bool) -> None:
    assert is_of(pull, control_plane=False, agents=False) is without
    assert is_of(pull, control_plane=True, agents=True)


def test_without_agents_a_control_plane_can_still_be_lost() -> None:
    assert is_of(Telemetry(proxy="p0", lost=True), control_plane=True, agents=False)
    assert not is_of(Kill(part=Part.AGENT, target="e0"), control_plane=True, agents=False)
