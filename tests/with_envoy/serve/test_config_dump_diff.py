"""``switchgear config-dump --diff`` and ``doctor`` with a real Envoy: the same, then another, and why."""

import json
from typing import Any

import pytest

from chaos.processes import free_ports
from tests.eventually import eventually

pytestmark = pytest.mark.envoy

LIMIT_S = 60.0


async def test_config_dump_diff_shows_only_real_differences(site: Any) -> None:
    await site.start_engines(2, first_token_gate=True)
    site.write("chat.yaml", site.pool(firstTokenGate=True), site.route())
    await site.serve()
    envoy = await site.envoy()
    await site.answered()
    asked = ("config-dump", "n1", "--admin", f"http://{site.admin}")
    live = ("--diff", "--envoy-admin", f"http://127.0.0.1:{envoy.admin_port}")

    async def same() -> bool:
        # The endpoints and the runtime of a proxy go with its traffic: a push may be under way.
        return (await site.switchgear(*asked, *live))[0] == 0

    await eventually(same, "no difference", LIMIT_S)
    code, out, _ = await site.switchgear(*asked, *live, "-o", "json")
    found = json.loads(out)
    if code == 0:
        assert sorted(found["same"]) == ["CDS", "EDS", "LDS", "RDS", "RTDS"]

    # Envoy's own word, changed on the way: it would have another time limit, and a route too few.
    dump = json.loads(await envoy.get("/config_dump?include_eds"))
    for config in dump["configs"]:
        for one in config.get("dynamic_active_clusters", ()):
            if one["cluster"]["name"] == "chat":
                one["cluster"]["connect_timeout"] = "7s"
        config.pop("dynamic_route_configs", None)
    kept = site.folder / "dump.json"
    kept.write_text(json.dumps(dump))
    code, out, error = await site.switchgear(*asked, "--diff", "--envoy-dump", str(kept))
    assert code == 1, error
    assert "SG254 CDS chat: differs" in out
    assert "  +connect_timeout: 7s" in out
    assert "SG254 RDS " in out
    assert "missing in the proxy" in out
    assert "SG255 RTDS not compared" in out

    code, out, _ = await site.switchgear(*asked, "--type", "rds")
    assert code == 0
    assert out.startswith("---  # RDS ")
    code, _, error = await site.switchgear("config-dump", "n11", "--admin", f"http://{site.admin}")
    assert (code, "did you mean n1" in error) == (2, True)

    code, out, error = await site.switchgear("doctor", "--admin", f"http://{site.admin}", "-o", "json")
    said = {one["subject"]: one for one in json.loads(out)["checks"]}
    assert said["Envoy"]["sentence"].startswith("1 proxy with the required version and extensions"), said
    assert said["first-token gate"]["state"] == "ok", said
    assert said["xDS port"]["state"] == "ok"
    assert code == 0, out


async def test_config_dump_diff_of_a_disconnected_envoy(site: Any) -> None:
    await site.start_engines(2)
    site.write("chat.yaml", site.pool(engines=site.engines[:1]), site.route())
    child = await site.serve()
    envoy = await site.envoy()
    await site.answered()
    await site.kill(child)
    site.xds = f"127.0.0.1:{free_ports(1)[0]}"  # where the Envoy does not look
    site.write("chat.yaml", site.pool(), site.route())
    await site.serve()
    asked = ("--admin", f"http://{site.admin}", "--diff", "--envoy-admin", f"http://127.0.0.1:{envoy.admin_port}")
    for said in (("config-dump",), ("config-dump", "n1")):
        code, out, error = await site.switchgear(*said, *asked)
        assert code == 1, error
        assert out.startswith("SG256 n1 is not connected")
        assert "SG254 LDS engine/chat/e1: missing in the proxy" in out
        assert "SG254 EDS chat: differs" in out
        assert "SG255 RTDS not compared" in out
    code, out, _ = await site.switchgear("config-dump", *asked, "-o", "json")
    answer = json.loads(out)
    assert answer["connected"] is False
    assert {one["type"] for one in answer["differences"]} == {"LDS", "EDS"}, "what would be as it is stays so"
