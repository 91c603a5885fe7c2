"""Record what a version of Switchgear writes and says, with its own programs, for those that come after it.

    git worktree add OLD COMMIT
    PYTHONPATH=OLD python tests/upgrade/record.py tests/data/recorded/COMMIT

The programs that run, and every import of ours, are those of ``PYTHONPATH``; this file is of today. Engines are
fake, Envoys are real. What a version cannot do yet is left out of its folder.
"""

import argparse
import asyncio
import contextlib
import json
import lzma
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc
import grpc.aio
import yaml

from chaos.gpu_double.nvml_double import build_library, environment, write_control
from chaos.processes import ChildProcesses, envoy_command, free_ports
from engine.proto import engine_report_pb2 as pb

LIMIT_S: Final = 60.0
SERVICE: Final = "switchgear.engine.v1.EngineAgent"
VERDICTS: Final = {name.lower(): number for name, number in pb.Verdict.items()}

_POLICIES: Final = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: fake-model
  slotsPerEngine: 8
  serviceTime: 200ms
  longestServiceTime: 2s
  endpoints:
    - {name: e0, address: 127.0.0.1, port: %d, agentPort: %d, zone: z1}
    - {name: e1, address: 127.0.0.1, port: %d, agentPort: %d, zone: z1}
    - {name: e2, address: 127.0.0.1, port: %d, agentPort: %d, zone: z1}
    - {name: e3, address: 127.0.0.1, port: %d, agentPort: %d, zone: z1}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: chat}
spec:
  listener: {address: 127.0.0.1, port: %d}
  pools: [{pool: chat}]
"""


def main() -> int:
    """Fill the folder that is named; 0, or the failure of the part that could not be recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        # Paths in what is recorded are relative to this folder, and say nothing of the machine.
        os.chdir(scratch)
        asyncio.run(record(folder, Path(scratch)))
    return 0


async def record(folder: Path, scratch: Path) -> None:
    """All there is to record."""
    async with aiohttp.ClientSession() as http:
        await reports(folder / "reports", scratch, http)
        await server(folder, scratch, http)
        if find_spec("tests.cluster_double") is not None:
            await cluster(folder / "cluster", scratch, http)
    (folder / "flags.json").write_text(json.dumps(await flags(), indent=1) + "\n")
    await experiments(folder / "experiments", scratch)


async def flags() -> dict[str, list[str]]:
    """The flags that the long-running programs take, by program: those which charts and units give them."""
    commands = {"serve": ("xds_server", "serve"), "agent": ("engine.agent", "run")}
    found = {}
    for name, (module, command) in commands.items():
        asked = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, command, "--help"), stdout=asyncio.subprocess.PIPE
        )
        said, _ = await asked.communicate()
        # At the beginning of a line, or as the second name of a pair: elsewhere it is only mentioned.
        found[name] = re.findall(r"^  (?:-h, )?(--[a-z0-9-]+)", said.decode(), re.MULTILINE)
    return found


# -- what an agent says ------------------------------------------------------------------------------------------


async def reports(folder: Path, scratch: Path, http: aiohttp.ClientSession) -> None:
    """One report of an agent in each situation, as it was on the wire."""
    folder.mkdir(exist_ok=True)
    gpus = scratch / "gpus"
    gpus.mkdir()
    build_library(gpus)
    write_control(gpus / "control")
    shown = environment(gpus, gpus / "control")
    async with ChildProcesses() as children:
        control, port = await fake_engine(children, "reported", slots=4)
        agent, ask = await start_agent(children, "agent", port, slots=4, gpu=shown)
        async with watching(agent) as heard:
            await keep(
                folder / "ready.bin", heard, lambda one: one.verdict == VERDICTS["ready"] and one.canary.in_row
            )
            calls = [asyncio.ensure_future(complete(http, port, tokens=400)) for _ in range(8)]
            await keep(folder / "busy.bin", heard, lambda one: one.verdict == VERDICTS["busy"])
            await fault(http, control, {"kind": "hang"})
            await keep(folder / "hung.bin", heard, lambda one: one.verdict == VERDICTS["hung"])
            await fault(http, control, None)
            await asyncio.gather(*calls)
            await keep(folder / "recovered.bin", heard, lambda one: one.verdict == VERDICTS["ready"])
            write_control(gpus / "control", ["0.throttle 0x40", "0.clock1 345", "0.ecc_corrected 7"])
            await keep(folder / "degraded.bin", heard, lambda one: one.verdict == VERDICTS["degraded"])
            write_control(gpus / "control")
            call = asyncio.ensure_future(complete(http, port, tokens=300))
            draining = asyncio.ensure_future(post(http, f"{ask}/drain?deadline=40s"))
            await keep(
                folder / "draining.bin",
                heard,
                lambda one: one.verdict == VERDICTS["draining"] and one.drain.requested,
            )
            await call
            draining.cancel()
        # Its engine's port is still closed.
        early, _ = await start_agent(children, "early", free_ports(1)[0], slots=4)
        async with watching(early) as heard:
            await keep(folder / "starting.bin", heard, lambda one: one.verdict == VERDICTS["starting"])
        control, port = await fake_engine(children, "crashing", slots=4)
        agent, _ = await start_agent(children, "crashed", port, slots=4)
        async with watching(agent) as heard:
            await until_received(heard, lambda one: one.verdict == VERDICTS["ready"])
            await fault(http, control, {"kind": "crash"})
            await keep(folder / "dead.bin", heard, lambda one: one.verdict == VERDICTS["dead"])


