"""Headless Chromium, driven over its debugging protocol.

Tests that look at pages use it and are skipped where there is no Chromium (Debian's package has one).
"""

import asyncio
import base64
import json
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest

LIMIT_S = 240.0
"""Limit of each wait: on a busy machine a browser may take a minute to start."""
# The browser's own handling of a key uses its code.
_CODES = {"Escape": 27, "Enter": 13, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
_NAMES = ("chromium", "chromium-browser", "google-chrome")


class Page:
    """One page: ``open`` it, ask it things by JavaScript, press keys, look at it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket = socket
        self._session = session
        self._number = 0
        self.errors: list[str] = []

    async def open(self, url: str) -> None:
        await self.tell("Page.enable")
        await self.tell("Runtime.enable")
        await self.tell("Log.enable")
        await self.tell("Page.navigate", url=url)

    async def tell(self, method: str, **params: Any) -> Any:
        """One command of the protocol, and its answer."""
        self._number += 1
        await self._socket.send_json(
            {"id": self._number, "method": method, "params": params, "sessionId": self._session}
        )
        while True:
            said = json.loads((await self._socket.receive(LIMIT_S)).data)
            self._note(said)
            if said.get("id") == self._number:
                assert "error" not in said, said
                return said["result"]

    async def value(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        found = await self.tell("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        """The value of an expression once it is true."""
        async with asyncio.timeout(LIMIT_S):
            while not (found := await self.value(script)):
                await asyncio.sleep(0.05)
        return found

    async def press(self, key: str, text: str = "") -> None:
        """One key; ``text`` is what it types."""
        for kind in ("keyDown", "keyUp"):
            more: dict[str, Any] = {"text": text} if text and kind == "keyDown" else {}
            if key in _CODES:
                more["windowsVirtualKeyCode"] = _CODES[key]
            await self.tell("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    async def dark(self, on: bool) -> None:
        """Let the reader prefer dark colours."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        await self.tell("Emulation.setEmulatedMedia", features=scheme)

    async def picture(self, path: Path) -> Path:
        """What is seen now, as a PNG."""
        shot = await self.tell("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def _note(self, said: Mapping[str, Any]) -> None:
        if said.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(said["params"]["exceptionDetails"]))
        elif said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
            self.errors.append(said["params"]["entry"]["text"])


async def violations(at: Page) -> list[str]:
    """Accessibility violations that axe finds on the current page; skips the test where axe is not installed."""
    axe = pytest.importorskip("axe_core_python")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text()
    await at.value(script + "; true")
    found: Any = await at.value("axe.run().then((found) => JSON.stringify(found.violations))")
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}" for one in json.loads(found)]


@asynccontextmanager
async def page(width: int = 1400, height: int = 1000) -> AsyncIterator[Page]:
    """A page of a browser of its own, gone afterwards."""
    binary = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if binary is None:
        pytest.skip("no Chromium on this machine")
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            binary,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with (
                aiohttp.ClientSession() as client,
                client.ws_connect(await _address(process), max_msg_size=0) as socket,
            ):
                yield Page(socket, await _attached(socket))
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        while line := (await process.stderr.readline()).decode(errors="replace"):
            if found := re.search(r"DevTools listening on (ws://\S+)", line):
                return found.group(1)
    raise AssertionError("Chromium ended before it listened")


async def _attached(socket: aiohttp.ClientWebSocketResponse) -> str:
    """The session of a new page."""

    async def asked(number: int, method: str, **params: Any) -> Any:
        await socket.send_json({"id": number, "method": method, "params": params})
        while True:
            said = json.loads((await socket.receive(LIMIT_S)).data)
            if said.get("id") == number:
                return said["result"]

    target = await asked(-1, "Target.createTarget", url="about:blank")
    attached = await asked(-2, "Target.attachToTarget", targetId=target["targetId"], flatten=True)
    return str(attached["sessionId"])
