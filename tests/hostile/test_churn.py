"""What comes and goes leaves nothing behind: after many turns a server holds what it held after a few."""

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
import structlog

from tests.hostile.churn import OURS, Churn, caches, objects, sizes
from tests.rings import left
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

LOOKS: Final = 6
"""So often, a turn apart, it is looked whether something has gone that need not be there."""

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
        for _ in range(LOOKS):
            left_behind = {
                name: _too_much(before, now)
                for name, before, now in (
                    ("held", held, sizes(churn.server)),
                    ("objects", made, objects()),
                    ("caches", cached, caches()),
                )
            }
            if not any(left_behind.values()):
                break
            # Files that were read twice are there twice, until they are read again; what is left behind stays.
            await churn.turn()
    assert left_behind == {"held": {}, "objects": {}, "caches": {}}


@pytest.mark.usefixtures("quiet")
async def test_what_goes_waits_for_no_collector(churn: Churn) -> None:
    """Rings stay until the collector comes by, which is seldom; memory would climb by them meanwhile."""
    async with churn.running():
        await churn.turn()
        with left() as found:
            for _ in range(4):
                await churn.turn()
    ours = {kind: count for kind, count in found.items() if kind.startswith((*OURS, "json."))}
    assert {kind: count for kind, count in ours.items() if count >= 3} == {}, "nearly one of it for each turn"


def _too_much(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """What is more by nearly one for each turn."""
    counts = {name: (before.get(name, 0), count) for name, count in now.items()}
    return {name: (then, count) for name, (then, count) in counts.items() if count - then >= 3 * TURNS // 4}
