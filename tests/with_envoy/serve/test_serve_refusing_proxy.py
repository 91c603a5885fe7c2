"""A proxy that refuses everything takes nothing from the proxies that come after it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import grpc
import pytest

from tests.with_envoy.serve.conftest import Site, eventually
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, SHORT_NAMES
from xds_server.wire.decode import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)

pytestmark = pytest.mark.envoy

SERVICE = "/envoy.service.discovery.v3.AggregatedDiscoveryService/"
METHODS = {"delta": f"{SERVICE}DeltaAggregatedResources", "sotw": f"{SERVICE}StreamAggregatedResources"}
EVERY_TYPE = (CLUSTER, ENDPOINT, LISTENER, ROUTE)


class RefusingProxy:
    """A raw xDS client that refuses (NACK) every response; ``refused`` are the types of those."""

    def __init__(self, call: Any, site: Site, node: str, variant: str) -> None:
        self.refused: list[str] = []
        self._call = call
        self._node = node
        self._delta = variant == "delta"
        self._names = {ENDPOINT: ["chat"], ROUTE: [f"port-{site.port}"]}

    async def _say(self, type_url: str, nonce: str = "") -> None:
        names = self._names.get(type_url, [])
        request: Any
        if self._delta:
            subscribe = [] if nonce else names
            request = DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=subscribe)
        else:
            request = DiscoveryRequest(type_url=type_url, resource_names=names)
        request.response_nonce = nonce
        request.node.id = self._node
        request.node.user_agent_name = "envoy"
        request.node.user_agent_build_version.version.major_number = 1
        request.node.user_agent_build_version.version.minor_number = 40
        if nonce:
            request.error_detail.message = "no"
        await self._call.write(request.SerializeToString())

    async def refuse(self) -> None:
        for type_url in EVERY_TYPE:
            await self._say(type_url)
        while isinstance(data := await self._call.read(), bytes):
            read = DeltaDiscoveryResponse.FromString(data) if self._delta else DiscoveryResponse.FromString(data)
            self.refused.append(SHORT_NAMES[read.type_url])
            await self._say(read.type_url, read.nonce)


@contextlib.asynccontextmanager
async def refusing_proxy(site: Site, node: str, variant: str) -> AsyncIterator[RefusingProxy]:
    async with grpc.aio.insecure_channel(site.xds, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(METHODS[variant])
        call = stream()
        proxy = RefusingProxy(call, site, node, variant)
        refusing = asyncio.create_task(proxy.refuse())
        try:
            yield proxy
        finally:
            refusing.cancel()
            call.cancel()


async def refuse_everything(
    site: Site, node: str, variant: str, heard: Callable[[], bool] | None = None
) -> Collection[str]:
    """``heard``: whether the server has taken the refusals; a stream that ends may lose its last ones."""
    async with refusing_proxy(site, node, variant) as proxy:
        await eventually(lambda: {"CDS", "EDS", "LDS", "RDS"} <= set(proxy.refused), "everything refused")
        if heard is not None:
            await eventually(heard, "the refusals are kept, with who refused and since when")
        return proxy.refused


@pytest.mark.parametrize("restarted", [False, True], ids=["same-run", "after-kill"])
@pytest.mark.parametrize("variant", ["delta", "sotw"])
async def test_first_proxy_that_nacks_everything_takes_nothing_from_envoy(
    site: Site, variant: str, restarted: bool
) -> None:
    await site.start_engines(1)
    site.write("chat.yaml", site.pool(), site.route())
    server = await site.serve()
    kept = site.state_dir / "last-good.json"

    def is_kept() -> bool:
        with contextlib.suppress(FileNotFoundError):
            parked = json.loads(kept.read_text())["payload"]["parked"]
            return len(parked) >= len(EVERY_TYPE) and all(
                refusal["node"] == "mallory" and refusal["at_unix_s"] and refusal["reason"] == "no"
                for one in parked
                for refusal in one["refusals"]
            )
        return False

    await refuse_everything(site, "mallory", variant, heard=is_kept if restarted else None)
    if restarted:
        await site.kill(server)
        await site.serve()

    envoy = await site.envoy("n1", "--protocol", "sotw") if variant == "sotw" else await site.envoy("n1")
    await site.answered()
    await eventually(envoy.ready, "Envoy is ready")
    assert (await site.get("/v1/troubles"))["rolled_back"] == []
    code, out, error = await site.switchgear("status", "--admin", site.admin)
    assert code == 0, out + error


async def test_status_names_the_proxy_that_lacks_what_it_refused(site: Site) -> None:
    await site.start_engines(1)
    site.write("chat.yaml", site.pool(), site.route())
    await site.serve()
    async with refusing_proxy(site, "mallory", "delta") as proxy:
        await eventually(lambda: "RDS" in proxy.refused, "routes refused")

        async def shown() -> dict[str, Any]:
            found = (await site.get("/v1/troubles"))["rolled_back"]
            return {one["type"]: one for one in found}

        async def is_shown() -> bool:
            return "RDS" in await shown()

        await eventually(is_shown, "the refusal is shown")
        routes = (await shown())["RDS"]
        assert (routes["refused_by"], routes["hosts"], routes["held_from"]) == (["mallory"], 1, [])
        assert (routes["on_nothing"], routes["on_content_before"]) == (1, 0)
        _, out, _ = await site.switchgear("status", "--admin", site.admin)
        assert f"SG217 RDS port-{site.port}: refused by mallory" in out
        assert "others of this version" not in out
        await site.envoy("n1")
        await site.answered()
        assert "RDS" not in await shown(), "another proxy accepted it: SG204 shows who refuses"
