"""Declarations of the request, engine and pool metrics."""

from typing import Final

from engine.engine_readings import ProbeFailureReason
from engine.report import ReportSource, Verdict
from engine.report_wire import ReportDropReason
from policies.objectives import OBJECTIVE_NAMES
from policies.route import PriorityClass
from xds_server.decide.decisions import Ejector, Health
from xds_server.engine_health.engine_prober import ProbeKind
from xds_server.metrics.metric_spec import (
    LabelSet,
    MetricChapter,
    counter,
    counter_family,
    gauge_family,
    histogram,
    histogram_family,
)
from xds_server.model.order import OrderAction
from xds_server.model.pod_state import PodPhase
from xds_server.model.pool_traffic import CallResult, DeadlineResult

_CLASSES: Final = tuple(one.value for one in PriorityClass)
_RESULTS: Final = tuple(one.value for one in CallResult)

HOPS: Final = ("detect", "decide", "push", "ack", "news_to_ack", "last_request")
"""Hops of an engine's removal from rotation, in order."""

LATENCY_BOUNDS_S: Final = (
    0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0,
    120.0, 300.0,
)  # fmt: skip
"""From a refusal, over the first token, to the longest answers; at most factor 2 apart where SLOs usually lie."""

TOKEN_GAP_BOUNDS_S: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
"""Those of vLLM's histogram of the time between tokens."""

_BY_ENGINE: Final = LabelSet(labels={"pool": (), "engine": (), "zone": ()}, per=("engine",))
_BY_POOL: Final = LabelSet(labels={"pool": ()}, per=("pool",))
_BY_CLASS: Final = LabelSet(labels={"pool": (), "class": _CLASSES}, per=("pool",))
_BY_OUTCOME: Final = LabelSet(labels={"pool": (), "outcome": _RESULTS}, per=("pool",))
_BY_DEADLINE: Final = LabelSet(
    labels={"pool": (), "outcome": tuple(one.value for one in DeadlineResult)}, per=("pool",)
)
_BY_ROUTE: Final = LabelSet(
    labels={"pool": (), "route": (), "class": _CLASSES, "outcome": _RESULTS}, per=("route",)
)
_BY_TENANT: Final = LabelSet(
    labels={"port": (), "tenant": (), "outcome": ("admitted", "over_quota", "refused", "over_share")},
    per=("tenant",),
)
_BY_PERIOD: Final = LabelSet(labels={"port": (), "tenant": (), "period": ("day", "month")}, per=("tenant",))
_BY_QUOTA: Final = LabelSet(labels={"port": (), "tenant": ()}, per=("tenant",))
_BY_OBJECTIVE: Final = LabelSet(
    labels={"pool": (), "route": (), "objective": OBJECTIVE_NAMES}, per=("pool", "route")
)


