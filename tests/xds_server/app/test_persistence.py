"""Memory held by persistence between two writes."""

import asyncio
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.eventually import eventually
from xds_server.app import persistence
from xds_server.rollout import learned_state
from xds_server.rollout.last_good import LastGoodStore
from xds_server.state.write_failures import WriteFailures


class Build:
    """Build of a round without learned state."""

    memory = SimpleNamespace(pools={})


async def test_persistence_holds_no_superseded_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistence, "_LOOK_EACH_S", 0.01)
    monkeypatch.setattr(learned_state, "learned_state", lambda *_: {})
    ready = asyncio.Event()
    ready.set()
    reconciler = SimpleNamespace(built=Build(), clock=lambda: 0.0, ready=ready)
    store = LastGoodStore(tmp_path)
    keeping = asyncio.create_task(persistence._keep_learned(store, reconciler, WriteFailures()))  # type: ignore[arg-type]
    try:
        await eventually((tmp_path / learned_state.FILE_NAME).exists, "the first write", 10)
        monkeypatch.setattr(persistence, "_LOOK_EACH_S", 60.0)
        await asyncio.sleep(0.05)  # the loop now sleeps for a minute
        build = weakref.ref(reconciler.built)
        reconciler.built = None
        assert build() is None
    finally:
        keeping.cancel()
