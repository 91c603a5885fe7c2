"""Grafana dashboards, generated from the metric table, so a renamed metric fails here.

Four dashboards: fleet, pool, engines and control plane. Each panel has a query, a unit and, if an alert watches
the same value, a link to its runbook.
"""

from typing import Any, Final

from deploy.monitoring.grafana import QUARTER, THIRD, Dashboard, Panel
from deploy.monitoring.prometheus_rules import PERCENTILES, latency_recorded, metric, objective_bad, recordings
from xds_server.metrics.metric_table import TABLE

_RECORDED: Final = frozenset(one.record for one in recordings())


def _recorded(name: str) -> str:
    found = f"pool:switchgear_{name}:ratio_rate5m"
    if found not in _RECORDED:
        raise KeyError(found)
    return found


def _here(name: str, pool: bool = False, engine: bool = False, **more: str) -> str:
    """Selector by the variables namespace and, if requested, pool and engine."""
    wanted = [('namespace=~"$namespace"')]
    wanted += ['pool=~"$pool"'] if pool else []
    wanted += ['engine=~"$engine"'] if engine else []
    wanted += [f'{key}="{value}"' for key, value in more.items()]
    known = name if name in _RECORDED else metric(name)
    return f"{known}{{{','.join(wanted)}}}"


def _most(name: str, by: str, **more: Any) -> str:
    return f"max by ({by}) ({_here(name, **more)})"


_ONE_PROCESS: Final = "on (job, namespace, instance)"


def _process(name: str, window: str = "") -> str:
    """A generic process metric, restricted to control planes; its rate if ``window`` is set."""
    series = f'{TABLE[f"process_{name}"].name}{{namespace=~"$namespace"}}{window}'
    ours = _here("build_info", component="control-plane")
    return f"({f'rate({series})' if window else series} and {_ONE_PROCESS} {ours})"


def _rate(name: str, by: str, **more: Any) -> str:
    return f"sum by ({by}) (rate({_here(name, **more)}[$__rate_interval]))"


def _quantile(share: float, name: str, by: str, **more: Any) -> str:
    series = _here(name, **more).replace(metric(name), f"{metric(name)}_bucket")
    return f"histogram_quantile({share:g}, sum by ({by}, le) (rate({series}[$__rate_interval])))"


def _percentiles(name: str, pool: bool = False) -> tuple[tuple[str, str], ...]:
    return tuple(
        (_here(latency_recorded(name, percentile), pool=pool), f"{{{{pool}}}} p{percentile}")
        for percentile in PERCENTILES
    )


def _hops() -> Panel:
    series = _here("departure_hop_seconds", hop="news_to_ack").replace("_seconds{", "_seconds_bucket{")
    return Panel(
        title="Ejection: from report to ACK of each proxy",
        queries=((f"sum by (le) (increase({series}[$__rate_interval]))", "{{le}}"),),
        unit="s", kind="heatmap", alert="SwitchgearSlowToLeave",
        description="One count per proxy and ejection. A proxy without ACK counts as 30 s.",
    )  # fmt: skip


_LOW_IS_BAD: Final = (("red", None), ("orange", 0.9), ("green", 0.99))
_HIGH_IS_BAD: Final = (("green", None), ("orange", 0.01), ("red", 0.05))
_LEVELS: Final = (("green", None), ("orange", 1.0), ("red", 3.0))