@contextlib.asynccontextmanager
async def watching(port: int, pool: str = "") -> AsyncIterator[AsyncIterator[bytes]]:
    """The reports of the agent at this port, as bytes."""
    asked = pb.WatchRequest(watcher="recorder")
    if pool:
        asked.pool = pool
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        watch = channel.unary_stream(f"/{SERVICE}/Watch")
        yield aiter(watch(asked.SerializeToString(), wait_for_ready=True))


async def until_received(heard: AsyncIterator[bytes], wanted: Callable[[Any], object]) -> bytes:
    """The first report that is as ``wanted``."""
    async with asyncio.timeout(LIMIT_S):
        async for data in heard:
            if wanted(pb.EngineReport.FromString(data)):
                return data
    raise RuntimeError("the agent hung up")


async def keep(path: Path, heard: AsyncIterator[bytes], wanted: Callable[[Any], object]) -> None:
    """Write down the first report that is as ``wanted``."""
    path.write_bytes(await until_received(heard, wanted))


async def fake_engine(children: ChildProcesses, name: str, *, slots: int) -> tuple[str, int]:
    """An engine that is up: where it takes faults, and its port."""
    argv = [sys.executable, "-m", "chaos.fake_engine", "--name-prefix", f"{name}-", "--slots", str(slots)]
    child = await children.start(name, argv, ready_within_s=LIMIT_S)
    (one,) = child.ready["engines"]
    return str(one["control"]), int(one["port"])


async def start_agent(
    children: ChildProcesses, name: str, port: int, *, slots: int, gpu: Any = None
) -> tuple[int, str]:
    """An agent for the engine at a port: its gRPC port and its HTTP address."""
    http, grpc_port = free_ports(2)
    argv = [
        *(sys.executable, "-m", "engine.agent", "run", "--engine", f"http://127.0.0.1:{port}"),
        *("--slots", str(slots), "--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc_port}"),
        *("--gpu", "off" if gpu is None else "auto"),
    ]
    await children.start(name, argv, env=gpu, ready_within_s=LIMIT_S)
    return grpc_port, f"http://127.0.0.1:{http}"


async def fault(http: aiohttp.ClientSession, control: str, what: Any) -> None:
    """Break an engine, or heal it."""
    async with http.request("DELETE" if what is None else "PUT", f"{control}/fault", json=what) as answer:
        answer.raise_for_status()


async def complete(http: aiohttp.ClientSession, port: int, *, tokens: int) -> int:
    """Request ``tokens`` tokens; the HTTP status."""
    body = {"model": "fake-model", "prompt": "x", "max_tokens": tokens}
    async with http.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer:
        await answer.read()
        return answer.status


async def post(http: aiohttp.ClientSession, url: str, body: Any = None) -> Any:
    """The answer to a request, which must be a yes."""
    async with http.post(url, json=body) as answer:
        text = await answer.text()
        if answer.status >= 300:
            raise RuntimeError(f"{url}: {answer.status} {text}")
        return json.loads(text)


# -- what a control plane asks, says and keeps -------------------------------------------------------------------


