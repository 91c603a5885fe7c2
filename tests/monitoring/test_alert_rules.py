"""Every alert fires exactly when it should, evaluated by promtool."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from deploy.monitoring.prometheus_rules import ALERTS, groups, metric, recordings, rules_yaml
from deploy.render import DEPLOY
from policies.codes import REMARKS
from tests.monitoring.promtool import needed, promtool
from xds_server.metrics.metric_table import TABLE

RULES = DEPLOY / "monitoring" / "rules.yaml"
WHOLE = {"job": "switchgear", "namespace": "inference"}
POOL = {**WHOLE, "pool": "chat"}
TENANT = {**WHOLE, "port": "8080", "tenant": "search"}
BY_NAME = {one.name: one for one in ALERTS}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Series per minute, evaluation time and the labels the alert fires with (None: it does not fire)."""

    alert: str
    series: Mapping[str, str]
    at: str
    fires: Mapping[str, str] | None = None
    what: str = field(default="")


def labelled(name: str, **labels: str) -> str:
    """A series as the server exposes it; Prometheus adds ``pod`` and ``namespace``."""
    row = TABLE[metric(name)]
    assert set(labels) - {"le", "pod", "namespace"} == set(row.labels), f"{name} has other labels: {labels}"
    for key, values in row.labels.items():
        assert not values or labels[key] in values, f"{name} has no such value: {key}={labels[key]}"
    pairs = {**WHOLE, **labels}
    return metric(name) + "{" + ",".join(f'{key}="{value}"' for key, value in pairs.items()) + "}"


def calls(success: int, failure: int = 0, retries: int = 0, refused: int = 0, minutes: int = 60) -> dict[str, str]:
    """Counters of a pool; arguments are increases per minute."""
    rates = {
        labelled("attempts_total", pool="chat", outcome="success"): success,
        labelled("attempts_total", pool="chat", outcome="failure"): failure,
        labelled("attempts_total", pool="chat", outcome="abandoned"): 10,
        labelled("retries_total", pool="chat"): retries,
        labelled("requests_refused_total", pool="chat", **{"class": "interactive"}): refused,
        labelled("requests_timed_out_total", pool="chat"): 0,
        labelled("requests_total", pool="chat", **{"class": "interactive"}): success + refused + failure - retries,
    }
    return {series: f"0+{step}x{minutes}" for series, step in rates.items()}


def of_tenant(quota: int, admitted: int, refused: int, over: int = 0) -> dict[str, str]:
    """A tenant with ``quota`` requests per second; the others are increases per minute."""
    counts = {"admitted": admitted, "refused": refused, "over_quota": over}
    labels = {"port": "8080", "tenant": "search"}
    return {
        labelled("tenant_quota_requests_per_second", **labels): f"{quota}x60",
        **{
            labelled("tenant_requests_total", outcome=outcome, **labels): f"0+{step}x60"
            for outcome, step in counts.items()
        },
    }


def turned(name: str, before: float, after: float, **labels: str) -> dict[str, str]:
    """A gauge that is ``before`` for 10 minutes, and then ``after``."""
    return {labelled(name, **labels): f"{before}x10 {after}x60"}


def hops(le_2: int, le_5: int) -> dict[str, str]:
    """ACKs per minute within 2 s and within 5 s."""
    return {
        labelled("departure_hop_seconds", hop="news_to_ack", le=le).replace("_seconds{", "_seconds_bucket{"): (
            f"0+{count}x120"
        )
        for le, count in (("2", le_2), ("5", le_5), ("+Inf", le_5))
    }


def switched(alert: str, name: str, good: float, bad: float, at: str, **labels: str) -> list[Case]:
    """A gauge turns bad after 10 minutes: the alert waits, then fires. While good it never fires."""
    kept = {key: labels[key] for key in labels if key in _kept(alert)}
    return [
        Case(alert=alert, series=turned(name, good, bad, **labels), at=at, fires={**WHOLE, **kept}, what="bad"),
        Case(alert=alert, series=turned(name, good, bad, **labels), at="11m", what="just turned"),
        Case(alert=alert, series=turned(name, good, good, **labels), at="60m", what="good"),
    ]


