"""Options of a listener behind a load balancer, at a real Envoy: trusted hops, request ids, the operator's log."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.eventually import eventually
from tests.with_envoy.translate.recording_engine import Hearing
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool, route
from xds_server.translate.access_log_config import OPERATOR_LOG_FIELDS

pytestmark = pytest.mark.envoy

LIMIT_S = 60.0
FORGED, CALLER = "10.0.0.1", "203.0.113.7"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture
async def hearing() -> AsyncIterator[Hearing]:
    one = Hearing()
    runner = await one.listen()
    yield one
    await runner.cleanup()


def _route(options: str, match: str = "{}") -> str:
    return route("r", "p", match=match).replace("port: 8080", f"port: 8080, {options}")


async def _log_lines(one: Any, count: int) -> list[dict[str, Any]]:
    """The first lines of the operator's log, which is in Envoy's output."""

    def written() -> list[dict[str, Any]] | None:
        text = one.envoy.log_path.read_text().splitlines()
        found = [json.loads(line) for line in text if line.startswith("{")]
        return found if len(found) >= count else None

    lines: list[dict[str, Any]] = await eventually(written, f"{count} lines of the log", LIMIT_S)
    return lines


@pytest.mark.parametrize(("hops", "trusted"), [(0, False), (1, True)])
async def test_trusted_hop_names_the_caller(rig, hearing, hops, trusted):
    one = await rig(pool("p", hearing) + _route(f"trustedHops: {hops}, accessLog: stdout"))
    await one.complete(headers={"x-forwarded-for": f"{FORGED}, {CALLER}"})
    seen = hearing.seen[-1]["x-envoy-external-address"]
    (line,) = await _log_lines(one, 1)
    assert line["peer"] == "127.0.0.1"
    assert (line["caller"] == seen == CALLER) is trusted
    assert FORGED not in (line["caller"], seen)


async def test_kept_request_id_reaches_engine_and_caller(rig, hearing):
    one = await rig(pool("p", hearing) + _route("requestId: keep"))
    answer = await one.complete(headers={"x-request-id": "of-the-balancer"})
    assert answer.headers["x-request-id"] == hearing.seen[-1]["x-request-id"] == "of-the-balancer"
    answer = await one.complete()
    assert UUID.fullmatch(answer.headers["x-request-id"])


@pytest.mark.parametrize("target", ["stdout", "stderr"])
async def test_operator_log_has_a_line_for_each_request(rig, hearing, target):
    one = await rig(pool("p", hearing) + _route(f"accessLog: {target}", match="{pathPrefix: /v1/}"))
    async with one.client.post(
        f"{one.url}/v1/completions?key=secret", json={"model": "m"}, headers={"authorization": "Bearer secret"}
    ) as answer:
        request_id = answer.headers["x-request-id"]
    async with one.client.get(f"{one.url}/elsewhere") as answer:
        assert answer.status == 404
    served, refused = await _log_lines(one, 2)
    assert served.keys() == OPERATOR_LOG_FIELDS.keys()
    assert served["path"] == "/v1/completions"
    assert "secret" not in json.dumps(served)
    expected = {
        "status": 200,
        "method": "POST",
        "model": "m",
        "pool": "p",
        "request_id": request_id,
        "attempts": "1",
    }
    assert {key: served[key] for key in expected} == expected
    assert served["engine"] == f"127.0.0.1:{hearing.port}"
    assert (refused["status"], refused["reason"], refused["engine"]) == (404, "no-route", None)
