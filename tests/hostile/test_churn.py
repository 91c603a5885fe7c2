"""What comes and goes leaves nothing behind: after many turns a server holds what it held after a few."""

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
import structlog

from tests.hostile.churn import Churn, caches, objects, sizes
from xds_server.leaving import departures
from xds_server.publish import founding, refusals
from xds_server.reconcile import roster
from xds_server.running import logs
from xds_server.sources.telemetry import book, loss, telemetry
from xds_server.streams import encode

WARM_UP: Final = 12
TURNS: Final = 36
MOST: Final = 6
"""Of anything that is remembered by number."""

SOON_S: Final = 0.05
"""Of anything that is remembered for a time: less than a turn."""


@pytest.fixture
def quiet() -> Iterator[None]:
    """Hours of log in seconds help nobody; tests that follow expect theirs."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure("json", "critical")
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def churn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Churn:
    """A server whose every limit is small, so that what has one is full, or over, after the warm-up."""
    for module, name in (
        (roster, "HOLD_S"),
        (departures, "FOLLOWED_S"),
        (loss, "LOST_S"),
        (book, "_FORGET_S"),
        (book, "STALE_S"),
        (telemetry, "_CHECK_EACH_S"),
    ):
        monkeypatch.setattr(module, name, SOON_S)
    for module, name in (
        (founding, "MAX_IDLE_VIEWS"),
        (encode, "REMEMBERED"),
        (refusals, "MOST_REMEMBERED"),
    ):
        monkeypatch.setattr(module, name, MOST)
    made = Churn(tmp_path)
    monkeypatch.setattr(made.server._archive, "_max_versions", MOST)
    monkeypatch.setattr(made.server._ledger.book, "_most", MOST)
    return made


@pytest.mark.usefixtures("quiet")
async def test_what_comes_and_goes_leaves_nothing_behind(churn: Churn) -> None:
    async with churn.running():
        for _ in range(WARM_UP):
            await churn.turn()
        re.purge()  # what other tests left there is at its limit, perhaps
        held, made, cached = sizes(churn.server), objects(), caches()
        for _ in range(TURNS):
            await churn.turn()
        grown = {way: (held.get(way, 0), now) for way, now in sizes(churn.server).items()}
        more = {kind: (made.get(kind, 0), now) for kind, now in objects().items()}
        beside = {name: (cached.get(name, 0), now) for name, now in caches().items()}
    assert _too_much(grown) == {}
    assert _too_much(more) == {}
    assert _too_much(beside) == {}


def _too_much(counts: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """What is more by nearly one for each turn."""
    return {name: (before, now) for name, (before, now) in counts.items() if now - before >= 3 * TURNS // 4}
