"""Every alert fires when it should, and not when it should not: tried by Prometheus' own evaluator."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from deploy.monitoring.prometheus_rules import ALERTS, groups, metric, recordings, rules_yaml
from deploy.render import DEPLOY
from tests.monitoring.promtool import needed, promtool
from xds_server.metrics.metric_table import TABLE

RULES = DEPLOY / "monitoring" / "rules.yaml"
WHOLE = {"job": "switchgear", "namespace": "inference"}
POOL = {**WHOLE, "pool": "chat"}
BY_NAME = {one.name: one for one in ALERTS}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is seen each minute, when it is looked at, and whether the alert fires then, for whom."""

    alert: str
    told: Mapping[str, str]
    at: str
    fires: Mapping[str, str] | None = None
    what: str = field(default="")


def labelled(name: str, **labels: str) -> str:
    """A series that a server exposes; ``pod`` and the like are what Prometheus adds."""
    row = TABLE[metric(name)]
    assert set(labels) - {"le", "pod", "namespace"} == set(row.labels), f"{name} has other labels: {labels}"
    for key, values in row.labels.items():
        assert not values or labels[key] in values, f"{name} has no such value: {key}={labels[key]}"
    pairs = {**WHOLE, **labels}
    return metric(name) + "{" + ",".join(f'{key}="{value}"' for key, value in pairs.items()) + "}"


def calls(success: int, failure: int = 0, retries: int = 0, refused: int = 0, minutes: int = 60) -> dict[str, str]:
    """Counters of a pool that grow by so much each minute."""
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


def turned(name: str, before: int, after: int, **labels: str) -> dict[str, str]:
    """A gauge that is ``before`` for 10 minutes, and then ``after``."""
    return {labelled(name, **labels): f"{before}x10 {after}x60"}


def hops(le_2: int, le_5: int) -> dict[str, str]:
    """Confirmations per minute: so many within 2 s, so many within 5 s."""
    return {
        labelled("departure_hop_seconds", hop="news_to_ack", le=le).replace("_seconds{", "_seconds_bucket{"): (
            f"0+{count}x120"
        )
        for le, count in (("2", le_2), ("5", le_5), ("+Inf", le_5))
    }


def switched(alert: str, name: str, well: int, bad: int, at: str, **labels: str) -> list[Case]:
    """A gauge that goes bad after ten minutes: the alert waits, then fires; with another value it never does."""
    seen = {key: labels[key] for key in labels if key in _kept(alert)}
    return [
        Case(alert=alert, told=turned(name, well, bad, **labels), at=at, fires={**WHOLE, **seen}, what="bad"),
        Case(alert=alert, told=turned(name, well, bad, **labels), at="11m", what="just turned"),
        Case(alert=alert, told=turned(name, well, well, **labels), at="60m", what="well"),
    ]


