"""The demo of tenants: three of them share two engines; one exceeds its quota, and one its share.

The engines are simulated; Envoys, control plane and requests are real. The same arrivals go to plain Envoys
afterwards. Pure, except ``run_tenant_demo``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.experiment_verdict import BENCH, verdict
from chaos.history.history_events import RequestRecord
from chaos.history.recorded_history import History
from chaos.history.request_outcomes import quantile
from chaos.lab.experiment import run_experiment
from chaos.scenario.experiment_plan import Experiment
from chaos.scenario.resolve_experiment import resolve_experiment
from chaos.scenario.scenario_model import Scenario
from chaos.testbed.blueprint import shared_experiment
from chaos.testbed.subjects import Subject, subjects
from xds_server.translate.tenant_quotas import QUOTA_REASON
from xds_server.translate.tenant_share_limits import SHARE_REASON

POLICIES: Final = Path(__file__).with_name("tenants.yaml")
"""At most 15 lines; docs/tenants.md has the same."""

_SWITCHGEAR: Final = "switchgear"
_PLAIN: Final = "plain envoy"
_PRESET: Final = "envoy"
_QUANTILE: Final = 0.99

_SCENARIO: Final = {
    "title": "one of three tenants asks for ten times its quota, then another for three times its share",
    "incident": "Two teams sent more than was agreed to the engines that a third one needed.",
    "topology": {"engines": [{"count": 2}], "proxies": [{"count": 2}]},
    "load": {
        "perSecond": 50,
        "callers": [
            {"name": "nightly", "demand": 10, "timesQuota": 10},
            {"name": "search", "demand": 34, "timesShare": 3, "begins": "8s"},
            {"name": "assistant", "demand": 6, "timesShare": 0.6},
        ],
    },
    "lasts": "24s",
    "hypothesis": {"callerGoodputPercent": 95, "quotaErrorPercent": 15, "refusedWithin": "500ms"},
    "blastRadius": {"enginesPercent": 0, "controlPlane": False},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantScore:
    """What one tenant got from one side; ``refused_quota`` and ``refused_share`` are refusals by its limits."""

    side: str
    tenant: str
    sent: int
    good: int
    refused_quota: int
    refused_share: int
    good_p99_s: float | None

    @property
    def failed(self) -> int:
        """Requests without an answer that none of its limits refused."""
        return self.sent - self.good - self.refused_quota - self.refused_share


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantDemoResult:
    """Scores of both sides, and the promises that Switchgear broke; ``busy``: why times say little."""

    scores: Sequence[TenantScore]
    objections: Sequence[str]
    busy: str = ""


def tenant_experiment(seed: int) -> Experiment:
    """The experiment; both sides get the same arrivals."""
    spec = {**_SCENARIO, "seed": seed}
    return resolve_experiment(Scenario.model_validate({"metadata": {"name": "demo-tenants"}, "spec": spec}))


def tenant_sides(seed: int) -> tuple[Experiment, tuple[Subject, Subject]]:
    """The experiment, as slow as the policies expect, and its subjects."""
    ours, theirs = subjects([str(POLICIES), _PRESET])
    return shared_experiment(tenant_experiment(seed), (ours, theirs)), (ours, theirs)


async def run_tenant_demo(console: Console, *, seed: int) -> TenantDemoResult:
    """Run both sides, one after the other; raises NotReadyError."""
    experiment, pair = tenant_sides(seed)
    histories = []
    for name, subject in zip((_SWITCHGEAR, _PLAIN), pair, strict=True):
        console.print(f"{name}: 2 simulated engines, 2 real Envoys, three tenants, {experiment.seconds:g} s ...")
        histories.append(await run_experiment(experiment, subject))
    return tenant_result(*histories)


def tenant_result(ours: History, theirs: History) -> TenantDemoResult:
    """Scores of both sides, and the judgement of the first."""
    found = verdict(ours).findings
    scores = (*_scores(_SWITCHGEAR, ours), *_scores(_PLAIN, theirs))
    return TenantDemoResult(
        scores=scores,
        objections=(*_broken(found), *_without_refusals(scores)),
        busy="; ".join(one.why for one in found if one.check == BENCH and one.answer is not CheckResult.YES),
    )


def _broken(findings: Sequence[CheckFinding]) -> list[str]:
    return [f"{one.check}: {one.why}" for one in findings if one.answer is CheckResult.NO and one.check != BENCH]


def _without_refusals(scores: Sequence[TenantScore]) -> list[str]:
    """Limits that this load must reach, and that refused no request."""
    ours = [one for one in scores if one.side == _SWITCHGEAR]
    refused = {
        "quota": sum(one.refused_quota for one in ours if one.tenant == "nightly"),
        "share": sum(one.refused_share for one in ours if one.tenant == "search"),
    }
    return [f"no request was refused for its tenant's {limit}" for limit, count in refused.items() if not count]


def _scores(side: str, history: History) -> list[TenantScore]:
    names = dict.fromkeys(one.group for one in sorted(history.requests, key=lambda one: one.at_s))
    return [_score(side, name, [one for one in history.requests if one.group == name]) for name in names]


def _score(side: str, name: str, asked: Sequence[RequestRecord]) -> TenantScore:
    good = [one for one in asked if one.ok]
    return TenantScore(
        side=side,
        tenant=name,
        sent=len(asked),
        good=len(good),
        refused_quota=sum(one.refusal == QUOTA_REASON for one in asked),
        refused_share=sum(one.refusal == SHARE_REASON for one in asked),
        good_p99_s=quantile([one.latency_s for one in good], _QUANTILE),
    )


def tenant_table(scores: Sequence[TenantScore]) -> RenderableType:
    """The table of all tenants on both sides."""
    table = Table(title="Three tenants, same arrivals", title_justify="left", show_edge=False, box=box.SIMPLE_HEAD)
    table.add_column("tenant", no_wrap=True)
    table.add_column("side", no_wrap=True)
    for name in ("sent", "good", "above\nquota", "above\nshare", "failed", "p99\ns"):
        table.add_column(name, justify="right", no_wrap=True)
    for tenant in sorted({one.tenant for one in scores}):
        rows = [one for one in scores if one.tenant == tenant]
        for number, one in enumerate(rows, start=1):
            table.add_row(
                tenant if number == 1 else "",
                one.side,
                str(one.sent),
                str(one.good),
                str(one.refused_quota),
                str(one.refused_share),
                Text(str(one.failed), style="red" if one.failed else ""),
                "-" if one.good_p99_s is None else f"{one.good_p99_s:.2f}",
                end_section=number == len(rows),
            )
    return table


def tenant_verdict(result: TenantDemoResult) -> RenderableType:
    """The verdict, and one line per objection."""
    if result.objections:
        lines = [Text(f"  - {one}") for one in result.objections]
        text = Text("\n").join([Text("VERDICT: failed.", "bold red"), *lines])
    else:
        text = Text(
            "VERDICT: passed. The tenant above its quota and the one above its share were limited; the third was "
            "answered.",
            "bold green",
        )
    return Text("\n").join(
        [text, Text(f"This machine was busy: {result.busy}", "yellow")] if result.busy else [text]
    )
