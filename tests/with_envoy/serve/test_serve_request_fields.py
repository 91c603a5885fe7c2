"""A port that changes between reading bodies and reading headers, under load, with a real Envoy."""

import pytest

from tests.with_envoy.serve.conftest import PATIENT, STEADY, Site, document, eventually

pytestmark = pytest.mark.envoy

STATED = {"x-switchgear-model": "fake-model", "x-switchgear-stream": "false"}


async def test_no_request_meets_the_routes_of_the_other_source(site: Site) -> None:
    """Requests that both sources route alike are refused by neither while a port changes."""
    await site.start_engines(2)
    pools = site.pool(probe=PATIENT), document("ResiliencePolicy", "default", STEADY)
    site.write("pools.yaml", *pools)

    def write(source: str) -> None:
        listener = {"port": site.port, "address": "127.0.0.1", "requestFields": source}
        site.write("route.yaml", site.route(match={"model": "fake-model"}, listener=listener))

    write("body")
    await site.serve()
    await site.envoy()
    await site.answered()
    load = site.load(headers=STATED, model="fake-model")
    await load.more(10)

    async def refused() -> bool:
        return (await site.ask())[0] == 400

    async def served() -> bool:
        return (await site.ask())[0] == 200

    for source, reached in (("headers", refused), ("body", served), ("headers", refused)):
        write(source)
        await eventually(reached, f"the fields come from the {source}")
        await load.more(20)
    await load.end()
    # A new listener resets requests in flight: this Envoy has a drain time of 0.
    assert [one for one in load.failed if one.status not in {0, 200}] == []
