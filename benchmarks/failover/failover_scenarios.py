"""What goes wrong, one value per scenario: which engines, in what way, from when to when.

Instants are shares of the fault window, so that a scenario can be stretched. Engines are picked from both halves
of the fleet in turn, so that the processes that simulate them share the work of the bad ones.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from benchmarks.failover.experiment_setting import EngineKind, ExperimentSetting
from chaos.fake_engine import (
    EngineCrash,
    EngineErrorAfterWork,
    EngineFault,
    EngineFlap,
    EngineHang,
    EngineHangMidStream,
    EngineSlow,
)

RESTART_SHARE: Final = 0.65
"""Of its turn in a rolling restart an engine is gone for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSelection:
    """Engines that a fault hits, by exactly one of ``share``, ``count`` and ``zone``; ``skip`` skips engines hit
    by another fault of the scenario. ``in_turn``: one after another instead of all at once. ``begins`` and
    ``ends`` are shares of the fault window. ``agents``: the engines' agents die too.
    """

    fault: EngineFault
    share: float = 0.0
    count: int = 0
    zone: str = ""
    skip: int = 0
    in_turn: bool = False
    begins: float = 0.0
    ends: float = 1.0
    agents: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverScenario:
    """One scenario. ``changes`` override the default setting.

    ``control_plane_dies``: killed when the fault begins, not restarted. ``telemetry_lost_at``: share of the fault
    window after which access logs and load reports are dropped. ``demand_turns_at``: share after which the
    proxies' demand is reversed. ``mixed``: held to goodput and waits alone; ``slowness`` multiplies the longest
    service that the latter allow.
    """

    name: str
    title: str
    hits: tuple[FaultSelection, ...]
    changes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    control_plane_dies: bool = False
    telemetry_lost_at: float | None = None
    demand_turns_at: float | None = None
    mixed: bool = False
    slowness: float = 1.0

    def setting(self, wanted: ExperimentSetting) -> ExperimentSetting:
        """The setting with what this scenario needs."""
        return replace(wanted, **self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutage:
    """One engine is bad in ``[start_s, end_s)``: in a plan seconds from the start of the fault window, in a
    history the machine's monotonic clock.
    """

    engine: int
    fault: EngineFault
    start_s: float
    end_s: float
    agents: bool = False


HALF_FAIL: Final = FailoverScenario(
    name="S1",
    title="half answer 500 after the work",
    hits=(FaultSelection(fault=EngineErrorAfterWork(), share=0.5),),
)
ONE_HANGS: Final = FailoverScenario(
    name="S2", title="one hangs, /health says 200", hits=(FaultSelection(fault=EngineHang(), count=1),)
)
HALF_CRASH: Final = FailoverScenario(
    name="S3", title="half crash", hits=(FaultSelection(fault=EngineCrash(), share=0.5),)
)
TWO_SLOW: Final = FailoverScenario(
    name="S4", title="two are 10x slow", hits=(FaultSelection(fault=EngineSlow(factor=10.0), count=2),)
)
HALF_HANG: Final = FailoverScenario(
    name="S5", title="half hang", hits=(FaultSelection(fault=EngineHang(), share=0.5),)
)
ROLLING: Final = FailoverScenario(
    name="S6",
    title="rolling restart, none drained",
    hits=(FaultSelection(fault=EngineCrash(), share=1.0, in_turn=True),),
)
SIX: Final = (HALF_FAIL, ONE_HANGS, HALF_CRASH, TWO_SLOW, HALF_HANG, ROLLING)

_STREAMS: Final = {"streaming_share": 1.0}
MORE: Final = (
    FailoverScenario(
        name="zone-loss",
        title="one of three zones is gone, agents and all",
        hits=(FaultSelection(fault=EngineCrash(), zone="b", agents=True),),
        changes={"zones": 3, "engines": 9, "demand": (1.0, 1.0, 1.0)},
    ),
    FailoverScenario(
        name="unequal",
        title="engines of unequal size and speed, the largest hangs",
        hits=(FaultSelection(fault=EngineHang(), count=1),),
        changes={
            "kinds": (
                EngineKind(slots=16),
                EngineKind(slots=8),
                EngineKind(slots=8, slowness=2.0),
                EngineKind(slots=4),
            )
        },
    ),
    FailoverScenario(
        name="flap",
        title="one fails for 2 s in every 4 s",
        hits=(
            FaultSelection(fault=EngineFlap(fault=EngineErrorAfterWork(), period_s=4.0, bad_share=0.5), count=1),
        ),
    ),
    FailoverScenario(
        name="two-proxies",
        title="half hang; two proxies with 3:1 of the demand, 1:3 from mid-fault on",
        hits=(FaultSelection(fault=EngineHang(), share=0.5),),
        changes={"demand": (3.0, 1.0)},
        demand_turns_at=0.5,
    ),
    FailoverScenario(
        name="streams",
        title="half hang, streams behind the first-token gate",
        hits=(FaultSelection(fault=EngineHang(), share=0.5),),
        changes={**_STREAMS, "gate": True},
    ),
    FailoverScenario(
        name="streams-no-gate",
        title="half hang, streams whose headers come at once",
        hits=(FaultSelection(fault=EngineHang(), share=0.5),),
        changes={**_STREAMS, "gate": False},
    ),
    FailoverScenario(
        name="stall",
        title="one engine's streams fall silent after 8 tokens, behind the gate",
        hits=(FaultSelection(fault=EngineHangMidStream(after_tokens=8), count=1),),
        changes={**_STREAMS, "gate": True},
    ),
    FailoverScenario(
        name="hang-and-slow",
        title="one hangs while another is 10x slow",
        hits=(
            FaultSelection(fault=EngineHang(), count=1),
            FaultSelection(fault=EngineSlow(factor=10.0), count=1, skip=1),
        ),
    ),
    FailoverScenario(
        name="crash-and-errors",
        title="two crash, then one fails half of its calls",
        hits=(
            FaultSelection(fault=EngineCrash(), count=2),
            FaultSelection(fault=EngineErrorAfterWork(share=0.5), count=1, skip=2, begins=0.3),
        ),
    ),
    FailoverScenario(
        name="alone",
        title="a pool of one engine; it crashes",
        hits=(FaultSelection(fault=EngineCrash(), count=1),),
        changes={"engines": 1, "kinds": (EngineKind(slots=32),), "engine_processes": 1},
    ),
)
MIXTURES: Final = (
    FailoverScenario(
        name="most-fail",
        title="six of eight answer 500 after the work",
        hits=(FaultSelection(fault=EngineErrorAfterWork(), count=6),),
        mixed=True,
    ),
    FailoverScenario(
        name="mixed-restarts",
        title="one hangs, two are 10x slow, the others restart in turn",
        hits=(
            FaultSelection(fault=EngineHang(), count=1),
            FaultSelection(fault=EngineSlow(factor=10.0), count=2, skip=1),
            FaultSelection(fault=EngineCrash(), count=5, skip=3, in_turn=True),
        ),
        mixed=True,
    ),
    FailoverScenario(
        name="mixed-errors",
        title="three answer 500 after the work, one hangs, one is 3x slow",
        hits=(
            FaultSelection(fault=EngineErrorAfterWork(), count=3),
            FaultSelection(fault=EngineHang(), count=1, skip=3),
            FaultSelection(fault=EngineSlow(factor=3.0), count=1, skip=4),
        ),
        mixed=True,
    ),
    FailoverScenario(
        name="all-slow",
        title="all engines are 3x slow",
        hits=(FaultSelection(fault=EngineSlow(factor=3.0), share=1.0),),
        mixed=True,
        slowness=3.0,
    ),
)
DEAD: Final = tuple(
    replace(
        one, name=f"dead-{one.name}", title=f"{one.title}; the control plane dies too", control_plane_dies=True
    )
    for one in SIX
)
DEAF: Final = tuple(
    replace(
        one, name=f"deaf-{one.name}", title=f"{one.title}; telemetry is lost in mid-fault", telemetry_lost_at=0.5
    )
    for one in SIX
)
SCENARIOS: Final[Mapping[str, FailoverScenario]] = MappingProxyType(
    {one.name: one for one in (*SIX, *MORE, *MIXTURES, *DEAD, *DEAF)}
)


def outages(scenario: FailoverScenario, setting: ExperimentSetting) -> tuple[EngineOutage, ...]:
    """Every engine's trouble, by the time it begins."""
    found: list[EngineOutage] = []
    for hit in scenario.hits:
        engines = _picked(hit, setting)
        length = hit.ends - hit.begins
        for turn, engine in enumerate(engines):
            begins, ends = hit.begins, hit.ends
            if hit.in_turn:
                begins = hit.begins + length * turn / len(engines)
                ends = begins + length * RESTART_SHARE / len(engines)
            found.append(
                EngineOutage(
                    engine=engine,
                    fault=hit.fault,
                    start_s=begins * setting.fault_s,
                    end_s=ends * setting.fault_s,
                    agents=hit.agents,
                )
            )
    return tuple(sorted(found, key=lambda one: (one.start_s, one.engine)))


def _picked(hit: FaultSelection, setting: ExperimentSetting) -> Sequence[int]:
    if hit.zone:
        return [engine for engine in range(setting.engines) if setting.zone(engine) == hit.zone]
    half = math.ceil(setting.engines / 2)
    order = [place for pair in zip(range(half), range(half, 2 * half), strict=True) for place in pair]
    count = hit.count or round(hit.share * setting.engines)
    return [engine for engine in order if engine < setting.engines][hit.skip : hit.skip + count]
