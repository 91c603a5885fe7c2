"""The fixture itself: a real Envoy starts from a dict and answers on its admin port."""

import pytest


@pytest.mark.envoy
async def test_an_envoy_without_configuration_becomes_ready(start_envoy) -> None:
    envoy = await start_envoy({"node": {"id": "n1", "cluster": "test"}})
    assert await envoy.ready()
    assert (await envoy.stats("server."))["server.live"] == 1
    assert (await envoy.json("/server_info"))["node"]["id"] == "n1"
    envoy.stop()
    assert not await envoy.ready()