class FakeAgent:
    """Stands for an agent, and writes down what a control plane asks of it: once each."""

    def __init__(self, folder: Path, ready: bytes, draining: bytes) -> None:
        self._folder, self._ready, self._draining = folder, ready, draining
        self.drains = asyncio.Event()
        self.acknowledged = asyncio.Event()
        self.port = 0

    async def __aenter__(self) -> "FakeAgent":
        self._server = grpc.aio.server()
        handlers = {
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
            "Acknowledge": grpc.unary_unary_rpc_method_handler(self._acknowledge),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def _watch(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        (self._folder / "watch.bin").write_bytes(request)
        sequence = 0
        while True:
            said = pb.EngineReport.FromString(self._draining if self.drains.is_set() else self._ready)
            sequence += 1
            said.sequence, said.boot_id = sequence, "recorded"
            yield said.SerializeToString()
            await asyncio.sleep(0.3)

    async def _acknowledge(self, request: bytes, _: Any) -> bytes:
        said = pb.DrainProgress.FromString(request)
        if said.proxies_total and said.proxies_acknowledged == said.proxies_total:
            (self._folder / "acknowledge.bin").write_bytes(request)
            self.acknowledged.set()
        return bytes(pb.DrainAnswer(waiting=True).SerializeToString())


async def server(folder: Path, scratch: Path, http: aiohttp.ClientSession) -> None:
    """What a server keeps and tells after some minutes of its life: state, ledger, recording, answers."""
    asked = folder / "asked"
    asked.mkdir(exist_ok=True)
    said = [(folder / "reports" / name).read_bytes() for name in ("ready.bin", "draining.bin")]
    async with ChildProcesses() as children, FakeAgent(asked, *said) as double:
        engines = [await fake_engine(children, f"e{number}", slots=8) for number in range(4)]
        agents = [
            (await start_agent(children, f"a{number}", port, slots=8))[0]
            for number, (_, port) in enumerate(engines[:3])
        ]
        agents.append(double.port)
        listener, xds, admin, summary = free_ports(4)
        ports = [one for (_, port), agent in zip(engines, agents, strict=True) for one in (port, agent)]
        policies = scratch / "policies"
        policies.mkdir()
        # Regions, history and rollback came together.
        new = find_spec("xds_server.rollout.history") is not None
        text = _POLICIES % (*ports, listener)
        write(policies / "all.yaml", text.replace("zone: z1}", "zone: z1, region: here}") if new else text)
        text = (policies / "all.yaml").read_text()
        argv = [
            *(sys.executable, "-m", "xds_server", "serve"),
            *("-f" if find_spec("command_line") else "--policies", "policies"),
            *("--listen", f"127.0.0.1:{xds}", "--admin", f"127.0.0.1:{admin}", "--state-dir", "state"),
            *("--ledger", "ledger.jsonl", "--record", "recording.jsonl"),
            *(("--region", "here", "--summary", f"127.0.0.1:{summary}") if new else ()),
        ]
        await children.start("serve", argv)
        url = f"http://127.0.0.1:{admin}"
        await until(http, f"{url}/readyz", lambda _: True)
        tap = await children.start(
            "tap",
            [sys.executable, "-m", "chaos.xds_tap", "--link", f"xds:p0=127.0.0.1:{xds}"],
            ready_within_s=LIMIT_S,
        )
        await start_envoy(children, scratch, http, int(tap.ready["ports"]["xds:p0"]))
        await until(http, f"{url}/v1/engines", lambda page: "ready: produces tokens" in page)
        calls = asyncio.ensure_future(traffic(http, listener))
        await asyncio.sleep(3)
        await fault(http, engines[0][0], {"kind": "hang"})
        await until(http, f"{url}/v1/engines", lambda page: "hung" in page)
        await fault(http, engines[0][0], None)
        double.drains.set()
        await asyncio.wait_for(double.acknowledged.wait(), LIMIT_S)
        order = {
            "engine": "chat/e1",
            "action": "drain",
            "for_s": 86_400.0,
            "reason": "new driver",
            "by": "ops",
            "force": True,
        }
        await post(http, f"{url}/v1/orders", order)
        write(policies / "all.yaml", text.replace("serviceTime: 200ms", "serviceTime: 250ms"))
        if new:
            await until(http, f"{url}/v1/history", lambda page: '"number": 2' in page)
            back = {"version": 1, "by": "ops", "reason": "the edit was for another fleet"}
            await post(http, f"{url}/v1/rollback", back)
        # What the proxy refuses from here on is kept as refused, with what it has instead.
        orders = f"{tap.ready['control']}/orders/refuse"
        async with http.put(orders, json={"proxy": "p0", "corrupt": "cds"}) as answer:
            answer.raise_for_status()
        write(policies / "more.yaml", _MORE)
        await until_true(lambda: '"contents"' in (scratch / "state" / "last-good.json").read_text())
        if new:
            async with watching(summary, pool="chat") as heard:
                await keep(folder / "reports" / "summary.bin", heard, lambda one: one.verdict)
        await keep_answers(folder / "answers", url, http)
        calls.cancel()
        serve = next(one for one in children.children if one.name == "serve")
        await children.stop(serve)
        for name in ("ledger.jsonl", "recording.jsonl"):
            shutil.copyfile(scratch / name, folder / name)
        shutil.copytree(scratch / "state", folder / "state", dirs_exist_ok=True, copy_function=shutil.copyfile)


_PAGES: Final = ("proxies", "engines", "policies", "events", "orders", "pools", "zones", "history", "audit")


async def keep_answers(folder: Path, url: str, http: aiohttp.ClientSession) -> None:
    """What the admin port answers, as far as this version has the page."""
    folder.mkdir(exist_ok=True)
    for page in _PAGES:
        async with http.get(f"{url}/v1/{page}") as answer:
            if answer.status == 200:
                (folder / f"{page}.json").write_bytes(await answer.read())


async def start_envoy(children: ChildProcesses, scratch: Path, http: aiohttp.ClientSession, xds: int) -> None:
    """An Envoy that is served from this port, ready for requests."""
    (admin,) = free_ports(1)
    bootstrap = scratch / f"envoy-{xds}.yaml"
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "xds_server", "bootstrap", "--node", "p0", "--zone", "z1"),
        *("--server", f"127.0.0.1:{xds}", "--admin-port", str(admin)),
        stdout=asyncio.subprocess.PIPE,
    )
    bootstrap.write_bytes((await made.communicate())[0])
    await children.start("envoy", envoy_command(bootstrap))
    await until(http, f"http://127.0.0.1:{admin}/ready", lambda _: True)


