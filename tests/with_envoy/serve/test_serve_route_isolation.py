"""One route that Envoy refuses does not stop the edits of its neighbours on the same port."""

import contextlib
import json
from typing import Any

import aiohttp
import pytest

from tests.with_envoy.serve.conftest import Site, eventually

pytestmark = pytest.mark.envoy

BAD_REGEX = "x{80}"
"""An expression that policies and Envoy accept, unless an Envoy is started with a lower limit."""


def tier(site: Site, name: str, regex: str, header: str = "x-tier") -> dict[str, Any]:
    return site.route(name, match={"headers": [{"name": header, "regex": regex}]})


async def routes_of(envoy: Any) -> str:
    return str(await envoy.get("/config_dump?resource=dynamic_route_configs"))


async def has(envoy: Any, text: str) -> None:
    async def so() -> bool:
        return text in await routes_of(envoy)

    await eventually(so, f"Envoy has the route {text}")


@pytest.mark.parametrize("protocol", ["delta", "sotw"])
async def test_edit_of_a_neighbour_arrives_while_a_route_is_refused(site: Site, protocol: str) -> None:
    await site.start_engines(1)
    site.write("pool.yaml", site.pool())
    a = site.write("a.yaml", tier(site, "a", "gold|silver"))
    site.write("b.yaml", tier(site, "b", "blue", "x-color"))
    server = await site.serve()
    envoy = await site.envoy("n1", "--protocol", protocol, strict_regex=True)
    await site.answered(**{"x-tier": "gold"})
    await site.answered(**{"x-color": "blue"})

    async def refused() -> dict[str, Any]:
        found = (await site.get("/v1/troubles"))["rolled_back"]
        return {one["name"]: one for one in found}

    async def a_is_refused() -> bool:
        return f"port-{site.port}/a" in await refused()

    site.write("a.yaml", tier(site, "a", BAD_REGEX))
    await eventually(a_is_refused, "the refused route is named")
    shown = (await refused())[f"port-{site.port}/a"]
    assert (shown["refused_by"], shown["on_content_before"]) == (["n1"], 1)
    assert shown["origins"][0].startswith(f"{a}:")
    assert "max program size" in shown["reason"]

    site.write("b.yaml", tier(site, "b", "green", "x-color"))
    await has(envoy, "green")
    await site.answered(**{"x-color": "green"})
    await site.answered(**{"x-tier": "gold"})
    assert BAD_REGEX not in await routes_of(envoy)
    code, out, _ = await site.switchgear("status", "--admin", site.admin)
    assert code == 1
    assert f"SG217 RDS port-{site.port}/a: refused by n1" in out
    assert "a.yaml:" in out

    kept = site.state_dir / "last-good.json"

    def is_kept() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return bool(json.loads(kept.read_text())["payload"]["parked"])
        return False

    await eventually(is_kept, "the refusal is kept")
    await site.kill(server)
    await site.serve()
    second = await site.envoy("n2", "--protocol", protocol, strict_regex=True, wait_ready=False)
    for one in (envoy, second):
        await has(one, "green")
        await has(one, "gold|silver")
    assert BAD_REGEX not in await routes_of(second)
    site.write("b.yaml", tier(site, "b", "yellow", "x-color"))
    for one in (envoy, second):
        await has(one, "yellow")
    assert f"port-{site.port}/a" in await refused()

    site.write("a.yaml", tier(site, "a", "bronze"))
    for one in (envoy, second):
        await has(one, "bronze")
    await site.answered(**{"x-tier": "bronze"})

    async def is_calm() -> bool:
        return not await refused()

    await eventually(is_calm, "nothing is refused")


async def test_refused_new_route_answers_503_with_its_reason(site: Site) -> None:
    await site.start_engines(1)
    site.write("pool.yaml", site.pool())
    site.write("b.yaml", tier(site, "b", "blue", "x-color"))
    await site.serve()
    await site.envoy("n1", strict_regex=True)
    await site.answered(**{"x-color": "blue"})
    await site.answered(404)
    bad = [{"name": "x-tier", "regex": BAD_REGEX}, {"name": "x-new", "exact": "yes"}]
    site.write("a.yaml", site.route("a", match={"headers": bad}))
    await site.answered(503, **{"x-new": "yes"})
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{site.port}/v1/completions", headers={"x-new": "yes"}, json={}) as answer,
    ):
        assert (answer.status, answer.headers["x-switchgear-reason"]) == (503, "route-held-back")
        assert "refused the configuration of the route" in await answer.text()
    await site.answered(**{"x-color": "blue", "x-new": "yes"})
    await site.answered(404)
