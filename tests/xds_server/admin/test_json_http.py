"""Rows in JSON equal ``dataclasses.asdict``."""

import json
from dataclasses import asdict

from engine.report import DrainRequest, Evidence, GpuSummary, GpuVitals, Quantiles
from xds_server.admin.json_http import as_json_dict
from xds_server.admin_api.status_types import AgentStatus, EngineStatus

ENGINE = EngineStatus(
    pool="chat",
    engine="a",
    address="127.0.0.1",
    port=1,
    zone="z",
    verdict=None,
    evidence="",
    report_age_s=0.5,
    health="HEALTHY",
    reason="",
    health_age_s=1.0,
    requests_in_flight=0,
    requests_waiting=None,
    agent=AgentStatus(authority="h:1", connected=True, covering=False, boot_id="b", trouble=""),
    reasons=(Evidence(reading="r", sentence="s"), Evidence(reading="q", sentence="t", age_s=2.0)),
    time_to_first_token=Quantiles(p50_s=0.1, p99_s=0.2),
    gpu=GpuSummary(action="watch", gpus=(GpuVitals(rank=0, xids=(31, 48)),)),
    drain=DrainRequest(deadline_in_s=None),
    shunned_by=("n1", "n2"),
)


def test_json_dict_equals_asdict() -> None:
    assert json.dumps(as_json_dict(ENGINE)) == json.dumps(asdict(ENGINE))
