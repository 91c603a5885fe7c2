"""The operator's access log in a file and at an OpenTelemetry collector, written by a real Envoy."""

import json
import time

import pytest

from tests.eventually import eventually
from tests.with_envoy.otlp_log_receiver import receiving
from tests.with_envoy.translate.test_listener_options import LIMIT_S, _route, hearing
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool
from xds_server.translate.access_log_config import OPERATOR_LOG_FIELDS

__all__ = ["hearing"]
pytestmark = pytest.mark.envoy


async def test_log_file_has_a_line_for_each_request(rig, hearing, tmp_path):
    listener = "accessLogFile: /var/log/envoy/access.log"
    one = await rig(pool("p", hearing) + _route(listener), files={"/var/log/envoy": tmp_path})
    answers = [await one.complete() for _ in range(2)]
    path = tmp_path / "access.log"

    def lines() -> list[str] | None:
        found = path.read_text().splitlines() if path.exists() else []
        return found if len(found) >= 2 else None

    written = [json.loads(line) for line in await eventually(lines, "2 lines of the log", LIMIT_S)]
    assert [line["request_id"] for line in written] == [one.headers["x-request-id"] for one in answers]
    assert all(line.keys() == OPERATOR_LOG_FIELDS.keys() and line["pool"] == "p" for line in written)


async def test_collector_gets_a_record_for_each_request(rig, hearing):
    async with receiving() as collector:
        listener = f"accessLogCollector: {{address: 127.0.0.1, port: {collector.port}}}, accessLog: stdout"
        one = await rig(pool("p", hearing) + _route(listener, match="{pathPrefix: /v1/}"))
        started_ns = time.time_ns()
        answer = await one.complete(headers={"authorization": "Bearer secret"})
        async with one.client.get(f"{one.url}/elsewhere?key=secret") as refused:
            assert refused.status == 404
        await eventually(lambda: len(collector.records) >= 2, "2 records", LIMIT_S)
    served, unmatched = sorted(collector.records, key=lambda record: record["time_ns"])
    assert {*served} - {"body", "time_ns"} == {*OPERATOR_LOG_FIELDS} - {"time"}
    expected = {
        "body": "POST /v1/completions 200",
        "status": "200",
        "model": "fake-model",
        "pool": "p",
        "request_id": answer.headers["x-request-id"],
        "engine": f"127.0.0.1:{hearing.port}",
        "attempts": "1",
    }
    assert {key: served[key] for key in expected} == expected
    assert (unmatched["status"], unmatched["reason"]) == ("404", "no-route")
    assert started_ns < served["time_ns"] < time.time_ns()
    assert collector.resources[0]["service.name"] == "switchgear"
    assert "secret" not in json.dumps(collector.records)


async def test_lost_collector_delays_no_request(rig, hearing):
    async with receiving() as collector:
        port = collector.port
    listener = f"accessLogCollector: {{address: 127.0.0.1, port: {port}}}"
    one = await rig(pool("p", hearing) + _route(listener))
    started_s = time.monotonic()
    assert [(await one.complete()).status for _ in range(20)] == [200] * 20
    assert time.monotonic() - started_s < LIMIT_S / 4
