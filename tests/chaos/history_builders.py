"""Histories made by hand: builders of single events, for histories with exactly what a test is about.

``tests.chaos.simulated_history`` makes whole ones of a simulated queue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.history_events import (
    AttemptRecord,
    ConfigPush,
    ConfigReply,
    ControlPlaneDecision,
    CpuUsage,
    EngineRecord,
    ExperimentBegan,
    ProxyRecord,
    ProxySample,
    RequestRecord,
)
from chaos.history.recorded_history import History, Outage
from chaos.history.request_outcomes import OutcomeReason

HANG = {"kind": "hang", "health": "ok"}
CRASH = {"kind": "crash"}


def engines(
    number: int = 4, *, slots: int = 4, zones: Sequence[str] = ("a",), pool: str = "llama"
) -> tuple[EngineRecord, ...]:
    """Engines of one size, spread over the zones."""
    return tuple(
        EngineRecord(name=f"e{place}", zone=zones[place % len(zones)], slots=slots, slowness=1.0, pool=pool)
        for place in range(number)
    )


def began(
    *, hypothesis: Mapping[str, Any] | None = None, spec: Mapping[str, Any] | None = None, **more: Any
) -> ExperimentBegan:
    """The first line: 30 s of 80 % load on four engines with four slots; ``hypothesis`` as in YAML."""
    expected = {
        "title": "made by hand",
        "incident": "none",
        "hypothesis": dict(hypothesis or {}),
        **(spec or {}),
    }
    plain = ExperimentBegan(
        at_unix_s=1_700_000_000.0,
        name="by-hand",
        subject="policies/good",
        scenario={
            "apiVersion": "switchgear.dev/v1alpha1",
            "kind": "Scenario",
            "metadata": {"name": "by-hand"},
            "spec": expected,
        },
        policies="kind: EnginePool\n",
        pool="llama",
        time_scale=1.0,
        max_wait_s=2.0,
        service_s=0.5,
        rate_per_s=25.6,
        seconds=30.0,
        seed=1,
        engines=engines(),
        proxies=(ProxyRecord(name="p0", zone="a", demand=1.0),),
        versions={"switchgear": "0.1.0"},
    )
    return replace(plain, **more)


def request(
    number: int, at_s: float, *, reason: OutcomeReason = OutcomeReason.OK, latency_s: float = 0.5, **more: Any
) -> RequestRecord:
    """A request that arrived at ``at_s``; good by default."""
    plain = RequestRecord(
        at_s=at_s,
        request_id=f"load-1-{number}",
        question=f"q-{number}",
        proxy="p0",
        streaming=False,
        lag_s=0.0,
        status={OutcomeReason.OK: 200, OutcomeReason.SHED: 503}.get(reason, 0),
        reason=reason,
        first_token_s=None,
        latency_s=latency_s,
        tokens=10,
    )
    return replace(plain, **more)


def attempt(
    asked: int,
    engine: str,
    at_s: float,
    *,
    fate: Fate = Fate.FINISHED,
    slot_s: float = 0.5,
    wait_s: float | None = 0.0,
    closed_s: float | None = None,
    **more: Any,
) -> AttemptRecord:
    """A call of that request that arrived at ``at_s`` and got its slot ``wait_s`` later, or never."""
    ended_s = at_s + (wait_s or 0.0) + slot_s
    plain = AttemptRecord(
        at_s=at_s,
        engine=engine,
        request_id=f"load-1-{asked}",
        number=1,
        streaming=False,
        fate=fate,
        reason="",
        closed_at_s=ended_s if closed_s is None else closed_s,
        started_at_s=None if wait_s is None else at_s + wait_s,
        slot_s=slot_s if wait_s is not None else 0.0,
        tokens_generated=10,
        tokens_sent=10,
    )
    return replace(plain, **more)


def sample(at_s: float, sent: Mapping[str, int], **more: Any) -> ProxySample:
    """An Envoy's sample at ``at_s``."""
    return replace(ProxySample(at_s=at_s, proxy="p0", in_flight={}, sent=sent), **more)


def outage(
    *targets: str,
    fault: Mapping[str, Any] | None = None,
    start_s: float = 10.0,
    end_s: float | None = 20.0,
    name: str = "fault-0",
) -> Outage:
    """A fault on these targets; default: hang from 10 s to 20 s."""
    return Outage(id=name, fault=dict(fault or HANG), targets=targets, start_s=start_s, end_s=end_s)


def decided(
    at_s: float, engine: str, *, out: bool | None, kind: str = "health", **more: Any
) -> ControlPlaneDecision:
    """A line of the ledger: from here on the engine is out, or in."""
    before, after = ("healthy", "unhealthy") if out else ("unhealthy", "healthy")
    plain = ControlPlaneDecision(
        at_s=at_s,
        kind=kind,
        engine=engine,
        subject=f"llama/{engine}",
        before=before,
        after=after,
        evidence="4 calls hang" if out else "it answers again",
        out=out,
    )
    return replace(plain, **more)


def pushed(at_s: float, proxy: str = "p0", nonce: str = "1", type: str = "eds") -> ConfigPush:  # noqa: A002 - the field's name
    """A push to a proxy."""
    return ConfigPush(at_s=at_s, proxy=proxy, type=type, nonce=nonce)


def answered(at_s: float, proxy: str = "p0", nonce: str = "1", type: str = "eds", error: str = "") -> ConfigReply:  # noqa: A002 - the field's name
    """A proxy answered."""
    return ConfigReply(at_s=at_s, proxy=proxy, type=type, nonce=nonce, error=error)


def history(*outages: Outage, began: ExperimentBegan, **more: Any) -> History:
    """A whole history of what is given; it ended 5 s after the last request could arrive."""
    plain = History(
        began=began,
        outages=outages,
        ended_s=began.seconds + 5.0,
        used=CpuUsage(at_s=began.seconds, processes={"engines": 20.0}, machine=50.0, ours=45.0),
    )
    found = replace(plain, **more)
    return replace(
        found,
        requests=sorted(found.requests, key=lambda one: one.at_s),
        attempts=sorted(found.attempts, key=lambda one: one.at_s),
    )
