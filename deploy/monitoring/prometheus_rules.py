"""Recording and alert rules for Prometheus, made from the table of metrics.

An alert tells of what callers or operators lose, not of why: that is in its runbook, which has its name. ``page``
wakes somebody up; ``ticket`` waits for the morning. Everything is by job and namespace, so that several
installations share one Prometheus, and over all replicas: gauges of pools by ``max``, counters by ``sum``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import yaml

from xds_server.metrics.metric_table import TABLE

RUNBOOKS: Final = "docs/runbooks"
"""Where the pages stand in the repository, which is all that is sure: who publishes them says where to."""

OBJECTIVE: Final = 0.99
"""Share of requests that ought to be answered in 30 days, which the budget is reckoned from."""

WINDOWS: Final = ("5m", "30m", "1h", "6h")
"""Over which ratios are recorded: those of the two burn alerts."""

CONNECTED: Final = "job:switchgear_xds_connections:sum"
"""Connected proxies of all replicas."""


def metric(name: str) -> str:
    """The full name of a metric of the table; KeyError where it is not in it, so that no rule asks for nothing."""
    return TABLE[f"switchgear_{name}"].name


def _sum(name: str, window: str, labels: str = "") -> str:
    return f"sum by (job, namespace, pool) (rate({metric(name)}{labels}[{window}]))"


def _most(name: str, by: str = "pool") -> str:
    return f"max by (job, namespace, {by}) ({metric(name)})"


def _recorded(name: str, window: str = "5m") -> str:
    return f"pool:switchgear_{name}:ratio_rate{window}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A query under a name of its own."""

    record: str
    expr: str


def recordings() -> Iterator[Recording]:
    """Ratios that alerts and dashboards share.

    Good are whole answers; bad are requests refused, timed out, or whose call failed or was turned away by
    its engine and was not tried again. Callers who leave, and what is their own mistake, are neither. A hedge is
    counted as a retry, so with hedging a bad share of up to ``hedging.maxPercent`` can go unseen.
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
    connected = f"sum by (job, namespace) ({metric('xds_connections')})"
    yield Recording(record=CONNECTED, expr=connected)
    hop = f"{metric('departure_hop_seconds')}_bucket"
    yield Recording(
        record="hop:switchgear_departure_hop_seconds:p99_rate1h",
        expr=f"histogram_quantile(0.99, sum by (job, namespace, hop, le) (rate({hop}[1h])))",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert. ``held`` is how long it must be so, and ``because`` why that long."""

    name: str
    severity: Literal["page", "ticket"]
    expr: str
    held: str
    because: str
    summary: str


def _nears_its_end(what: str, by: str) -> str:
    """Within two days of its end, or, of one that is short anyway, in the last quarter of its life."""
    left, life = (
        f"min by (job, namespace, {by}) ({metric(f'{what}_{one}_seconds')})" for one in ("expiry", "lifetime")
    )
    return f"{left} < clamp_max({life} / 4, 2 * 86400)"


def _away(told: str) -> str:
    """Installations that told this within a day and do not now; with no label where none did, nor does."""
    by = "count by (job, namespace)"
    return f"{by} (last_over_time({told}[1d])) unless {by} ({told}) or absent(last_over_time({told}[1d]))"


def _burns(long: str, short: str, factor: float) -> str:
    most = round(factor * (1 - OBJECTIVE), 6)
    return f"(1 - {_recorded('goodput', long)}) > {most:g} and (1 - {_recorded('goodput', short)}) > {most:g}"


_POOL: Final = "pool {{ $labels.pool }}"

