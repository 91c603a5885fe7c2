"""Adapters of pools: rows, metric and condition count the engines in rotation that list each."""

from pathlib import Path

import pytest

from engine.report import EngineReport, Verdict
from policies.load import load
from policies.model import PolicySet
from tests.xds_server.admin_api import rows
from tests.xds_server.ledger.conftest import POLICIES, decided, scene
from xds_server.admin.views.get_tables import pool_rows
from xds_server.admin.views.pool_metrics import pool_metrics
from xds_server.admin_api.status_types import AdapterStatus
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.diagnosis.conditions import ServerState, conditions
from xds_server.model.fleet import Fleet, declared, with_report

ROUTES = POLICIES + "".join(
    f"---\napiVersion: switchgear.dev/v1alpha1\nkind: ModelRoute\nmetadata: {{name: {name}}}\n"
    f"spec: {{listener: {{port: 8091}}, match: {{model: {name}}}, adapter: true, pools: [{{pool: chat}}]}}\n"
    for name in ("sql", "law")
)
OUT = EngineDecision(health=Health.UNHEALTHY, reason="hung", since_s=59.0)


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> PolicySet:
    file = Path(tmp_path_factory.mktemp("routed")) / "chat.yaml"
    file.write_text(ROUTES)
    return load((file,))


def having(policies: PolicySet, *names: tuple[str, ...] | None) -> Fleet:
    fleet = declared(policies)
    for number, adapters in enumerate(names, start=1):
        report = EngineReport(
            pool="chat", engine=f"r{number}", verdict=Verdict.READY, evidence="", observed_at_s=99.0,
            adapters=adapters,
        )  # fmt: skip
        fleet = with_report(fleet, report, 99.0)
    return fleet


def test_rows_and_metric_count_engines_in_rotation(routed: PolicySet) -> None:
    fleet = having(routed, ("law", "sql"), ("sql",), ("sql",), ("other",))
    context = scene(routed, fleet, decided(fleet, r3=OUT))
    [row] = pool_rows(context)
    assert row.adapters == (AdapterStatus(adapter="law", engines=1), AdapterStatus(adapter="sql", engines=2))
    [family] = [one for one in pool_metrics(context) if one.name == "switchgear_pool_adapter_engines"]
    found = {(one.labels["pool"], one.labels["adapter"]): one.value for one in family.samples}
    assert found == {("chat", "law"): 1.0, ("chat", "sql"): 2.0}


def test_pools_without_such_routes_have_no_rows(policies: PolicySet, fleet: Fleet) -> None:
    context = scene(policies, fleet, decided(fleet))
    assert [row.adapters for row in pool_rows(context)] == [()]
    [family] = [one for one in pool_metrics(context) if one.name == "switchgear_pool_adapter_engines"]
    assert not family.samples


@pytest.mark.parametrize(
    ("names", "out", "lost"),
    [
        ([("sql",), (), (), ()], ("r1",), ["law", "sql"]),
        ([("sql",), (), (), ()], (), ["law"]),
        ([("sql",), (), (), None], (), []),
        ([None, (), (), ()], ("r1",), ["law", "sql"]),
        ([("sql",), (), (), ()], ("r1", "r2", "r3", "r4"), []),
    ],
    ids=["its engine is ejected", "one is nowhere", "one engine is unknown", "the unknown one is out", "all out"],
)
def test_adapter_that_no_engine_in_rotation_has_is_a_condition(
    routed: PolicySet, names: list[tuple[str, ...] | None], out: tuple[str, ...], lost: list[str]
) -> None:
    fleet = having(routed, *names)
    found = pool_rows(scene(routed, fleet, decided(fleet, **dict.fromkeys(out, OUT))))
    state = ServerState(now_unix_s=0.0, policies=rows.policies_status(), pools=found)
    told = [one for one in conditions(state) if one.code == "SG278"]
    assert [(one.subject, one.sentence, one.count) for one in told] == (
        [("pool chat", f"no engine in rotation has {', '.join(lost)}", len(lost))] if lost else []
    )


def test_fallback_without_the_adapter_gives_no_condition(tmp_path: Path) -> None:
    spare = (
        "---\napiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\nmetadata: {name: spare}\n"
        "spec: {model: m, endpoints: [{address: 127.0.0.1, port: 5, name: s1}]}\n"
    )
    (tmp_path / "p.yaml").write_text(
        ROUTES.replace("pools: [{pool: chat}]}", "pools: [{pool: chat}], fallbacks: [spare]}") + spare
    )
    policies = load((tmp_path / "p.yaml",))
    fleet = having(policies, ("law", "sql"))
    fleet = with_report(
        fleet,
        EngineReport(
            pool="spare", engine="s1", verdict=Verdict.READY, evidence="", observed_at_s=99.0, adapters=()
        ),
        99.0,
    )
    found = pool_rows(scene(policies, fleet, decided(fleet)))
    assert [one.routed for row in found for one in row.adapters] == [True, True, False, False]
    state = ServerState(now_unix_s=0.0, policies=rows.policies_status(), pools=found)
    assert "SG278" not in {one.code for one in conditions(state)}