class CallerMetrics(MetricChapter):
    title = "Requests"

    requests = counter_family(
        "requests_total",
        "requests",
        "Requests received, from access logs: first calls plus requests refused before any call.",
        "Compare with refused and attempts. A jump comes from callers, not from the fleet.",
        _BY_CLASS,
    )
    requests_refused = counter_family(
        "requests_refused_total",
        "requests",
        "Requests refused before reaching an engine: admission limit reached, or no engine available.",
        "Runbook SwitchgearSheddingLoad; `DEMAND%` above 100 in `switchgear get pools` means too few engines.",
        _BY_CLASS,
    )
    requests_timed_out = counter_family(
        "requests_timed_out_total",
        "requests",
        "Requests ended by their route's timeout with no retry left.",
        "`switchgear get pools -o wide`; if answers became longer, raise timeouts.nonStreaming.total.",
        _BY_POOL,
    )
    deadline_requests = counter_family(
        "deadline_requests_total",
        "requests",
        "Requests that were not answered because of their deadline (listener.deadline): refused at once, or "
        "expired without an answer. Streams that a deadline cut after their first byte are in neither.",
        "`switchgear why pool:POOL` shows the shortest answers and the wait; longer deadlines, or more engines.",
        _BY_DEADLINE,
    )
    attempts = counter_family(
        "attempts_total",
        "calls",
        "Calls to engines, by outcome: success; failure (of the engine); shed (503 or 429 from the "
        "engine); rejected (other 4xx); abandoned (caller left, hedge lost, or route timeout).",
        "failure rises: `switchgear get engines` shows where. rejected rises: check the callers.",
        _BY_OUTCOME,
    )
    retries = counter_family(
        "retries_total",
        "calls",
        "Retries, hedges included.",
        "More than a third of all calls: runbook SwitchgearAmplification.",
        _BY_POOL,
    )
    attempt_duration_seconds = histogram_family(
        "attempt_duration_seconds",
        "seconds",
        "Time of calls to engines, to the end of the response, by outcome. A retry counts from the start of its "
        "request's first try.",
        "Compare with switchgear_attempt_first_byte_seconds: both longer: queues or prefills; only this one: "
        "longer answers, or slower tokens (`switchgear get engines -o wide`, TPOT).",
        _BY_ROUTE,
        buckets=LATENCY_BOUNDS_S,
    )
    attempt_first_byte_seconds = histogram_family(
        "attempt_first_byte_seconds",
        "seconds",
        "Time of streams to their first byte, by outcome: TTFT behind the first-token gate; without it, "
        "the time to the headers.",
        "Longer: requests wait for slots (`switchgear why POOL`), or prompts became longer.",
        _BY_ROUTE,
        buckets=LATENCY_BOUNDS_S,
    )
    tenant_requests = counter_family(
        "tenant_requests_total",
        "requests",
        "Requests of a tenant (listener.tenants): within its quota, above it but served (mode: shadow), "
        "refused with 429, or refused as above its fair share of a pool without room for all "
        "requests. The tenant `others` stands for all callers that are not named.",
        "`switchgear get tenants`; raise the quota, or ask the tenant to send less.",
        _BY_TENANT,
    )
    tenant_quota_requests_per_second = gauge_family(
        "tenant_quota_requests_per_second",
        "requests per second",
        "Quota of a tenant (listener.tenants) over all proxies of its port.",
        "Compare with the rate of switchgear_tenant_requests_total.",
        _BY_QUOTA,
    )
    tenant_period_used_ratio = gauge_family(
        "tenant_period_used_ratio",
        "ratio",
        "Used part of a tenant's quota of the current day or month in UTC (`perDay`, `perMonth`): of requests or "
        "tokens, whichever is nearer to its limit. From 1 on its callers get 429. Absent without such a quota.",
        "`switchgear why tenant:PORT/TENANT`; raise the quota, or agree on less traffic until the period ends.",
        _BY_PERIOD,
    )
    tenant_share_ratio = gauge_family(
        "tenant_share_ratio",
        "ratio",
        "Part of a tenant's requests to its fullest pool that its fair share admits: 1 while that pool has room "
        "for all; absent without listener.tenants.fairShares.",
        "`switchgear why tenant:NAME`: add engines, or raise the tenant's weight.",
        _BY_QUOTA,
    )
    objective_calls = counter_family(
        "objective_calls_total",
        "calls",
        "Calls that an objective of a route or a pool (spec.objectives) judges: `good` all requests, the latency "
        "objectives complete answers, those for the time between tokens gaps between tokens. Either `route` or "
        "`pool` is empty.",
        "Compare with switchgear_objective_good_calls_total.",
        _BY_OBJECTIVE,
    )
    objective_good_calls = counter_family(
        "objective_good_calls_total",
        "calls",
        "Calls within an objective. Both are absent for objectives that are not set.",
        "Runbook SwitchgearObjectiveBurnsFast.",
        _BY_OBJECTIVE,
    )
    objective_target_ratio = gauge_family(
        "objective_target_ratio",
        "ratio",
        "Share of calls that must be good by an objective; the rest is its error budget.",
        "spec.objectives of the ModelRoute or EnginePool.",
        _BY_OBJECTIVE,
    )
    attempt_gpu_seconds = counter_family(
        "attempt_gpu_seconds_total",
        "GPU-seconds",
        "GPU time of ended calls, by outcome: duration x GPUs / slots of the engine, queueing in the "
        "engine included. All but success is wasted.",
        "Wasted share rises: engine failures (`get engines`), hedging, or callers that give up on slow answers.",
        _BY_OUTCOME,
    )


