"""The documentation site in a browser: names of fields, codes and options stay whole on every width."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.browser import page
from tests.shell import ROOT

WIDTHS_PX = (1400, 800, 390)
"""A desktop, a tablet, a telephone."""
# Names in a first column that lie on more than one line, of those that are one word.
_BROKEN = """JSON.stringify([...document.querySelectorAll("td:first-child code")]
  .filter((name) => !/\\s/.test(name.textContent.trim()) && name.getClientRects().length > 1)
  .map((name) => name.textContent))"""
_COUNT = "document.querySelectorAll('td:first-child code').length"
_WIDER_THAN_THE_SCREEN = "document.documentElement.scrollWidth > window.innerWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    mkdocs = Path(sys.executable).parent / "mkdocs"
    subprocess.run([mkdocs, "build", "--quiet", "--site-dir", folder], cwd=ROOT, check=True, timeout=300)
    return folder


async def _looked_at(site: Path, names: Sequence[str], width_px: int) -> tuple[int, dict[str, list[str]]]:
    """How many names stand in first columns, and the broken ones of each page."""
    count = 0
    broken: dict[str, list[str]] = {}
    async with page(width=width_px) as browser:
        for name in names:
            await browser.open((site / name / "index.html").as_uri())
            await browser.until("document.readyState === 'complete'")
            count += await browser.value(_COUNT)
            broken[name] = json.loads(await browser.value(_BROKEN))
            assert not await browser.value(_WIDER_THAN_THE_SCREEN), f"{name} is wider than {width_px} px"
    return count, broken


@pytest.mark.slow
@pytest.mark.parametrize("width_px", WIDTHS_PX)
def test_names_in_reference_tables_are_whole(site: Path, width_px: int) -> None:
    names = ("policies", "answers", "cli", "affinity", "security", "chaos/reference", "tenants")
    count, broken = asyncio.run(_looked_at(site, names, width_px))
    assert count > 100
    assert {name: found for name, found in broken.items() if found} == {}
