"""Metrics of what callers see, of engines and of pools."""

from typing import Final

from engine.engine_readings import ProbeFailureReason
from engine.report import ReportSource, Verdict
from engine.report_wire import ReportDropReason
from xds_server.decide.decisions import Ejector, Health
from xds_server.engine_health.engine_prober import ProbeKind
from xds_server.metric_reference.metric_spec import BY_CLASS, BY_ENGINE, BY_OUTCOME, BY_POOL, metric_spec
from xds_server.model.order import OrderAction
from xds_server.model.pod_state import PodPhase
from xds_server.observe.eject_latency import HOPS

CALLERS: Final = (
    metric_spec(
        "requests_total", "counter", "requests",
        "Requests that arrived, as access logs tell: first calls, and those that were refused before.",
        "Beside refused and attempts; a jump is callers, not the fleet.", BY_CLASS,
    ),
    metric_spec(
        "requests_refused_total", "counter", "requests",
        "Requests refused before an engine had them: at the ceiling, or no engine to choose.",
        "`switchgear get pools`: `asked %` above 100 means too few engines; runbook SwitchgearSheddingLoad.",
        BY_CLASS,
    ),
    metric_spec(
        "requests_timed_out_total", "counter", "requests",
        "Requests that their route's own time limit ended, where no other try was left.",
        "`switchgear get pools -o wide`; if answers became longer, so must timeouts.nonStreaming.total.",
        BY_POOL,
    ),
    metric_spec(
        "attempts_total", "counter", "calls",
        "Calls to engines, by outcome: success; failure (the engine's); shed (503, 429 of the engine); rejected "
        "(other 4xx: the caller's); abandoned (the caller left, a hedge lost, the route's time was up).",
        "failure rises: `switchgear get engines` shows where; rejected rises: ask the callers.", BY_OUTCOME,
    ),
    metric_spec(
        "retries_total", "counter", "calls", "Calls after the first of a request, hedges included.",
        "Over a third of all calls: runbook SwitchgearAmplification.", BY_POOL,
    ),
    metric_spec(
        "attempt_gpu_seconds_total", "counter", "GPU-seconds",
        "GPU time of calls by outcome: duration times GPUs over slots of the engine, waiting inside the engine "
        "included. All but success is wasted. Counted when a call ends.",
        "Wasted share rises: failures (`get engines`), hedging, or callers that give up (answers too slow).",
        BY_OUTCOME,
    ),
)  # fmt: skip

ENGINES: Final = (
    metric_spec(
        "departure_hop_seconds", "histogram", "seconds",
        "Hops of an engine's leaving: detect (age of the deciding evidence, a lower bound), decide, push and ack "
        "(per proxy), news_to_ack (all of these, per proxy), last_request (decision to the last call after).",
        "Runbook SwitchgearSlowToLeave says what each long hop means.",
        labels={"hop": HOPS},
    ),
    metric_spec(
        "engine_departures_total", "counter", "departures", "Times that an engine was taken out.",
        "Several within minutes: runbook SwitchgearEngineFlapping.",
        labels={"pool": (), "engine": ()}, per=("engine",),
    ),
    metric_spec(
        "engine_admitted_ratio", "gauge", "ratio",
        "Share of its normal traffic that an engine may get: 1 in, 0 out, between on trial.",
        "`switchgear why ENGINE`.", BY_ENGINE,
    ),
    metric_spec(
        "engine_in_flight_requests", "gauge", "requests", "Requests in flight on an engine, as proxies report.",
        "One far above its peers: `switchgear why ENGINE`; it may be slow or stuck.", BY_ENGINE,
    ),
    metric_spec(
        "engine_failed_ratio", "gauge", "ratio", "Failed share of the newest calls to an engine.",
        "Above breaker.errorRatePercent it leaves by itself, if the floor allows: `switchgear why ENGINE`.",
        BY_ENGINE,
    ),
    metric_spec(
        "engine_kv_cache_usage_ratio", "gauge", "ratio", "Share of an engine's KV cache in use, as it reports.",
        "Near 1 for long: requests wait inside the engine; fewer slots, or more engines.", BY_ENGINE,
    ),
    metric_spec(
        "engines", "gauge", "engines", "Engines by decided health; UNKNOWN: nothing is decided yet.",
        "`switchgear get engines`.",
        labels={"pool": (), "zone": (), "health": (*(one.value for one in Health), "UNKNOWN")},
        per=("pool", "zone"),
    ),
    metric_spec(
        "engines_out", "gauge", "engines", "Engines that are out, by who wants them out.",
        "verdict: look at the engine; errors, slowness: at its calls; orchestrator: at its pod; operator: orders.",
        labels={"pool": (), "ejector": tuple(one.value for one in Ejector)}, per=("pool",),
    ),
    metric_spec(
        "engine_standings", "gauge", "engines", "Engines by what their orchestrator says of them.",
        "unfit: the node; leaving: a rollout or scale-down.",
        labels={"pool": (), "standing": tuple(one.value for one in PodPhase)}, per=("pool",),
    ),
    metric_spec(
        "engine_report_age_seconds", "gauge", "seconds", "Age of the oldest newest report of a pool in a zone.",
        "Above some seconds: agents and prober do not get there; stale counts as ready, so nothing is ejected.",
        labels={"pool": (), "zone": ()}, per=("pool", "zone"),
    ),
    metric_spec(
        "engine_reports_total", "counter", "reports", "Reports on engines, by who judged and by verdict.",
        "None at all: the network to the engines.",
        labels={
            "source": tuple(one.value for one in ReportSource), "verdict": tuple(one.value for one in Verdict),
        },
    ),
    metric_spec(
        "agents", "gauge", "agents", "Agents by whether they are heard.",
        "lost: the prober judges meanwhile; `switchgear get engines -o wide` has the trouble.",
        labels={"state": ("connected", "lost")},
    ),
    metric_spec(
        "agent_report_errors_total", "counter", "reports",
        "Reports of agents that were dropped, by what was wrong.",
        "Rising: an agent of another version, or a peer that is none.",
        labels={"flaw": tuple(one.value for one in ReportDropReason)},
    ),
    metric_spec(
        "probe_seconds", "histogram", "seconds", "Time of one look at an engine or one canary, by how it ended.",
        "Slow looks of engines that serve: the network, or a server without threads to spare.",
        labels={
            "kind": tuple(one.value for one in ProbeKind),
            "outcome": ("answered", *(one.value for one in ProbeFailureReason)),
        },
    ),
)  # fmt: skip

