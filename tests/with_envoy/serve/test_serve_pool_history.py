"""History of a pool and calls from zone to zone, as a real Envoy reports them."""

from typing import Any

import pytest

from tests.eventually import eventually
from tests.with_envoy.serve.conftest import LIMIT_S, PATIENT, Site

pytestmark = pytest.mark.envoy


async def test_history_has_rates_times_and_calls_between_zones(site: Site) -> None:
    engines = await site.start_engines(2)
    pool = site.pool(probe=PATIENT)
    for number, one in enumerate(pool["spec"]["endpoints"]):
        one["zone"] = f"z{number + 1}"
    site.write("chat.yaml", pool, site.route())
    await site.serve()
    await site.envoy()
    await site.answered()
    load = site.load(20.0)
    try:
        await eventually(recorded(site), "an interval with answers is recorded", limit_s=LIMIT_S)
        await eventually(flowed(site), "calls from zone z1 are counted", limit_s=LIMIT_S)
    finally:
        await load.end()
    history = await site.get("/v1/pool-history?pool=chat")
    assert (history["interval_s"], history["kept_s"]) == (10.0, 900.0)
    point = max(history["pools"][0]["points"], key=lambda one: one["good_per_s"] or 0)
    assert 0 < point["total_p50_s"] <= point["total_p95_s"] <= point["total_p99_s"]
    assert point["ceiling"] > 0
    _, table, _ = await site.switchgear("get", "zones", "-o", "wide", "--admin", f"http://{site.admin}")
    assert "CALLS/S TO" in table
    assert len(engines) == 2


def flowed(site: Site) -> Any:
    async def calls() -> bool:
        zones = (await site.get("/v1/zones"))["zones"]
        (row,) = [one for one in zones if one["zone"] == "z1"]
        assert set(row["calls_per_s"]) <= {"z1", "z2"}
        return sum(row["calls_per_s"].values()) > 0

    return calls


def recorded(site: Site) -> Any:
    async def answers() -> bool:
        history = await site.get("/v1/pool-history")
        return any((point["good_per_s"] or 0) > 0 for one in history["pools"] for point in one["points"])

    return answers
