"""The lab's page in a real browser, with real processes and a real Envoy: break an engine, see it, heal it."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from chaos.processes import ChildProcess, ChildProcesses
from tests.browser import Page, page, violations

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(600)]
LIMIT_S = 120.0
BADGE = "document.querySelector('[data-name=\"chat/e1\"] .badge').textContent"
SEEN = "document.querySelectorAll('#steps .seen').length"


@asynccontextmanager
async def lab(tmp_path: Path) -> AsyncIterator[tuple[str, ChildProcess]]:
    """A lab of its own; its temporary folders are below ``tmp_path``."""
    place = tmp_path / "temporary"
    place.mkdir()
    async with ChildProcesses(log_dir=tmp_path / "logs", stop_limit_s=LIMIT_S) as children:
        child = await children.start(
            "lab",
            [sys.executable, "-m", "chaos.cli", "lab"],
            env={"TMPDIR": str(place)},
            ready_within_s=LIMIT_S,
        )
        yield str(child.ready["lab"]), child
        # Ctrl-C.
        family = descendants(child.pid)
        assert len(family) >= 8, "engines, agents, Envoy and control plane"
        child.signal_group(signal.SIGINT)
        async with asyncio.timeout(LIMIT_S):
            while any(one.exists() for one in family) or child.returncode is None:
                await asyncio.sleep(0.05)
        assert child.returncode == 0
        assert list(place.iterdir()) == [], "the temporary folder is gone"


def descendants(pid: int) -> list[Path]:
    """Folders in /proc of a process's descendants."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [Path("/proc", child), *descendants(int(child))]
    return found


async def press(at: Page, engine: str, button: str) -> None:
    """Press a button by keyboard."""
    row = f"document.querySelector('[data-name=\"{engine}\"]')"
    await at.value(f"[...{row}.querySelectorAll('button')].find((b) => b.textContent === '{button}').focus()")
    await at.press("Enter", "\r")


async def test_guided_incident_in_a_browser(tmp_path: Path, pictures: Path) -> None:
    async with lab(tmp_path) as (address, _), page() as at:
        await at.open(f"{address}/")
        await at.until("document.querySelectorAll('.engine').length === 3")
        await at.until(f"{SEEN} === 1")
        assert "in rotation" in await at.value(BADGE)
        await press(at, "chat/e1", "hang")
        await at.until(f"{BADGE}.includes('ejected')")
        await at.until(f"{SEEN} >= 5")
        for name, dark in (("lab-dark", True), ("lab-light", False)):
            await at.dark(dark)
            assert await violations(at) == []
            await at.picture((tmp_path if dark else pictures) / f"{name}.png")
        command = await at.value("document.querySelectorAll('#steps code')[3].textContent")
        assert command.startswith("switchgear why chat/e1 --admin http://127.0.0.1:")
        typed = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "xds_server", *command.split()[1:]),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(typed.communicate(), LIMIT_S)
        assert typed.returncode == 1
        assert "because it is hung" in out.decode()
        await press(at, "chat/e1", "heal")
        await at.until(f"{SEEN} === 6")
        await at.until(f"{BADGE}.includes('in rotation')")
        assert int(await at.value("document.querySelector('#good').textContent")) > 0
        # The rate, by keyboard.
        await at.value("document.querySelector('#rate').focus()")
        before = int(await at.value("document.querySelector('#rate').value"))
        await at.press("ArrowRight")
        await at.until(f"document.querySelector('#rate-value').textContent === '{before + 1}'")
        await at.until(f"fetch('v1/page').then((a) => a.json()).then((s) => s.rate.per_second === {before + 1})")
        # Nothing is cut off on a phone.
        await at.tell(
            "Emulation.setDeviceMetricsOverride", width=400, height=900, deviceScaleFactor=1, mobile=False
        )
        assert await at.until("document.documentElement.scrollWidth <= 400")
        assert at.errors == []


async def test_every_button_and_no_foreign_page(tmp_path: Path) -> None:
    async with lab(tmp_path) as (address, _), aiohttp.ClientSession() as session:

        async def state() -> Any:
            async with session.get(f"{address}/v1/page") as answer:
                return await answer.json()

        async def engine() -> Any:
            return next(one for one in (await state())["engines"] if one["name"] == "chat/e0")

        async def pressed(fault: str | None, **headers: str) -> int:
            order = {"engine": "chat/e0", "fault": fault}
            async with session.post(f"{address}/v1/page/fault", json=order, headers=headers) as answer:
                return answer.status

        assert await pressed("hang", Origin="http://example.com") == 403
        assert await pressed("hang", Host="lab.example.com") == 403
        assert await pressed("melt") == 400
        async with session.post(f"{address}/v1/page/fault", data='{"engine": "chat/e0"}') as answer:
            assert answer.status == 415, "what a form may send"
        async with session.post(f"{address}/v1/page/rate", json={"per_second": 1e9}) as answer:
            assert answer.status == 400
        async with session.get(f"{address}/") as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert (await engine())["fault"] == ""
        for button in (await engine())["buttons"]:
            assert await pressed(button, Origin=address) == 200
            assert (await engine())["fault"] == button
            async with asyncio.timeout(LIMIT_S):
                # Slow and failing engines are found by their traffic.
                while (await engine())["health"] == "HEALTHY":
                    await asyncio.sleep(0.1)
            assert (await engine())["health"] == ("DRAINING" if button == "drain" else "UNHEALTHY")
            assert await pressed(None) == 200
            async with asyncio.timeout(LIMIT_S):
                while (await engine())["health"] != "HEALTHY":
                    await asyncio.sleep(0.1)
            assert (await engine())["fault"] == ""
        # The load is adjustable down to nothing.
        async with session.post(f"{address}/v1/page/rate", json={"per_second": 0}) as answer:
            assert answer.status == 200
        async with asyncio.timeout(LIMIT_S):
            while (await state())["answers"]["good"]:
                await asyncio.sleep(0.1)
        # A fault is left for the end of the lab.
        assert await pressed("crash") == 200
