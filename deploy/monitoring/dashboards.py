"""Grafana dashboards, made from the table of metrics: a metric that is renamed breaks them here, not at 3 a.m.

Four pages: how the fleet does, one pool, one engine, and the control plane itself. Each panel has a query, a unit
and, where an alert watches the same thing, a link to its runbook.
"""

from typing import Any, Final

from deploy.monitoring.grafana import QUARTER, Dashboard, Panel
from deploy.monitoring.prometheus_rules import metric, recordings
from xds_server.metrics.metric_table import TABLE

_RECORDED: Final = frozenset(one.record for one in recordings())


def _recorded(name: str) -> str:
    found = f"pool:switchgear_{name}:ratio_rate5m"
    if found not in _RECORDED:
        raise KeyError(found)
    return found


def _here(name: str, pool: bool = False, engine: bool = False, **more: str) -> str:
    """A metric of the chosen installation, and of the chosen pool and engine where they are asked for."""
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
    """A metric that every program has, of our control planes alone; its rate where there is a window."""
    series = f'{TABLE[f"process_{name}"].name}{{namespace=~"$namespace"}}{window}'
    ours = _here("build_info", component="control-plane")
    return f"({f'rate({series})' if window else series} and {_ONE_PROCESS} {ours})"


def _rate(name: str, by: str, **more: Any) -> str:
    return f"sum by ({by}) (rate({_here(name, **more)}[$__rate_interval]))"


def _quantile(share: float, name: str, by: str, **more: Any) -> str:
    series = _here(name, **more).replace(metric(name), f"{metric(name)}_bucket")
    return f"histogram_quantile({share:g}, sum by ({by}, le) (rate({series}[$__rate_interval])))"


def _hops() -> Panel:
    series = _here("departure_hop_seconds", hop="news_to_ack").replace("_seconds{", "_seconds_bucket{")
    return Panel(
        title="From news of a broken engine to each proxy's ACK",
        queries=((f"sum by (le) (increase({series}[$__rate_interval]))", "{{le}}"),),
        unit="s", kind="heatmap", alert="SwitchgearSlowToLeave",
        says="One count for each proxy and departure. A proxy that does not answer counts as 30 s.",
    )  # fmt: skip


_LOW_IS_BAD: Final = (("red", None), ("orange", 0.9), ("green", 0.99))
_HIGH_IS_BAD: Final = (("green", None), ("orange", 0.01), ("red", 0.05))
_LEVELS: Final = (("green", None), ("orange", 1.0), ("red", 3.0))

_OVERVIEW: Final = Dashboard(
    name="overview", title="Switchgear: the fleet", variables=(("namespace", "policy_refused"),),
    panels=(
        Panel(
            title="Goodput", queries=((f"min({_here(_recorded('goodput'))})", "worst pool"),), unit="percentunit",
            kind="stat", width=QUARTER, alert="SwitchgearGoodputLow", steps=_LOW_IS_BAD,
        ),
        Panel(
            title="Refused", queries=((f"max({_here(_recorded('shed'))})", "worst pool"),), unit="percentunit",
            kind="stat", width=QUARTER, alert="SwitchgearSheddingLoad", steps=_HIGH_IS_BAD,
        ),
        Panel(
            title="Level of degradation", queries=((f"max({_here('pool_degradation_level')})", "highest"),),
            kind="stat", width=QUARTER, alert="SwitchgearDegraded", steps=_LEVELS,
        ),
        Panel(
            title="Proxies that refuse",
            queries=((f"sum({_here('xds_streams', state='NACK')}) or vector(0)", ""),),
            kind="stat", width=QUARTER, alert="SwitchgearConfigurationRefused",
            steps=(("green", None), ("red", 1.0)),
        ),
        Panel(
            title="Goodput by pool", queries=((_here(_recorded("goodput")), "{{pool}}"),), unit="percentunit",
            says="Good answers over good and bad ones. Callers who leave, and their own mistakes, are neither.",
            alert="SwitchgearBudgetBurnsFast",
        ),
        Panel(
            title="Refused by pool", queries=((_here(_recorded("shed")), "{{pool}}"),), unit="percentunit",
            alert="SwitchgearSheddingLoad",
        ),
        Panel(
            title="Engines by health",
            queries=((f"sum by (health) ({_most('engines', 'pool, zone, health')})", "{{health}}"),),
        ),
        Panel(title="Proxies in sync", queries=((f"sum by (state) ({_here('xds_streams')})", "{{state}}"),)),
        _hops(),
        Panel(
            title="Calls to engines for each request", queries=((_here(_recorded("amplification")), "{{pool}}"),),
            alert="SwitchgearAmplification",
        ),
        Panel(
            title="Wasted GPU time", queries=((_here(_recorded("gpu_wasted")), "{{pool}}"),), unit="percentunit",
            says="Time of calls whose answer nobody got, or that brought none, over that of all calls.",
        ),
        Panel(
            title="Level of degradation by pool", queries=((_most("pool_degradation_level", "pool"), "{{pool}}"),),
            alert="SwitchgearDegraded",
        ),
    ),
)  # fmt: skip

