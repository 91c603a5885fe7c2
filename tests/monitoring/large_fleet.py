"""Metrics of a server with a fleet of any size, from its real parts and registry."""

from collections.abc import Mapping, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any, Final, cast

from engine.engine_readings import ProbeFailureReason
from engine.report import (
    DrainRequest,
    EngineReport,
    EngineTotals,
    GpuSummary,
    GpuVitals,
    Quantiles,
    ReportSource,
    TokenGaps,
    TokenWork,
    Verdict,
)
from engine.report_wire import ReportDropReason
from policies.load import load_contents
from policies.route import PriorityClass
from xds_server.admin.server_backend import ServerBackend
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.engine_health.engine_prober import ProbeKind
from xds_server.metrics.fleet_metrics import HOPS
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.fleet import EngineId, declared, with_report, with_traffic
from xds_server.model.policy_state import SourceState
from xds_server.model.pool_traffic import Proxy, TelemetrySignal
from xds_server.model.type_urls import SHORT_NAMES
from xds_server.model.view import View
from xds_server.observe.eject_latency import EjectLatency
from xds_server.publish import Publisher
from xds_server.publish.session import ProxyState
from xds_server.reconcile.pipeline import BuildInputs, BuildResult
from xds_server.reconcile.reconciler import Reconciler
from xds_server.telemetry import Telemetry
from xds_server.telemetry.attempt_outcome import AttemptOutcome
from xds_server.telemetry.entry_budget import Reporter
from xds_server.telemetry.token_use import RequestedTokens
from xds_server.telemetry.traffic_store import Attempt
from xds_server.xds import NodeInfo, XdsVariant
from xds_server.xds.messages import SubscriptionStatus, Sync

NOW_S = 1000.0
NOT_SENT = AttemptOutcome.NOT_SENT


def policies(sizes: Mapping[str, int]) -> Any:
    """Pools with engines spread over zones and regions."""
    each, texts = sizes["engine"] // sizes["pool"], []
    for pool in range(sizes["pool"]):
        endpoints = ", ".join(
            f"{{address: 10.{pool}.{n // 250}.{n % 250 + 1}, port: 8000, name: r{n}, zone: z{n % sizes['zone']}, "
            f"region: g{n % sizes['region']}, gpus: 4}}"
            for n in range(each)
        )
        texts.append(
            f"apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\nmetadata: {{name: p{pool}}}\n"
            "spec: {model: m, objectives: {betweenTokens: {p95: 75ms, p99: 100ms}}, "
            f"endpoints: [{endpoints}]}}\n"
        )
    texts += [
        f"apiVersion: switchgear.dev/v1alpha1\nkind: ModelRoute\nmetadata: {{name: chat{route}}}\n"
        f"spec: {{listener: {{port: {9000 + route}}}, pools: [{{pool: p{route % sizes['pool']}}}], "
        f"affinity: {{header: x-session}}, match: {{model: a{route}}}, "
        f"adapter: {'true' if route < sizes.get('adapter', 0) else 'false'}, "
        "objectives: {goodPercent: 99, firstToken: {p95: 2s, p99: 5s}, total: {p95: 30s, p99: 60s}}}\n"
        for route in range(sizes.get("route", 0))
    ]
    return load_contents({"fleet.yaml": "---\n".join(texts).encode()})  # type: ignore[dict-item]  # any name does


def exposed(sizes: Mapping[str, int]) -> bytes:
    """/metrics of such a server."""
    return counted(sizes).text()


def counted(sizes: Mapping[str, int]) -> Metrics:
    """Metrics of such a server."""
    metrics, known = Metrics(), policies(sizes)
    nodes = [f"gateway-{n}" for n in range(sizes["node"])]
    telemetry = _telemetry(metrics, known, nodes)
    fleet = declared(known)
    for engines in list(fleet.pools.values()):
        for engine in engines:
            fleet = with_report(fleet, _report(engine.id.pool, engine.id.engine), NOW_S)
    fleet = with_traffic(fleet, telemetry.traffic_store.traffic(NOW_S))
    proxies = {node: Proxy(node=node, zone="z0", role="gateway") for node in nodes}
    calling = ConnectedProxies(by_node=proxies, by_role={"gateway": len(nodes)}, calling_zones=frozenset({"z0"}))
    decisions, memory = decide(known, fleet, NO_MEMORY, proxies=calling, now_s=NOW_S)
    inputs = BuildInputs(policies=known, fleet=fleet, views=frozenset(), proxies_by_role={}, now_s=NOW_S)
    built = BuildResult(inputs=inputs, decisions=decisions, memory=memory, snapshots={}, stages_s={})
    departures = EjectLatency(metrics, clock=lambda: NOW_S)
    departures.on_round(decisions, fleet, {}, None)
    reconciler = SimpleNamespace(built=built, fleet=fleet, serving=None, source_state=ACCEPTED)
    publisher = connected([proxy(node) for node in nodes])
    facts = ServerBackend(cast("Reconciler", reconciler), publisher, clock=lambda: NOW_S)
    _touch(metrics)
    for families in (facts.families, telemetry.families, departures.families):
        metrics.observe(families)
    return metrics