def expires(alert: str, what: str, **labels: str) -> list[Case]:
    """Certificates that come near their end: those of months by two days, those of a day by a quarter of it."""

    def told(life_s: int, left_s: int) -> dict[str, str]:
        return {
            labelled(f"{what}_lifetime_seconds", **labels): f"{life_s}x70",
            labelled(f"{what}_expiry_seconds", **labels): f"{left_s}-60x70",
        }

    fires, day = {**WHOLE, **labels}, 86_400
    return [
        Case(alert=alert, told=told(90 * day, 2 * day - 60), at="22m", fires=fires, what="months, forgotten"),
        Case(alert=alert, told=told(90 * day, 3 * day), at="60m", what="months, three days left"),
        Case(alert=alert, told=told(day, day // 4 - 60), at="22m", fires=fires, what="a day, six hours left"),
        Case(alert=alert, told=told(day, day // 2), at="60m", what="a day, half of it left"),
        Case(alert=alert, told=told(day, -60), at="22m", fires=fires, what="ended"),
    ]


def _kept(alert: str) -> set[str]:
    """The labels that an alert's query keeps."""
    return set(re.findall(r"\w+", re.findall(r"by \(([^)]*)\)", BY_NAME[alert].expr)[0]))


def connected(*replicas: str) -> dict[str, str]:
    """How many proxies each replica has, minute by minute."""
    return {
        labelled("xds_connections", role="gateway", protocol="delta", pod=str(number)): told
        for number, told in enumerate(replicas)
    }


CAPACITY = labelled("pool_capacity_ratio", pool="chat")
FLOOR = labelled("pool_capacity_floor_ratio", pool="chat")
DEPARTED = labelled("engine_departures_total", pool="chat", engine="r1")

CASES: Sequence[Case] = (
    Case(alert="SwitchgearGoodputLow", told=calls(80, failure=20), at="20m", fires=POOL, what="one in five fails"),
    Case(alert="SwitchgearGoodputLow", told=calls(100, failure=20, retries=20), at="20m", what="retries mend it"),
    Case(alert="SwitchgearGoodputLow", told=calls(95, failure=5), at="20m", what="one in twenty"),
    Case(alert="SwitchgearGoodputLow", told=calls(0), at="20m", what="only callers who leave"),
    Case(
        alert="SwitchgearBudgetBurnsFast",
        told=calls(80, refused=20), at="59m", fires=POOL, what="20 % for an hour",
    ),
    Case(alert="SwitchgearBudgetBurnsFast", told=calls(90, refused=10), at="59m", what="10 %"),
    Case(
        alert="SwitchgearBudgetBurnsFast", what="over again",
        told=calls(80, minutes=60) | {
            labelled("attempts_total", pool="chat", outcome="failure"): "0+40x40 1600x20"
        }, at="59m",
    ),
    Case(
        alert="SwitchgearBudgetBurnsSlowly", told=calls(90, refused=10, minutes=400), at="380m", fires=POOL,
        what="10 %"
    ),
    Case(alert="SwitchgearBudgetBurnsSlowly", told=calls(96, refused=4, minutes=400), at="380m", what="4 %"),
    Case(alert="SwitchgearSheddingLoad", told=calls(90, refused=10), at="20m", fires=POOL, what="a tenth refused"),
    Case(alert="SwitchgearSheddingLoad", told=calls(97, refused=3), at="20m", what="a few refused"),
    Case(
        alert="SwitchgearSheddingLoad", what="a peak of two minutes",
        told=calls(90) | {
            labelled("requests_refused_total", pool="chat", **{"class": "interactive"}): "0x10 10 20 20x40"
        }, at="14m",
    ),
    Case(
        alert="SwitchgearAmplification", told=calls(100, failure=100, retries=100), at="20m", fires=POOL,
        what="a storm"
    ),
    Case(alert="SwitchgearAmplification", told=calls(100, failure=20, retries=20), at="20m", what="some retries"),
    *switched("SwitchgearDegraded", "pool_degradation_level", 2, 3, "14m", pool="chat"),
    Case(
        alert="SwitchgearCapacityBelowFloor", told={CAPACITY: "1x10 0.4x60", FLOOR: "0.5x70"}, at="14m",
        fires=POOL,
        what="too little left",
    ),
    Case(
        alert="SwitchgearCapacityBelowFloor", told={CAPACITY: "1x10 0.4x1 0.6x60", FLOOR: "0.5x70"}, at="14m",
        what="a dip",
    ),
    *switched("SwitchgearEnginesKeptIn", "pool_kept_in_engines", 0, 2, "25m", pool="chat"),
    Case(
        alert="SwitchgearEngineFlapping", told={DEPARTED: "0x10 1 1 2 2 3 3 4 4x40"}, at="20m",
        fires={**POOL, "engine": "r1"}, what="out four times in eight minutes",
    ),
    Case(alert="SwitchgearEngineFlapping", told={DEPARTED: "0x10 1x40"}, at="20m", what="out once"),
    Case(
        alert="SwitchgearEngineFlapping",
        told={DEPARTED: "0x10 1x20 2x20 3x20 4x60"}, at="75m", what="now and then",
    ),
    Case(
        alert="SwitchgearSlowToLeave", told=hops(50, 100), at="90m", fires={**WHOLE, "hop": "news_to_ack"},
        what="half take longer than 2 s",
    ),
    Case(alert="SwitchgearSlowToLeave", told=hops(100, 100), at="90m", what="all within 2 s"),
    *switched("SwitchgearConfigurationRefused", "xds_streams", 0, 2, "13m", type="RDS", state="NACK"),
    Case(
        alert="SwitchgearConfigurationRefused", told=turned("xds_streams", 1, 5, type="RDS", state="STALE"),
        at="30m",
        what="only late",
    ),
    *switched("SwitchgearProxiesBehind", "xds_behind_seconds", 0, 60, "13m", type="EDS"),
    Case(
        alert="SwitchgearProxiesGone", told=connected("100x30 0x60"), at="40m", fires=WHOLE, what="all are gone",
    ),
    Case(
        alert="SwitchgearProxiesGone", told=connected("100x30 40x60"), at="40m", fires=WHOLE, what="a zone stayed"
    ),
    Case(alert="SwitchgearProxiesGone", told=connected("100x30 40x60"), at="33m", what="just gone"),
    Case(alert="SwitchgearProxiesGone", told=connected("100x30 60x60"), at="80m", what="some were taken away"),
    Case(alert="SwitchgearProxiesGone", told=connected("0x90"), at="80m", what="there never was one"),
    Case(
        alert="SwitchgearProxiesGone", told=connected("50x30 100x1 50x60", "50x30 50x1 50x60"), at="40m",
        what="counted twice while they moved",
    ),
    *switched(
        "SwitchgearConfigurationRolledBack", "xds_rolled_back_resources", 0, 1, "17m", type="RDS"
    ),
    *switched("SwitchgearPoliciesRefused", "policy_refused", 0, 1, "17m"),
    *switched("SwitchgearPoliciesHeld", "shrink_held", 0, 1, "14m"),
    *switched("SwitchgearPoliciesStale", "policy_stale", 0, 1, "25m"),
    Case(alert="SwitchgearControlPlaneAbsent", told={}, at="10m", fires={}, what="nobody"),
    Case(
        alert="SwitchgearControlPlaneAbsent", told={labelled("policy_refused"): "0x60"}, at="50m",
        what="it is there"
    ),
    Case(
        alert="SwitchgearControlPlaneAbsent", told={labelled("policy_refused"): "0x10 _x3 0x60"}, at="13m",
        what="away for three minutes, of which Prometheus bridges most",
    ),
    Case(
        alert="SwitchgearControlPlaneAbsent", at="30m", fires=WHOLE, what="one installation of two",
        told={labelled("policy_refused"): "0x10 stale", labelled("policy_refused", namespace="b"): "0x60"},
    ),
    Case(
        alert="SwitchgearControlPlaneAbsent", at="30m", what="one replica of two",
        told={labelled("policy_refused", pod="a"): "0x10 stale", labelled("policy_refused", pod="b"): "0x60"},
    ),
    *switched("SwitchgearSourceStale", "source_stale_seconds", 1, 200, "14m", resource="pods"),
    *switched("SwitchgearTelemetryLost", "telemetry_lost", 0, 3, "17m", signal="access_log"),
    Case(
        alert="SwitchgearLeaseHeldByNobody", at="15m", fires=WHOLE, what="two replicas, no holder",
        told={labelled("lease_held", pod="a"): "1x10 0x30", labelled("lease_held", pod="b"): "0x40"},
    ),
    Case(
        alert="SwitchgearLeaseHeldByNobody", at="30m", what="handed over",
        told={labelled("lease_held", pod="a"): "1x10 0x30", labelled("lease_held", pod="b"): "0x11 1x30"},
    ),
    Case(alert="SwitchgearLeaseHeldByNobody", told={}, at="30m", what="not in a cluster"),
    Case(
        alert="SwitchgearLeaseHeldTwice", at="14m", fires=WHOLE, what="both believe it",
        told={labelled("lease_held", pod="a"): "1x40", labelled("lease_held", pod="b"): "0x10 1x30"},
    ),
    Case(
        alert="SwitchgearLeaseHeldTwice", at="14m", what="seen twice at a hand-over",
        told={labelled("lease_held", pod="a"): "1x11 0x30", labelled("lease_held", pod="b"): "0x10 1x30"},
    ),
    Case(
        alert="SwitchgearReconcileFailing", told={labelled("reconcile_failures_total"): "0x10 0+5x30"}, at="15m",
        fires=WHOLE, what="every round",
    ),
    Case(
        alert="SwitchgearReconcileFailing", told={labelled("reconcile_failures_total"): "0x10 1x30"}, at="30m",
        what="one, a while ago",
    ),
    Case(
        alert="SwitchgearStoreFailing", told={labelled("store_failures_total"): "0x10 0+6x30"}, at="24m",
        fires=WHOLE, what="each time",
    ),
    Case(
        alert="SwitchgearStoreFailing", told={labelled("store_failures_total"): "0x10 1x30"}, at="17m",
        what="one, and made up for",
    ),
    Case(
        alert="SwitchgearStoreFailing",
        told={labelled("store_failures_total"): "3x60"}, at="30m", what="long ago",
    ),
    *expires("SwitchgearCertificateExpires", "certificate", use="server"),
    *switched("SwitchgearCertificateRefused", "certificate_trouble", 0, 1, "22m"),
    *switched("SwitchgearAccessRefused", "access_refused", 0, 1, "17m"),
    *expires("SwitchgearSecretExpires", "secret", secret="engines"),
    *switched("SwitchgearSecretRefused", "secret_trouble", 0, 1, "22m", secret="engines"),
    *switched("SwitchgearSecretsWithheld", "secrets_withheld", 0, 2, "14m", reason="plaintext"),
    Case(
        alert="SwitchgearSecretsWithheld", told=turned("secrets_withheld", 3, 3, reason="grpc"), at="30m",
        what="clients with credentials of their own",
    ),
    Case(
        alert="SwitchgearTracesLost", told={labelled("trace_spans_total", result="dropped"): "0x10 0+9x60"},
        at="40m", fires=WHOLE, what="too many",
    ),
    Case(
        alert="SwitchgearTracesLost", told={labelled("trace_spans_total", result="failed"): "0x10 50x60"},
        at="40m", what="a collector that was restarted",
    ),
    Case(alert="SwitchgearTracesLost", told={labelled("trace_spans_total", result="sent"): "0+9x60"}, at="40m"),
)  # fmt: skip


def test_the_file_is_what_the_code_makes() -> None:
    assert RULES.read_text() == rules_yaml(), "run `make generated`"
    assert yaml.safe_load(rules_yaml()) == groups()


def test_every_series_that_a_rule_asks_for_is_in_the_table() -> None:
    told = {one.record for one in recordings()}
    queries = [one.expr for one in (*recordings(), *ALERTS)]
    for name in {found for query in queries for found in re.findall(r"[\w:]*switchgear_[\w:]*", query)}:
        known = name in told or name in TABLE or TABLE[name.removesuffix("_bucket")].kind == "histogram"
        assert known, name


def test_every_value_of_a_label_that_a_rule_asks_for_exists() -> None:
    for query in [one.expr for one in (*recordings(), *ALERTS)]:
        for name, label, values in re.findall(r'(switchgear_\w+)\{(\w+)(?:=~|!=|=)"([^"]*)"', query):
            allowed = TABLE.get(name, TABLE["switchgear_departure_hop_seconds"]).labels[label]
            assert set(values.split("|")) <= set(allowed), query


def test_alerts_say_whom_they_wake_and_why_they_wait() -> None:
    for one in ALERTS:
        assert one.because, one.name
        assert one.severity in {"page", "ticket"}
        if " pool" in one.expr or "pool:" in one.expr:
            assert "$labels.pool" in one.summary, f"{one.name} does not say which pool"
    assert len(BY_NAME) == len(ALERTS)


def test_every_alert_is_tried_both_ways() -> None:
    for name in BY_NAME:
        cases = [case.fires is not None for case in CASES if case.alert == name]
        assert True in cases, f"{name} never fires"
        assert False in cases, f"{name} always fires"


@needed
def test_prometheus_takes_the_rules() -> None:
    code, said = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert code == 0, said


@needed
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    files = [str(_written(tmp_path, name, [case for case in CASES if case.alert == name])) for name in BY_NAME]
    code, said = promtool("test", "rules", *files)
    assert code == 0, said
    assert said.count("SUCCESS") == len(files), said


@needed
@pytest.mark.parametrize("fires", [None, POOL])
def test_a_wrong_expectation_would_be_noticed(tmp_path: Path, fires: Mapping[str, str] | None) -> None:
    told = calls(80, failure=20) if fires is None else calls(100)
    case = Case(alert="SwitchgearGoodputLow", told=told, at="20m", fires=fires)
    assert promtool("test", "rules", str(_written(tmp_path, case.alert, [case])))[0] != 0


def _rules(alert: str) -> dict[str, object]:
    """The rules that an alert is made of; to evaluate all of them, minute by minute, takes six times as long.

    What an annotation says is its alert's template, so only labels count.
    """
    (ratios, alerts) = json.loads(json.dumps(groups()))["groups"]
    (rule,) = (one for one in alerts["rules"] if one["alert"] == alert)
    rule.pop("annotations")
    named = [one for one in ratios["rules"] if one["record"] in rule["expr"]]
    return {"groups": [{"name": "ratios", "rules": named}, {"name": "alerts", "rules": [rule]}]}


def _written(folder: Path, alert: str, cases: Sequence[Case]) -> Path:
    """The cases of an alert as promtool reads them, beside its rules."""
    (folder / f"{alert}.rules.json").write_text(json.dumps(_rules(alert)))
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in case.told.items()],
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