ALERTS: Final[Sequence[Alert]] = (
    Alert(
        name="SwitchgearGoodputLow", severity="page", expr=f"{_recorded('goodput')} < 0.9", held="2m",
        because="an engine that fails leaves in seconds: what lasts for minutes does not mend itself",
        summary=f"{_POOL}: only {{{{ $value | humanizePercentage }}}} of requests are answered",
    ),
    Alert(
        name="SwitchgearBudgetBurnsFast", severity="page", expr=_burns("1h", "5m", 14.4), held="2m",
        because="2 % of a month's budget in an hour; the short window ends it when it is over",
        summary=f"{_POOL}: a month's errors are used up within two days at this rate",
    ),
    Alert(
        name="SwitchgearBudgetBurnsSlowly", severity="ticket", expr=_burns("6h", "30m", 6), held="15m",
        because="5 % of a month's budget in six hours: nobody needs to wake up for it",
        summary=f"{_POOL}: a month's errors are used up within five days at this rate",
    ),
    Alert(
        name="SwitchgearSheddingLoad", severity="page", expr=f"{_recorded('shed')} > 0.05", held="5m",
        because="refusing a peak of a minute is what the ceiling is for; autoscalers need some",
        summary=f"{_POOL}: {{{{ $value | humanizePercentage }}}} of requests are refused",
    ),
    Alert(
        name="SwitchgearAmplification", severity="page", expr=f"{_recorded('amplification')} > 1.5", held="5m",
        because="retries after a crash last a few seconds; a storm lasts",
        summary=f"{_POOL}: {{{{ $value | humanize }}}} calls to engines for each request",
    ),
    Alert(
        name="SwitchgearDegraded", severity="page", expr=f"{_most('pool_degradation_level')} >= 3", held="2m",
        because="the ladder itself waits before each level; callers notice from here on",
        summary=f"{_POOL}: at level {{{{ $value }}}} of degradation",
    ),
    Alert(
        name="SwitchgearCapacityBelowFloor", severity="page",
        expr=f"{_most('pool_capacity_ratio')} < {_most('pool_capacity_floor_ratio')}", held="2m",
        because="a rollout or a restart of a rack may dip below it for a moment",
        summary=f"{_POOL}: {{{{ $value | humanizePercentage }}}} of its slots are left, less than its floor",
    ),
    Alert(
        name="SwitchgearEnginesKeptIn", severity="ticket", expr=f"{_most('pool_kept_in_engines')} > 0", held="10m",
        because="engines return and make room by themselves within minutes",
        summary=f"{_POOL}: {{{{ $value }}}} bad engines are kept in, for too few others are left",
    ),
    Alert(
        name="SwitchgearEngineFlapping", severity="ticket",
        expr=f"max by (job, namespace, pool, engine) (increase({metric('engine_departures_total')}[15m])) > 3.5",
        held="0m",
        because="four times are no accident, and the window is the wait",
        summary=f"{_POOL}: engine {{{{ $labels.engine }}}} left {{{{ $value | humanize }}}} times in 15 min",
    ),
    Alert(
        name="SwitchgearSlowToLeave", severity="ticket",
        expr='hop:switchgear_departure_hop_seconds:p99_rate1h{hop="news_to_ack"} > 2', held="10m",
        because="an hour's quantile moves slowly; one proxy that restarts is no pattern",
        summary="proxies hear of engines that leave {{ $value | humanizeDuration }} late (p99)",
    ),
    Alert(
        name="SwitchgearConfigurationRefused", severity="page",
        expr=f'sum by (job, namespace, type) ({metric("xds_streams")}{{state="NACK"}}) > 0', held="1m",
        because="parts that are rolled back are accepted in well under a minute",
        summary="{{ $value }} proxies refuse their {{ $labels.type }} and keep what they had before",
    ),
    Alert(
        name="SwitchgearProxiesBehind", severity="page", expr=f"{_most('xds_behind_seconds', 'type')} > 30",
        held="1m",
        because="a cluster that waits for endpoints takes 15 s by itself",
        summary="a proxy has been without its newest {{ $labels.type }} for {{ $value | humanizeDuration }}",
    ),
    Alert(
        # Half, and not less: while proxies move to another replica scrapes may count each of them twice.
        name="SwitchgearProxiesGone", severity="page",
        expr=f"{CONNECTED} < 0.5 * max_over_time({CONNECTED}[1h])", held="5m",
        because="proxies that start, or move to another replica, are back within seconds",
        summary="{{ $value }} proxies are connected, less than half of those of the last hour",
    ),
    Alert(
        name="SwitchgearConfigurationRolledBack", severity="ticket",
        expr=f"{_most('xds_rolled_back_resources', 'type')} > 0", held="5m",
        because="time to notice and to correct an edit oneself",
        summary="{{ $value }} resources ({{ $labels.type }}) are not served, for a proxy refused them",
    ),
    Alert(
        name="SwitchgearPoliciesRefused", severity="ticket",
        expr=f"max by (job, namespace) ({metric('policy_refused')}) == 1", held="5m",
        because="time to notice and to correct an edit oneself",
        summary="the policies as they are now are refused; the last good ones are served",
    ),
    Alert(
        name="SwitchgearPoliciesHeld", severity="page",
        expr=f"max by (job, namespace) ({metric('shrink_held')}) == 1", held="2m",
        because="held until somebody decides; engines that are said to end may still explain it",
        summary="an edit that drops more than half is held back until somebody releases it",
    ),
    Alert(
        name="SwitchgearPoliciesStale", severity="ticket",
        expr=f"max by (job, namespace) ({metric('policy_stale')}) == 1", held="10m",
        because="a start without its source is over within minutes",
        summary="policies of the last run are served, for the source of new ones is not there",
    ),
    Alert(
        name="SwitchgearControlPlaneAbsent", severity="page",
        expr=_away(metric("policy_refused")), held="2m",
        because="one scrape that is missed, or a restart of all replicas, is shorter",
        summary="no control plane is heard: proxies keep what they have, and nothing follows engines any more",
    ),
    Alert(
        name="SwitchgearSourceStale", severity="ticket", expr=f"{_most('source_stale_seconds', 'resource')} > 60",
        held="2m",
        because="an API server that is upgraded comes back within this time",
        summary="the Kubernetes API has not told of {{ $labels.resource }} for {{ $value | humanizeDuration }}",
    ),
    Alert(
        name="SwitchgearTelemetryLost", severity="ticket",
        expr=f"sum by (job, namespace, signal) ({metric('telemetry_lost')}) > 0", held="5m",
        because="a proxy that connects again needs some seconds; decisions do without meanwhile",
        summary="{{ $value }} connected proxies do not tell their {{ $labels.signal }}",
    ),
    Alert(
        name="SwitchgearLeaseHeldByNobody", severity="ticket",
        expr=f"sum by (job, namespace) ({metric('lease_held')}) == 0", held="3m",
        because="a lease runs out, and is taken over, within half a minute",
        summary="no replica writes status, events and readiness gates",
    ),
    Alert(
        name="SwitchgearLeaseHeldTwice", severity="page",
        expr=f"sum by (job, namespace) ({metric('lease_held')}) > 1", held="2m",
        because="two scrapes at different moments of a hand-over can show two",
        summary="{{ $value }} replicas believe that they write: readiness gates may contradict each other",
    ),
    Alert(
        name="SwitchgearReconcileFailing", severity="page",
        expr=f"sum by (job, namespace) (increase({metric('reconcile_failures_total')}[5m])) > 0", held="1m",
        because="one round that failed and was made up for is in the log, and is no emergency",
        summary="rounds fail: proxies keep what they have, and decisions stand still",
    ),
    Alert(
        name="SwitchgearStoreFailing", severity="ticket",
        expr=f"sum by (job, namespace) (increase({metric('store_failures_total')}[5m])) > 0", held="10m",
        because="it is tried again each 10 s: one attempt that failed is made up for before anybody has looked",
        summary="what a restart begins with cannot be written to disk: policies, versions, orders",
    ),
    Alert(
        name="SwitchgearCertificateExpires", severity="page", expr=_nears_its_end("certificate", "use"),
        held="10m",
        because="certificates are renewed with a third of their life left, or more; ten minutes lose nothing",
        summary="certificate ({{ $labels.use }}) has {{ $value | humanizeDuration }} left; then nobody connects",
    ),
    Alert(
        name="SwitchgearCertificateRefused", severity="ticket",
        expr=f"max by (job, namespace) ({metric('certificate_trouble')}) == 1", held="10m",
        because="a rotation that is half written is whole within seconds",
        summary="the certificate files of the control plane cannot be used; the pair before is, until it ends",
    ),
    Alert(
        name="SwitchgearAccessRefused", severity="ticket",
        expr=f"max by (job, namespace) ({metric('access_refused')}) == 1", held="5m",
        because="time to notice and to correct an edit oneself",
        summary="the rules of access as they are now are refused; those before them are in force",
    ),
    Alert(
        name="SwitchgearSecretExpires", severity="page", expr=_nears_its_end("secret", "secret"), held="10m",
        because="certificates are renewed with a third of their life left, or more; ten minutes lose nothing",
        summary="secret {{ $labels.secret }} has {{ $value | humanizeDuration }} left; then calls to engines fail",
    ),
    Alert(
        name="SwitchgearSecretRefused", severity="ticket",
        expr=f"max by (job, namespace, secret) ({metric('secret_trouble')}) == 1", held="10m",
        because="a rotation that is half written is whole within seconds",
        summary="the files of secret {{ $labels.secret }} cannot be used; those before are, if there were any",
    ),
    Alert(
        # Not of gRPC clients: those that have credentials of their own do without.
        name="SwitchgearSecretsWithheld", severity="page",
        expr=f'max by (job, namespace, reason) ({metric("secrets_withheld")}{{reason!="grpc"}}) > 0', held="2m",
        because="proxies that are given their certificates connect again within a minute",
        summary="{{ $value }} keys are not sent to proxies ({{ $labels.reason }}): engines that want one refuse",
    ),
    Alert(
        name="SwitchgearTracesLost", severity="ticket",
        expr=f'sum by (job, namespace) (increase({metric("trace_spans_total")}{{result!="sent"}}[15m])) > 0',
        held="15m",
        because="a collector that is restarted misses some, and nothing else depends on traces",
        summary="{{ $value | humanize }} spans of traces did not reach the collector within 15 min",
    ),
)  # fmt: skip


def groups(runbooks: str = "") -> Mapping[str, object]:
    """The rules as Prometheus, and a PrometheusRule, want them; ``runbooks`` as for ``rules_yaml``."""
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
            "description": _described(one),
            "runbook": f"{RUNBOOKS}/{one.name}.md",
            **({"runbook_url": f"{runbooks}/{one.name}/"} if runbooks else {}),
        },
    }


def _described(one: Alert) -> str:
    waited = "" if one.held == "0m" else f"It has been so for {one.held}: "
    return f"{waited}{one.because}."


def rules_yaml(runbooks: str = "") -> str:
    """``deploy/monitoring/rules.yaml``; with links, where ``runbooks`` is the URL that the pages stand at."""
    text = yaml.safe_dump(groups(runbooks), sort_keys=False, width=115, allow_unicode=True)
    return f"# Made by deploy/monitoring/prometheus_rules.py; `make generated`.\n{text}"