def _report(pool: str, engine: str) -> EngineReport:
    return EngineReport(
        pool=pool, engine=engine, verdict=Verdict.READY, evidence="", observed_at_s=NOW_S,
        source=ReportSource.AGENT,
        kv_cache_usage_ratio=0.5, time_per_output_token=Quantiles(p50_s=0.02, p99_s=0.05),
        gpu=GpuSummary(gpus=(GpuVitals(rank=0, xids=(79, 63)), GpuVitals(rank=1, xids=(79,)))),
        drain=DrainRequest(deadline_in_s=60.0),
    )  # fmt: skip


def _telemetry(metrics: Metrics, known: Any, nodes: list[str]) -> Telemetry:
    telemetry = Telemetry(metrics, clock=lambda: NOW_S)
    telemetry.watch(known)
    telemetry.connected(nodes)
    for node in nodes:
        telemetry.logged(Reporter("10.0.0.1", node), 1, NOW_S)
        telemetry._losses.record(node, TelemetrySignal.LOAD_REPORT, NOW_S)
    for facts in telemetry.traffic_store.directory.pools.values():
        for engine in facts.zone_of:
            attempt = Attempt(
                engine=engine, outcome=AttemptOutcome.SUCCESS, first=True, priority=PriorityClass.INTERACTIVE,
                streaming=False, duration_s=1.0, first_byte_s=0.5,
            )  # fmt: skip
            telemetry.traffic_store.record_attempt(nodes[0], facts, attempt, weight=1.0, now_s=NOW_S)
        for route, outcome in product(facts.routes, (one for one in AttemptOutcome if one is not NOT_SENT)):
            for complete, asks in product((True, False), repeat=2):
                attempt = Attempt(
                    engine=next(iter(facts.zone_of)), outcome=outcome, first=True, streaming=True, asks=asks,
                    priority=PriorityClass.INTERACTIVE, complete=complete, duration_s=1.0, first_byte_s=0.5,
                    route=route,
                )  # fmt: skip
                telemetry.traffic_store.record_attempt(nodes[0], facts, attempt, weight=1.0, now_s=NOW_S)
        for count in (1, 2):
            gaps = TokenGaps(bounds_s=(0.05, 0.1), counts=(count, 2 * count, 3 * count), sum_s=0.1 * count)
            first = EngineId(pool=facts.name, engine=next(iter(facts.zone_of)))
            work = TokenWork(prompt_tokens=1000 * count, generation_tokens=1000 * count, finished=100 * count)
            telemetry.traffic_store.record_totals(first, "b", EngineTotals(gaps=gaps, work=work), NOW_S)
            asked = RequestedTokens(body_bytes=40.0, prompt=10.0, answer=10.0)
            telemetry.traffic_store.token_use.record_request(first, asked, 100.0)
        telemetry.traffic_store.record_load(nodes[0], facts, dict.fromkeys(facts.zone_of, (1, 1)), NOW_S)
    return telemetry


def proxy(node: str) -> ProxyState:
    """A connected Envoy that has all it should have."""
    return ProxyState(
        node=NodeInfo(id=node),
        view=View(zone="z0", role="gateway"),
        mode=XdsVariant.DELTA,
        peer="ipv4:127.0.0.1:1",
        connected_at_s=0.0,
        types=tuple(_watch(url) for url in SHORT_NAMES),
    )


ACCEPTED: Final = SourceState(state="accepted", digest="", since_s=0.0)


def connected(states: Sequence[ProxyState]) -> Publisher:
    """A publisher to which these are connected, and that none has refused anything of."""
    told = SimpleNamespace(
        proxies=lambda nodes=None: [one for one in states if nodes is None or one.node.id in nodes],
        sync_states=lambda: states,
        desired=lambda _: None,
        nack_policy=SimpleNamespace(rejected_contents={}),
        proxies_by_view={},
    )
    return cast("Publisher", told)


def _watch(url: str) -> SubscriptionStatus:
    return SubscriptionStatus(
        type_url=url, state=Sync.SYNCED, since_s=0.0, version="v", held=1, unacked=0, rejected={}
    )


def _touch(metrics: Metrics) -> None:
    """Have every label combination once that the control plane can count by itself."""
    for kind in (*SHORT_NAMES.values(), "other"):
        for by_type in (metrics.pushes, metrics.push_bytes, metrics.nacks, metrics.stuck):
            by_type.labels(type=kind).inc()
        metrics.push_to_ack_seconds.labels(type=kind).observe(0.1)
        metrics.resources.labels(type=kind).set(1)
    for source in ReportSource:
        for verdict in Verdict:
            metrics.count_report(source.value, verdict.value)
    for flaw in ReportDropReason:
        metrics.count_dropped_report(flaw)
    for look in ProbeKind:
        for outcome in ("answered", *(one.value for one in ProbeFailureReason)):
            metrics.count_probe(look, outcome, 0.1)
    for signal in TelemetrySignal:
        metrics.telemetry_dropped.labels(signal=signal.value).inc()
        for name in ("garbage", "foreign", "nameless", "absurd", "stranger"):
            metrics.telemetry_errors.labels(signal=signal.value, flaw=name).inc()
    for hop in HOPS:
        metrics.departure_hop_seconds.labels(hop=hop).observe(0.1)
    for result in ("accepted", "refused", "held", "failed", "unreached"):
        metrics.policy_reloads.labels(result=result).inc()
