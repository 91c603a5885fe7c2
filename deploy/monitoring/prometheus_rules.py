"""Prometheus recording and alert rules, generated from the metric table.

An alert states the impact and the first command; causes are in the runbook of the same name. ``page`` wakes the
on-call engineer, ``ticket`` waits for working hours. Rules aggregate by job and namespace, so that several
installations can share one Prometheus, and over all replicas: pool gauges by ``max``, counters by ``sum``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import yaml

from policies.objectives import FAST_BURN, SLOW_BURN, BurnAlert
from xds_server.metrics.metric_table import TABLE

RUNBOOKS: Final = "docs/runbooks"
"""Folder of the pages in the repository; ``runbook_url`` points there unless a base URL is set."""

OBJECTIVE: Final = 0.99
"""Share of requests to answer in 30 days; the error budget is the rest."""

WINDOWS: Final = ("5m", "30m", "1h", "6h")
"""Windows of the recorded ratios, as the two burn-rate alerts use them."""

PERCENTILES: Final = (50, 95, 99)
"""Recorded percentiles of latencies."""

CONNECTED: Final = "job:switchgear_xds_connections:sum"
"""Connected proxies of all replicas."""


def metric(name: str) -> str:
    """Full name of a metric; KeyError if the table lacks it, so that no rule queries a missing series."""
    return TABLE[f"switchgear_{name}"].name


def _sum(name: str, window: str, labels: str = "") -> str:
    return f"sum by (job, namespace, pool) (rate({metric(name)}{labels}[{window}]))"


def _most(name: str, by: str = "pool") -> str:
    return f"max by (job, namespace, {by}) ({metric(name)})"


def _recorded(name: str, window: str = "5m") -> str:
    return f"pool:switchgear_{name}:ratio_rate{window}"


def latency_recorded(name: str, percentile: int) -> str:
    """Recorded percentile of ``attempt_duration_seconds`` or ``attempt_first_byte_seconds`` by pool."""
    return f"pool:{metric(name)}:p{percentile}_rate5m"


def objective_bad(window: str) -> str:
    """Recorded share of calls beyond an objective, by route or pool."""
    return f"route:switchgear_objective_bad:ratio_rate{window}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recorded query and its name."""

    record: str
    expr: str