class EngineMetrics(MetricChapter):
    title = "Engines"

    departure_hop_seconds = histogram(
        "departure_hop_seconds",
        "seconds",
        "Time of each hop of an ejection: detect (age of the deciding evidence, a lower bound), "
        "decide, push and ack (per proxy), news_to_ack (all of these, per proxy), last_request "
        "(decision to the last call after it).",
        "Runbook SwitchgearSlowToLeave explains each hop.",
        LabelSet(labels={"hop": HOPS}),
    )
    engine_departures = counter_family(
        "engine_departures_total",
        "departures",
        "Ejections of an engine.",
        "Several within minutes: runbook SwitchgearEngineFlapping.",
        LabelSet(labels={"pool": (), "engine": ()}, per=("engine",)),
    )
    engine_admitted_ratio = gauge_family(
        "engine_admitted_ratio",
        "ratio",
        "Share of its normal traffic that an engine may receive: 1 in rotation, 0 ejected, between on trial.",
        "`switchgear why ENGINE`.",
        _BY_ENGINE,
    )
    engine_in_flight_requests = gauge_family(
        "engine_in_flight_requests",
        "requests",
        "Requests in flight on an engine, reported by proxies.",
        "Far above its peers: slow or stuck; `switchgear why ENGINE`.",
        _BY_ENGINE,
    )
    engine_failed_ratio = gauge_family(
        "engine_failed_ratio",
        "ratio",
        "Failed share of the latest calls to an engine.",
        "Above breaker.errorRatePercent the engine is ejected if the capacity floor allows: "
        "`switchgear why ENGINE`.",
        _BY_ENGINE,
    )
    engine_kv_cache_usage_ratio = gauge_family(
        "engine_kv_cache_usage_ratio",
        "ratio",
        "Share of the KV cache in use, reported by the engine.",
        "Near 1 for long: requests queue inside the engine. Lower its slots or add engines.",
        _BY_ENGINE,
    )
    engine_time_per_output_token_seconds = gauge_family(
        "engine_time_per_output_token_seconds",
        "seconds",
        "Time between tokens of an engine over its agent's last window, by percentile. Absent without an agent.",
        "One engine above its peers: `switchgear why ENGINE`, check its GPUs. All: the batch is large.",
        LabelSet(labels={"pool": (), "engine": (), "zone": (), "percentile": ("p50", "p99")}, per=("engine",)),
    )
    engine_xids = gauge_family(
        "engine_xids",
        "errors",
        "Different XID errors of an engine's GPUs that its agent remembers. Absent without GPU readings.",
        "Runbook SwitchgearGpuErrors.",
        _BY_ENGINE,
    )
    engine_drain_left_seconds = gauge_family(
        "engine_drain_left_seconds",
        "seconds",
        "Time until the deadline of a drain that an engine's agent carries out; 0: beyond it. Absent without one.",
        "Runbook SwitchgearDrainOverdue.",
        _BY_ENGINE,
    )
    engines = gauge_family(
        "engines",
        "engines",
        "Engines by decided health; UNKNOWN: no report and no request yet, or no decision.",
        "`switchgear get engines`.",
        LabelSet(
            labels={"pool": (), "zone": (), "health": (*(one.value for one in Health), "UNKNOWN")},
            per=("pool", "zone"),
        ),
    )
    engines_out = gauge_family(
        "engines_out",
        "engines",
        "Ejected engines, by who ejected them.",
        "verdict: check the engine; errors, slowness: its calls; orchestrator: its pod; operator: "
        "`switchgear get orders`.",
        LabelSet(labels={"pool": (), "ejector": tuple(one.value for one in Ejector)}, per=("pool",)),
    )
    engine_standings = gauge_family(
        "engine_standings",
        "engines",
        "Engines by state in their orchestrator.",
        "unfit: check the node; leaving: a rollout or scale-down.",
        LabelSet(labels={"pool": (), "standing": tuple(one.value for one in PodPhase)}, per=("pool",)),
    )
    engine_report_age_seconds = gauge_family(
        "engine_report_age_seconds",
        "seconds",
        "Age of the oldest latest report in a pool and zone.",
        "Above a few seconds: agents and prober cannot reach the engines. Stale engines count as "
        "ready and are not ejected.",
        LabelSet(labels={"pool": (), "zone": ()}, per=("pool", "zone")),
    )
    reports = counter(
        "engine_reports_total",
        "reports",
        "Reports on engines, by source and verdict.",
        "None at all: check the network to the engines.",
        LabelSet(
            labels={
                "source": tuple(one.value for one in ReportSource),
                "verdict": tuple(one.value for one in Verdict),
            }
        ),
    )
    agents = gauge_family(
        "agents",
        "agents",
        "Agents by connection state.",
        "lost: the prober takes over; `switchgear get engines -o wide` shows the reason.",
        LabelSet(labels={"state": ("connected", "lost")}),
    )
    agent_report_errors = counter(
        "agent_report_errors_total",
        "reports",
        "Dropped agent reports, by error.",
        "Rising: an agent of another version, or a peer that is not an agent.",
        LabelSet(labels={"flaw": tuple(one.value for one in ReportDropReason)}),
    )
    probe_seconds = histogram(
        "probe_seconds",
        "seconds",
        "Duration of health probes and canary requests, by outcome.",
        "Slow probes of serving engines: a slow network, or an overloaded HTTP server in the engine.",
        LabelSet(
            labels={
                "kind": tuple(one.value for one in ProbeKind),
                "outcome": ("answered", *(one.value for one in ProbeFailureReason)),
            }
        ),
    )