def in_condition(alert: str, code: str, at: str) -> list[Case]:
    """Objects enter the condition after 10 minutes; see ``switched``."""
    severity = REMARKS[code].severity
    return switched(alert, "condition", 0, 2, at, code=code, severity=severity)


def expires(alert: str, what: str, **labels: str) -> list[Case]:
    """Certificates near expiry: two days for long ones, a quarter of the lifetime for short ones."""

    def expiring(life_s: int, left_s: int) -> dict[str, str]:
        return {
            labelled(f"{what}_lifetime_seconds", **labels): f"{life_s}x70",
            labelled(f"{what}_expiry_seconds", **labels): f"{left_s}-60x70",
        }

    fires, day = {**WHOLE, **labels}, 86_400
    return [
        Case(
            alert=alert, series=expiring(90 * day, 2 * day - 60), at="22m", fires=fires, what="months, not renewed"
        ),
        Case(alert=alert, series=expiring(90 * day, 3 * day), at="60m", what="months, three days left"),
        Case(
            alert=alert, series=expiring(day, day // 4 - 60), at="22m", fires=fires, what="a day, six hours left"
        ),
        Case(alert=alert, series=expiring(day, day // 2), at="60m", what="a day, half of it left"),
        Case(alert=alert, series=expiring(day, -60), at="22m", fires=fires, what="expired"),
    ]


def _kept(alert: str) -> set[str]:
    """Labels kept by an alert's query."""
    return set(re.findall(r"\w+", re.findall(r"by \(([^)]*)\)", BY_NAME[alert].expr)[0]))


def connected(*replicas: str) -> dict[str, str]:
    """Connected proxies of each replica per minute."""
    return {
        labelled("xds_connections", role="gateway", protocol="delta", pod=str(number)): values
        for number, values in enumerate(replicas)
    }


def durations(before: str, after: str, calls: int = 60) -> dict[str, str]:
    """100 minutes of calls, up to the bound ``before`` in the first 80 minutes, then up to ``after``."""
    bounds = ("0.5", "1.0", "2.0", "3.0", "5.0", "+Inf")
    found = {labelled("attempts_total", pool="chat", outcome="success"): f"0+{calls}x100"}
    for bound in bounds:
        early, late = float(bound) >= float(before), float(bound) >= float(after)
        labels = {"class": "interactive", "route": "talk", "outcome": "success", "pool": "chat", "le": bound}
        series = labelled("attempt_duration_seconds", **labels).replace("_seconds{", "_seconds_bucket{")
        first = f"0+{calls if early else 0}x80"
        found[series] = f"{first} {(80 + 1) * calls if early else calls if late else 0}+{calls if late else 0}x19"
    return found


def engine_state(admitted: int, **others: int) -> dict[str, str]:
    """An engine in rotation for 10 minutes, then admitted at this ratio, with gauges of its pool."""
    first = {labelled("engine_admitted_ratio", pool="chat", engine="r1", zone="a"): f"1x10 {admitted}x60"}
    out = {
        labelled("engines_out", pool="chat", ejector=ejector): f"0x10 {count}x60"
        for ejector, count in others.items()
    }
    return first | out


def tries(failed: int, retried: int, level: int = 0) -> dict[str, str]:
    """100 calls per minute; some fail, and some are retries."""
    return {
        labelled("attempts_total", pool="chat", outcome="success"): f"0+{100 - failed}x30",
        labelled("attempts_total", pool="chat", outcome="failure"): f"0+{failed}x30",
        labelled("retries_total", pool="chat"): f"0+{retried}x30",
        labelled("pool_degradation_level", pool="chat"): f"{level}x30",
    }


def xids(count: int, admitted: int) -> dict[str, str]:
    """An engine whose agent reports XIDs."""
    return {
        labelled("engine_xids", pool="chat", engine="r1", zone="a"): f"0x10 {count}x60",
        labelled("engine_admitted_ratio", pool="chat", engine="r1", zone="a"): f"{admitted}x70",
    }


def engines_in_rotation(count: int, pressure: float) -> dict[str, str]:
    """A pool with engines in rotation and demand over capacity."""
    return {
        labelled("engine_admitted_ratio", pool="chat", engine=f"r{n}", zone="a"): "1x60" for n in range(count)
    } | {labelled("pool_pressure_ratio", pool="chat"): f"{pressure}x60"}


def objective(
    bad: int,
    of: int = 1000,
    target: float = 0.99,
    minutes: int = 70,
    then: int | None = None,
    whose: tuple[str, str] = ("route", "talk"),
) -> dict[str, str]:
    """Calls per minute of an objective; ``then``: bad ones per minute in the last ten."""
    labels = {"pool": "", "route": "", **dict([whose]), "objective": "first-token-p99"}
    good, late = of - bad, of - (bad if then is None else then)
    return {
        labelled("objective_target_ratio", **labels): f"{target}x{minutes}",
        labelled("objective_calls_total", **labels): f"0+{of}x{minutes}",
        labelled("objective_good_calls_total", **labels): (
            f"0+{good}x{minutes - 10} {good * (minutes - 10) + late}+{late}x9"
        ),
    }


ENGINE = {**POOL, "engine": "r1"}
ROUTE = {**WHOLE, "route": "talk", "objective": "first-token-p99"}
CAPACITY = labelled("pool_capacity_ratio", pool="chat")
FLOOR = labelled("pool_capacity_floor_ratio", pool="chat")
DEPARTED = labelled("engine_departures_total", pool="chat", engine="r1")

CASES: Sequence[Case] = (
    Case(alert="SwitchgearGoodputLow", series=calls(80, failure=20), at="20m", fires=POOL, what="20 % fail"),
    Case(alert="SwitchgearGoodputLow", series=calls(100, failure=20, retries=20), at="20m", what="retried"),
    Case(alert="SwitchgearGoodputLow", series=calls(95, failure=5), at="20m", what="one in twenty"),
    Case(alert="SwitchgearGoodputLow", series=calls(0), at="20m", what="client disconnects only"),
    Case(
        alert="SwitchgearBudgetBurnsFast",
        series=calls(80, refused=20), at="59m", fires=POOL, what="20 % for an hour",
    ),
    Case(alert="SwitchgearBudgetBurnsFast", series=calls(90, refused=10), at="59m", what="10 %"),
    Case(
        alert="SwitchgearBudgetBurnsFast", what="recovered",
        series=calls(80, minutes=60) | {
            labelled("attempts_total", pool="chat", outcome="failure"): "0+40x40 1600x20"
        }, at="59m",
    ),
    Case(
        alert="SwitchgearBudgetBurnsSlowly", series=calls(90, refused=10, minutes=400), at="380m", fires=POOL,
        what="10 %"
    ),
    Case(alert="SwitchgearBudgetBurnsSlowly", series=calls(96, refused=4, minutes=400), at="380m", what="4 %"),
    Case(alert="SwitchgearSheddingLoad", series=calls(90, refused=10), at="20m", fires=POOL, what="10 % refused"),
    Case(alert="SwitchgearSheddingLoad", series=calls(97, refused=3), at="20m", what="a few refused"),
    Case(
        alert="SwitchgearSheddingLoad", what="a peak of two minutes",
        series=calls(90) | {
            labelled("requests_refused_total", pool="chat", **{"class": "interactive"}): "0x10 10 20 20x40"
        }, at="14m",
    ),
    Case(
        alert="SwitchgearAmplification", series=calls(100, failure=100, retries=100), at="20m", fires=POOL,
        what="a storm"
    ),
    Case(alert="SwitchgearAmplification", series=calls(100, failure=20, retries=20), at="20m", what="retries"),
    Case(alert="SwitchgearObjectiveBurnsFast", series=objective(200), at="69m", fires=ROUTE, what="20 % late"),
    Case(
        alert="SwitchgearObjectiveBurnsFast", series=objective(200, whose=("pool", "chat")), at="69m",
        fires={**POOL, "objective": "first-token-p99"}, what="20 % of a pool late",
    ),
    Case(alert="SwitchgearObjectiveBurnsFast", series=objective(100), at="69m", what="10 % late"),
    Case(alert="SwitchgearObjectiveBurnsFast", series=objective(200, then=0), at="69m", what="recovered"),
    Case(
        alert="SwitchgearObjectiveBurnsFast", series=objective(200, target=0.95), at="69m",
        what="a larger budget",
    ),
    Case(alert="SwitchgearObjectiveBurnsFast", series=objective(0), at="69m", what="all within"),
    Case(
        alert="SwitchgearObjectiveBurnsSlowly", series=objective(100, minutes=400), at="395m", fires=ROUTE,
        what="10 % late",
    ),
    Case(alert="SwitchgearObjectiveBurnsSlowly", series=objective(40, minutes=400), at="395m", what="4 % late"),
    Case(
        alert="SwitchgearLatencyDoubled", series=durations("1.0", "5.0"), at="98m", fires=POOL, what="three times"
    ),
    Case(alert="SwitchgearLatencyDoubled", series=durations("1.0", "5.0"), at="88m", what="just slower"),
    Case(alert="SwitchgearLatencyDoubled", series=durations("2.0", "3.0"), at="98m", what="half as slow again"),
    Case(alert="SwitchgearLatencyDoubled", series=durations("1.0", "1.0"), at="98m", what="normal"),
    Case(alert="SwitchgearLatencyDoubled", series=durations("1.0", "5.0", calls=10), at="98m", what="few calls"),
    Case(alert="SwitchgearSpareUsedUp", series=engines_in_rotation(4, 0.8), at="20m", fires=POOL, what="4 x 80 %"),
    Case(alert="SwitchgearSpareUsedUp", series=engines_in_rotation(4, 0.7), at="50m", what="room for a loss"),
    Case(alert="SwitchgearSpareUsedUp", series=engines_in_rotation(4, 0.8), at="10m", what="a peak"),
    Case(alert="SwitchgearSpareUsedUp", series=engines_in_rotation(1, 0.8), at="50m", what="a lone engine"),
    Case(
        alert="SwitchgearEngineEjected", series=engine_state(0, verdict=1), at="27m", fires=ENGINE, what="hung"
    ),
    Case(alert="SwitchgearEngineEjected", series=engine_state(0, errors=1), at="20m", what="for ten minutes"),
    Case(alert="SwitchgearEngineEjected", series=engine_state(0, operator=1), at="60m", what="by an operator"),
    Case(alert="SwitchgearEngineEjected", series=engine_state(1, verdict=1), at="60m", what="another engine"),
    *switched("SwitchgearAgentsLost", "agents", 0, 2, "22m", state="lost"),
    Case(alert="SwitchgearGpuErrors", series=xids(1, 1), at="17m", fires=ENGINE, what="in rotation"),
    Case(alert="SwitchgearGpuErrors", series=xids(1, 0), at="60m", what="ejected"),
    Case(alert="SwitchgearGpuErrors", series=xids(0, 1), at="60m", what="no errors"),
    Case(
        alert="SwitchgearOrdersForgotten", series={labelled("orders", action="eject"): "1x800"}, at="730m",
        fires={**WHOLE, "action": "eject"}, what="twelve hours",
    ),
    Case(
        alert="SwitchgearOrdersForgotten", series={labelled("orders", action="eject"): "1x300 0x1 1x500"},
        at="730m", what="ended between",
    ),
    *switched(
        "SwitchgearDrainOverdue", "engine_drain_left_seconds", 300, 0, "17m", pool="chat", engine="r1", zone="a"
    ),
    Case(alert="SwitchgearTenantThrottled", series=of_tenant(10, 600, 60), at="30m", fires=TENANT, what="10 %"),
    Case(alert="SwitchgearTenantThrottled", series=of_tenant(10, 600, 60), at="12m", what="just begun"),
    Case(alert="SwitchgearTenantThrottled", series=of_tenant(10, 600, 12), at="30m", what="2 %"),
    Case(alert="SwitchgearTenantNearQuota", series=of_tenant(10, 570, 0), at="30m", fires=TENANT, what="95 %"),
    Case(alert="SwitchgearTenantNearQuota", series=of_tenant(10, 9, 0, 570), at="30m", fires=TENANT, what="over"),
    Case(alert="SwitchgearTenantNearQuota", series=of_tenant(10, 570, 0), at="12m", what="just begun"),
    Case(alert="SwitchgearTenantNearQuota", series=of_tenant(10, 480, 0), at="30m", what="80 %"),
    *switched(
        "SwitchgearTenantQuotaEnds", "tenant_period_used_ratio", 0.85, 0.95, "17m",
        port="8080", tenant="search", period="month",
    ),
    Case(alert="SwitchgearRetriesExhausted", series=tries(20, 5), at="20m", fires=POOL, what="15 % not retried"),
    Case(alert="SwitchgearRetriesExhausted", series=tries(20, 5), at="3m", what="just begun"),
    Case(alert="SwitchgearRetriesExhausted", series=tries(20, 15), at="20m", what="most are retried"),
    Case(alert="SwitchgearRetriesExhausted", series=tries(4, 0), at="20m", what="few failures"),
    Case(alert="SwitchgearRetriesExhausted", series=tries(20, 5, level=1), at="20m", what="closed on purpose"),
    *switched("SwitchgearDegraded", "pool_degradation_level", 2, 3, "14m", pool="chat"),
    Case(
        alert="SwitchgearCapacityBelowFloor", series={CAPACITY: "1x10 0.4x60", FLOOR: "0.5x70"}, at="14m",
        fires=POOL,
        what="below floor",
    ),
    Case(
        alert="SwitchgearCapacityBelowFloor", series={CAPACITY: "1x10 0.4x1 0.6x60", FLOOR: "0.5x70"}, at="14m",
        what="a dip",
    ),
    *switched("SwitchgearEnginesKeptIn", "pool_kept_in_engines", 0, 2, "25m", pool="chat"),
    Case(
        alert="SwitchgearEngineFlapping", series={DEPARTED: "0x10 1 1 2 2 3 3 4 4x40"}, at="20m",
        fires={**POOL, "engine": "r1"}, what="four ejections in 8 minutes",
    ),
    Case(alert="SwitchgearEngineFlapping", series={DEPARTED: "0x10 1x40"}, at="20m", what="one ejection"),
    Case(
        alert="SwitchgearEngineFlapping",
        series={DEPARTED: "0x10 1x20 2x20 3x20 4x60"}, at="75m", what="four ejections in an hour",
    ),
    Case(
        alert="SwitchgearSlowToLeave", series=hops(50, 100), at="90m", fires={**WHOLE, "hop": "news_to_ack"},
        what="half take longer than 2 s",
    ),
    Case(alert="SwitchgearSlowToLeave", series=hops(100, 100), at="90m", what="all within 2 s"),
    *switched("SwitchgearConfigurationRefused", "xds_streams", 0, 2, "13m", type="RDS", state="NACK"),
    Case(
        alert="SwitchgearConfigurationRefused", series=turned("xds_streams", 1, 5, type="RDS", state="STALE"),
        at="30m",
        what="only stale",
    ),
    *switched("SwitchgearProxiesBehind", "xds_behind_seconds", 0, 60, "13m", type="EDS"),
    Case(
        alert="SwitchgearProxiesGone", series=connected("100x30 0x60"), at="40m", fires=WHOLE, what="all are gone",
    ),
    Case(
        alert="SwitchgearProxiesGone", series=connected("100x30 40x60"), at="40m", fires=WHOLE, what="zone left"
    ),
    Case(alert="SwitchgearProxiesGone", series=connected("100x30 40x60"), at="33m", what="just gone"),
    Case(alert="SwitchgearProxiesGone", series=connected("100x30 60x60"), at="80m", what="scaled down"),
    Case(alert="SwitchgearProxiesGone", series=connected("0x90"), at="80m", what="never connected"),
    Case(
        alert="SwitchgearProxiesGone", series=connected("50x30 100x1 50x60", "50x30 50x1 50x60"), at="40m",
        what="counted twice while moving",
    ),
    *switched(
        "SwitchgearConfigurationRolledBack", "xds_rolled_back_resources", 0, 1, "17m", type="RDS"
    ),
    *in_condition("SwitchgearPoliciesRefused", "SG200", "17m"),
    *in_condition("SwitchgearPoliciesHeld", "SG201", "14m"),
    *in_condition("SwitchgearPoliciesStale", "SG203", "25m"),
    *in_condition("SwitchgearObjectRejected", "SG229", "17m"),
    *in_condition("SwitchgearPoolWithoutEngines", "SG228", "17m"),
    *in_condition("SwitchgearAdapterWithoutEngines", "SG278", "17m"),
    *in_condition("SwitchgearPeerLimitReached", "SG281", "25m"),
    Case(alert="SwitchgearControlPlaneAbsent", series={}, at="10m", fires={}, what="no control plane"),
    Case(
        alert="SwitchgearControlPlaneAbsent", series={labelled("policy_refused"): "0x60"}, at="50m",
        what="present"
    ),
    Case(
        alert="SwitchgearControlPlaneAbsent", series={labelled("policy_refused"): "0x10 _x3 0x60"}, at="13m",
        what="3 minutes absent, mostly bridged by lookback",
    ),
    Case(
        alert="SwitchgearControlPlaneAbsent", at="30m", fires=WHOLE, what="one installation of two",
        series={labelled("policy_refused"): "0x10 stale", labelled("policy_refused", namespace="b"): "0x60"},
    ),
    Case(
        alert="SwitchgearControlPlaneAbsent", at="30m", what="one replica of two",
        series={labelled("policy_refused", pod="a"): "0x10 stale", labelled("policy_refused", pod="b"): "0x60"},
    ),
    *switched("SwitchgearSourceStale", "source_stale_seconds", 1, 200, "14m", resource="pods"),
    *switched("SwitchgearTelemetryLost", "telemetry_lost", 0, 3, "17m", signal="access_log"),
    Case(
        alert="SwitchgearLeaseHeldByNobody", at="15m", fires=WHOLE, what="two replicas, no holder",
        series={labelled("lease_held", pod="a"): "1x10 0x30", labelled("lease_held", pod="b"): "0x40"},
    ),
    Case(
        alert="SwitchgearLeaseHeldByNobody", at="30m", what="handed over",
        series={labelled("lease_held", pod="a"): "1x10 0x30", labelled("lease_held", pod="b"): "0x11 1x30"},
    ),
    Case(alert="SwitchgearLeaseHeldByNobody", series={}, at="30m", what="not in a cluster"),
    Case(
        alert="SwitchgearLeaseHeldTwice", at="14m", fires=WHOLE, what="both believe it",
        series={labelled("lease_held", pod="a"): "1x40", labelled("lease_held", pod="b"): "0x10 1x30"},
    ),
    Case(
        alert="SwitchgearLeaseHeldTwice", at="14m", what="overlap at a handover",
        series={labelled("lease_held", pod="a"): "1x11 0x30", labelled("lease_held", pod="b"): "0x10 1x30"},
    ),
    Case(
        alert="SwitchgearReconcileFailing", series={labelled("reconcile_failures_total"): "0x10 0+5x30"}, at="15m",
        fires=WHOLE, what="every round",
    ),
    Case(
        alert="SwitchgearReconcileFailing", series={labelled("reconcile_failures_total"): "0x10 1x30"}, at="30m",
        what="once, earlier",
    ),
    *in_condition("SwitchgearStoreFailing", "SG234", "24m"),
    *expires("SwitchgearCertificateExpires", "certificate", use="server"),
    *in_condition("SwitchgearCertificateRefused", "SG210", "22m"),
    *in_condition("SwitchgearAccessRefused", "SG213", "17m"),
    *expires("SwitchgearSecretExpires", "secret", secret="engines"),
    *switched("SwitchgearSecretRefused", "secret_trouble", 0, 1, "22m", secret="engines"),
    *switched("SwitchgearSecretsWithheld", "secrets_withheld", 0, 2, "14m", reason="plaintext"),
    Case(
        alert="SwitchgearSecretsWithheld", series=turned("secrets_withheld", 3, 3, reason="grpc"), at="30m",
        what="gRPC clients",
    ),
    Case(
        alert="SwitchgearTracesLost", series={labelled("trace_spans_total", result="dropped"): "0x10 0+9x60"},
        at="40m", fires=WHOLE, what="too many",
    ),
    Case(
        alert="SwitchgearTracesLost", series={labelled("trace_spans_total", result="failed"): "0x10 50x60"},
        at="40m", what="a collector that was restarted",
    ),
    Case(alert="SwitchgearTracesLost", series={labelled("trace_spans_total", result="sent"): "0+9x60"}, at="40m"),
)  # fmt: skip


def test_rules_file_is_current() -> None:
    assert RULES.read_text() == rules_yaml(), "run `make generated`"
    assert yaml.safe_load(rules_yaml()) == groups()


def test_every_queried_series_is_in_the_metric_table() -> None:
    recorded = {one.record for one in recordings()}
    queries = [one.expr for one in (*recordings(), *ALERTS)]
    for name in {found for query in queries for found in re.findall(r"[\w:]*switchgear_[\w:]*", query)}:
        known = name in recorded or name in TABLE or TABLE[name.removesuffix("_bucket")].kind == "histogram"
        assert known, name


def test_every_queried_label_value_exists() -> None:
    for query in [one.expr for one in (*recordings(), *ALERTS)]:
        for name, label, values in re.findall(r'(switchgear_\w+)\{(\w+)(?:=~|!=|=)"([^"]*)"', query):
            allowed = (TABLE.get(name) or TABLE[name.removesuffix("_bucket")]).labels[label]
            assert set(values.split("|")) <= set(allowed), query


def test_alerts_state_severity_impact_and_pool() -> None:
    for one in ALERTS:
        assert one.impact.endswith("."), one.name
        assert one.severity in {"page", "ticket"}
        if " pool" in one.expr or "pool:" in one.expr:
            assert "$labels.pool" in one.summary, f"{one.name} does not name the pool"
    assert len(BY_NAME) == len(ALERTS)


def test_every_alert_has_firing_and_silent_cases() -> None:
    for name in BY_NAME:
        cases = [case.fires is not None for case in CASES if case.alert == name]
        assert True in cases, f"{name} never fires"
        assert False in cases, f"{name} always fires"


@needed
def test_promtool_accepts_the_rules() -> None:
    code, output = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert code == 0, output


@needed
def test_alerts_fire_exactly_as_expected(tmp_path: Path) -> None:
    files = [str(_written(tmp_path, name, [case for case in CASES if case.alert == name])) for name in BY_NAME]
    code, output = promtool("test", "rules", *files)
    assert code == 0, output
    assert output.count("SUCCESS") == len(files), output


@needed
@pytest.mark.parametrize("fires", [None, POOL])
def test_wrong_expectation_fails(tmp_path: Path, fires: Mapping[str, str] | None) -> None:
    series = calls(80, failure=20) if fires is None else calls(100)
    case = Case(alert="SwitchgearGoodputLow", series=series, at="20m", fires=fires)
    assert promtool("test", "rules", str(_written(tmp_path, case.alert, [case])))[0] != 0


def _rules(alert: str) -> dict[str, object]:
    """The rules one alert needs: evaluating all of them takes six times as long.

    Annotations are dropped; only labels are compared.
    """
    (ratios, alerts) = json.loads(json.dumps(groups()))["groups"]
    (rule,) = (one for one in alerts["rules"] if one["alert"] == alert)
    rule.pop("annotations")
    named = [one for one in ratios["rules"] if one["record"] in rule["expr"]]
    return {"groups": [{"name": "ratios", "rules": named}, {"name": "alerts", "rules": [rule]}]}


def _written(folder: Path, alert: str, cases: Sequence[Case]) -> Path:
    """Write the cases of an alert and its rules for promtool."""
    (folder / f"{alert}.rules.json").write_text(json.dumps(_rules(alert)))
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
            "alert_rule_test": [
                {
                    "eval_time": case.at,
                    "alertname": case.alert,
                    "exp_alerts": []
                    if case.fires is None
                    else [{"exp_labels": {**case.fires, "severity": BY_NAME[case.alert].severity}}],
                }
            ],
        }
        for case in cases
    ]
    path = folder / f"{alert}.json"
    path.write_text(
        json.dumps({"rule_files": [f"{alert}.rules.json"], "evaluation_interval": "1m", "tests": tests})
    )
    return path
