"""Engine state as a report for control planes and as Prometheus metrics."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from engine.agent import kubelet_probes
from engine.agent.agent_config import AgentConfig
from engine.agent.agent_engine_state import EngineHealthState
from engine.agent.orphaned_cores import orphaned_cores
from engine.gpu.gpu_readings import GpuReading, GpuReadings
from engine.gpu.xid_events import XidRecord
from engine.process_metrics import AGENT, add_process
from engine.report import Doubt, DrainRequest, EngineReport, GpuSummary, GpuVitals, ReportSource, Verdict

# More reasons would not be read.
_MOST_REASONS: Final = 8


def report(
    now: EngineHealthState,
    config: AgentConfig,
    at_s: float,
    *,
    model: str,
    revision: str,
    gpu: GpuSummary | None,
    adapters: tuple[str, ...] | None = None,
) -> EngineReport | None:
    """Report on the engine; None until readings are conclusive. The sender adds boot id and sequence."""
    if not now.findings:
        return None
    counters, pressure = now.judgement.books.counters, now.pressure
    deciding = now.findings[0].evidence(at_s)
    return EngineReport(
        pool="",
        engine="",
        verdict=now.findings[0].verdict,
        evidence=deciding.sentence,
        observed_at_s=at_s,
        requests_in_flight=now.in_flight,
        requests_waiting=None if counters is None else counters.waiting,
        kv_cache_usage_ratio=None if counters is None else counters.kv_cache_usage_ratio,
        tokens_per_s=pressure.tokens_per_s,
        doubt=_doubt(now),
        source=ReportSource.AGENT,
        reasons=tuple(one.evidence(at_s) for one in now.findings[:_MOST_REASONS]),
        slots=config.slots or None,
        time_to_first_token=pressure.first_token,
        time_per_output_token=pressure.per_token,
        model=model,
        revision=revision,
        gpu=gpu,
        drain=None if now.order is None else DrainRequest(deadline_in_s=_left_s(now.order.deadline_s, at_s)),
        canary=now.judgement.books.canary,
        ranks=now.judgement.books.rank_labels,
        hung_ranks=() if now.finding is None else now.finding.hung_ranks,
        adapters=adapters,
        token_gaps=pressure.token_gaps,
        token_work=now.judgement.books.work,
    )


def _doubt(now: EngineHealthState) -> Doubt | None:
    """The doubt of the answers, only where they decide: a drain or GPU evidence is not in doubt."""
    deciding = now.findings[0]
    return now.judgement.doubt if deciding is now.finding and deciding.verdict is now.judgement.verdict else None


def gpu_summary(now: EngineHealthState, readings: GpuReadings, xids: Iterable[XidRecord]) -> GpuSummary:
    """GPU part of a report."""
    by_rank: dict[int | None, list[XidRecord]] = {}
    for record in xids:
        by_rank.setdefault(record.rank, []).append(record)
    return GpuSummary(
        action="" if now.gpu is None else now.gpu.action.value,
        statement=readings.statement if now.gpu is None else now.gpu.statement,
        gpus=tuple(_vitals(gpu, by_rank.get(gpu.identity.rank, [])) for gpu in readings.gpus),
    )


def report_json(told: EngineReport, now: EngineHealthState, config: AgentConfig, at_s: float) -> bytes:
    """Report and probe answers as JSON values."""
    pressure = now.pressure
    shown: dict[str, Any] = asdict(told)
    for name in ("pool", "engine", "observed_at_s"):
        del shown[name]
    shown |= {
        "since_s": round(at_s - now.verdict_since_s, 3),
        "ready": asdict(kubelet_probes.readiness(now)),
        "alive": asdict(kubelet_probes.liveness(now, config, at_s)),
        "started": asdict(kubelet_probes.startup(now, config)),
        "boot": asdict(now.boot),
        "count_is_partial": now.count_is_partial,
        "orphaned_cores": [{**asdict(one), "sentence": one.sentence} for one in orphaned_cores()],
        "last_30_s": {
            name: getattr(pressure, name) for name in ("finished", "errors", "aborts", "rejected", "preemptions")
        },
    }
    return json.dumps(shown, indent=2).encode() + b"\n"


class AgentMetrics:
    """Metrics of agent and verdict; ``text`` renders them, ``refused`` is a counter."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        add_process(self._registry, AGENT)
        self._verdict = self._gauge("switchgear_agent_verdict", "1 for the verdict in force.", ("verdict",))
        self._answers = self._gauge("switchgear_agent_answer", "1 for yes.", ("question",))
        self._in_flight = self._gauge("switchgear_agent_requests_in_flight", "Requests in flight in the engine.")
        self._since = self._gauge("switchgear_agent_verdict_age_seconds", "Age of the verdict.")
        self._boots = self._gauge("switchgear_agent_engine_boots", "Engine processes since the agent started.")
        self._watchers = self._gauge("switchgear_agent_watchers", "Watching control planes, one per pool.")
        self._looks = self._gauge("switchgear_agent_look_seconds", "Duration of the last probe.")
        self.refused = Counter(
            "switchgear_agent_connections_refused_total",
            "Connections to the HTTP port closed at the limit.",
            registry=self._registry,
        )
        self._gpu = self._gauge(
            "switchgear_agent_gpu_action", "1 for the action required by the GPUs.", ("action",)
        )

    def text(
        self, now: EngineHealthState, config: AgentConfig, at_s: float, *, watchers: int, look_s: float
    ) -> bytes:
        """Metrics in Prometheus text format."""
        for verdict in Verdict:
            self._verdict.labels(verdict.value).set(now.verdict is verdict)
        self._answers.labels("ready").set(kubelet_probes.readiness(now).yes)
        self._answers.labels("alive").set(kubelet_probes.liveness(now, config, at_s).yes)
        self._answers.labels("started").set(kubelet_probes.startup(now, config).yes)
        self._in_flight.set(float("nan") if now.in_flight is None else now.in_flight)
        self._since.set(at_s - now.verdict_since_s if now.findings else float("nan"))
        self._boots.set(now.boot.number)
        self._watchers.set(watchers)
        self._looks.set(look_s)
        self._gpu.clear()
        if now.gpu is not None:
            self._gpu.labels(now.gpu.action.value).set(1)
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=self._registry)


def _left_s(deadline_s: float | None, at_s: float) -> float | None:
    return None if deadline_s is None else max(0.0, deadline_s - at_s)


def _vitals(gpu: GpuReading, xids: list[XidRecord]) -> GpuVitals:
    vitals = gpu.vitals
    return GpuVitals(
        rank=gpu.identity.rank,
        uuid=gpu.identity.uuid or "",
        name=gpu.identity.name or "",
        temperature_c=vitals.temperature_c,
        power_w=vitals.power_w,
        utilisation_percent=vitals.utilisation_percent,
        sm_clock_mhz=vitals.sm_clock_mhz,
        memory_total_bytes=vitals.memory_total_bytes,
        memory_used_bytes=vitals.memory_used_bytes,
        memory_reserved_bytes=vitals.memory_reserved_bytes,
        ecc_corrected=vitals.ecc_corrected,
        ecc_uncorrected=vitals.ecc_uncorrected,
        throttled=tuple(sorted(vitals.throttled or ())),
        xids=tuple(record.code for record in sorted(xids, key=lambda one: -one.last_s)),
    )
