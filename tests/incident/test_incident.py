"""The incident of docs/incident-walkthrough.md, typed word for word into one shell, and looked at in a browser.

Its programs are real, Envoys and agents included; engines are not. How fast things are is for the benchmarks: here
they only have to happen, in this order, with certificates everywhere.
"""

import asyncio
import shutil
import ssl
import sys
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from tests.browser import page
from tests.monitoring.promtool import PROMTOOL
from tests.shell import ROOT, Shell, carry_out, shell
from tests.walkthrough import Step, steps

PAGE: Final = ROOT / "docs" / "incident-walkthrough.md"
PICTURE: Final = "incident-dashboard.png"
HUNG: Final = "document.querySelector('[data-name=\"chat/vllm-1\"]')"


def carried_out(step: Step, opened: Shell) -> None:
    """Type a step, but where it asks for a judge that is not here."""
    if PROMTOOL is not None or not step.command.startswith("alerts "):
        carry_out(PAGE, step, opened)


async def look(url: str, token: str, path: Path) -> None:
    """Log in, read on the dashboard why the engine is ejected, and take a screenshot."""
    async with page() as at:
        # Browsers do not trust the lab's authority.
        await at.tell("Security.setIgnoreCertificateErrors", ignore=True)
        await at.open(f"{url}/dashboard/")
        await at.until("location.pathname === '/login' && document.querySelector('[name=token]') !== null")
        await at.value(
            f"document.querySelector('[name=token]').value = '{token}'; document.querySelector('form').submit()"
        )
        await at.until(f"location.pathname === '/dashboard/' && {HUNG}?.classList.contains('s-bad')")
        await at.value(f"{HUNG}.click()")
        await at.until("document.querySelector('#story-body')?.textContent.includes('because it is hung')")
        await at.press("Escape")
        await at.until("!document.querySelector('#story').open")
        assert (await at.picture(path)).stat().st_size > 10_000


async def refused_without_certificate(host: str) -> None:
    """The mTLS ports answer no client without a certificate."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with aiohttp.ClientSession() as session:
        async with session.get(f"https://{host}:18001/v1/engines", ssl=trusting) as answer:
            assert answer.status == 401
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"https://{host}:18000/", ssl=trusting)
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://{host}:18000/")


# Takes 30 s on an idle machine, longer on a busy one.
@pytest.mark.timeout(900)
@pytest.mark.envoy
async def test_the_incident_goes_as_the_page_says(tmp_path: Path, pictures: Path) -> None:
    for needed in ("curl", "openssl"):
        if shutil.which(needed) is None:
            pytest.skip(f"the runbook uses {needed}, which is not installed")
    text = PAGE.read_text()
    at_line = text.count("\n", 0, text.index(PICTURE)) + 1
    looked = False
    with shell(tmp_path, {}) as opened:
        host = opened.type("echo $NET.1").strip()
        try:
            for step in steps(text):
                if step.line > at_line and not looked:
                    looked = True
                    await refused_without_certificate(host)
                    token = (tmp_path / "lab" / "screen.token").read_text().strip()
                    try:
                        await look(f"https://{host}:18001", token, pictures / PICTURE)
                    except pytest.skip.Exception as nobody:
                        sys.stderr.write(f"without the picture: {nobody.msg}\n")
                await asyncio.to_thread(carried_out, step, opened)
        except BaseException:
            for log in sorted(tmp_path.glob("lab/*.log")):
                sys.stderr.write(f"--- {log.name}\n" + log.read_text()[-3000:])
            raise
    assert looked
    assert "PRIVATE KEY" not in (tmp_path / "lab" / "serve.log").read_text()
    assert token not in (tmp_path / "lab" / "serve.log").read_text()
