"""The page in a real browser: read, filtered, walked by keyboard, in both colour schemes, held to axe's rules."""

import asyncio
import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.browser import Page, page
from tests.xds_server.admin.dashboard.fake_server_backend import FakeServerBackend
from xds_server.admin.dashboard import frame_stream as lives
from xds_server.admin.dashboard.dashboard_routes import add_dashboard
from xds_server.admin.dashboard.frame import frame, full_message
from xds_server.admin_api.status_types import FileDefect, FileProblem

pytestmark = pytest.mark.timeout(900)  # each wait has a limit of its own: see ``browser``
axe = pytest.importorskip("axe_core_python")
SHOWN = "[...document.querySelectorAll('.cell:not([hidden])')].map((cell) => cell.dataset.name)"


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames more often than each second, and not so often that drawing them is all that the browser does.

    Lines of two minutes have a point for each frame: with fifty frames a second, and other work on the machine,
    the page would fall further and further behind, and axe would not come to its turn.
    """
    every_s = {"every_s": 0.25}
    monkeypatch.setattr(
        lives.FrameStream.__init__, "__kwdefaults__", lives.FrameStream.__init__.__kwdefaults__ | every_s
    )


async def shown(made: FakeServerBackend, host: str = "127.0.0.1", port: int = 0) -> web.AppRunner:
    async def why(request: web.Request) -> web.Response:
        return web.json_response(asdict(made.why(request.query["name"])))

    app = web.Application()
    add_dashboard(app, made)
    app.router.add_get("/v1/why", why)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


async def opened(at: Page, runner: web.AppRunner, cells: int) -> None:
    host, port = runner.addresses[0]
    await at.open(f"http://{host}:{port}/dashboard/")
    await at.until(f"document.querySelectorAll('.cell').length === {cells}")


async def violations(at: Page) -> list[str]:
    """What axe finds wrong with the page as it stands."""
    script = (Path(axe.__file__).parent / "axe.min.js").read_text()
    await at.value(script + "; true")
    found: Any = await at.value("axe.run().then((found) => JSON.stringify(found.violations))")
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}" for one in json.loads(found)]


async def test_a_day_at_the_page(pictures: Path) -> None:
    made = FakeServerBackend(24)
    made.change("vllm-7", reason="<img src=x onerror=alert(1)>")
    runner = await shown(made)
    try:
        async with page() as at:
            await opened(at, runner, 24)
            assert await at.value("document.querySelector('#sum').textContent") == (
                "24 engines, 6 not in; 41 good answers per second; 4 proxies"
            )
            assert "1 of 4 not in sync" in await at.value("document.querySelector('#proxies-note').textContent")

            # What changes on the server changes here.
            made.change("vllm-0", health="UNHEALTHY", reason="hung: no token")
            await at.until("document.querySelector('[data-name=\"small/vllm-0\"]').classList.contains('s-bad')")
            made.policy_state = "refused"
            await at.until("document.querySelector('#policies').classList.contains('bad')")
            assert await at.value("document.querySelector('#alert').hidden")
            made.wrong = [
                FileProblem(what="rules", defect=FileDefect.UNUSABLE, file="/a.yaml", sentence="<b>line 3</b>")
            ]
            await at.until(
                "document.querySelector('#alert').textContent === 'SG213 rules: /a.yaml: <b>line 3</b>'"
            )
            assert not await at.value("document.querySelector('#alert').hidden")

            # By keyboard alone: find, into the map, along it, why, and back to where one was.
            await at.press("/", "/")
            assert await at.value("document.activeElement.id") == "find"
            for letter in "vllm-1":
                await at.press(letter, letter)
            assert await at.until(f"({SHOWN}).length === 11")
            await at.value("document.querySelector('.cell[tabindex=\"0\"]').focus()")
            first = await at.value("document.activeElement.dataset.name")
            await at.press("ArrowRight")
            second = await at.value("document.activeElement.dataset.name")
            assert first != second
            await at.press("Enter", "\r")
            assert await at.until(
                "document.querySelector('#story-body ul') && document.querySelector('#story').open"
            )
            assert await at.value("document.querySelector('#story-name').textContent") == second
            assert await violations(at) == []
            await at.press("Escape")
            await at.until("!document.querySelector('#story').open")
            assert await at.value("document.activeElement.dataset.name") == second

            # Only trouble.
            await at.value(
                "const s = document.querySelector('#only'); document.querySelector('#find').value = '';"
                "s.value = 'trouble'; s.dispatchEvent(new Event('input', {bubbles: true}))"
            )
            assert "small/vllm-0" in await at.value(SHOWN)
            assert "chat/vllm-1" not in await at.value(SHOWN)

            assert await at.value("document.querySelectorAll('main img').length") == 0, "text is text"
            await at.value(
                "const a = document.querySelector('#only'); a.value = '';"
                "a.dispatchEvent(new Event('input', {bubbles: true})); scrollTo(0, 0)"
            )
            for name, dark in (("dashboard-light", False), ("dashboard-dark", True)):
                await at.dark(dark)
                assert await violations(at) == []
                assert (await at.picture(pictures / f"{name}.png")).stat().st_size > 10_000
            assert at.errors == []
    finally:
        await runner.cleanup()


async def test_a_thousand_engines_and_a_server_that_goes() -> None:
    made = FakeServerBackend(1000, zones=4)
    runner = await shown(made)
    async with page() as at:
        await opened(at, runner, 1000)
        assert await at.value("document.querySelector('#zones').classList.contains('dense')")
        made.stir(0.5)
        made.change("vllm-999", health="UNHEALTHY", reason="last")
        await at.until("document.querySelector('[data-name=\"chat/vllm-999\"]').title === 'last'")
        assert await at.value("document.getAnimations().length") == 0, "five hundred bars that glide are too many"
        # Only what became different is touched.
        await at.value(
            "window.touched = new Set(); new MutationObserver((all) =>"
            " all.forEach((one) => touched.add(one.target.closest('.cell')?.dataset.name)))"
            ".observe(document.querySelector('#zones'),"
            " {attributes: true, childList: true, subtree: true}); true"
        )
        made.change("vllm-998", reason="another")
        await at.until("document.querySelector('[data-name=\"chat/vllm-998\"]').title === 'another'")
        assert await at.value("[...touched]") == ["chat/vllm-998"]
        made.rows = made.rows[:500]
        await at.until("document.querySelectorAll('.cell').length === 500")
        await runner.cleanup()
        await at.until("document.querySelector('#link').textContent.startsWith('no contact')")
        assert await at.value("document.querySelectorAll('.cell').length") == 500, (
            "what was known stays to be seen"
        )


async def test_a_server_that_comes_back_is_shown_as_it_is_then() -> None:
    made = FakeServerBackend(24)
    # An address that nobody else takes a port of while the server is away.
    runner = await shown(made, f"127.{os.getpid() % 250 + 1}.77.3")
    host, port = runner.addresses[0]
    async with page() as at:
        await opened(at, runner, 24)
        assert await at.until("document.querySelector('#link').textContent === 'live'")
        await runner.cleanup()
        await at.until("document.querySelector('#link').textContent.startsWith('no contact')")
        after = FakeServerBackend(18, zones=2)  # another process: engines, a zone and all earlier events are gone
        after.happened = after.happened[:3]
        after.change("vllm-2", health="UNHEALTHY", reason="hung while nobody looked")
        runner = await shown(after, host, port)
        try:
            await at.until("document.querySelector('#link').textContent === 'live'")
            await at.until("document.querySelectorAll('.cell').length === 18")
            assert await at.value("document.querySelectorAll('#zones .zone').length") == 2
            assert await at.value("document.querySelectorAll('#events li').length") == 3
            title = "document.querySelector('[data-name=\"chat/vllm-2\"]').title"
            assert await at.value(title) == "hung while nobody looked"
            after.change("vllm-2", reason="and changes come, too")
            await at.until(f"{title} === 'and changes come, too'")
            assert await at.value("document.querySelector('#link').className") == "badge good"
        finally:
            await runner.cleanup()


async def test_a_server_that_hangs_is_out_of_touch_and_is_asked_again() -> None:
    asked = 0
    made = FakeServerBackend(12)

    async def live(request: web.Request) -> web.StreamResponse:
        """One frame, and then nothing, with the connection open."""
        nonlocal asked
        asked += 1
        made.change("vllm-1", reason=f"told {asked} times")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"event: frame\ndata: {json.dumps(full_message(frame(made, 0.0)))}\n\n".encode())
        await asyncio.Event().wait()
        return response

    app = web.Application()
    app.router.add_get("/v1/live", live)
    add_dashboard(app, made)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with page() as at:
            await opened(at, runner, 12)
            await at.value(
                "window.seen = []; const link = document.querySelector('#link');"
                "new MutationObserver(() => seen.push(link.textContent)).observe(link, {childList: true});"
                "const now = Date.now; Date.now = () => now() + 7000; true"
            )
            await at.until("seen.some((text) => text.startsWith('no contact'))")
            # It asks again each time that nothing came for long enough, by whichever clock.
            await at.until(
                "/^told ([2-9]|..+) times$/.test(document.querySelector('[data-name=\"chat/vllm-1\"]').title)"
            )
            await at.until("document.querySelector('#link').textContent === 'live'")
    finally:
        await runner.cleanup()


async def test_what_is_wrong_is_said_first_and_leads_to_its_reasons() -> None:
    made = FakeServerBackend(600, zones=4)
    runner = await shown(made)
    lines = "[...document.querySelectorAll('#wrongs li')].map((line) => line.textContent)"
    try:
        async with page() as at:
            await opened(at, runner, 600)
            said = await at.value(lines)
            assert said[0] == "!chat level 2, fallback: pressure 1.2; refuses 3.5 requests per second"
            assert said[1].startswith("✕gateway-1 refuses routes port-10000: bad regex")
            assert re.match(
                r"✕\d\d engines of chat, zone-[a-d] out: (hung|dead), such as chat/vllm-\d+: ", said[2]
            ), said
            assert len(said) == 6
            assert await at.value("document.title") == "(150 not in) Switchgear"

            # The first that is reached by Tab after the head of the page.
            await at.value("document.querySelector('#only').focus()")
            await at.press("Tab")
            await at.press("Tab")
            name = await at.value("document.activeElement.dataset.subject")
            assert name.startswith("chat/vllm-")
            # What becomes different does not take the focus away.
            made.stir(1)
            made.change(name.partition("/")[2], reason="hung: for longer still")
            await at.until(f"({lines}).some((line) => line.endsWith('hung: for longer still'))")
            assert await at.value("document.activeElement.dataset.subject") == name
            await at.press("Enter", "\r")
            await at.until("document.querySelector('#story-body ul') && document.querySelector('#story').open")
            assert await at.value("document.querySelector('#story-name').textContent") == name
            await at.press("Escape")

            made.rows = [replace(row, health="HEALTHY", verdict="ready", floor=False) for row in made.rows[:20]]
            await at.until("document.querySelectorAll('#wrongs li').length === 2")
            assert await at.value("document.title") == "Switchgear"
            assert at.errors == []
    finally:
        await runner.cleanup()
