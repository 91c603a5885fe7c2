"""The agent's HTTP port without an agent: who may change something."""

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from engine.agent.agent_http import application
from engine.agent.kubelet_probes import KubeletProbeResult


class Agent:
    """As much of an agent as these tests ask for."""

    remote_drain = False
    permits = None

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ready(self) -> KubeletProbeResult:
        return KubeletProbeResult(yes=True, sentence="ready")

    alive = started = ready

    def undrain(self) -> bool:
        self.asked.append("undrain")
        return True

    def check_soon(self) -> bool:
        self.asked.append("check")
        return True


async def test_cross_origin_request_changes_nothing() -> None:
    agent = Agent()
    app: web.Application = application(agent)  # type: ignore[arg-type]  # what else there is, is not asked for
    async with TestClient(TestServer(app)) as client:
        for path in ("/drain", "/undrain", "/gpu-check"):
            for origin in ("https://evil.example", "null"):
                answer = await client.post(path, headers={"Origin": origin})
                assert (answer.status, "Origin" in await answer.text()) == (403, True), path
        assert agent.asked == []
        assert (await client.post("/undrain")).status == 200
        assert (await client.post("/gpu-check")).status == 202
    assert agent.asked == ["undrain", "check"]
