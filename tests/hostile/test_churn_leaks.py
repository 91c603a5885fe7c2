"""What comes and goes leaves nothing behind: after many turns a server holds what it held after a few."""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
import structlog

from tests.hostile.churn import OURS, Churn, caches, objects, sizes
from tests.reference_cycles import left
from xds_server.admin import server_backend
from xds_server.app import log_config
from xds_server.auth import connection_watcher, log_budget, memory_guard, peer_budget
from xds_server.observe import eject_latency
from xds_server.publish import content_rejections, view_registry
from xds_server.reconcile import proxy_counts
from xds_server.telemetry import entry_budget, loss_monitor, pool_recorder, proxy_telemetry, traffic_store
from xds_server.xds import full_content, response_cache

WARM_UP: Final = 12
TURNS: Final = 36
MOST: Final = 6
"""Of anything that is remembered by number."""

BASELINE_TURNS: Final = 4
"""Turns whose highest counts are the baseline."""

LOOKS: Final = 6
"""Turns that growth has to survive before it counts as a leak."""

SOON_S: Final = 0.05
"""Lifetime of anything with an expiry: shorter than a turn."""


@pytest.fixture
def quiet() -> Iterator[None]:
    """Silence the logs of these tests; restore logging for later ones."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log_config.configure("json", "critical")
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def churn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Churn:
    """A server whose every limit is small, so that what has one is full, or over, after the warm-up."""
    if hasattr(request, "param"):
        monkeypatch.setenv("SWITCHGEAR_TRANSPORT", request.param)
    for module, name in (
        (proxy_counts, "HOLD_S"),
        (eject_latency, "FOLLOWED_S"),
        (loss_monitor, "LOST_S"),
        (traffic_store, "_FORGET_S"),
        (traffic_store, "STALE_S"),
        (proxy_telemetry, "_CHECK_EACH_S"),
        (entry_budget, "QUIET_S"),
        (connection_watcher, "COUNT_EACH_S"),
        (server_backend, "INTERVAL_S"),
        (memory_guard, "FAST_S"),
    ):
        monkeypatch.setattr(module, name, SOON_S)
    for module, name in (
        (view_registry, "MAX_IDLE_VIEWS"),
        (response_cache, "CACHED_RESPONSES"),
        (full_content, "CACHED_CONTENTS"),
        (content_rejections, "MAX_REJECTED"),
        (peer_budget, "MAX_REMEMBERED"),
        (log_budget, "MAX_REMEMBERED"),
        (pool_recorder, "KEPT"),
    ):
        monkeypatch.setattr(module, name, MOST)
    made = Churn(tmp_path)
    monkeypatch.setattr(made.server.policies.archive, "_max_versions", MOST)
    monkeypatch.setattr(made.server.operators.ledger.book, "_most", MOST)
    return made


@pytest.mark.usefixtures("quiet")
async def test_churn_leaks_no_memory(churn: Churn) -> None:
    async with churn.running():
        for _ in range(WARM_UP):
            await churn.turn()
        re.purge()  # what other tests left there is at its limit, perhaps
        before = await _most(churn)
        for _ in range(TURNS):
            await churn.turn()
        grown = await _growth_that_stays(churn, before)
    assert grown == {}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("churn", ["grpc", "h2"], indirect=True)
async def test_churn_leaves_no_reference_cycles(churn: Churn) -> None:
    """Rings stay until the collector comes by, which is seldom; memory would climb by them meanwhile."""
    async with churn.running():
        await churn.turn()
        with left() as found:
            for _ in range(4):
                await churn.turn()
    kinds = (*OURS, "json.", "asyncio.selector_events.")
    ours = {kind: count for kind, count in found.items() if kind.startswith(kinds)}
    assert {kind: count for kind, count in ours.items() if count >= 3} == {}, "nearly one of it for each turn"


def _counts(churn: Churn) -> Mapping[str, int]:
    found = {"held": sizes(churn.server), "objects": objects(), "caches": caches()}
    return {f"{kind} {name}": count for kind, counts in found.items() for name, count in counts.items()}


async def _most(churn: Churn) -> Mapping[str, int]:
    """The most there is of each thing in a few turns: a round in progress holds the one before it, too."""
    most: Counter[str] = Counter()
    for _ in range(BASELINE_TURNS):
        await churn.turn()
        most |= Counter(_counts(churn))
    return most


async def _growth_that_stays(churn: Churn, before: Mapping[str, int]) -> Mapping[str, tuple[int, int]]:
    """What has grown by nearly one for each turn, and has not gone again in any of a few turns."""
    grown = _grown(before, _counts(churn))
    for _ in range(LOOKS):
        if not grown:
            break
        await churn.turn()
        grown = {name: count for name, count in _grown(before, _counts(churn)).items() if name in grown}
    return grown


def _grown(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    counts = {name: (before.get(name, 0), count) for name, count in now.items()}
    return {name: (then, count) for name, (then, count) in counts.items() if count - then >= 3 * TURNS // 4}
