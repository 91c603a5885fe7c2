"""The demo of tenants: one short policy, a table for each tenant, and a check of itself."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from chaos.demo.tenant_demo import (
    POLICIES,
    TenantDemoResult,
    tenant_result,
    tenant_sides,
    tenant_table,
    tenant_verdict,
)
from chaos.processes import ChildProcesses
from chaos.simulator.simulation import simulate
from chaos.testbed.subjects import subjects

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def result() -> TenantDemoResult:
    """The demo in simulated time."""
    experiment, (ours, theirs) = tenant_sides(7)
    return tenant_result(simulate(experiment, ours), simulate(experiment, theirs))


def shown(*parts: object) -> str:
    console = Console(record=True, width=80, file=io.StringIO())
    for one in parts:
        console.print(one)
    return console.export_text()


def test_policy_is_short_and_the_one_on_the_page() -> None:
    text = POLICIES.read_text()
    assert len(text.splitlines()) <= 15
    (block,) = re.findall(
        r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "tenants.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert block == text


def test_limits_are_kept_and_the_third_tenant_is_answered(result: TenantDemoResult) -> None:
    assert result.objections == ()
    ours = {one.tenant: one for one in result.scores if one.side == "switchgear"}
    theirs = {one.tenant: one for one in result.scores if one.side == "plain envoy"}
    assert ours.keys() == theirs.keys() == {"nightly", "search", "assistant"}
    assert all(ours[name].sent == theirs[name].sent for name in ours)
    assert ours["nightly"].refused_quota > 150
    assert ours["search"].refused_share > 100
    assert (ours["assistant"].good_p99_s or 99.0) < 0.3 * (theirs["assistant"].good_p99_s or 0.0)


def test_table_has_every_tenant_on_80_columns(result: TenantDemoResult) -> None:
    text = shown(tenant_table(result.scores), tenant_verdict(result))
    for one in result.scores:
        assert re.search(rf"{one.side} +{one.sent} +{one.good} ", text), text
    assert "VERDICT: passed" in text


@pytest.mark.parametrize(
    ("mode", "objection"),
    [("", "no request was refused for its tenant's share"), ("shadow", "quotaErrorPercent")],
)
def test_policy_without_the_limits_fails_the_check_of_itself(mode: str, objection: str, tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all(POLICIES.read_text()))
    listener = documents[0]["spec"]["listener"]
    listener["tenants"] |= {"mode": mode or "enforce"}
    if not mode:
        del listener["tenants"]
    file = tmp_path / "tenants.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    (other,) = subjects([str(file)])
    experiment, (_, theirs) = tenant_sides(7)
    failed = tenant_result(simulate(experiment, other), simulate(experiment, theirs))
    assert any(objection in one for one in failed.objections), failed.objections
    assert "VERDICT: failed" in shown(tenant_verdict(failed))


@pytest.mark.envoy
@pytest.mark.timeout(600)
async def test_demo_of_tenants_runs_with_real_envoys(tmp_path: Path) -> None:
    for number in range(3):
        async with ChildProcesses(log_dir=tmp_path) as processes:
            command = [sys.executable, "-m", "chaos.cli", "demo", "--tenants", "-o", "json"]
            child = await processes.start(f"demo-{number}", command)
            await child.wait()
        text = child.log_path.read_text()
        found = json.loads(text[text.index("\n{") :])
        # On a starved machine requests are sent too late to tell.
        if not found["busy"]:
            break
    assert found["objections"] == [], text
    refused = {(one["side"], one["tenant"]): one for one in found["scores"]}
    assert refused["switchgear", "nightly"]["refused_quota"] > 150
    assert refused["switchgear", "search"]["refused_share"] > 50