POOLS: Final = (
    metric_spec(
        "pool_capacity_ratio", "gauge", "ratio",
        "Slots of the engines that are in over the slots of all declared.",
        "Below the floor: runbook SwitchgearCapacityBelowFloor.", BY_POOL,
    ),
    metric_spec(
        "pool_capacity_floor_ratio", "gauge", "ratio", "Below this share soft evidence takes no engine out.",
        "breaker.capacityFloorPercent.", BY_POOL,
    ),
    metric_spec(
        "pool_ceiling_requests", "gauge", "requests", "Requests that may be in flight to the pool.",
        "`switchgear why POOL` says how it came about.", BY_POOL,
    ),
    metric_spec(
        "pool_held_requests", "gauge", "requests", "Requests held by engines that are out.",
        "For long: they hang; gateways with `cuts` end them.", BY_POOL,
    ),
    metric_spec(
        "pool_in_flight_requests", "gauge", "requests", "Requests in flight, as proxies report.", "-", BY_POOL,
    ),
    metric_spec(
        "pool_slots", "gauge", "requests", "Slots of the engines that are in, as they were learned.",
        "Falls without engines leaving: answers became slower.", BY_POOL,
    ),
    metric_spec(
        "pool_pressure_ratio", "gauge", "ratio", "What is asked of the pool over what it can serve.",
        "Above 1 the rest is refused: more engines. Autoscalers go by it.", BY_POOL,
    ),
    metric_spec(
        "pool_utilization_ratio", "gauge", "ratio", "Share of the slots in use.", "Near 1: the next one waits.",
        BY_POOL,
    ),
    metric_spec(
        "pool_arrivals_per_second", "gauge", "requests per second", "Requests that arrive now.", "-", BY_POOL,
    ),
    metric_spec(
        "pool_retries_per_second", "gauge", "calls per second", "Calls after the first of a request, now.",
        "Runbook SwitchgearAmplification.", BY_POOL,
    ),
    metric_spec(
        "pool_shed_per_second", "gauge", "requests per second", "Requests refused at the ceiling now.",
        "Runbook SwitchgearSheddingLoad.", BY_CLASS,
    ),
    metric_spec(
        "pool_kept_in_engines", "gauge", "engines", "Engines that somebody wants out and the floor keeps in.",
        "Runbook SwitchgearEnginesKeptIn.", BY_POOL,
    ),
    metric_spec(
        "pool_degradation_level", "gauge", "level", "Level of the ladder, 0 to 4.",
        "From 3 on callers notice: runbook SwitchgearDegraded.", BY_POOL,
    ),
    metric_spec(
        "pool_degradation_action", "gauge", "boolean", "1 for what is done because of the level.",
        "`switchgear why POOL`.",
        labels={
            "pool": (),
            "action": ("no_hedging", "fewest_retries", "fallback", "no_batch", "short_answers", "maintenance"),
        },
        per=("pool",),
    ),
    metric_spec(
        "pool_hedging", "gauge", "boolean", "1 while requests are hedged.", "`switchgear why POOL`.", BY_POOL,
    ),
    metric_spec(
        "pool_revisions", "gauge", "revisions", "How many different revisions the engines of a region serve.",
        "Above 1: a rollout is under way, or stuck.", labels={"pool": (), "region": ()}, per=("pool", "region"),
    ),
    metric_spec(
        "pool_region_share_ratio", "gauge", "ratio",
        "Share of the requests of one region's callers that another one, or it itself, is to serve.",
        "`switchgear why POOL`.", labels={"pool": (), "from": (), "to": ()}, per=("pool", "region", "region"),
    ),
    metric_spec(
        "orders", "gauge", "orders", "Orders of operators in force.",
        "`switchgear get orders`: none that is forgotten.",
        labels={"action": tuple(one.value for one in OrderAction)},
    ),
)  # fmt: skip
