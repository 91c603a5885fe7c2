"""An experiment of this benchmark as the chaos harness writes it down, so that both are measured by one rule."""

from dataclasses import asdict

from benchmarks.failover.experiment_history import EngineAttempt, ExperimentHistory
from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.prediction import share_left
from chaos.fake_engine.engine_faults import engine_fault_object
from chaos.history import history_events
from chaos.history import recorded_history as chaos
from chaos.history.request_outcomes import RequestOutcome
from chaos.measures.experiment_measures import ExperimentMeasures
from chaos.measures.experiment_measures import experiment_measures as measures_of
from chaos.measures.impairments import Impairment, engine_impairment_kind
from chaos.measures.request_periods import ExperimentPhases

_POOL = "llama"


def experiment_measures(history: ExperimentHistory, setting: ExperimentSetting) -> ExperimentMeasures:
    """The numbers of one experiment."""
    return measures_of(chaos_history(history, setting), impairments(history), phases(history))


def chaos_history(history: ExperimentHistory, setting: ExperimentSetting) -> chaos.History:
    """The same events, with times that count from the beginning."""
    began_s = history.began_s
    return chaos.History(
        began=_began(history, setting),
        outages=tuple(
            chaos.Outage(
                id=f"outage-{place}",
                fault=engine_fault_object(one.fault) or {},
                targets=(f"e{one.engine}",),
                start_s=one.start_s - began_s,
                end_s=one.end_s - began_s,
            )
            for place, one in enumerate(history.outages)
        ),
        requests=[_request(one, began_s) for one in history.outcomes],
        attempts=[_attempt(one, began_s) for one in history.attempts],
        samples=history.samples,
        used=history_events.CpuUsage(at_s=history.end_s - began_s, **asdict(history.use)),
        ended_s=history.end_s - began_s,
    )


def impairments(history: ExperimentHistory) -> tuple[Impairment, ...]:
    """What was wrong with which engine, when."""
    return tuple(
        Impairment(
            outage=f"outage-{place}",
            kind=one.fault.kind,
            engine=f"e{one.engine}",
            start_s=one.start_s - history.began_s,
            end_s=one.end_s - history.began_s,
            nature=engine_impairment_kind(one.fault, share_left(one.fault)),
        )
        for place, one in enumerate(history.outages)
    )


def phases(history: ExperimentHistory) -> ExperimentPhases:
    """Its times, which are those of the plan."""
    return ExperimentPhases(
        began_s=0.0,
        fault_s=history.fault_s - history.began_s,
        healed_s=history.healed_s - history.began_s,
        end_s=history.end_s - history.began_s,
    )


def _began(history: ExperimentHistory, setting: ExperimentSetting) -> history_events.ExperimentBegan:
    return history_events.ExperimentBegan(
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
            history_events.EngineRecord(
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


def _request(one: RequestOutcome, began_s: float) -> history_events.RequestRecord:
    return history_events.RequestRecord(
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


def _attempt(one: EngineAttempt, began_s: float) -> history_events.AttemptRecord:
    return history_events.AttemptRecord(
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