_POOL: Final = Dashboard(
    name="pool", title="Switchgear: a pool",
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
            title="Capacity and its floor", unit="percentunit", alert="SwitchgearCapacityBelowFloor",
            queries=(
                (_most("pool_capacity_ratio", "pool", pool=True), "slots that are in"),
                (_most("pool_capacity_floor_ratio", "pool", pool=True), "floor"),
            ),
        ),
        Panel(
            title="Asked and in use", unit="percentunit",
            queries=(
                (_most("pool_pressure_ratio", "pool", pool=True), "asked of it"),
                (_most("pool_utilization_ratio", "pool", pool=True), "slots in use"),
            ),
            says="Above 100 % asked, the ceiling refuses the rest, lowest class first.",
        ),
        Panel(
            title="In flight and ceiling",
            queries=(
                (_most("pool_in_flight_requests", "pool", pool=True), "in flight"),
                (_most("pool_ceiling_requests", "pool", pool=True), "ceiling"),
                (_most("pool_held_requests", "pool", pool=True), "held by engines that are out"),
                (_most("pool_slots", "pool", pool=True), "slots"),
            ),
        ),
        Panel(
            title="What is done because of the level",
            queries=((_most("pool_degradation_action", "action", pool=True), "{{action}}"),),
            alert="SwitchgearDegraded",
        ),
        Panel(
            title="Who wants engines out", queries=((_most("engines_out", "ejector", pool=True), "{{ejector}}"),),
        ),
        Panel(
            title="Kept in by the floor", queries=((_most("pool_kept_in_engines", "pool", pool=True), "engines"),),
            alert="SwitchgearEnginesKeptIn",
        ),
        Panel(
            title="GPU time by outcome",
            queries=((_rate("attempt_gpu_seconds_total", "outcome", pool=True), "{{outcome}}"),),
            says="GPUs busy with calls of each outcome; a call counts when it ends.",
        ),
        Panel(
            title="Oldest report", queries=((_most("engine_report_age_seconds", "zone", pool=True), "{{zone}}"),),
            unit="s",
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
            ("Traffic it may get", "engine_admitted_ratio", "percentunit", ""),
            ("Requests in flight", "engine_in_flight_requests", "short", ""),
            ("Failed share of the newest calls", "engine_failed_ratio", "percentunit", "SwitchgearGoodputLow"),
            ("KV cache in use", "engine_kv_cache_usage_ratio", "percentunit", ""),
            ("Times taken out", "engine_departures_total", "short", "SwitchgearEngineFlapping"),
        )
    ),
)  # fmt: skip