_OVERVIEW: Final = Dashboard(
    name="overview", title="Switchgear: fleet", variables=(("namespace", "policy_refused"),),
    panels=(
        Panel(
            title="Goodput", queries=((f"min({_here(_recorded('goodput'))})", "worst pool"),), unit="percentunit",
            kind="stat", width=QUARTER, alert="SwitchgearGoodputLow", steps=_LOW_IS_BAD,
        ),
        Panel(
            title="Refused requests", queries=((f"max({_here(_recorded('shed'))})", "worst pool"),),
            unit="percentunit", kind="stat", width=QUARTER, alert="SwitchgearSheddingLoad", steps=_HIGH_IS_BAD,
        ),
        Panel(
            title="Degradation level", queries=((f"max({_here('pool_degradation_level')})", "highest"),),
            kind="stat", width=QUARTER, alert="SwitchgearDegraded", steps=_LEVELS,
        ),
        Panel(
            title="Proxies in NACK",
            queries=((f"sum({_here('xds_streams', state='NACK')}) or vector(0)", ""),),
            kind="stat", width=QUARTER, alert="SwitchgearConfigurationRefused",
            steps=(("green", None), ("red", 1.0)),
        ),
        Panel(
            title="Rate by pool", queries=((_rate("requests_total", "pool"), "{{pool}}"),), unit="reqps",
            width=THIRD,
        ),
        Panel(
            title="Errors by pool", queries=((f"1 - {_here(_recorded('goodput'))}", "{{pool}}"),),
            unit="percentunit", width=THIRD, alert="SwitchgearGoodputLow",
        ),
        Panel(
            title="Duration by pool", queries=_percentiles("attempt_duration_seconds"), unit="s", width=THIRD,
            alert="SwitchgearLatencyDoubled", description="Successful calls, from start to end.",
        ),
        Panel(
            title="Calls beyond objectives",
            queries=((_here(objective_bad("5m")), "{{pool}}{{route}} {{objective}}"),), unit="percentunit",
            alert="SwitchgearObjectiveBurnsFast", description="Share of calls that miss spec.objectives.",
        ),
        Panel(
            title="Goodput by pool", queries=((_here(_recorded("goodput")), "{{pool}}"),), unit="percentunit",
            description="Complete answers over answers and failures, without client disconnects and errors.",
            alert="SwitchgearBudgetBurnsFast",
        ),
        Panel(
            title="Refused requests by pool", queries=((_here(_recorded("shed")), "{{pool}}"),),
            unit="percentunit", alert="SwitchgearSheddingLoad",
        ),
        Panel(
            title="Engines by health",
            queries=((f"sum by (health) ({_most('engines', 'pool, zone, health')})", "{{health}}"),),
        ),
        Panel(
            title="Proxy subscriptions by state",
            queries=((f"sum by (state) ({_here('xds_streams')})", "{{state}}"),),
        ),
        _hops(),
        Panel(
            title="Calls per request", queries=((_here(_recorded("amplification")), "{{pool}}"),),
            alert="SwitchgearAmplification",
        ),
        Panel(
            title="Wasted GPU time", queries=((_here(_recorded("gpu_wasted")), "{{pool}}"),), unit="percentunit",
            description="GPU time of calls without a complete answer, over that of all calls.",
        ),
        Panel(
            title="Degradation level by pool", queries=((_most("pool_degradation_level", "pool"), "{{pool}}"),),
            alert="SwitchgearDegraded",
        ),
    ),
)  # fmt: skip