class PoolMetrics(MetricChapter):
    title = "Pools"

    pool_capacity_ratio = gauge_family(
        "pool_capacity_ratio",
        "ratio",
        "Slots of engines in rotation over slots of all declared engines.",
        "Below the capacity floor: runbook SwitchgearCapacityBelowFloor.",
        _BY_POOL,
    )
    pool_capacity_floor_ratio = gauge_family(
        "pool_capacity_floor_ratio",
        "ratio",
        "Capacity floor: below this share no engine is ejected on soft evidence.",
        "breaker.capacityFloorPercent.",
        _BY_POOL,
    )
    pool_ceiling_requests = gauge_family(
        "pool_ceiling_requests",
        "requests",
        "Admission limit (ceiling): requests allowed in flight to the pool.",
        "`switchgear why POOL` explains the value.",
        _BY_POOL,
    )
    pool_held_requests = gauge_family(
        "pool_held_requests",
        "requests",
        "Requests still held by ejected engines.",
        "For long: the engines hang; gateways with `cuts` end the requests.",
        _BY_POOL,
    )
    pool_in_flight_requests = gauge_family(
        "pool_in_flight_requests",
        "requests",
        "Requests in flight, reported by proxies.",
        "-",
        _BY_POOL,
    )
    pool_slots = gauge_family(
        "pool_slots",
        "requests",
        "Learned slots of the engines in rotation.",
        "Falls without ejections: answers became slower.",
        _BY_POOL,
    )
    pool_pressure_ratio = gauge_family(
        "pool_pressure_ratio",
        "ratio",
        "Demand on the pool over its capacity.",
        "Above 1 the excess is refused: add engines. Autoscalers use this metric.",
        _BY_POOL,
    )
    pool_utilization_ratio = gauge_family(
        "pool_utilization_ratio",
        "ratio",
        "Share of slots in use.",
        "Near 1: further requests queue.",
        _BY_POOL,
    )
    pool_token_gap_seconds = histogram_family(
        "pool_token_gap_seconds",
        "seconds",
        "Time between tokens of all requests, from the engine histograms that agents report. Each replica hears "
        "all agents: aggregate with max or avg, not sum. Absent without agents.",
        "Rises with the load: larger batches, or preemptions. One engine: `switchgear get engines -o wide`, TPOT.",
        _BY_POOL,
        buckets=TOKEN_GAP_BOUNDS_S,
    )
    pool_bytes_per_token = gauge_family(
        "pool_bytes_per_token",
        "bytes",
        "Bytes of a request's body for one token of its prompt, by the engines' counters. Absent until 20 "
        "requests are known, and where others use the engines.",
        "Set `bytesPerToken` of the tenants to it.",
        _BY_POOL,
    )
    pool_answer_used_ratio = gauge_family(
        "pool_answer_used_ratio",
        "ratio",
        "Part of the tokens that requests ask for which their answers use. Absent like the bytes for a token.",
        "Low: callers state a higher max_tokens than they need, and are limited early.",
        _BY_POOL,
    )
    pool_arrivals_per_second = gauge_family(
        "pool_arrivals_per_second",
        "requests per second",
        "Current request rate.",
        "-",
        _BY_POOL,
    )
    pool_retries_per_second = gauge_family(
        "pool_retries_per_second",
        "calls per second",
        "Current retry rate, hedges included.",
        "Runbook SwitchgearAmplification.",
        _BY_POOL,
    )
    pool_shed_per_second = gauge_family(
        "pool_shed_per_second",
        "requests per second",
        "Current rate of requests refused at the admission limit.",
        "Runbook SwitchgearSheddingLoad.",
        _BY_CLASS,
    )
    pool_kept_in_engines = gauge_family(
        "pool_kept_in_engines",
        "engines",
        "Engines kept in rotation by the capacity floor although they should be ejected.",
        "Runbook SwitchgearEnginesKeptIn.",
        _BY_POOL,
    )
    pool_prefill_engines = gauge_family(
        "pool_prefill_engines",
        "engines",
        "Engines of a prefill pool that Envoy may name to decode engines, and those that it does not, by reason.",
        "None named: decode engines compute prompts themselves. `switchgear why POOL`.",
        LabelSet(
            labels={"pool": (), "state": ("named", "ejected", "draining", "floor", "full", "unweighted")},
            per=("pool",),
        ),
    )
    pool_prefilled_ratio = gauge_family(
        "pool_prefilled_ratio",
        "ratio",
        "Part of a decode pool's requests of the last minute for which a proxy named a prefill engine, from "
        "access logs. Absent without requests, and for pools that no other pool prefills for.",
        "Below prefill.percent, and not for short prompts (prefill.tokensAbove): prefill engines are out or full. "
        "`switchgear why POOL`.",
        _BY_POOL,
    )
    pool_adapter_engines = gauge_family(
        "pool_adapter_engines",
        "engines",
        "Engines in rotation that list a LoRA adapter, for each adapter that routes ask the pool for or that it "
        "loads.",
        "0: runbook SwitchgearAdapterWithoutEngines. Fewer than others: load it in more engines.",
        LabelSet(labels={"pool": (), "adapter": ()}, per=("adapter",)),
    )
    adapter_loads = counter(
        "adapter_loads_total",
        "loads",
        "Loads of LoRA adapters that engines were asked for (spec.adapters of an EnginePool), by result: loaded "
        "(the engine lists it), unlisted (it answered 200, and does not list it), refused, or failed (no answer).",
        "Rising without loaded: condition SG279 names the engine and its answer.",
        LabelSet(labels={"result": ("loaded", "unlisted", "refused", "failed")}),
    )
    pool_degradation_level = gauge_family(
        "pool_degradation_level",
        "level",
        "Degradation level, 0 to 4.",
        "From level 3 callers notice: runbook SwitchgearDegraded.",
        _BY_POOL,
    )
    pool_degradation_action = gauge_family(
        "pool_degradation_action",
        "boolean",
        "1 for each action taken at the current degradation level.",
        "`switchgear why POOL`.",
        LabelSet(
            labels={
                "pool": (),
                "action": ("no_hedging", "fewest_retries", "fallback", "no_batch", "short_answers", "maintenance"),
            },
            per=("pool",),
        ),
    )
    pool_hedging = gauge_family(
        "pool_hedging",
        "boolean",
        "1 while requests are hedged; otherwise 0.",
        "`switchgear why POOL`.",
        _BY_POOL,
    )
    pool_keys_away_ratio = gauge_family(
        "pool_keys_away_ratio",
        "ratio",
        "Part of the keys of affinity that are not with their engine, because it is out of rotation, on trial, in "
        "slow start or waits for affinity.returnAfter: their prompts are computed again. Absent without soft "
        "affinity.",
        "`switchgear why POOL` names the engines; if it moves often, set affinity.returnAfter.",
        _BY_POOL,
    )
    pool_revisions = gauge_family(
        "pool_revisions",
        "revisions",
        "Distinct revisions served by the engines of a region.",
        "Above 1: a rollout is in progress, or stuck.",
        LabelSet(labels={"pool": (), "region": ()}, per=("pool", "region")),
    )
    pool_region_share_ratio = gauge_family(
        "pool_region_share_ratio",
        "ratio",
        "Target share of requests from callers in region `from` that region `to` serves.",
        "`switchgear why POOL`.",
        LabelSet(labels={"pool": (), "from": (), "to": ()}, per=("pool", "region", "region")),
    )
    orders = gauge_family(
        "orders",
        "orders",
        "Operator orders in force.",
        "Remove forgotten ones: `switchgear get orders`.",
        LabelSet(labels={"action": tuple(one.value for one in OrderAction)}),
    )
