"""Write contexts: one pool with engines in given states."""

from collections.abc import Mapping
from typing import Any

from engine.report import EngineReport, ReportSource, Verdict
from policies.findings import PolicyError
from policies.origin import Origin
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.decide.diff.change import ChangeKind, Subject
from xds_server.k8s.policy_object import PolicyObject
from xds_server.k8s.replica_status import NackSummary
from xds_server.k8s.status.write_context import ProgrammedState, WriteContext
from xds_server.ledger.event import Event
from xds_server.model.fleet import Engine, EngineId, Fleet, fleet_of
from xds_server.model.pod_state import PodRef

NOW_S = 1000.0
UNIX_S = 1_700_000_000.0


def document(**fields: Any) -> PolicyObject:
    known: dict[str, Any] = {
        "kind": "EnginePool",
        "namespace": "ns",
        "name": "pool",
        "uid": "u",
        "generation": 2,
        "resource_version": "7",
        **fields,
    }
    return PolicyObject(file=f"{known['namespace']}/{known['kind']}/{known['name']}", **known)


def problem(path: str = "spec.model", message: str = "is empty") -> PolicyError:
    place = Origin(file="ns/EnginePool/pool", line=3, column=1)
    return PolicyError(code="SG001", origin=place, path=path, message=message)


def engine(name: str, verdict: Verdict | None, *, age_s: float = 0.5, pool: str = "pool") -> Engine:
    report = None
    if verdict is not None:
        report = EngineReport(
            pool=pool,
            engine=name,
            verdict=verdict,
            evidence=f"{name} is {verdict.value}",
            observed_at_s=NOW_S - age_s,
            source=ReportSource.AGENT,
        )
    return Engine(
        id=EngineId(pool, name),
        address="127.0.0.1",
        port=1,
        zone="a",
        region="",
        slots=1,
        weight=1,
        tensor_parallel_group="",
        labels={},
        report=report,
        received_at_s=None if report is None else NOW_S - age_s,
    )


def decided(verdict: Verdict | None, health: Health) -> EngineDecision:
    return EngineDecision(health=health, reason="", since_s=0.0, verdict=verdict)


def fleet(*engines: Engine) -> Fleet:
    pools: dict[str, tuple[Engine, ...]] = {}
    for one in engines:
        pools[one.id.pool] = (*pools.get(one.id.pool, ()), one)
    return fleet_of(pools)


def programming(*waiting: str, proxies: int = 2, refusals: tuple[NackSummary, ...] = ()) -> ProgrammedState:
    return ProgrammedState(digest="served", proxies=proxies, waiting=waiting, refusals=refusals)


def scene(*objects: PolicyObject, **fields: Any) -> WriteContext:
    known: dict[str, Any] = {
        "objects": objects,
        "digest": "served",
        "texts": {one.file: f"text of {one.name}" for one in objects},
        "fleet": fleet_of({}),
        "engines": {},
        "programmed": programming(),
        "now_s": NOW_S,
        **fields,
    }
    return WriteContext(**known)


def pod(name: str = "e1", *, gate: bool = True) -> PodRef:
    return PodRef(namespace="ns", name=name, uid=f"uid of {name}", has_gate=gate)


def went(number: int, after: Health, *, engine: str = "e1", at: float = UNIX_S, before: str = "HEALTHY") -> Event:
    return Event(
        number=number,
        at_s=NOW_S,
        at_unix_s=at,
        kind=ChangeKind.HEALTH,
        subject=Subject(pool="pool", engine=engine),
        before=before,
        after=after.value,
        evidence="it holds requests and gives nothing",
    )


def conditions(status: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