_CONTROL: Final = Dashboard(
    name="control-plane", title="Switchgear: the control plane", variables=(("namespace", "policy_refused"),),
    panels=(
        Panel(
            title="Hops of an engine's leaving, p99",
            queries=((_quantile(0.99, "departure_hop_seconds", "hop"), "{{hop}}"),), unit="s",
            alert="SwitchgearSlowToLeave", says="Quantiles of hops do not add up; news_to_ack is the whole of it.",
        ),
        Panel(
            title="Push to ACK, p99", queries=((_quantile(0.99, "xds_push_to_ack_seconds", "type"), "{{type}}"),),
            unit="s",
        ),
        Panel(
            title="Longest behind", queries=((_most("xds_behind_seconds", "type"), "{{type}}"),), unit="s",
            alert="SwitchgearProxiesBehind",
        ),
        Panel(
            title="Pushes and refusals", unit="ops",
            queries=(
                (_rate("xds_pushes_total", "type"), "{{type}}"),
                (_rate("xds_nacks_total", "type"), "NACK {{type}}"),
            ),
        ),
        Panel(
            title="Snapshots, p99", queries=((_quantile(0.99, "snapshot_build_seconds", "job"), "build"),),
            unit="s",
        ),
        Panel(
            title="Policies", alert="SwitchgearPoliciesRefused",
            queries=(
                (f"max({_here('policy_refused')})", "refused"), (f"max({_here('shrink_held')})", "held"),
                (f"max({_here('policy_stale')})", "stale"),
            ),
        ),
        Panel(
            title="Resources that are rolled back", alert="SwitchgearConfigurationRolledBack",
            queries=((_most("xds_rolled_back_resources", "type"), "{{type}}"),),
            says="What the policies come to, and proxies do not have because one refused it.",
        ),
        Panel(
            title="Bugs and disk",
            queries=(
                (f"sum(increase({_here('reconcile_failures_total')}[$__rate_interval]))", "rounds that failed"),
                (f"sum(increase({_here('store_failures_total')}[$__rate_interval]))", "policies not kept"),
            ),
            alert="SwitchgearReconcileFailing",
        ),
        Panel(
            title="Telemetry", alert="SwitchgearTelemetryLost",
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
            title="Kubernetes API out of touch", unit="s", alert="SwitchgearSourceStale",
            queries=((_most("source_stale_seconds", "resource"), "{{resource}}"),),
        ),
        Panel(
            title="Who holds the lease", queries=((f"sum({_here('lease_held')})", "replicas"),),
            alert="SwitchgearLeaseHeldTwice",
        ),
        Panel(
            title="Certificate", unit="s", alert="SwitchgearCertificateExpires",
            queries=((f"min by (use) ({_here('certificate_expiry_seconds')})", "{{use}}"),),
        ),
        Panel(
            title="Certificates for engines", unit="s", alert="SwitchgearSecretExpires",
            queries=((f"min by (secret) ({_here('secret_expiry_seconds')})", "{{secret}}"),),
        ),
        Panel(
            title="Keys that proxies are not sent", alert="SwitchgearSecretsWithheld",
            queries=((_most("secrets_withheld", "reason"), "{{reason}}"),),
        ),
        Panel(
            title="Files that cannot be used", alert="SwitchgearSecretRefused",
            queries=(
                (_most("secret_trouble", "secret"), "secret {{secret}}"),
                (f"max({_here('certificate_trouble')})", "certificate"),
                (f"max({_here('access_refused')})", "rules of access"),
            ),
        ),
        Panel(
            title="Spans of traces", unit="ops", alert="SwitchgearTracesLost",
            queries=((_rate("trace_spans_total", "result"), "{{result}}"),),
        ),
        Panel(
            title="CPU and share of open files", unit="percentunit",
            queries=(
                (f"max({_process('cpu_seconds_total', '[$__rate_interval]')})", "CPU"),
                (f"max({_process('open_fds')} / {_ONE_PROCESS} {_process('max_fds')})", "open files"),
            ),
            says="Of one core, of the replica that takes most.",
        ),
        Panel(
            title="Memory", unit="bytes",
            queries=((f"max({_process('resident_memory_bytes')})", "of the largest replica"),),
        ),
    ),
)  # fmt: skip

DASHBOARDS: Final = (_OVERVIEW, _POOL, _ENGINE, _CONTROL)