_POOL: Final = Dashboard(
    name="pool", title="Switchgear: pool",
    variables=(("namespace", "policy_refused"), ("pool", "pool_capacity_ratio")),
    panels=(
        Panel(
            title="Requests", unit="reqps",
            queries=(
                (_rate("requests_total", "class", pool=True), "arrived, {{class}}"),
                (_rate("requests_refused_total", "class", pool=True), "refused, {{class}}"),
                (_rate("requests_timed_out_total", "pool", pool=True), "timed out"),
            ),
        ),
        Panel(
            title="Calls by outcome", queries=((_rate("attempts_total", "outcome", pool=True), "{{outcome}}"),),
            unit="reqps", alert="SwitchgearGoodputLow",
        ),
        Panel(
            title="Duration", queries=_percentiles("attempt_duration_seconds", pool=True), unit="s",
            alert="SwitchgearLatencyDoubled", description="Successful calls, from start to end.",
        ),
        Panel(
            title="Time to first byte of streams",
            queries=_percentiles("attempt_first_byte_seconds", pool=True), unit="s",
            description="TTFT behind the first-token gate; without it, the time to the headers.",
        ),
        Panel(
            title="Calls by route, p99", unit="s",
            queries=(
                (
                    _quantile(0.99, "attempt_duration_seconds", "route", pool=True, outcome="success"),
                    "{{route}}",
                ),
            ),
        ),
        Panel(
            title="Time between tokens, slowest engine", unit="s",
            queries=(
                (_most("engine_time_per_output_token_seconds", "pool, percentile", pool=True), "{{percentile}}"),
            ),
            description="Reported by agents; the maximum of all engines.",
        ),
        Panel(
            title="Capacity and floor", unit="percentunit", alert="SwitchgearCapacityBelowFloor",
            queries=(
                (_most("pool_capacity_ratio", "pool", pool=True), "slots in rotation"),
                (_most("pool_capacity_floor_ratio", "pool", pool=True), "floor"),
                (_most("pool_keys_away_ratio", "pool", pool=True), "keys with other engines"),
                (_most("pool_prefilled_ratio", "pool", pool=True), "requests prefilled by other engines"),
            ),
        ),
        Panel(
            title="Demand and utilization", unit="percentunit",
            queries=(
                (_most("pool_pressure_ratio", "pool", pool=True), "demand"),
                (_most("pool_utilization_ratio", "pool", pool=True), "slots in use"),
            ),
            description="Demand above 100 % is refused at the admission limit, lowest class first.",
        ),
        Panel(
            title="In flight and admission limit",
            queries=(
                (_most("pool_in_flight_requests", "pool", pool=True), "in flight"),
                (_most("pool_ceiling_requests", "pool", pool=True), "admission limit"),
                (_most("pool_held_requests", "pool", pool=True), "held by ejected engines"),
                (_most("pool_slots", "pool", pool=True), "slots"),
            ),
        ),
        Panel(
            title="Active degradation actions",
            queries=((_most("pool_degradation_action", "action", pool=True), "{{action}}"),),
            alert="SwitchgearDegraded",
        ),
        Panel(
            title="Prefill engines named to decode engines, and why others are not",
            queries=((_most("pool_prefill_engines", "state", pool=True), "{{state}}"),),
        ),
        Panel(
            title="Engines with each adapter", alert="SwitchgearAdapterWithoutEngines",
            queries=((_most("pool_adapter_engines", "adapter", pool=True), "{{adapter}}"),),
        ),
        Panel(
            title="Ejections by cause", queries=((_most("engines_out", "ejector", pool=True), "{{ejector}}"),),
        ),
        Panel(
            title="Unhealthy engines kept in rotation",
            queries=((_most("pool_kept_in_engines", "pool", pool=True), "engines"),),
            alert="SwitchgearEnginesKeptIn",
        ),
        Panel(
            title="GPU time by outcome",
            queries=((_rate("attempt_gpu_seconds_total", "outcome", pool=True), "{{outcome}}"),),
            description="GPUs busy, by outcome; a call counts when it ends.",
        ),
        Panel(
            title="Oldest engine report", unit="s",
            queries=((_most("engine_report_age_seconds", "zone", pool=True), "{{zone}}"),),
        ),
    ),
)  # fmt: skip

_ENGINE: Final = Dashboard(
    name="engine", title="Switchgear: engines",
    variables=(
        ("namespace", "policy_refused"), ("pool", "pool_capacity_ratio"), ("engine", "engine_admitted_ratio"),
    ),
    panels=tuple(
        Panel(
            title=title, queries=((_most(name, "pool, engine", pool=True, engine=True), "{{engine}}"),), unit=unit,
            alert=alert,
        )
        for title, name, unit, alert in (
            ("Admitted traffic", "engine_admitted_ratio", "percentunit", ""),
            ("Requests in flight", "engine_in_flight_requests", "short", ""),
            ("Failed share of recent calls", "engine_failed_ratio", "percentunit", "SwitchgearGoodputLow"),
            ("KV cache in use", "engine_kv_cache_usage_ratio", "percentunit", ""),
            ("Ejections", "engine_departures_total", "short", "SwitchgearEngineFlapping"),
        )
    ),
)  # fmt: skip

