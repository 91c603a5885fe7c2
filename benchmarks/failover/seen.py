"""An experiment of this benchmark as the chaos harness writes it down, so that both are measured by one rule."""

from dataclasses import asdict

from benchmarks.failover.history import Attempt, History
from benchmarks.failover.prediction import share_left
from benchmarks.failover.setting import Setting
from chaos.fake_engine.faults import fault_object
from chaos.history import events
from chaos.history import history as chaos
from chaos.history.outcomes import Outcome
from chaos.measures.measures import Measures
from chaos.measures.measures import measured as measures_of
from chaos.measures.periods import Phases
from chaos.measures.trouble import Trouble, of_engine_fault

_POOL = "llama"


def measured(history: History, setting: Setting) -> Measures:
    """The numbers of one experiment."""
    return measures_of(seen(history, setting), troubles(history), phases(history))


def seen(history: History, setting: Setting) -> chaos.History:
    """The same events, with times that count from the beginning."""
    began_s = history.began_s
    return chaos.History(
        began=_began(history, setting),
        outages=tuple(
            chaos.Outage(
                id=f"outage-{place}",
                fault=fault_object(one.fault) or {},
                targets=(f"e{one.engine}",),
                start_s=one.start_s - began_s,
                end_s=one.end_s - began_s,
            )
            for place, one in enumerate(history.outages)
        ),
        requests=[_request(one, began_s) for one in history.outcomes],
        attempts=[_attempt(one, began_s) for one in history.attempts],
        samples=history.samples,
        used=events.Used(at_s=history.end_s - began_s, **asdict(history.use)),
        ended_s=history.end_s - began_s,
    )


def troubles(history: History) -> tuple[Trouble, ...]:
    """What was wrong with which engine, when."""
    return tuple(
        Trouble(
            outage=f"outage-{place}",
            kind=one.fault.kind,
            engine=f"e{one.engine}",
            start_s=one.start_s - history.began_s,
            end_s=one.end_s - history.began_s,
            nature=of_engine_fault(one.fault, share_left(one.fault)),
        )
        for place, one in enumerate(history.outages)
    )


def phases(history: History) -> Phases:
    """Its times, which are those of the plan."""
    return Phases(
        began_s=0.0,
        fault_s=history.fault_s - history.began_s,
        healed_s=history.healed_s - history.began_s,
        end_s=history.end_s - history.began_s,
    )


def _began(history: History, setting: Setting) -> events.Began:
    return events.Began(
        at_unix_s=0.0,
        name="failover",
        subject="",
        scenario={},
        policies="",
        pool=_POOL,
        time_scale=1.0,
        max_wait_s=setting.max_wait_s,
        service_s=setting.mean_service_s,
        rate_per_s=setting.rate_per_s,
        seconds=history.end_s - history.began_s,
        seed=setting.seed,
        engines=tuple(
            events.EngineSeen(
                name=f"e{engine}",
                zone=setting.zone(engine),
                slots=setting.kind(engine).slots,
                slowness=setting.kind(engine).slowness,
                pool=_POOL,
            )
            for engine in range(setting.engines)
        ),
        proxies=(),
    )


def _request(one: Outcome, began_s: float) -> events.Request:
    return events.Request(
        at_s=one.arrived_at_s - began_s,
        request_id=one.request_id,
        question=one.request_id,
        proxy=one.target,
        streaming=one.streaming,
        lag_s=one.lag_s,
        status=one.status,
        reason=one.reason,
        first_token_s=one.first_token_s,
        latency_s=one.latency_s,
        tokens=one.tokens,
        longest_gap_s=one.longest_gap_s,
        fallback=one.fallback,
        refusal=one.refusal,
    )


def _attempt(one: Attempt, began_s: float) -> events.Attempt:
    return events.Attempt(
        at_s=one.arrived_at_s - began_s,
        engine=f"e{one.engine}",
        request_id=one.request_id,
        number=1,
        streaming=False,
        fate=one.fate,
        reason=one.reason,
        closed_at_s=one.closed_at_s - began_s,
        started_at_s=None if one.started_at_s is None else one.started_at_s - began_s,
        slot_s=one.slot_s,
        tokens_generated=0,
        tokens_sent=0,
    )
