"""Fault to quiet: how long a broken engine still gets requests, with a real Envoy and the real control plane.

A few fake engines behind one Envoy serve a steady load; one of them hangs (its /health still says 200) or
crashes. The clock runs from the moment the fault bites to the last request that Envoy gave that engine, read off
Envoy's own counters per host. Everything about probing and ejection is left to the defaults. Between two
requests of the load to one engine lie some 40 ms: that is the resolution.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from chaos.fake_engine import Crash, EngineConfig, FakeEngine, Fault, Hang
from chaos.load import LoadProfile, run_load
from chaos.load import Target as LoadTarget
from chaos.outcomes import Outcome, Reason
from chaos.processes import Processes, envoy_command
from xds_server.bootstrap import Bootstrap, bootstrap_yaml

ENGINES: Final = 4
RATE_PER_S: Final = 100.0
TRIALS: Final = 10
FAULTS: Final[dict[str, Fault]] = {"hang": Hang(health="ok"), "crash": Crash()}
QUIET_ANSWERS: Final = 100
"""So many answers of the others, with nothing more sent to the engine, count as quiet."""
POLL_S: Final = 0.01
LIMIT_S: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One fault. Seconds from the fault until the control plane decided, and until the last request."""

    fault: str
    decided_s: float
    quiet_s: float
    requests_after: int
    failed: int


