"""Use the dashboard in a real browser: filters, keyboard, both colour schemes, axe's accessibility rules."""

import asyncio
import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from aiohttp import web

from tests.browser import Page, page, violations
from tests.xds_server.admin.dashboard.fake_server_backend import FakeServerBackend
from xds_server.admin.dashboard import frame_stream as lives
from xds_server.admin.dashboard.dashboard_routes import add_dashboard
from xds_server.admin.dashboard.frame import frame, full_message
from xds_server.admin.json_http import json_response
from xds_server.admin_api.status_types import FileDefect, FileProblem

pytestmark = pytest.mark.timeout(900)  # each wait has its own limit: see ``browser``
axe = pytest.importorskip("axe_core_python")
LINES = "[...document.querySelectorAll('#problem-list li')].map((line) => line.textContent)"
SHOWN = "[...document.querySelectorAll('.cell:not([hidden])')].map((cell) => cell.dataset.name)"


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send frames every 0.25 s instead of every second.

    A sparkline has one point per frame for two minutes: at fifty frames a second a busy browser falls behind, and
    axe never runs.
    """
    every_s = {"every_s": 0.25}
    monkeypatch.setattr(
        lives.FrameStream.__init__, "__kwdefaults__", lives.FrameStream.__init__.__kwdefaults__ | every_s
    )


async def shown(made: FakeServerBackend, host: str = "127.0.0.1", port: int = 0) -> web.AppRunner:
    async def why(request: web.Request) -> web.Response:
        return web.json_response(asdict(made.why(request.query["name"])))

    async def pool_history(_: web.Request) -> web.Response:
        return json_response(made.pool_history(""))

    app = web.Application()
    add_dashboard(app, made)
    app.router.add_get("/v1/why", why)
    app.router.add_get("/v1/pool-history", pool_history)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


async def opened(at: Page, runner: web.AppRunner, cells: int) -> None:
    host, port = runner.addresses[0]
    await at.open(f"http://{host}:{port}/dashboard/")
    await at.until(f"document.querySelectorAll('.cell').length === {cells}")


async def test_page_shows_changes_and_works_by_keyboard(pictures: Path) -> None:
    made = FakeServerBackend(24)
    made.change("vllm-7", reason="<img src=x onerror=alert(1)>")
    runner = await shown(made)
    try:
        async with page() as at:
            await opened(at, runner, 24)
            assert await at.value("document.querySelector('#sum').textContent") == (
                "24 engines, 4 ejected, 2 draining; 41 good answers/s; 4 proxies"
            )
            assert "1 of 4 not in sync" in await at.value("document.querySelector('#proxies-note').textContent")

            # Server changes appear on the page.
            made.change("vllm-0", health="UNHEALTHY", reason="hung: no token")
            await at.until("document.querySelector('[data-name=\"small/vllm-0\"]').classList.contains('s-bad')")
            made.policy_state = "refused"
            await at.until("document.querySelector('#policies').classList.contains('bad')")
            made.wrong = [
                FileProblem(what="rules", defect=FileDefect.UNUSABLE, file="/a.yaml", sentence="<b>line 3</b>")
            ]
            await at.until(
                f"({LINES}).some((line) => line.includes('SG213 critical rules: /a.yaml: <b>line 3</b>'))"
            )

            # Keyboard only: search, enter the map, move, open the explanation, and return.
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

            # Filter: only with problems.
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


async def test_page_updates_a_thousand_engines_and_keeps_them_when_server_stops() -> None:
    made = FakeServerBackend(1000, zones=4)
    runner = await shown(made)
    async with page() as at:
        await opened(at, runner, 1000)
        assert await at.value("document.querySelector('#zones').classList.contains('dense')")
        made.stir(0.5)
        made.change("vllm-999", health="UNHEALTHY", reason="last")
        await at.until("document.querySelector('[data-name=\"chat/vllm-999\"]').title === 'last'")
        assert await at.value("document.getAnimations().length") == 0, "a dense map has no animations"
        # Only changed cells are updated.
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
            "the last known state stays visible"
        )


async def test_page_shows_new_state_after_server_restart() -> None:
    made = FakeServerBackend(24)
    # A private loopback address, so that no other process takes the port during the restart.
    runner = await shown(made, f"127.{os.getpid() % 250 + 1}.77.3")
    host, port = runner.addresses[0]
    async with page() as at:
        await opened(at, runner, 24)
        assert await at.until("document.querySelector('#link').textContent === 'live'")
        await runner.cleanup()
        await at.until("document.querySelector('#link').textContent.startsWith('no contact')")
        after = FakeServerBackend(
            18, zones=2
        )  # a new process without some engines, one zone and all earlier events
        after.happened = after.happened[:3]
        after.change("vllm-2", health="UNHEALTHY", reason="hung during the restart")
        runner = await shown(after, host, port)
        try:
            await at.until("document.querySelector('#link').textContent === 'live'")
            await at.until("document.querySelectorAll('.cell').length === 18")
            assert await at.value("document.querySelectorAll('#zones .zone').length") == 2
            assert await at.value("document.querySelectorAll('#events li').length") == 3
            title = "document.querySelector('[data-name=\"chat/vllm-2\"]').title"
            assert await at.value(title) == "hung during the restart"
            after.change("vllm-2", reason="changed again")
            await at.until(f"{title} === 'changed again'")
            assert await at.value("document.querySelector('#link').className") == "badge good"
        finally:
            await runner.cleanup()


async def test_page_reconnects_to_a_hung_server() -> None:
    requests = 0
    made = FakeServerBackend(12)

    async def live(request: web.Request) -> web.StreamResponse:
        """Send one frame, then nothing on the open connection."""
        nonlocal requests
        requests += 1
        made.change("vllm-1", reason=f"sent {requests} times")
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
            # It reconnects after each silence that is too long, by any clock.
            await at.until(
                "/^sent ([2-9]|..+) times$/.test(document.querySelector('[data-name=\"chat/vllm-1\"]').title)"
            )
            await at.until("document.querySelector('#link').textContent === 'live'")
    finally:
        await runner.cleanup()


async def test_active_problems_come_first_and_open_explanations() -> None:
    made = FakeServerBackend(600, zones=4)
    runner = await shown(made)
    try:
        async with page() as at:
            await opened(at, runner, 600)
            problems = await at.value(LINES)
            assert problems[0].startswith(
                "✕SG204 critical proxy gateway-1: routes refused: port-10000 (chat.yaml:30): bad regex. "
            )
            assert re.match(
                r"!SG208 warning \d\d engines of (chat|small), zone-[a-d]: not in rotation: .* \(vllm-\d+, for ",
                problems[1],
            ), problems
            assert re.match(r"show \d+ more", problems[8])
            assert len(problems) == 9
            assert await at.value("document.title") == "(100 ejected, 50 draining) Switchgear"

            # The first Tab stop after the page header.
            await at.value("document.querySelector('#only').focus()")
            await at.press("Tab")
            assert await at.value("document.activeElement.dataset.code") == "SG204"
            await at.press("Enter", "\r")
            await at.until("!!document.querySelector('#story-body .runbook')")
            guide = await at.value("document.querySelector('#story-body').textContent")
            assert guide.startswith("resource refused by a proxy (critical). "), guide
            assert "Runbook SwitchgearConfigurationRefused" in guide
            await at.press("Escape")
            await at.press("Tab")
            await at.press("Tab")
            name = await at.value("document.activeElement.dataset.subject")
            assert re.match(r"(chat|small)/vllm-\d+", name)
            # Updates keep the focus.
            made.stir(1)
            made.change(name.partition("/")[2], reason="hung: no token for 9 s")
            await at.until(f"({LINES}).some((line) => line.includes('hung: no token for 9 s'))")
            assert await at.value("document.activeElement.dataset.subject") == name
            await at.press("Enter", "\r")
            await at.until("document.querySelector('#story-body ul') && document.querySelector('#story').open")
            assert await at.value("document.querySelector('#story-name').textContent") == name
            await at.press("Escape")

            made.rows = [replace(row, health="HEALTHY", verdict="ready", floor=False) for row in made.rows[:20]]
            await at.until(f"!({LINES}).some((line) => line.includes('SG208'))")
            assert await at.value("document.title") == "Switchgear"
            assert at.errors == []
    finally:
        await runner.cleanup()


async def test_old_figures_show_their_age_and_full_engines_look_good() -> None:
    made = FakeServerBackend(12)
    made.rows[0] = replace(
        made.rows[0], verdict="busy", health="HEALTHY", reason="", floor=False, report_age_s=0.2
    )
    made.rows[3] = replace(made.rows[3], report_age_s=42.0, in_flight=None)
    made.rows[4] = replace(made.rows[4], health=None, verdict=None, report_age_s=None, reason="unknown")
    full, old, unknown = (f"{row.pool}/{row.engine}" for row in (made.rows[0], made.rows[3], made.rows[4]))
    runner = await shown(made)
    try:
        async with page(1400, 1000) as at:
            await opened(at, runner, 12)
            cell = "document.querySelector('[data-name=\"{}\"]')"
            assert await at.value(f"{cell.format(full)}.className") == "cell s-good"
            assert await at.value(f"{cell.format(full)}.querySelector('.sign').textContent") == "◐"
            assert re.match(
                r"report \d\d s ago", await at.value(f"{cell.format(old)}.querySelector('.share').textContent")
            )
            for name in (old, unknown):
                assert await at.value(f"{cell.format(name)}.querySelector('.sign').textContent") == "○"
            # One line at 1400 pixels.
            assert await at.value("document.querySelector('body > header').offsetHeight") < 60
            await runner.cleanup()
            await at.until("document.body.classList.contains('lost')")
            await at.until("/^no contact, \\d+ s ago$/.test(document.querySelector('#link').textContent)")
    finally:
        await runner.cleanup()


async def test_events_name_their_subject_and_unit() -> None:
    made = FakeServerBackend(12)
    event = made.happened[-1]
    made.happened.append(
        replace(
            event,
            number=event.number + 1,
            kind="ceiling",
            subject="chat",
            pool="chat",
            engine="",
            before="308",
            after="220",
        )
    )
    runner = await shown(made)
    try:
        async with page(1400, 1000) as at:
            await opened(at, runner, 12)
            lines = await at.value(
                "[...document.querySelectorAll('#events li span')].map((one) => one.textContent)"
            )
            assert "pool chat: admission limit: 308 → 220 requests" in [one.strip() for one in lines]
            assert any(one.startswith("engine chat/vllm-") for one in lines)
    finally:
        await runner.cleanup()


async def test_pool_cards_show_recorded_history_and_calls_between_zones() -> None:
    made = FakeServerBackend(24)
    runner = await shown(made)
    try:
        async with page(1400, 1000) as at:
            drawn = "(document.querySelector('.trend > svg path').getAttribute('d') ?? '').length > 200"
            for _ in range(2):  # the server keeps the history: a reload loses nothing
                await opened(at, runner, 24)
                await at.until(drawn)
            note = await at.value("document.querySelector('#pools-note').textContent")
            assert note == "last 15 minutes; this server started to record 10 min ago"
            label = await at.value("document.querySelector('.trend > svg').getAttribute('aria-label')")
            assert label == "chat: Calls /s, last 15 minutes: peak 34; now good 34, refused 0, failed tries 0.5"
            assert await at.value("document.querySelectorAll('.card')[0].querySelectorAll('.trend').length") == 4
            flow = "[...document.querySelectorAll('.card .flow:not([hidden]) tr')].map((row) => row.textContent)"
            assert await at.value(flow) == [
                "to zone-ato zone-bto zone-c",
                "from zone-a3.1 (100 %)––",
                "from zone-b3.1 (10 %)27.5 (90 %)–",
                "from zone-c3.1 (10 %)–27.5 (90 %)",
            ]
            # Two cards share the width.
            widths = await at.value("[...document.querySelectorAll('.card')].map((one) => one.offsetWidth)")
            assert all(one > 600 for one in widths), widths
            assert await violations(at) == []
            assert at.errors == []
        async with page(900, 1000) as at:
            await opened(at, runner, 24)
            await at.until(drawn)
            assert await at.value("document.documentElement.scrollWidth") <= 900
    finally:
        await runner.cleanup()