def recordings() -> Iterator[Recording]:
    """Ratios that alerts and dashboards share.

    Complete answers are good. Requests refused, timed out, or failed or shed by the engine without a retry are
    bad. Client disconnects and client errors are neither. A hedge counts as a retry, so with hedging a bad share
    of up to ``hedging.maxPercent`` can be hidden.
    """
    for window in WINDOWS:
        good = _sum("attempts_total", window, '{outcome="success"}')
        failed = _sum("attempts_total", window, '{outcome=~"failure|shed"}')
        lost = f"clamp_min({failed} - {_sum('retries_total', window)}, 0)"
        refused, late = _sum("requests_refused_total", window), _sum("requests_timed_out_total", window)
        yield Recording(
            record=_recorded("goodput", window), expr=f"{good} / ({good} + {refused} + {late} + {lost})"
        )
    arrived, refused = _sum("requests_total", "5m"), _sum("requests_refused_total", "5m")
    yield Recording(record=_recorded("shed"), expr=f"{refused} / {arrived}")
    calls, retries = _sum("attempts_total", "5m"), _sum("retries_total", "5m")
    yield Recording(record=_recorded("amplification"), expr=f"{calls} / ({calls} - {retries})")
    wasted = _sum("attempt_gpu_seconds_total", "5m", '{outcome!="success"}')
    yield Recording(record=_recorded("gpu_wasted"), expr=f"{wasted} / {_sum('attempt_gpu_seconds_total', '5m')}")
    for name in ("attempt_duration_seconds", "attempt_first_byte_seconds"):
        buckets = f'rate({metric(name)}_bucket{{outcome="success"}}[5m])'
        for percentile in PERCENTILES:
            # Without calls the quantile is NaN; "> 0" leaves it out, so that it is in no average.
            yield Recording(
                record=latency_recorded(name, percentile),
                expr=f"histogram_quantile({percentile / 100:g}, "
                f"sum by (job, namespace, pool, le) ({buckets})) > 0",
            )
    by_objective = "sum by (job, namespace, pool, route, objective)"
    for window in WINDOWS:
        good, calls = (
            f"{by_objective} (rate({metric(name)}[{window}]))"
            for name in ("objective_good_calls_total", "objective_calls_total")
        )
        # A retry can succeed after the window in which its request was counted.
        yield Recording(record=objective_bad(window), expr=f"clamp_min(1 - {good} / {calls}, 0)")
    connected = f"sum by (job, namespace) ({metric('xds_connections')})"
    yield Recording(record=CONNECTED, expr=connected)
    hop = f"{metric('departure_hop_seconds')}_bucket"
    yield Recording(
        record="hop:switchgear_departure_hop_seconds:p99_rate1h",
        expr=f"histogram_quantile(0.99, sum by (job, namespace, hop, le) (rate({hop}[1h])))",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert.

    ``held`` is how long the condition must last. ``impact`` says what is lost, ``run`` is the first command;
    both may contain Prometheus templates.
    """

    name: str
    severity: Literal["page", "ticket"]
    expr: str
    held: str
    summary: str
    impact: str
    run: str


def _conditions(codes: str, by: str = "") -> str:
    """Installations with a condition of these codes (``SG280|SG281``): any replica counts."""
    match = "=~" if "|" in codes else "="
    return f'max by (job, namespace{by}) ({metric("condition")}{{code{match}"{codes}"}}) > 0'


def _nears_its_end(what: str, by: str) -> str:
    """Less than two days left, or a quarter of a lifetime shorter than eight days."""
    left, life = (
        f"min by (job, namespace, {by}) ({metric(f'{what}_{one}_seconds')})" for one in ("expiry", "lifetime")
    )
    return f"{left} < clamp_max({life} / 4, 2 * 86400)"


def _away(series: str) -> str:
    """Installations with this series within a day but not now; without labels if there was never one."""
    by = "count by (job, namespace)"
    return f"{by} (last_over_time({series}[1d])) unless {by} ({series}) or absent(last_over_time({series}[1d]))"


def _burns(long: str, short: str, factor: float) -> str:
    most = round(factor * (1 - OBJECTIVE), 6)
    return f"(1 - {_recorded('goodput', long)}) > {most:g} and (1 - {_recorded('goodput', short)}) > {most:g}"


def _objective_burns(alert: BurnAlert) -> str:
    long, short, factor = alert.long, alert.short, alert.factor
    budget = f"(1 - {_most('objective_target_ratio', 'pool, route, objective')})"
    return f"{objective_bad(long)} / {budget} > {factor:g} and {objective_bad(short)} / {budget} > {factor:g}"


def _not_retried() -> str:
    """Over 5 % of calls fail without a retry, and fewer than half of the failed ones are retried.

    From degradation level 1 on retries are closed on purpose.
    """
    calls, retries = _sum("attempts_total", "5m"), _sum("retries_total", "5m")
    failed = _sum("attempts_total", "5m", '{outcome=~"failure|shed"}')
    return (
        f"({failed} - {retries}) / {calls} > 0.05 and {failed} > 2 * {retries} "
        f"unless {_most('pool_degradation_level')} >= 1"
    )


def _doubled(p99: str) -> str:
    """At least 100 calls in 5 min, and a p99 of twice its median of the last day."""
    calls = _sum("attempts_total", "5m", '{outcome="success"}')
    return f"{p99} > 2 * quantile_over_time(0.5, {p99}[1d] offset 1h) and {calls} > 0.33"


def _without_spare() -> str:
    """Demand that would exceed the capacity without one of the engines in rotation, in pools of several."""
    admitted = f"max by (job, namespace, pool, engine) ({metric('engine_admitted_ratio')}) > 0"
    engines = f"count by (job, namespace, pool) ({admitted})"
    return f"{_most('pool_pressure_ratio')} > 1 - 1 / ({engines} > 1)"


def _of_quota(outcomes: str) -> str:
    """Requests of each tenant over its quota. Each replica counts those of its own proxies."""
    requests = f'sum by ({_TENANT_LABELS}) (rate({metric("tenant_requests_total")}{{outcome=~"{outcomes}"}}[5m]))'
    return f"{requests} / max by ({_TENANT_LABELS}) ({metric('tenant_quota_requests_per_second')})"


_TENANT_LABELS: Final = "job, namespace, port, tenant"
_TENANT: Final = "tenant {{ $labels.tenant }} of port {{ $labels.port }}"
_WHY_TENANT: Final = "switchgear why tenant:{{ $labels.port }}/{{ $labels.tenant }}"
_POOL: Final = "pool {{ $labels.pool }}"
_OBJECTIVE: Final = (
    "{{ if $labels.pool }}pool {{ $labels.pool }}{{ else }}route {{ $labels.route }}{{ end }}: "
    "objective {{ $labels.objective }}"
)
_STATUS: Final = "switchgear status"
_ENGINES: Final = "switchgear get engines --pool {{ $labels.pool }}"
_WHY_POOL: Final = "switchgear why {{ $labels.pool }}"
_PROXIES: Final = "switchgear get proxies"

ALERTS: Final[Sequence[Alert]] = (
    Alert(
        # A failing engine is ejected within seconds, so 2 min exclude a normal ejection.
        name="SwitchgearGoodputLow", severity="page", expr=f"{_recorded('goodput')} < 0.9", held="2m",
        summary=f"{_POOL}: goodput {{{{ $value | humanizePercentage }}}} (limit 90 %)",
        impact="Goodput has been below 90 % for 2 minutes; callers get errors.", run=_STATUS,
    ),
    Alert(
        # 2 % of a month's budget in an hour; the short window resolves the alert.
        name="SwitchgearBudgetBurnsFast", severity="page", expr=_burns("1h", "5m", 14.4), held="2m",
        summary=f"{_POOL}: error rate {{{{ $value | humanizePercentage }}}} over 1 h (limit 14.4 %)",
        impact="At this rate the monthly error budget is spent within two days.", run=_WHY_POOL,
    ),
    Alert(
        # 5 % of a month's budget in six hours.
        name="SwitchgearBudgetBurnsSlowly", severity="ticket", expr=_burns("6h", "30m", 6), held="15m",
        summary=f"{_POOL}: error rate {{{{ $value | humanizePercentage }}}} over 6 h (limit 6 %)",
        impact="At this rate the monthly error budget is spent within five days.", run=_ENGINES,
    ),
    Alert(
        # 2 % of a month's budget in an hour; the short window resolves the alert.
        name="SwitchgearObjectiveBurnsFast", severity="page", expr=_objective_burns(FAST_BURN), held="2m",
        summary=f"{_OBJECTIVE} burns its budget {{{{ $value | humanize }}}} times too fast (1 h, limit 14.4)",
        impact="At this rate the monthly error budget of the objective is spent within two days.",
        run="switchgear get objectives",
    ),
    Alert(
        # 5 % of a month's budget in six hours.
        name="SwitchgearObjectiveBurnsSlowly", severity="ticket", expr=_objective_burns(SLOW_BURN),
        held="15m",
        summary=f"{_OBJECTIVE} burns its budget {{{{ $value | humanize }}}} times too fast (6 h, limit 6)",
        impact="At this rate the monthly error budget of the objective is spent within five days.",
        run="switchgear get objectives",
    ),
    Alert(
        # Short peaks above the admission limit are normal; autoscalers need some minutes.
        name="SwitchgearSheddingLoad", severity="page", expr=f"{_recorded('shed')} > 0.05", held="5m",
        summary=f"{_POOL}: {{{{ $value | humanizePercentage }}}} of requests are refused (limit 5 %)",
        impact="More than 5 % of requests have been refused for 5 minutes; these callers get 503.", run=_WHY_POOL,
    ),
    Alert(
        # A rollout or a burst of long prompts lasts minutes.
        name="SwitchgearLatencyDoubled", severity="ticket",
        expr=_doubled(latency_recorded("attempt_duration_seconds", 99)), held="10m",
        summary=f"{_POOL}: p99 of calls is {{{{ $value | humanizeDuration }}}}, over twice its normal",
        impact="One call in a hundred has taken over twice the usual time for 10 minutes.",
        run="switchgear get engines --pool {{ $labels.pool }} -o wide",
    ),
    Alert(
        # Autoscalers need some minutes.
        name="SwitchgearSpareUsedUp", severity="ticket", expr=_without_spare(), held="15m",
        summary=f"{_POOL}: demand is {{{{ $value | humanizePercentage }}}} of capacity, without room for a loss",
        impact="Requests are refused as soon as one more engine leaves rotation.", run=_WHY_POOL,
    ),
    Alert(
        # Retries after a crash last a few seconds.
        name="SwitchgearAmplification", severity="page", expr=f"{_recorded('amplification')} > 1.5", held="5m",
        summary=f"{_POOL}: {{{{ $value | humanize }}}} calls per request (limit 1.5)",
        impact="Retries have added over 50 % load for 5 minutes; engines may overload.",
        run="switchgear get pools -o wide",
    ),
    Alert(
        # A crash fills the budget for seconds, until the engine is ejected.
        name="SwitchgearRetriesExhausted", severity="ticket", expr=_not_retried(), held="5m",
        summary=f"{_POOL}: {{{{ $value | humanizePercentage }}}} of calls fail without a retry (limit 5 %)",
        impact="Callers have got errors of engines for 5 minutes, because the retry budget is used up.",
        run="switchgear tap {{ $labels.pool }} --failed",
    ),
    Alert(
        # A batch job may send above its quota for minutes, on purpose.
        name="SwitchgearTenantThrottled", severity="ticket", expr=f"{_of_quota('refused')} > 0.05", held="15m",
        summary=f"{_TENANT}: refusals are {{{{ $value | humanizePercentage }}}} of its quota (limit 5 %)",
        impact="Callers of this tenant have got 429 for 15 minutes; others are not affected.", run=_WHY_TENANT,
    ),
    Alert(
        # Time to raise the quota before callers are refused; daily peaks last longer than 15 minutes.
        name="SwitchgearTenantNearQuota", severity="ticket",
        expr=f"{_of_quota('admitted|over_quota')} > 0.9", held="15m",
        summary=f"{_TENANT}: uses {{{{ $value | humanizePercentage }}}} of its quota (limit 90 %)",
        impact="With a little more traffic callers of this tenant get 429.", run=_WHY_TENANT,
    ),
    Alert(
        # Hours or days without service may follow, and usage only grows.
        name="SwitchgearTenantQuotaEnds", severity="ticket",
        expr=f"max by ({_TENANT_LABELS}, period) ({metric('tenant_period_used_ratio')}) > 0.9", held="5m",
        summary=f"{_TENANT}: used {{{{ $value | humanizePercentage }}}} of its quota per {{{{ $labels.period }}}} "
        "(limit 90 %)",
        impact="From 100 % on its callers get 429 until the period ends (UTC).", run=_WHY_TENANT,
    ),
    Alert(
        # The ladder waits before each level by itself; callers notice from level 3 on.
        name="SwitchgearDegraded", severity="page", expr=f"{_most('pool_degradation_level')} >= 3", held="2m",
        summary=f"{_POOL}: degradation level {{{{ $value }}}}",
        impact="Batch requests are refused, answers are shortened; at level 4 callers get maintenance answers.",
        run=_WHY_POOL,
    ),
    Alert(
        # A rollout or the restart of a rack may cross the floor briefly.
        name="SwitchgearCapacityBelowFloor", severity="page",
        expr=f"{_most('pool_capacity_ratio')} < {_most('pool_capacity_floor_ratio')}", held="2m",
        summary=f"{_POOL}: {{{{ $value | humanizePercentage }}}} of slots in rotation, below the capacity floor",
        impact="Capacity has been below the floor for 2 minutes; at peak load callers are refused.", run=_ENGINES,
    ),
    Alert(
        # Other engines normally return within minutes, and then these are ejected.
        name="SwitchgearEnginesKeptIn", severity="ticket", expr=f"{_most('pool_kept_in_engines')} > 0", held="10m",
        summary=f"{_POOL}: {{{{ $value }}}} unhealthy engines kept in rotation by the capacity floor",
        impact="Unhealthy engines have served traffic for 10 minutes; their callers may get errors.", run=_ENGINES,
    ),
    Alert(
        # A restart with its model load takes less; operators and orchestrators know what they removed.
        name="SwitchgearEngineEjected", severity="ticket",
        expr=f"{_most('engine_admitted_ratio', 'pool, engine')} == 0 and on (job, namespace, pool) "
        f'sum by (job, namespace, pool) ({metric("engines_out")}{{ejector=~"verdict|errors|slowness"}}) > 0',
        held="15m",
        summary=f"{_POOL}: {{{{ $labels.engine }}}} ejected for 15 min",
        impact="The engine serves no requests and does not recover by itself; capacity is missing.",
        run="switchgear why {{ $labels.engine }}",
    ),
    Alert(
        # An agent that restarts is back within a minute.
        name="SwitchgearAgentsLost", severity="ticket",
        expr=f'max by (job, namespace) ({metric("agents")}{{state="lost"}}) > 0', held="10m",
        summary="{{ $value }} agents lost",
        impact="Hangs of these engines are found later, by probes; GPU errors are not seen.",
        run="switchgear get engines -o wide",
    ),
    Alert(
        # The verdict ejects an engine that needs it within seconds.
        name="SwitchgearGpuErrors", severity="ticket",
        expr=f"{_most('engine_xids', 'pool, engine')} > 0 "
        f"and {_most('engine_admitted_ratio', 'pool, engine')} > 0",
        held="5m",
        summary=f"{_POOL}: {{{{ $labels.engine }}}} serves with {{{{ $value }}}} XID errors",
        impact="The engine serves requests on a GPU with driver errors; its answers may become slow or fail.",
        run="switchgear describe engine {{ $labels.engine }}",
    ),
    Alert(
        # At the deadline open requests are cut, and the process ends within a minute.
        name="SwitchgearDrainOverdue", severity="ticket",
        expr=f"{_most('engine_drain_left_seconds', 'pool, engine')} == 0", held="5m",
        summary=f"{_POOL}: {{{{ $labels.engine }}}} drains beyond its deadline",
        impact="The engine serves no new requests and does not end: its GPUs are not free for the next one.",
        run="switchgear describe engine {{ $labels.engine }}",
    ),
    Alert(
        # Longer than a maintenance window.
        name="SwitchgearOrdersForgotten", severity="ticket",
        expr=f"{_most('orders', 'action')} > 0", held="12h",
        summary="{{ $value }} operator orders ({{ $labels.action }}) in force for 12 h",
        impact="These engines do not follow decisions: capacity may be missing, or a bad engine kept in rotation.",
        run="switchgear get orders",
    ),
    Alert(
        # The window is the wait.
        name="SwitchgearEngineFlapping", severity="ticket",
        expr=f"max by (job, namespace, pool, engine) (increase({metric('engine_departures_total')}[15m])) > 3.5",
        held="0m",
        summary=f"{_POOL}: {{{{ $labels.engine }}}} left rotation {{{{ $value | humanize }}}} times in 15 min",
        impact="The engine fails again after each return; each time some callers get errors.",
        run="switchgear why {{ $labels.engine }}",
    ),
    Alert(
        # A quantile over one hour moves slowly, so one restarting proxy does not fire it.
        name="SwitchgearSlowToLeave", severity="ticket",
        expr='hop:switchgear_departure_hop_seconds:p99_rate1h{hop="news_to_ack"} > 2', held="10m",
        summary="ejection reaches proxies after {{ $value | humanizeDuration }} (p99, limit 2 s)",
        impact="Proxies send requests to ejected engines for longer than normal.", run=_PROXIES,
    ),
    Alert(
        # After a rollback proxies accept in well under a minute.
        name="SwitchgearConfigurationRefused", severity="page",
        expr=f'sum by (job, namespace, type) ({metric("xds_streams")}{{state="NACK"}}) > 0', held="1m",
        summary="{{ $labels.type }} refused (NACK) by {{ $value }} proxies",
        impact="These proxies keep their last accepted configuration; changes do not reach them.", run=_STATUS,
    ),
    Alert(
        # Envoy warms a cluster without endpoints for up to 15 s.
        name="SwitchgearProxiesBehind", severity="page", expr=f"{_most('xds_behind_seconds', 'type')} > 30",
        held="1m",
        summary="a proxy is {{ $value | humanizeDuration }} behind on {{ $labels.type }} (limit 30 s)",
        impact="The proxy does not acknowledge updates and may send requests to ejected engines.", run=_PROXIES,
    ),
    Alert(
        # Not above one half: while proxies move between replicas, scrapes may count each of them twice.
        name="SwitchgearProxiesGone", severity="page",
        expr=f"{CONNECTED} < 0.5 * max_over_time({CONNECTED}[1h])", held="5m",
        summary="{{ $value }} proxies connected, less than half of the last hour's maximum",
        impact="Disconnected proxies keep their configuration and do not follow ejections.", run=_PROXIES,
    ),
    Alert(
        # 5 min leave the author time to correct the edit.
        name="SwitchgearConfigurationRolledBack", severity="ticket",
        expr=f"{_most('xds_rolled_back_resources', 'type')} > 0", held="5m",
        summary="{{ $value }} {{ $labels.type }} resources rolled back after a NACK",
        impact="Proxies run the last accepted version; part of the newest policies has no effect.", run=_STATUS,
    ),
    Alert(
        # 5 min leave the author time to correct the edit.
        name="SwitchgearPoliciesRefused", severity="ticket",
        expr=_conditions("SG200"), held="5m",
        summary="policies are refused; the last valid version is served",
        impact="The newest policies have had no effect for 5 minutes.", run=_STATUS,
    ),
    Alert(
        # 5 min leave the author time to correct the edit.
        name="SwitchgearObjectRejected", severity="ticket", expr=_conditions("SG229"), held="5m",
        summary="{{ $value }} custom resources are rejected",
        impact="Their latest specs have had no effect for 5 minutes; the last accepted ones are served.",
        run=_STATUS,
    ),
    Alert(
        # A rollout that replaces the only engine of a pool takes minutes.
        name="SwitchgearPoolWithoutEngines", severity="page", expr=_conditions("SG228"), held="5m",
        summary="{{ $value }} pools have no engine",
        impact="Requests for these pools get 503, unless a fallback serves them.", run=_STATUS,
    ),
    Alert(
        # A restart of the only engine that has it takes minutes.
        name="SwitchgearAdapterWithoutEngines", severity="page", expr=_conditions("SG278"), held="5m",
        summary="{{ $value }} adapters have no engine in rotation",
        impact="Requests for these adapters get 503, unless a fallback serves them; others are not affected.",
        run=_STATUS,
    ),
    Alert(
        # Conditions of limits last a minute; a burst of reconnects is over by then.
        name="SwitchgearPeerLimitReached", severity="ticket",
        expr=_conditions("SG280|SG281|SG282|SG283|SG284|SG285|SG286", ", code"), held="10m",
        summary="a peer has been at a limit for 10 minutes ({{ $labels.code }})",
        impact="Its streams, messages or log entries are refused or delayed; others are not affected.",
        run=_STATUS,
    ),
    Alert(
        # Engine deletions that explain the edit may still arrive within 2 min.
        name="SwitchgearPoliciesHeld", severity="page",
        expr=_conditions("SG201"), held="2m",
        summary="a policy edit that drops more than half is held back",
        impact="The edit waits for an operator to release or correct it; the version before it is served.",
        run=_STATUS,
    ),
    Alert(
        # A start without its source lasts minutes at most.
        name="SwitchgearPoliciesStale", severity="ticket",
        expr=_conditions("SG203"), held="10m",
        summary="policies of the last run are served; their source is unavailable",
        impact="Policy changes have not been read for 10 minutes.", run=_STATUS,
    ),
    Alert(
        # Longer than one missed scrape, or a restart of all replicas.
        name="SwitchgearControlPlaneAbsent", severity="page",
        expr=_away(metric("policy_refused")), held="2m",
        summary="no metrics from any control plane",
        impact="Proxies keep their last configuration; failing engines are no longer ejected.", run=_STATUS,
    ),
    Alert(
        # The upgrade of an API server takes less.
        name="SwitchgearSourceStale", severity="ticket", expr=f"{_most('source_stale_seconds', 'resource')} > 60",
        held="2m",
        summary="no {{ $labels.resource }} from Kubernetes for {{ $value | humanizeDuration }} (limit 1 min)",
        impact="Switchgear does not see new, changed or deleted objects.", run=_STATUS,
    ),
    Alert(
        # A proxy that reconnects needs some seconds.
        name="SwitchgearTelemetryLost", severity="ticket",
        expr=f"sum by (job, namespace, signal) ({metric('telemetry_lost')}) > 0", held="5m",
        summary="no {{ $labels.signal }} from {{ $value }} connected proxies",
        impact="Ejection and load decisions have lacked their evidence for 5 minutes.", run=_STATUS,
    ),
    Alert(
        # A lease expires and is taken over within 30 s.
        name="SwitchgearLeaseHeldByNobody", severity="ticket",
        expr=f"sum by (job, namespace) ({metric('lease_held')}) == 0", held="3m",
        summary="no replica holds the lease",
        impact="Status, events and readiness gates in Kubernetes are not updated.", run=_STATUS,
    ),
    Alert(
        # Scrapes at different moments of a handover can show two.
        name="SwitchgearLeaseHeldTwice", severity="page",
        expr=f"sum by (job, namespace) ({metric('lease_held')}) > 1", held="2m",
        summary="{{ $value }} replicas hold the lease (limit 1)",
        impact="Readiness gates may flip between contradicting values.", run=_STATUS,
    ),
    Alert(
        # One failed round is repeated and logged.
        name="SwitchgearReconcileFailing", severity="page",
        expr=f"sum by (job, namespace) (increase({metric('reconcile_failures_total')}[5m])) > 0", held="1m",
        summary="reconcile rounds fail ({{ $value | humanize }} in 5 min)",
        impact="Proxies keep their configuration; no engine is ejected or returned.", run=_STATUS,
    ),
    Alert(
        # Writes are retried every 10 s.
        name="SwitchgearStoreFailing", severity="ticket",
        expr=_conditions("SG234"), held="10m",
        summary="cannot persist state to disk",
        impact="A restart would lose recent policies, versions and operator orders.", run=_STATUS,
    ),
    Alert(
        # Renewal normally happens with a third of the lifetime left.
        name="SwitchgearCertificateExpires", severity="page", expr=_nears_its_end("certificate", "use"),
        held="10m",
        summary="{{ $labels.use }} certificate expires in {{ $value | humanizeDuration }}",
        impact="After expiry new connections fail: proxies, agents or operators.", run=_STATUS,
    ),
    Alert(
        # A half-written rotation completes within seconds.
        name="SwitchgearCertificateRefused", severity="ticket",
        expr=_conditions("SG210"), held="10m",
        summary="certificate files of the control plane are unusable",
        impact="The previous certificate is in use until it expires.", run=_STATUS,
    ),
    Alert(
        # 5 min leave the author time to correct the edit.
        name="SwitchgearAccessRefused", severity="ticket",
        expr=_conditions("SG213"), held="5m",
        summary="access rules are refused; the previous rules are in force",
        impact="Changes of access, including revocations, have had no effect for 5 minutes.", run=_STATUS,
    ),
    Alert(
        # Renewal normally happens with a third of the lifetime left.
        name="SwitchgearSecretExpires", severity="page", expr=_nears_its_end("secret", "secret"), held="10m",
        summary="secret {{ $labels.secret }} expires in {{ $value | humanizeDuration }}",
        impact="After expiry calls to the engines that need it fail.", run=_STATUS,
    ),
    Alert(
        # A half-written rotation completes within seconds.
        name="SwitchgearSecretRefused", severity="ticket",
        expr=f"max by (job, namespace, secret) ({metric('secret_trouble')}) == 1", held="10m",
        summary="files of secret {{ $labels.secret }} are unusable",
        impact="Proxies use the previous files; without any, calls to these engines fail.", run=_STATUS,
    ),
    Alert(
        # Without gRPC clients: those with their own credentials need none. Proxies with new certificates
        # reconnect within a minute.
        name="SwitchgearSecretsWithheld", severity="page",
        expr=f'max by (job, namespace, reason) ({metric("secrets_withheld")}{{reason!="grpc"}}) > 0', held="2m",
        summary="{{ $value }} keys withheld from proxies (reason: {{ $labels.reason }})",
        impact="Engines that require a client certificate refuse calls from these proxies.", run=_STATUS,
    ),
    Alert(
        # A restarted collector misses some spans; no decision depends on traces.
        name="SwitchgearTracesLost", severity="ticket",
        expr=f'sum by (job, namespace) (increase({metric("trace_spans_total")}{{result!="sent"}}[15m])) > 0',
        held="15m",
        summary="{{ $value | humanize }} trace spans lost in 15 min",
        impact="Traces are incomplete; requests are not affected.", run=_STATUS,
    ),
)  # fmt: skip


def groups(runbooks: str = "") -> Mapping[str, object]:
    """Rule groups for Prometheus or a PrometheusRule; ``runbooks`` as for ``rules_yaml``."""
    return {
        "groups": [
            {
                "name": "switchgear.ratios",
                "rules": [{"record": one.record, "expr": one.expr} for one in recordings()],
            },
            {"name": "switchgear.alerts", "rules": [_alert(one, runbooks) for one in ALERTS]},
        ]
    }


def _alert(one: Alert, runbooks: str) -> Mapping[str, object]:
    return {
        "alert": one.name,
        "expr": one.expr,
        "for": one.held,
        "labels": {"severity": one.severity},
        "annotations": {
            "summary": one.summary,
            "description": f"{one.impact} Run: {one.run}",
            "runbook_url": f"{runbooks}/{one.name}/" if runbooks else f"{RUNBOOKS}/{one.name}.md",
        },
    }


def rules_yaml(runbooks: str = "") -> str:
    """``deploy/monitoring/rules.yaml``; ``runbooks`` is the base URL of the published pages."""
    text = yaml.safe_dump(groups(runbooks), sort_keys=False, width=115, allow_unicode=True)
    return f"# Generated by deploy/monitoring/prometheus_rules.py; `make generated`.\n{text}"