_MORE: Final = """\
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {name: default}
spec:
  timeouts: {connect: 700ms}
"""


def write(path: Path, text: str) -> None:
    """Replace a file in one step, as an editor would."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


async def traffic(http: aiohttp.ClientSession, listener: int) -> None:
    """A few requests a second through the Envoy, until cancelled."""
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            await complete(http, listener, tokens=4)
        await asyncio.sleep(0.1)


async def until_true(holds: Callable[[], object]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.1)


async def until(
    http: aiohttp.ClientSession, url: str, good: Callable[[str], object], *, limit_s: float = LIMIT_S
) -> None:
    """Wait until a page is there, and good."""
    give_up_s = time.monotonic() + limit_s
    while time.monotonic() < give_up_s:
        with contextlib.suppress(aiohttp.ClientError):
            async with http.get(url) as answer:
                if answer.status == 200 and good(await answer.text()):
                    return
        await asyncio.sleep(0.1)
    raise TimeoutError(url)


# -- what replicas write to a cluster ----------------------------------------------------------------------------


async def cluster(folder: Path, scratch: Path, http: aiohttp.ClientSession) -> None:
    """The Leases of a replica that serves one proxy, and the status of a pool."""
    folder.mkdir(exist_ok=True)
    kubeconfig = scratch / "kubeconfig"
    async with ChildProcesses() as children:
        crds = Path(find_spec("deploy.render").origin).parent / "crds"
        argv = [sys.executable, "-m", "tests.cluster_double", "--crds", str(crds), "--kubeconfig", str(kubeconfig)]
        double = await children.start("double", argv, ready_within_s=LIMIT_S)
        api = double.ready["server"]
        _, port = await fake_engine(children, "clustered", slots=8)
        agent, _ = await start_agent(children, "clustered-agent", port, slots=8)
        listener, xds, admin = free_ports(3)
        text = _POLICIES % (*(port, agent) * 4, listener)
        group = f"{api}/apis/switchgear.dev/v1alpha1/namespaces/default"
        for one in yaml.safe_load_all(text):
            if "endpoints" in one["spec"]:
                one["spec"]["endpoints"] = one["spec"]["endpoints"][:1]
            await post(http, f"{group}/{one['kind'].lower()}s", one)
        argv = [
            *(sys.executable, "-m", "xds_server", "serve", "--kubernetes", "--kubeconfig", str(kubeconfig)),
            *("--lease", "default/switchgear", "--identity", "replica-a", "--namespace", "default"),
            *("--listen", f"127.0.0.1:{xds}", "--admin", f"127.0.0.1:{admin}"),
        ]
        await children.start("serve", argv)
        await until(http, f"http://127.0.0.1:{admin}/readyz", lambda _: True)
        await start_envoy(children, scratch, http, xds)
        leases = f"{api}/apis/coordination.k8s.io/v1/namespaces/default/leases"
        await until(http, leases, lambda page: "z1" in page and "asks" in page)
        await until(http, f"{group}/enginepools/chat", lambda page: '"status"' in page)
        for name, url in (("leases", leases), ("enginepool", f"{group}/enginepools/chat")):
            async with http.get(url) as answer:
                found = await answer.json()
            (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


# -- what the harness keeps --------------------------------------------------------------------------------------


async def experiments(folder: Path, scratch: Path) -> None:
    """The history of a short run with real Envoys, and what was judged of it then."""
    folder.mkdir(exist_ok=True)
    examples = Path(find_spec("policies").origin).parent / "examples"
    shutil.copy(examples / "single-pool.yaml", scratch / "single-pool.yaml")
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chaos.cli", "run", "quick", "-f", "single-pool.yaml"),
        *("--out", "run", "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
    )
    verdict, _ = await made.communicate()
    (folder / "verdict.json").write_bytes(verdict)
    (history,) = (scratch / "run").iterdir()
    (folder / "history.jsonl.xz").write_bytes(lzma.compress(history.read_bytes(), preset=9))


if __name__ == "__main__":
    sys.exit(main())
