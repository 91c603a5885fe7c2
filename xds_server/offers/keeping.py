"""What outlives the process: what is served is kept on disk when it changed, and taken up at the next start.

So are what was learned from traffic (``learned``) and the addresses of host names, in files beside.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from policies.findings import PolicyErrors
from policies.load import load_contents
from xds_server.entrusted import Entrusted
from xds_server.offers import learned
from xds_server.publish import Publisher
from xds_server.reconcile.loop import Reconciler
from xds_server.sources.files import Accepted
from xds_server.sources.resolver import Resolver
from xds_server.state import addresses
from xds_server.state.disk import Disk
from xds_server.state.last_good import LastGood, Store
from xds_server.state.versioned import StoreError
from xds_server.state.whole_file import AGAIN_S

_LOOK_EACH_S: Final = 2.0
"""Speeds of engines move all the time: they are not written more often than this."""

_RENEW_S: Final = 60.0
"""What has not changed is written again so often: how old it is counts at the next start."""

_log = structlog.get_logger()


def restore(
    store: Store, publisher: Publisher, reconciler: Reconciler, entrusted: Entrusted, resolver: Resolver
) -> None:
    """Take up what the last run kept; what cannot be used is said and left alone."""
    try:
        resolver.remembered = addresses.read(store.path.parent)
    except StoreError as error:
        _log.warning("store.ignored", reason=str(error))
    try:
        reconciler.remembered = learned.read(store.path.parent, time.time(), reconciler.clock())
    except StoreError as error:
        _log.warning("store.ignored", reason=str(error))
    try:
        kept = store.read()
    except StoreError as error:
        _log.warning("store.ignored", reason=str(error))
        return
    if kept is None:
        return
    try:
        policies = load_contents({Path(name): text.encode() for name, text in kept.texts.items()})
    except PolicyErrors as errors:
        reasons = [str(error) for error in errors.exceptions]
        _log.warning("store.ignored", reason="this version refuses the stored policies", errors=reasons[:10])
        return
    publisher.acceptance.remember(kept.parked)
    entrusted.restore(kept.certified)
    reconciler.restore(
        Accepted(policies=policies, texts=kept.texts, digest=kept.digest),
        kept.proxies_by_role,
        kept.proxies_by_zone,
    )


async def keep(
    store: Store,
    publisher: Publisher,
    reconciler: Reconciler,
    entrusted: Entrusted,
    resolver: Resolver,
    *,
    disk: Disk,
) -> None:
    """Keep what is served and what was learned, each time it has changed; for ever."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_keep_served(store, publisher, reconciler, entrusted, disk))
        tasks.create_task(_keep_learned(store, reconciler, disk))
        tasks.create_task(_keep_addresses(store, resolver, disk))


def _refused(disk: Disk, path: Path, error: StoreError) -> None:
    if disk.refused(path, str(error)):
        _log.error("store.failed", reason=str(error))


async def _keep_addresses(store: Store, resolver: Resolver, disk: Disk) -> None:
    written, path = resolver.remembered, store.path.with_name(addresses.FILE_NAME)
    pause_s = _LOOK_EACH_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = _LOOK_EACH_S
        # None at the start says nothing of those that are remembered.
        if (found := resolver.addresses) == written or not found:
            disk.took(path)
            continue
        try:
            await asyncio.to_thread(addresses.save, store.path.parent, found)
        except StoreError as error:
            pause_s = AGAIN_S
            _refused(disk, path, error)
        else:
            disk.took(path)
            written = found


async def _keep_learned(store: Store, reconciler: Reconciler, disk: Disk) -> None:
    written: Mapping[str, object] | None = None  # the first look takes the place of what the last run left
    written_s, path = -math.inf, store.path.with_name(learned.FILE_NAME)
    pause_s = _LOOK_EACH_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = _LOOK_EACH_S
        built, now_s = reconciler.built, reconciler.clock()
        if built is None or not reconciler.ready.is_set():
            continue
        pools = learned.kept(built.decisions, now_s)
        numbers = learned.numbers(pools)
        if numbers == written and (not pools or now_s - written_s < _RENEW_S):
            disk.took(path)
            continue
        try:
            await asyncio.to_thread(learned.save, store.path.parent, pools, time.time())
        except StoreError as error:
            pause_s = AGAIN_S
            _refused(disk, path, error)
        else:
            disk.took(path)
            written, written_s = numbers, now_s


async def _keep_served(
    store: Store, publisher: Publisher, reconciler: Reconciler, entrusted: Entrusted, disk: Disk
) -> None:
    failing = False
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AGAIN_S if failing else None):
                await reconciler.worth_keeping.wait()
        reconciler.worth_keeping.clear()
        serving = reconciler.serving
        if serving is None or serving.stale:
            continue
        last_good = LastGood(
            texts=serving.texts,
            digest=serving.digest,
            proxies_by_role=dict(reconciler.roll.roster.counts()),
            proxies_by_zone=dict(reconciler.roll.callers.counts()),
            saved_at_unix_s=time.time(),
            parked=publisher.acceptance.memory(),
            certified=entrusted.certified(),
        )
        try:
            await asyncio.to_thread(store.save, last_good)
        except StoreError as error:
            failing = True
            _refused(disk, store.path, error)
        else:
            failing = False
            disk.took(store.path)
