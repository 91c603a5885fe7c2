"""What outlives the process: what is served is kept on disk when it changed, and taken up at the next start."""

import asyncio
import time
from pathlib import Path

import structlog

from policies.findings import PolicyErrors
from policies.load import load_contents
from xds_server.entrusted import Entrusted
from xds_server.metrics import Metrics
from xds_server.publish import Publisher
from xds_server.reconcile.loop import Reconciler
from xds_server.sources.files import Accepted
from xds_server.store import LastGood, Store, StoreError

_log = structlog.get_logger()


def restore(store: Store, publisher: Publisher, reconciler: Reconciler, entrusted: Entrusted) -> None:
    """Take up what the last run kept; what cannot be used is said and left alone."""
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
    store: Store, publisher: Publisher, reconciler: Reconciler, entrusted: Entrusted, metrics: Metrics
) -> None:
    """Keep what is served, each time it has changed; for ever."""
    failing = False
    while True:
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
            metrics.store_failures.inc()
            if not failing:
                _log.error("store.failed", reason=str(error))
            failing = True
        else:
            failing = False