_CONTROL: Final = Dashboard(
    name="control-plane", title="Switchgear: control plane", variables=(("namespace", "policy_refused"),),
    panels=(
        Panel(
            title="Ejection by hop, p99",
            queries=((_quantile(0.99, "departure_hop_seconds", "hop"), "{{hop}}"),), unit="s",
            alert="SwitchgearSlowToLeave",
            description="news_to_ack is the total; quantiles of hops do not add up to it.",
        ),
        Panel(
            title="Push to ACK, p99", queries=((_quantile(0.99, "xds_push_to_ack_seconds", "type"), "{{type}}"),),
            unit="s",
        ),
        Panel(
            title="Longest sync lag", queries=((_most("xds_behind_seconds", "type"), "{{type}}"),), unit="s",
            alert="SwitchgearProxiesBehind",
        ),
        Panel(
            title="Pushes and NACKs", unit="ops",
            queries=(
                (_rate("xds_pushes_total", "type"), "{{type}}"),
                (_rate("xds_nacks_total", "type"), "NACK {{type}}"),
            ),
        ),
        Panel(
            title="Snapshot build, p99", queries=((_quantile(0.99, "snapshot_build_seconds", "job"), "build"),),
            unit="s",
        ),
        Panel(
            title="Policy state", alert="SwitchgearPoliciesRefused",
            queries=(
                (f"max({_here('policy_refused')})", "refused"), (f"max({_here('shrink_held')})", "held"),
                (f"max({_here('policy_stale')})", "stale"),
            ),
        ),
        Panel(
            title="Rolled back resources", alert="SwitchgearConfigurationRolledBack",
            queries=((_most("xds_rolled_back_resources", "type"), "{{type}}"),),
            description="Resources not served because a proxy refused them (NACK).",
        ),
        Panel(
            title="Reconcile and disk failures",
            queries=(
                (f"sum(increase({_here('reconcile_failures_total')}[$__rate_interval]))", "failed rounds"),
                (f"sum(increase({_here('store_failures_total')}[$__rate_interval]))", "failed writes"),
            ),
            alert="SwitchgearReconcileFailing",
        ),
        Panel(
            title="Missing telemetry", alert="SwitchgearTelemetryLost",
            queries=(
                (f"sum by (signal) ({_here('telemetry_lost')})", "lost: {{signal}}"),
                (f"min({_here('telemetry_sampling_ratio')})", "sampling"),
            ),
        ),
        Panel(
            title="Connected proxies", queries=((f"sum by (role) ({_here('xds_connections')})", "{{role}}"),),
            alert="SwitchgearProxiesGone",
        ),
        Panel(
            title="Time since last Kubernetes update", unit="s", alert="SwitchgearSourceStale",
            queries=((_most("source_stale_seconds", "resource"), "{{resource}}"),),
        ),
        Panel(
            title="Lease holders", queries=((f"sum({_here('lease_held')})", "replicas"),),
            alert="SwitchgearLeaseHeldTwice",
        ),
        Panel(
            title="Certificate expiry", unit="s", alert="SwitchgearCertificateExpires",
            queries=((f"min by (use) ({_here('certificate_expiry_seconds')})", "{{use}}"),),
        ),
        Panel(
            title="Secret expiry", unit="s", alert="SwitchgearSecretExpires",
            queries=((f"min by (secret) ({_here('secret_expiry_seconds')})", "{{secret}}"),),
        ),
        Panel(
            title="Withheld keys", alert="SwitchgearSecretsWithheld",
            queries=((_most("secrets_withheld", "reason"), "{{reason}}"),),
        ),
        Panel(
            title="Unusable files", alert="SwitchgearSecretRefused",
            queries=(
                (_most("secret_trouble", "secret"), "secret {{secret}}"),
                (f"max({_here('certificate_trouble')})", "certificate"),
                (f"max({_here('access_refused')})", "access rules"),
            ),
        ),
        Panel(
            title="Trace spans", unit="ops", alert="SwitchgearTracesLost",
            queries=((_rate("trace_spans_total", "result"), "{{result}}"),),
        ),
        Panel(
            title="CPU and open files", unit="percentunit",
            queries=(
                (f"max({_process('cpu_seconds_total', '[$__rate_interval]')})", "CPU"),
                (f"max({_process('open_fds')} / {_ONE_PROCESS} {_process('max_fds')})", "open files"),
            ),
            description="Highest replica; CPU in share of one core.",
        ),
        Panel(
            title="Memory of the largest replica", unit="bytes",
            queries=((f"max({_process('resident_memory_bytes')})", "resident"),),
        ),
    ),
)  # fmt: skip

DASHBOARDS: Final = (_OVERVIEW, _POOL, _ENGINE, _CONTROL)