class Site:
    """Engines, control plane, Envoy and load, all running."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder = folder
        self.engines: list[FakeEngine] = []
        self.outcomes: list[Outcome] = []
        self._processes = processes
        self._listener = _free_port()
        self._admin = ""
        self._envoy_admin = _free_port()

    async def start(self, count: int) -> None:
        for number in range(count):
            engine = FakeEngine(EngineConfig(name=f"e{number}"))
            await engine.start()
            self.engines.append(engine)
        (self.folder / "policies").mkdir()
        (self.folder / "policies" / "chat.yaml").write_text(self._policies())
        command = [str(Path(sys.executable).with_name("switchgear")), "serve"]
        command += [
            "--policies",
            str(self.folder / "policies"),
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
        ]
        server = await self._processes.start("serve", command, ready_within_s=LIMIT_S)
        self._admin = server.ready["admin"]
        bootstrap = self.folder / "bootstrap.yaml"
        host, port = str(server.ready["xds"]).rsplit(":", 1)
        bootstrap.write_text(
            bootstrap_yaml(Bootstrap(node="bench", servers=[(host, int(port))], admin_port=self._envoy_admin))
        )
        await self._processes.start("envoy", envoy_command(bootstrap))
        await _until(self._envoy_is_live, "Envoy is live")

    def _policies(self) -> str:
        endpoints = [{"address": "127.0.0.1", "port": one.port, "name": one.config.name} for one in self.engines]
        # JSON is YAML.
        documents = [
            {"kind": "EnginePool", "metadata": {"name": "chat"}, "spec": {"model": "m", "endpoints": endpoints}},
            {
                "kind": "ModelRoute",
                "metadata": {"name": "chat"},
                "spec": {
                    "listener": {"port": self._listener, "address": "127.0.0.1"},
                    "pools": [{"pool": "chat"}],
                },
            },
        ]
        return "\n---\n".join(
            json.dumps({"apiVersion": "switchgear.dev/v1alpha1", **document}) for document in documents
        )

    async def load(self, rate_per_s: float, stop: asyncio.Event) -> None:
        target = LoadTarget(url=f"http://127.0.0.1:{self._listener}")
        profile = LoadProfile(targets=(target,), rate_per_s=rate_per_s, max_tokens={4: 1.0})
        await run_load(profile, self.outcomes.append, stop=stop)

    async def trial(self, name: str, fault: Fault, engine: FakeEngine) -> Trial:
        """Break one engine, wait until it is quiet, heal it, wait until it is back."""
        await _until(self._answers(20), "the load is served")
        began_with = len(self.outcomes)
        known = await self._sent(engine) or 0
        at_fault_s = time.monotonic()
        await engine.set_fault(fault)
        known = await self._sent(engine) or known
        last_s, after, decided_s, quiet_from = at_fault_s, 0, 0.0, len(self.outcomes)
        give_up_at = at_fault_s + LIMIT_S
        while len(self.outcomes) < quiet_from + QUIET_ANSWERS or not decided_s:
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"{engine.config.name} is not quiet {LIMIT_S:g} s after {name}")
            sent = await self._sent(engine)
            if sent is not None and sent > known:
                last_s, after, known, quiet_from = time.monotonic(), after + sent - known, sent, len(self.outcomes)
            if not decided_s and await self._health(engine) != "HEALTHY":
                decided_s = time.monotonic() - at_fault_s
            await asyncio.sleep(POLL_S)
        failed = sum(one.reason is not Reason.OK for one in self.outcomes[began_with:])
        await engine.heal()

        async def back() -> bool:
            return await self._health(engine) == "HEALTHY" and (await self._sent(engine) or 0) > 0

        await _until(back, f"{engine.config.name} is back")
        return Trial(
            fault=name, decided_s=decided_s, quiet_s=last_s - at_fault_s, requests_after=after, failed=failed
        )

    def _answers(self, count: int) -> Callable[[], Awaitable[bool]]:
        wanted = len(self.outcomes) + count

        async def answered() -> bool:
            return len(self.outcomes) >= wanted

        return answered

    async def _sent(self, engine: FakeEngine) -> int | None:
        """Requests and failed connections that Envoy has counted for an engine; None when it does not know it."""
        page = await _json(f"http://127.0.0.1:{self._envoy_admin}/clusters?format=json")
        for cluster in page.get("cluster_statuses", []):
            for host in cluster.get("host_statuses", []):
                if host["address"]["socket_address"]["port_value"] == engine.port:
                    counts = {stat["name"]: int(stat.get("value", 0)) for stat in host["stats"]}
                    return counts["rq_total"] + counts["cx_connect_fail"]
        return None

    async def _health(self, engine: FakeEngine) -> str:
        page = await _json(f"http://{self._admin}/v1/engines")
        return next(str(one["health"]) for one in page["engines"] if one["engine"] == engine.config.name)

    async def _envoy_is_live(self) -> bool:
        with contextlib.suppress(OSError):
            page = await _json(f"http://127.0.0.1:{self._envoy_admin}/server_info")
            return bool(page["state"] == "LIVE")
        return False


async def measure(trials: int, rate_per_s: float) -> list[Trial]:
    """All trials of all faults, one after another on the same site."""
    done: list[Trial] = []
    with tempfile.TemporaryDirectory(prefix="switchgear-bench-") as folder:
        async with Processes() as processes:
            site = Site(Path(folder), processes)
            await site.start(ENGINES)
            stop = asyncio.Event()
            load = asyncio.create_task(site.load(rate_per_s, stop))
            try:
                for name, fault in FAULTS.items():
                    done += [await site.trial(name, fault, site.engines[n % ENGINES]) for n in range(trials)]
            finally:
                stop.set()
                await load
                for engine in site.engines:
                    await engine.stop()
    return done


async def _json(url: str) -> Any:
    def get() -> Any:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)

    return await asyncio.to_thread(get)


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while not await condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"not within {LIMIT_S:g} s: {what}")
        await asyncio.sleep(POLL_S)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def table(trials: Sequence[Trial]) -> Table:
    """The trials for people, by fault."""
    title = "fault to last request on the bad engine"
    shown = Table(
        "fault", "trials", "decided p50", "quiet p50", "quiet max", "requests after p50", "failed", title=title
    )
    for name in dict.fromkeys(trial.fault for trial in trials):
        some = [trial for trial in trials if trial.fault == name]
        shown.add_row(
            name,
            str(len(some)),
            f"{median(one.decided_s for one in some):.2f} s",
            f"{median(one.quiet_s for one in some):.2f} s",
            f"{max(one.quiet_s for one in some):.2f} s",
            f"{median(one.requests_after for one in some):.0f}",
            str(sum(one.failed for one in some)),
        )
    return shown


def main(argv: Sequence[str]) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="fault_to_quiet", description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=TRIALS, help="per fault")
    parser.add_argument("--rate", type=float, default=RATE_PER_S, help="requests per second")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/fault_to_quiet.json"))
    options = parser.parse_args(argv)
    # An engine that crashes on command in the middle of an answer is no news here.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    trials = asyncio.run(measure(options.trials, options.rate))
    Console().print(table(trials))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"trials": [asdict(trial) for trial in trials]}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
