"""New policies on one of three Envoys first: then promoted to all, or rolled back unseen by the others."""

from typing import Any

import pytest

from tests.with_envoy.serve.conftest import Site, document, eventually

pytestmark = pytest.mark.envoy

BAD_REGEX = "x{80}"
"""An expression that policies and Envoy accept, unless an Envoy is started with a lower limit."""


async def routes(envoy: Any) -> str:
    return str(await envoy.get("/config_dump?resource=dynamic_route_configs"))


async def test_canary_is_promoted_or_rolled_back(site: Site) -> None:
    await site.start_engines(1)
    site.write("pool.yaml", site.pool())
    site.write("default.yaml", document("ResiliencePolicy", "default", {"retries": {"attempts": 1}}))
    listener = {"port": site.port, "address": "127.0.0.1"}
    match = {"headers": [{"name": "x-tier", "regex": "gold"}]}
    site.write("route.yaml", document("ModelRoute", "chat", {"listener": listener, "pools": [{"pool": "chat"}]}))
    server = await site.serve()
    # Each on an address of its own, so that all can open the port of the route.
    envoys = {
        f"n{number}": await site.envoy(f"n{number}", "--listen-address", f"127.0.0.{number}", strict_regex=True)
        for number in (1, 2, 3)
    }
    before = {node: await routes(envoy) for node, envoy in envoys.items()}

    # One that Envoy refuses: the others never see it.
    new = site.folder / "new"
    new.mkdir()
    for file in site.policies.glob("*.yaml"):
        (new / file.name).write_text(file.read_text())
    good = (new / "route.yaml").read_text()
    spec = {"listener": listener, "pools": [{"pool": "chat"}], "match": match}
    bad = {**spec, "match": {"headers": [{"name": "x-tier", "regex": BAD_REGEX}]}}
    site.write("../new/route.yaml", document("ModelRoute", "chat", bad))
    apply = ("apply", "-f", str(new), "--canary", "10%", "--by", "ann", "--admin", site.admin)
    code, out, error = await site.switchgear(*apply, "--for", "60s")
    assert code == 1, out
    assert "rolled back: " in error
    assert "refuses RDS" in error
    assert "max program size" in error
    for node, envoy in envoys.items():
        assert BAD_REGEX not in await routes(envoy), node
    assert await site.metric("switchgear_xds_nacks_total") == 1
    assert len(site.logged(server, "xds.nack")) == 1

    # One that is good: first on one, then on all.
    site.write("../new/route.yaml", document("ModelRoute", "chat", spec))
    status = (await site.switchgear(*apply, "--for", "2s", "--yes-if-unknown"))[0]
    assert status == 0
    for envoy in envoys.values():

        async def arrived(envoy: Any = envoy) -> bool:
            return '"gold"' in await routes(envoy)

        await eventually(arrived, "all have the new route")
    assert good != (new / "route.yaml").read_text()
    versions = (await site.get("/v1/history"))["versions"]
    assert [(one["source"], one["by"]) for one in versions] == [("files", "files"), ("applied", "ann")]
    told = [one["after"] for one in (await site.get("/v1/events"))["events"] if one["kind"] == "policies"]
    assert told == ["version 1", "canary begins", "canary rolled back", "canary begins", "version 2"]

    # And back again.
    assert (await site.switchgear("rollback", "--admin", site.admin))[0] == 0
    for node, envoy in envoys.items():

        async def back(envoy: Any = envoy) -> bool:
            return '"gold"' not in await routes(envoy)

        await eventually(back, f"{node} has the old route")
    assert before.keys() == envoys.keys()
