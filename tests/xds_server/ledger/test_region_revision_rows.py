"""Regions and revisions for operators: complete as data, short in the table, and as metrics."""

from dataclasses import replace
from pathlib import Path

from policies.load import load_contents
from xds_server.admin.views.context import ViewContext
from xds_server.admin.views.get_tables import pool_rows
from xds_server.cli.get_columns import TABLES
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.ledger.event import ClockReading
from xds_server.ledger.event_store import EventStore
from xds_server.model.fleet import declared

POOL = """apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: p}
spec:
  model: m
  endpoints:
    - {name: e1, address: 10.0.0.1, port: 1, region: eu, revision: 2.1.0}
    - {name: e2, address: 10.0.0.2, port: 1, region: eu, revision: 3.0.0}
    - {name: u1, address: 10.0.0.3, port: 1, region: us, revision: 2.1.0}
    - {name: a1, address: 10.0.0.4, port: 1, region: ap, revision: 1.0.0}
---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {name: default}
spec: {regions: {serving: active-standby, order: [us, eu]}}
"""


def test_region_rows_show_revisions_and_shares() -> None:
    policies = load_contents({Path("p.yaml"): POOL.encode()})
    fleet = declared(policies)
    decisions, _ = decide(policies, fleet, NO_MEMORY, proxies=ConnectedProxies(), now_s=5.0)
    scene = ViewContext(
        policies=policies,
        fleet=fleet,
        decisions=decisions,
        event_store=EventStore(),
        now=ClockReading(s=7.0, unix_s=0.0),
    )
    (row,) = pool_rows(scene)
    assert row.revisions == {"ap": {"1.0.0": 1}, "eu": {"2.1.0": 1, "3.0.0": 1}, "us": {"2.1.0": 1}}
    told = {one.region: (one.home, one.sends_percent, one.barred) for one in row.regions}
    assert told["ap"] == told["eu"] == told[""] == ("us", {"us": 100.0}, 2)
    item = replace(row, regions=tuple(one for one in row.regions if one.region == "eu"))
    shown = {one.title: one.cell(item) for one in TABLES["pools"].columns if one.title in ("revisions", "regions")}
    assert shown == {
        "revisions": "ap 1.0.0 x1; eu 2.1.0 x1, 3.0.0 x1; us 2.1.0 x1",
        "regions": "eu to us 100%",
    }
