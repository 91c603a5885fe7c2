"""Metrics of what callers see, of engines and of pools: each is declared here, and nowhere else."""

from typing import Final

from engine.engine_readings import ProbeFailureReason
from engine.report import ReportSource, Verdict
from engine.report_wire import ReportDropReason
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
)
from xds_server.model.order import OrderAction
from xds_server.model.pod_state import PodPhase
from xds_server.model.pool_traffic import CallResult

_CLASSES: Final = tuple(one.value for one in PriorityClass)
_RESULTS: Final = tuple(one.value for one in CallResult)

HOPS: Final = ("detect", "decide", "push", "ack", "news_to_ack", "last_request")
"""Every hop of an engine's departure, in order."""

_BY_ENGINE: Final = LabelSet(labels={"pool": (), "engine": (), "zone": ()}, per=("engine",))
_BY_POOL: Final = LabelSet(labels={"pool": ()}, per=("pool",))
_BY_CLASS: Final = LabelSet(labels={"pool": (), "class": _CLASSES}, per=("pool",))
_BY_OUTCOME: Final = LabelSet(labels={"pool": (), "outcome": _RESULTS}, per=("pool",))


class CallerMetrics(MetricChapter):
    title = "What callers see"

    requests = counter_family(
        "requests_total",
        "requests",
        "Requests that arrived, as access logs tell: first calls, and those that were refused before.",
        "Beside refused and attempts; a jump is callers, not the fleet.",
        _BY_CLASS,
    )
    requests_refused = counter_family(
        "requests_refused_total",
        "requests",
        "Requests refused before an engine had them: at the ceiling, or no engine to choose.",
        "`switchgear get pools`: `asked %` above 100 means too few engines; runbook SwitchgearSheddingLoad.",
        _BY_CLASS,
    )
    requests_timed_out = counter_family(
        "requests_timed_out_total",
        "requests",
        "Requests that their route's own time limit ended, where no other try was left.",
        "`switchgear get pools -o wide`; if answers became longer, so must timeouts.nonStreaming.total.",
        _BY_POOL,
    )
    attempts = counter_family(
        "attempts_total",
        "calls",
        "Calls to engines, by outcome: success; failure (the engine's); shed (503, 429 of the engine); rejected "
        "(other 4xx: the caller's); abandoned (the caller left, a hedge lost, the route's time was up).",
        "failure rises: `switchgear get engines` shows where; rejected rises: ask the callers.",
        _BY_OUTCOME,
    )
    retries = counter_family(
        "retries_total",
        "calls",
        "Calls after the first of a request, hedges included.",
        "Over a third of all calls: runbook SwitchgearAmplification.",
        _BY_POOL,
    )
    attempt_gpu_seconds = counter_family(
        "attempt_gpu_seconds_total",
        "GPU-seconds",
        "GPU time of calls by outcome: duration times GPUs over slots of the engine, waiting inside the engine "
        "included. All but success is wasted. Counted when a call ends.",
        "Wasted share rises: failures (`get engines`), hedging, or callers that give up (answers too slow).",
        _BY_OUTCOME,
    )


