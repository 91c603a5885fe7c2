"""A scrape says everything, and holds nobody else up for all of it."""

import asyncio

from xds_server.metrics import Metrics
from xds_server.metrics.fleet_metrics import PoolMetrics


def without_process(page: bytes) -> list[bytes]:
    return [line for line in page.splitlines() if b"process_" not in line]


async def test_a_page_is_the_whole_text_and_others_have_turns_while_it_is_made() -> None:
    metrics = Metrics()
    metrics.nacks.labels(type="RDS").inc()
    metrics.observe(lambda: [PoolMetrics.pool_slots.family({("a",): 1.0, ("b",): 2.0})])
    families, turns = len(list(metrics.registry.collect())), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    page = await metrics.page()
    beside.cancel()
    assert without_process(page) == without_process(metrics.text())
    assert b'switchgear_pool_slots{pool="b"} 2.0' in page
    assert turns >= families > 20


async def test_a_page_is_of_one_moment() -> None:
    metrics = Metrics()
    page = asyncio.create_task(metrics.page())
    await asyncio.sleep(0)  # it has begun
    metrics.reconcile_failures.inc()
    assert b"switchgear_reconcile_failures_total 0.0" in await page
