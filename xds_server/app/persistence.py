"""State that survives a restart: served policies, learned capacities, and resolved addresses.

Each is written to its own file on change and read at the next start.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from policies.findings import PolicyErrors
from policies.load import load_contents
from xds_server.engine_health import address_store
from xds_server.engine_health.resolver import Resolver
from xds_server.model.policy_state import AcceptedPolicies
from xds_server.publish import Publisher
from xds_server.reconcile.reconciler import Reconciler
from xds_server.rollout import learned_state
from xds_server.rollout.last_good import LastGood, LastGoodStore
from xds_server.secrets.distribution import SecretDistributor
from xds_server.state.atomic_file import RETRY_S
from xds_server.state.versioned_file import StoreError
from xds_server.state.write_failures import WriteFailures

_LOOK_EACH_S: Final = 2.0
"""Minimum write interval; learned speeds change all the time."""

_RENEW_S: Final = 60.0
"""Rewrite interval for unchanged state: its age counts at the next start."""

_log = structlog.get_logger()


def restore(
    store: LastGoodStore,
    publisher: Publisher,
    reconciler: Reconciler,
    secrets: SecretDistributor,
    resolver: Resolver,
) -> None:
    """Read the state of the previous run; log and keep unusable files."""
    try:
        resolver.remembered = address_store.read(store.path.parent)
    except StoreError as error:
        _log.warning("store.ignored", reason=str(error))
    try:
        reconciler.restored = learned_state.read(store.path.parent, time.time(), reconciler.clock())
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
        _log.warning("store.ignored", reason="stored policies are invalid in this version", errors=reasons[:10])
        return
    publisher.nack_policy.restore(kept.parked)
    secrets.restore(kept.certified)
    reconciler.restore(
        AcceptedPolicies(policies=policies, texts=kept.texts, digest=kept.digest),
        kept.proxies_by_role,
        kept.proxies_by_zone,
    )


async def persist(
    store: LastGoodStore,
    publisher: Publisher,
    reconciler: Reconciler,
    secrets: SecretDistributor,
    resolver: Resolver,
    *,
    disk: WriteFailures,
) -> None:
    """Persist served policies and learned state after each change, until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_keep_served(store, publisher, reconciler, secrets, disk))
        tasks.create_task(_keep_learned(store, reconciler, disk))
        tasks.create_task(_keep_addresses(store, resolver, disk))


async def write_state(disk: WriteFailures, path: Path, save: Callable[[], None]) -> bool:
    """Run ``save`` in a thread and record the outcome; returns whether the file was written."""
    try:
        await asyncio.to_thread(save)
    except StoreError as error:
        if disk.record_failure(path, str(error)):
            _log.error("store.failed", reason=str(error))
        return False
    disk.record_success(path)
    return True


async def _keep_addresses(store: LastGoodStore, resolver: Resolver, disk: WriteFailures) -> None:
    written, path = resolver.remembered, store.path.with_name(address_store.FILE_NAME)
    pause_s = _LOOK_EACH_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = _LOOK_EACH_S
        # No addresses at start: keep the remembered ones.
        if (found := resolver.addresses) == written or not found:
            disk.record_success(path)
            continue
        if await write_state(disk, path, partial(address_store.save, store.path.parent, found)):
            written = found
        else:
            pause_s = RETRY_S


async def _keep_learned(store: LastGoodStore, reconciler: Reconciler, disk: WriteFailures) -> None:
    written: Mapping[str, object] | None = None  # the first write replaces the state of the previous run
    written_s, path = -math.inf, store.path.with_name(learned_state.FILE_NAME)
    pause_s = _LOOK_EACH_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = _LOOK_EACH_S
        now_s = reconciler.clock()
        if (pools := _learned(reconciler, now_s)) is None:
            continue
        numbers = learned_state.comparable_numbers(pools)
        if numbers == written and (not pools or now_s - written_s < _RENEW_S):
            disk.record_success(path)
            continue
        if await write_state(disk, path, partial(learned_state.save, store.path.parent, pools, time.time())):
            written, written_s = numbers, now_s
        else:
            pause_s = RETRY_S


def _learned(reconciler: Reconciler, now_s: float) -> Mapping[str, Any] | None:
    """Learned state of the last round; None before the first.

    Only these numbers outlive the call: the loop must not hold a build while it sleeps, which would keep the
    policies and snapshots of a superseded round in memory.
    """
    if reconciler.built is None or not reconciler.ready.is_set():
        return None
    return learned_state.learned_state(reconciler.built.memory, now_s)


async def _keep_served(
    store: LastGoodStore,
    publisher: Publisher,
    reconciler: Reconciler,
    secrets: SecretDistributor,
    disk: WriteFailures,
) -> None:
    failing = False
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S if failing else None):
                await reconciler.worth_keeping.wait()
        reconciler.worth_keeping.clear()
        serving = reconciler.serving
        if serving is None or serving.stale:
            continue
        last_good = LastGood(
            texts=serving.texts,
            digest=serving.digest,
            proxies_by_role=dict(reconciler.proxy_counts.by_role.counts()),
            proxies_by_zone=dict(reconciler.proxy_counts.by_zone.counts()),
            saved_at_unix_s=time.time(),
            parked=publisher.nack_policy.rejections(),
            certified=secrets.certified(),
        )
        failing = not await write_state(disk, store.path, partial(store.save, last_good))