class EngineMetrics(MetricChapter):
    title = "Engines"

    departure_hop_seconds = histogram(
        "departure_hop_seconds",
        "seconds",
        "Hops of an engine's leaving: detect (age of the deciding evidence, a lower bound), decide, push and ack "
        "(per proxy), news_to_ack (all of these, per proxy), last_request (decision to the last call after).",
        "Runbook SwitchgearSlowToLeave says what each long hop means.",
        LabelSet(labels={"hop": HOPS}),
    )
    engine_departures = counter_family(
        "engine_departures_total",
        "departures",
        "Times that an engine was taken out.",
        "Several within minutes: runbook SwitchgearEngineFlapping.",
        LabelSet(labels={"pool": (), "engine": ()}, per=("engine",)),
    )
    engine_admitted_ratio = gauge_family(
        "engine_admitted_ratio",
        "ratio",
        "Share of its normal traffic that an engine may get: 1 in, 0 out, between on trial.",
        "`switchgear why ENGINE`.",
        _BY_ENGINE,
    )
    engine_in_flight_requests = gauge_family(
        "engine_in_flight_requests",
        "requests",
        "Requests in flight on an engine, as proxies report.",
        "One far above its peers: `switchgear why ENGINE`; it may be slow or stuck.",
        _BY_ENGINE,
    )
    engine_failed_ratio = gauge_family(
        "engine_failed_ratio",
        "ratio",
        "Failed share of the newest calls to an engine.",
        "Above breaker.errorRatePercent it leaves by itself, if the floor allows: `switchgear why ENGINE`.",
        _BY_ENGINE,
    )
    engine_kv_cache_usage_ratio = gauge_family(
        "engine_kv_cache_usage_ratio",
        "ratio",
        "Share of an engine's KV cache in use, as it reports.",
        "Near 1 for long: requests wait inside the engine; fewer slots, or more engines.",
        _BY_ENGINE,
    )
    engines = gauge_family(
        "engines",
        "engines",
        "Engines by decided health; UNKNOWN: nothing is decided yet.",
        "`switchgear get engines`.",
        LabelSet(
            labels={"pool": (), "zone": (), "health": (*(one.value for one in Health), "UNKNOWN")},
            per=("pool", "zone"),
        ),
    )
    engines_out = gauge_family(
        "engines_out",
        "engines",
        "Engines that are out, by who wants them out.",
        "verdict: look at the engine; errors, slowness: at its calls; orchestrator: at its pod; operator: orders.",
        LabelSet(labels={"pool": (), "ejector": tuple(one.value for one in Ejector)}, per=("pool",)),
    )
    engine_standings = gauge_family(
        "engine_standings",
        "engines",
        "Engines by what their orchestrator says of them.",
        "unfit: the node; leaving: a rollout or scale-down.",
        LabelSet(labels={"pool": (), "standing": tuple(one.value for one in PodPhase)}, per=("pool",)),
    )
    engine_report_age_seconds = gauge_family(
        "engine_report_age_seconds",
        "seconds",
        "Age of the oldest newest report of a pool in a zone.",
        "Above some seconds: agents and prober do not get there; stale counts as ready, so nothing is ejected.",
        LabelSet(labels={"pool": (), "zone": ()}, per=("pool", "zone")),
    )
    reports = counter(
        "engine_reports_total",
        "reports",
        "Reports on engines, by who judged and by verdict.",
        "None at all: the network to the engines.",
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
        "Agents by whether they are connected.",
        "lost: the prober judges meanwhile; `switchgear get engines -o wide` has the trouble.",
        LabelSet(labels={"state": ("connected", "lost")}),
    )
    agent_report_errors = counter(
        "agent_report_errors_total",
        "reports",
        "Reports of agents that were dropped, by what was wrong.",
        "Rising: an agent of another version, or a peer that is none.",
        LabelSet(labels={"flaw": tuple(one.value for one in ReportDropReason)}),
    )
    probe_seconds = histogram(
        "probe_seconds",
        "seconds",
        "Time of one look at an engine or one canary, by how it ended.",
        "Slow looks of engines that serve: the network, or a server without threads to spare.",
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
        "Slots of the engines that are in over the slots of all declared.",
        "Below the floor: runbook SwitchgearCapacityBelowFloor.",
        _BY_POOL,
    )
    pool_capacity_floor_ratio = gauge_family(
        "pool_capacity_floor_ratio",
        "ratio",
        "Below this share soft evidence takes no engine out.",
        "breaker.capacityFloorPercent.",
        _BY_POOL,
    )
    pool_ceiling_requests = gauge_family(
        "pool_ceiling_requests",
        "requests",
        "Requests that may be in flight to the pool.",
        "`switchgear why POOL` says how it came about.",
        _BY_POOL,
    )
    pool_held_requests = gauge_family(
        "pool_held_requests",
        "requests",
        "Requests held by engines that are out.",
        "For long: they hang; gateways with `cuts` end them.",
        _BY_POOL,
    )
    pool_in_flight_requests = gauge_family(
        "pool_in_flight_requests",
        "requests",
        "Requests in flight, as proxies report.",
        "-",
        _BY_POOL,
    )
    pool_slots = gauge_family(
        "pool_slots",
        "requests",
        "Slots of the engines that are in, as they were learned.",
        "Falls without engines leaving: answers became slower.",
        _BY_POOL,
    )
    pool_pressure_ratio = gauge_family(
        "pool_pressure_ratio",
        "ratio",
        "What is asked of the pool over what it can serve.",
        "Above 1 the rest is refused: more engines. Autoscalers go by it.",
        _BY_POOL,
    )
    pool_utilization_ratio = gauge_family(
        "pool_utilization_ratio",
        "ratio",
        "Share of the slots in use.",
        "Near 1: the next one waits.",
        _BY_POOL,
    )
    pool_arrivals_per_second = gauge_family(
        "pool_arrivals_per_second",
        "requests per second",
        "Requests that arrive now.",
        "-",
        _BY_POOL,
    )
    pool_retries_per_second = gauge_family(
        "pool_retries_per_second",
        "calls per second",
        "Calls after the first of a request, now.",
        "Runbook SwitchgearAmplification.",
        _BY_POOL,
    )
    pool_shed_per_second = gauge_family(
        "pool_shed_per_second",
        "requests per second",
        "Requests refused at the ceiling now.",
        "Runbook SwitchgearSheddingLoad.",
        _BY_CLASS,
    )
    pool_kept_in_engines = gauge_family(
        "pool_kept_in_engines",
        "engines",
        "Engines that the capacity floor keeps in although they should be ejected.",
        "Runbook SwitchgearEnginesKeptIn.",
        _BY_POOL,
    )
    pool_degradation_level = gauge_family(
        "pool_degradation_level",
        "level",
        "Level of the ladder, 0 to 4.",
        "From 3 on callers notice: runbook SwitchgearDegraded.",
        _BY_POOL,
    )
    pool_degradation_action = gauge_family(
        "pool_degradation_action",
        "boolean",
        "1 for what is done because of the level.",
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
        "1 while requests are hedged.",
        "`switchgear why POOL`.",
        _BY_POOL,
    )
    pool_revisions = gauge_family(
        "pool_revisions",
        "revisions",
        "How many different revisions the engines of a region serve.",
        "Above 1: a rollout is under way, or stuck.",
        LabelSet(labels={"pool": (), "region": ()}, per=("pool", "region")),
    )
    pool_region_share_ratio = gauge_family(
        "pool_region_share_ratio",
        "ratio",
        "Share of the requests of one region's callers that another one, or it itself, is to serve.",
        "`switchgear why POOL`.",
        LabelSet(labels={"pool": (), "from": (), "to": ()}, per=("pool", "region", "region")),
    )
    orders = gauge_family(
        "orders",
        "orders",
        "Orders of operators in force.",
        "`switchgear get orders`: none that is forgotten.",
        LabelSet(labels={"action": tuple(one.value for one in OrderAction)}),
    )
